import pytest

from stretto.model import JobId, no_speeds
from stretto.place.consolidate import Consolidated, Relaxed
from stretto.place.fill import Placer
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.fifo import FirstInFirstOut
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant
from stretto.testing.play import play

JOBS = [a_job("a", 4), a_job("b", 2), a_job("c", 2)]
DURATION_S = {"a": 10.0, "b": 3.0, "c": 5.0}


def test_jobs_are_served_by_arrival() -> None:
    played = play(FirstInFirstOut(), DURATION_S, JOBS, a_cluster(4))
    assert played.decisions[:2] == ((0.0, {"a": 4}), (10.0, {"b": 2, "c": 2}))
    assert played.ended_s == {"a": 10.0, "b": 13.0, "c": 15.0}
    assert sum(played.ended_s.values()) / 3 == pytest.approx(12.6667, abs=5e-5)


@pytest.mark.parametrize(
    ("skip", "started"),
    [
        pytest.param(False, set(), id="strictly, the first that does not fit holds up the rest"),
        pytest.param(True, {"small"}, id="with skip, what fits passes it"),
    ],
)
def test_fifo_starts(skip: bool, started: set[str]) -> None:
    jobs = [a_job("runs", 2), a_job("large", 4, at_s=1), a_job("small", 2, at_s=2)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4), allocations={"runs": grant(0, n0=2)})
    shares = FirstInFirstOut(skip=skip).allocate(snapshot, no_speeds(3, 1, NO_CONFIGURATIONS))
    assert {job for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True) if gpus} == {
        "runs"
    } | started


def test_equal_submissions_are_served_by_job_id() -> None:
    snapshot = a_snapshot(a_job("b", 4), a_job("a", 4), cluster=a_cluster(4))
    shares = FirstInFirstOut().allocate(snapshot, no_speeds(2, 1, NO_CONFIGURATIONS))
    assert dict(zip(snapshot.jobs.ids, shares.gpus.tolist(), strict=True)) == {"a": 4, "b": 0}


@pytest.mark.parametrize(
    ("placer", "starts"),
    [
        pytest.param(Consolidated(), set(), id="no whole node is free: it waits, and keeps its number"),
        pytest.param(Relaxed(), {"large"}, id="anywhere"),
    ],
)
def test_a_job_that_fits_by_number_alone_holds_up_the_others_unless_it_may_be_anywhere(
    placer: Placer, starts: set[str]
) -> None:
    jobs = [a_job("a", 4), a_job("b", 4), a_job("large", 8, at_s=1), a_job("small", 1, at_s=2)]
    held = {"a": grant(0, n0=4), "b": grant(0, n1=4)}
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8, 8), allocations=held)
    shares = FirstInFirstOut(skip=True).allocate(snapshot, no_speeds(4, 1, NO_CONFIGURATIONS))
    assert set(placer.place(snapshot, shares)) == {JobId("a"), JobId("b"), *map(JobId, starts)}
