from stretto.model import Allocation, JobId, no_placement
from stretto.testing.builders import a_cluster, grant

A, B = JobId("a"), JobId("b")


def test_a_placement_keeps_what_is_derived_from_it_up_to_date() -> None:
    before = no_placement(a_cluster(4, 4)).changed({A: grant(0, n0=2, n1=1)})
    assert before.jobs_on.tolist() == [1, 1]
    assert before.held_by_size.sum() == 0  # of a job on two nodes nothing is counted
    after = before.changed({A: grant(0, n1=3), B: Allocation(0, (0,), (0b110,))})
    assert after.free.tolist() == [2, 1]
    assert after.jobs_on.tolist() == [1, 1]
    assert after.held_by_size[2:4].tolist() == [[2, 0], [0, 3]]
    assert before.free.tolist() == [2, 3]
    fresh = no_placement(after.cluster).changed(dict(after))
    assert (fresh.free == after.free).all()
    assert (fresh.jobs_on == after.jobs_on).all()
    assert (fresh.held_by_size == after.held_by_size).all()


def test_a_placement_knows_whom_its_change_touched_and_no_other() -> None:
    first = no_placement(a_cluster(4)).changed({A: grant(0, n0=1)})
    second = first.changed({A: None, B: grant(0, n0=2)})
    assert second.touched_since(first) == (A, B)
    assert second.changed({B: None}).touched_since(first) is None
    assert first.touched_since(second) is None
