import numpy as np
import pytest

from stretto.model import Durations, no_speeds
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.sjf import ShortestJobFirst
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant
from stretto.testing.play import play


def test_jobs_are_served_by_duration() -> None:
    jobs = [a_job("a", 4), a_job("b", 2), a_job("c", 2)]
    played = play(ShortestJobFirst(), {"a": 10.0, "b": 3.0, "c": 5.0}, jobs, a_cluster(4))
    assert played.decisions[:3] == ((0.0, {"b": 2, "c": 2}), (3.0, {"c": 2}), (5.0, {"a": 4}))
    assert played.ended_s == {"a": 15.0, "b": 3.0, "c": 5.0}
    assert sum(played.ended_s.values()) / 3 == pytest.approx(7.6667, abs=5e-5)


@pytest.mark.parametrize(
    ("gpus", "duration_s", "skip", "first"),
    [
        pytest.param((4, 4), (20.0, 10.0), False, "b", id="the shorter one goes first"),
        pytest.param((4, 3), (10.0, 10.0), False, "b", id="of equals the one that asks for less"),
        pytest.param((4, 4), (10.0, 10.0), False, "a", id="of full equals the earlier one"),
        pytest.param(
            (4, 6), (20.0, 10.0), False, None, id="strictly, nobody passes it where it does not fit"
        ),
        pytest.param((4, 6), (20.0, 10.0), True, "a", id="with skip, what fits passes it"),
    ],
)
def test_sjf_starts(
    gpus: tuple[int, int], duration_s: tuple[float, float], skip: bool, first: str | None
) -> None:
    jobs = [a_job("runs", 4), a_job("a", gpus[0], at_s=1), a_job("b", gpus[1], at_s=2)]
    duration = np.array((1.0, *duration_s))
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(8),
        allocations={"runs": grant(0, n0=4)},
        known_durations=Durations(duration, duration),
    )
    shares = ShortestJobFirst(skip=skip).allocate(snapshot, no_speeds(3, 1, NO_CONFIGURATIONS))
    served = [job for job, given in zip(snapshot.jobs.ids, shares.gpus, strict=True) if given]
    assert served == ["runs", *([first] if first else [])]
