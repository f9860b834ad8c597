import pytest

from stretto.model import Allocation, JobId
from stretto.place import Spread
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_held, shares_of

TWO_ON_THE_FIRST = {"a": grant(0, n0=1), "b": Allocation(0, (0,), (0b10,)), "c": grant(0, n1=3)}


@pytest.mark.parametrize(
    ("held", "gpus", "expected"),
    [
        pytest.param(TWO_ON_THE_FIRST, 1, {1: 1}, id="the node with fewest jobs, however full"),
        pytest.param(TWO_ON_THE_FIRST, 2, {0: 2}, id="of those that have room"),
        pytest.param({"a": grant(0, n0=1), "b": grant(0, n1=2)}, 1, {0: 1}, id="most free breaks ties"),
        pytest.param({"a": grant(0, n1=3)}, 5, {0: 4, 1: 1}, id="over nodes where none has room for all"),
        pytest.param(TWO_ON_THE_FIRST, 4, {}, id="not at all where too few are free"),
    ],
)
def test_spread_puts_a_new_job(held: dict[str, Allocation], gpus: int, expected: dict[int, int]) -> None:
    snapshot = a_snapshot(
        *(a_job(job) for job in held), a_job("new", at_s=1), cluster=a_cluster(4, 4), allocations=held
    )
    after = Spread().place(snapshot, shares_of(snapshot, shares_held(snapshot.placement) | {"new": gpus}))
    grants = after.get(JobId("new"))
    assert (dict(zip(grants.nodes, grants.shape, strict=True)) if grants else {}) == expected


def test_jobs_of_one_decision_are_counted_as_they_come() -> None:
    jobs = [a_job(f"j{index}", at_s=index) for index in range(4)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4, 4))
    after = Spread().place(snapshot, shares_of(snapshot, {str(job.id): 1 for job in jobs}))
    assert [after[job.id].nodes for job in jobs] == [(0,), (1,), (0,), (1,)]
    assert after.jobs_on.tolist() == [2, 2]
