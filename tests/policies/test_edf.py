from math import inf

import pytest

from stretto.model import Job, Reward, no_speeds
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.edf import EarliestDeadlineFirst
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant
from stretto.testing.play import play


def due(name: str, deadline_s: float, gpus: int = 4, at_s: float = 0.0) -> Job:
    return a_job(name, gpus, at_s=at_s, rewards=(Reward(deadline_s, 100.0),) if deadline_s < inf else ())


def test_jobs_are_served_by_deadline() -> None:
    jobs = [due("a", 30.0), due("b", 8.0)]
    played = play(EarliestDeadlineFirst(), {"a": 10.0, "b": 5.0}, jobs, a_cluster(4))
    assert played.decisions[:2] == ((0.0, {"b": 4}), (5.0, {"a": 4}))
    assert played.ended_s == {"b": 5.0, "a": 15.0}


@pytest.mark.parametrize(
    ("held_deadline_s", "new_deadline_s", "preemptive", "winner"),
    [
        pytest.param(30.0, 20.0, True, "new", id="a nearer deadline stops the running job"),
        pytest.param(30.0, 20.0, False, "runs", id="unless nobody may be stopped"),
        pytest.param(30.0, 30.0, True, "runs", id="equal deadlines go by submission"),
        pytest.param(inf, 9e9, True, "new", id="any deadline comes before none"),
        pytest.param(inf, inf, True, "runs", id="without deadlines it is first come, first served"),
    ],
)
def test_edf_gives_the_gpus_to(
    held_deadline_s: float, new_deadline_s: float, preemptive: bool, winner: str
) -> None:
    jobs = [due("runs", held_deadline_s), due("new", new_deadline_s, at_s=1.0)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4), allocations={"runs": grant(0, n0=4)}, now_s=1.0)
    policy = EarliestDeadlineFirst(preemptive=preemptive)
    shares = policy.allocate(snapshot, no_speeds(2, 1, NO_CONFIGURATIONS))
    assert [job for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True) if gpus] == [winner]


def test_what_does_not_fit_is_skipped() -> None:
    jobs = [due("near", 5.0, gpus=3), due("nearer", 4.0, gpus=2), due("far", 6.0, gpus=2)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4))
    shares = EarliestDeadlineFirst().allocate(snapshot, no_speeds(3, 1, NO_CONFIGURATIONS))
    assert dict(zip(snapshot.jobs.ids, shares.gpus.tolist(), strict=True)) == {
        "far": 2,
        "near": 0,
        "nearer": 2,
    }
