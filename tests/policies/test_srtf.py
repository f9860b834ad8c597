import numpy as np
import pytest

from stretto.model import Durations, Kind, NotDeclared, View, no_speeds
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.srtf import (
    QuasiShortestServiceFirst,
    ShortestRemainingServiceFirst,
    ShortestRemainingTimeFirst,
)
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant
from stretto.testing.play import play


def served(
    policy: ShortestRemainingTimeFirst,
    remaining_s: tuple[float, float],
    preemptible: bool = True,
    estimated_s: tuple[float, float] | None = None,
) -> str:
    """Who has GPUs: `runs` holds 4 of 4 GPUs, `waits` came later and asks for 2."""
    jobs = [a_job("runs", 4, preemptible=preemptible), a_job("waits", 2, at_s=1)]
    true, believed = np.array(remaining_s), np.array(estimated_s or remaining_s)
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(4),
        allocations={"runs": grant(0, n0=4)},
        known_durations=Durations(true, true),
        known_estimates=Durations(believed, believed),
    )
    shares = policy.allocate(snapshot.limited_to(policy.views), no_speeds(2, 1, NO_CONFIGURATIONS))
    return " ".join(job for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True) if gpus)


def test_srtf_stops_the_longer_job_for_the_shorter() -> None:
    jobs = [a_job("a", 4), a_job("b", 4, at_s=4)]
    played = play(load_policy("srtf"), {"a": 10.0, "b": 2.0}, jobs, a_cluster(4))
    assert played.decisions[:3] == ((0.0, {"a": 4}), (4.0, {"b": 4}), (6.0, {"a": 4}))
    assert {job: end - at for (job, end), at in zip(sorted(played.ended_s.items()), (0, 4), strict=True)} == {
        "a": 12.0,
        "b": 2.0,
    }


@pytest.mark.parametrize(
    ("policy", "remaining_s", "winner"),
    [
        pytest.param(ShortestRemainingTimeFirst(), (10.0, 9.0), "waits", id="less time left goes first"),
        pytest.param(ShortestRemainingTimeFirst(), (10.0, 10.0), "runs", id="a tie keeps the running job"),
        pytest.param(ShortestRemainingTimeFirst(), (10.0, 19.0), "runs", id="time alone ignores the GPUs"),
        pytest.param(ShortestRemainingServiceFirst(), (10.0, 19.0), "waits", id="service counts them"),
        pytest.param(
            ShortestRemainingServiceFirst(), (10.0, 20.0), "runs", id="a tie in service keeps it too"
        ),
        pytest.param(
            QuasiShortestServiceFirst(), (10.0, 1.0), "runs", id="without preemption nobody is stopped"
        ),
    ],
)
def test_the_gpus_go_to(
    policy: ShortestRemainingTimeFirst, remaining_s: tuple[float, float], winner: str
) -> None:
    assert served(policy, remaining_s) == winner


def test_a_job_that_may_not_be_preempted_is_not() -> None:
    assert served(ShortestRemainingTimeFirst(), (10.0, 1.0), preemptible=False) == "runs"


def test_estimates_are_believed_only_where_declared() -> None:
    truth_says_waits, estimates_say_runs = (10.0, 9.0), (10.0, 11.0)
    believing = ShortestRemainingTimeFirst(estimated=True)
    assert served(believing, truth_says_waits, estimated_s=estimates_say_runs) == "runs"
    assert served(ShortestRemainingTimeFirst(), truth_says_waits, estimated_s=estimates_say_runs) == "waits"
    assert believing.views == {View.ESTIMATED_DURATION}
    only_truth = a_snapshot(
        a_job("a"), cluster=a_cluster(1), known_durations=Durations(np.ones(1), np.ones(1))
    )
    with pytest.raises(NotDeclared, match="estimated_duration"):
        believing.allocate(only_truth, no_speeds(1, 1, NO_CONFIGURATIONS))


def test_qssf_starts_the_smallest_predicted_service_first() -> None:
    jobs = [a_job("wide", 4), a_job("long", 1)]
    known = Durations(np.array([50.0, 10.0]), np.array([50.0, 10.0]))  # by row: long 50 GPU-s, wide 40
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4), known_estimates=known)
    assert snapshot.jobs.ids == ("long", "wide")
    shares = QuasiShortestServiceFirst().allocate(snapshot, no_speeds(2, 1, NO_CONFIGURATIONS))
    assert shares.gpus.tolist() == [0, 4]


def test_interactive_jobs_may_come_before_all_others_and_stop_them() -> None:
    jobs = [a_job("long", 4), a_job("user", 4, at_s=4, kind=Kind.INTERACTIVE), a_job("short", 4, at_s=4)]
    lengths = {"long": 10.0, "user": 50.0, "short": 2.0}
    played = play(load_policy("srtf", interactive_first=True), lengths, jobs, a_cluster(4))
    assert played.ended_s == {"user": 54.0, "short": 56.0, "long": 62.0}
    assert play(load_policy("srtf"), lengths, jobs, a_cluster(4)).ended_s["user"] == 62.0
