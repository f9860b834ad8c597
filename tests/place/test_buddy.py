import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Allocation, JobId, Placement, Snapshot
from stretto.place import Buddy
from stretto.place.buddy import free_cells
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_held, shares_of


def cells(placement: Placement) -> list[int]:
    """Sizes of all free cells, largest first."""
    nodes = zip(placement.cluster.node_gpus.tolist(), placement.busy.tolist(), strict=True)
    return sorted(
        (size for gpus, busy in nodes for size in free_cells(((1 << gpus) - 1) & ~busy)), reverse=True
    )


def one_by_one(placer: Buddy, snapshot: Snapshot, asked: list[tuple[str, int]]) -> Snapshot:
    """The snapshot after decisions that each add one job, or end it (0 GPUs)."""
    jobs = [snapshot.jobs[row] for row in range(len(snapshot.jobs))]
    for job, gpus in asked:
        wanted = shares_held(snapshot.placement) | {job: gpus}
        after = placer.place(snapshot, shares_of(snapshot, wanted))
        held = {str(name): allocation for name, allocation in after.items()}
        snapshot = a_snapshot(*jobs, cluster=snapshot.cluster, allocations=held)
    return snapshot


def test_cells_split_on_request_and_merge_when_freed() -> None:
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(8))
    seen = []
    for step in [("a", 1), ("b", 2), ("c", 4), ("a", 0), ("b", 0), ("c", 0)]:
        snapshot = one_by_one(Buddy(), snapshot, [step])
        seen.append(cells(snapshot.placement))
    assert seen == [[4, 2, 1], [4, 1], [1], [2], [4], [8]]


@pytest.mark.parametrize(
    ("free", "sizes"),
    [
        (0b11111111, (8,)),
        (0b11111110, (4, 2, 1)),
        (0b01111110, (2, 2, 1, 1)),
        (0b111111111111, (8, 4)),
        (0b00111100, (2, 2)),
        (0, ()),
        ((1 << 62) - 1, (32, 16, 8, 4, 2)),
    ],
)
def test_free_cells_are_the_largest_aligned_blocks(free: int, sizes: tuple[int, ...]) -> None:
    assert free_cells(free) == sizes


@pytest.mark.parametrize(
    ("held", "gpus", "expected"),
    [
        pytest.param([0b1, 0], 4, Allocation(0, (0,), (0b11110000,)), id="the smallest sufficient cell"),
        pytest.param([0b1, 0], 8, Allocation(0, (1,), (0b11111111,)), id="a whole node"),
        pytest.param([0b1, 0b1], 1, Allocation(0, (0,), (0b10,)), id="lowest address first"),
        pytest.param(
            [0b00011000, 0], 4, Allocation(0, (1,), (0b1111,)), id="free GPUs that make no cell do not count"
        ),
        pytest.param([0b1, 0], 3, Allocation(0, (0,), (0b01110000,)), id="three of a cell of four"),
        pytest.param([0b1, 0], 6, Allocation(0, (1,), (0b00111111,)), id="six of a cell of eight"),
        pytest.param([0, 0], 12, Allocation(0, (0, 1), (0b11111111, 0b1111)), id="a whole node and a cell"),
        pytest.param([0b1, 0b1], 8, None, id="no cell, no place"),
        pytest.param([0b10001000, 0b10001000], 3, None, id="nor a part of a cell that is not free"),
    ],
)
def test_a_request_gets(held: list[int], gpus: int, expected: Allocation | None) -> None:
    others = {f"on{node}": Allocation(0, (node,), (mask,)) for node, mask in enumerate(held) if mask}
    jobs = [a_job(name, preemptible=False) for name in others]
    snapshot = a_snapshot(*jobs, a_job("new"), cluster=a_cluster(8, 8), allocations=others)
    asked = shares_held(snapshot.placement) | {"new": gpus}
    assert Buddy().place(snapshot, shares_of(snapshot, asked)).get(JobId("new")) == expected


def test_with_split_a_request_takes_binary_cells_wherever_they_are() -> None:
    # Three nodes of 8 and four jobs of 6: the smallest sufficient cells for 4 + 2 fill the nodes.
    jobs = [a_job(f"j{index}", gpus=6, at_s=index) for index in range(4)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8, 8, 8))
    shares = shares_of(snapshot, {str(job.id): 6 for job in jobs})
    assert shares_held(Buddy(split=True).place(snapshot, shares)) == {str(job.id): 6 for job in jobs}
    assert len(Buddy(split=False).place(snapshot, shares)) == 3


def test_a_node_whose_size_is_no_power_of_two_is_given_whole_to_those_who_ask_so_much() -> None:
    snapshot = a_snapshot(a_job("a"), a_job("b", at_s=1), cluster=a_cluster(12, 12))
    after = Buddy().place(snapshot, shares_of(snapshot, {"a": 12, "b": 8}))
    assert after[JobId("a")] == Allocation(0, (0,), ((1 << 12) - 1,))
    assert after[JobId("b")] == Allocation(0, (1,), ((1 << 8) - 1,))


def test_a_growing_job_takes_in_its_buddy() -> None:
    held = {"a": Allocation(0, (1,), (0b1100,))}
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(8, 8), allocations=held)
    after = Buddy().place(snapshot, shares_of(snapshot, {"a": 4}))
    assert after[JobId("a")] == Allocation(0, (1,), (0b1111,))


def test_smaller_jobs_move_to_merge_a_cell_as_few_as_can_be() -> None:
    held = {"a": grant(0, n0=1), "b": Allocation(0, (0,), (0b00110000,)), "c": grant(0, n1=1)}
    snapshot = a_snapshot(*(a_job(job) for job in "abcd"), cluster=a_cluster(8, 8), allocations=held)
    asked = shares_held(snapshot.placement) | {"d": 8}
    after = Buddy().place(snapshot, shares_of(snapshot, asked))
    assert after[JobId("d")] == Allocation(0, (1,), (0b11111111,))
    assert after[JobId("c")].nodes == (0,)
    assert all(after[job] is snapshot.placement[job] for job in (JobId("a"), JobId("b")))
    assert JobId("d") not in Buddy(migrate=False).place(snapshot, shares_of(snapshot, asked))


sizes_of_cells = st.sampled_from([1, 2, 4, 8])


@given(asked=st.lists(sizes_of_cells | st.sampled_from([16, 24]), max_size=30), nodes=st.integers(1, 5))
def test_from_an_empty_cluster_everything_finds_a_cell_while_the_count_lasts(
    asked: list[int], nodes: int
) -> None:
    jobs = [a_job(f"j{index}", at_s=index) for index in range(len(asked))]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(*[8] * nodes))
    left, wanted = 8 * nodes, {}
    for job, gpus in zip(jobs, asked, strict=True):
        if gpus <= 8 and gpus <= left:  # several whole cells need whole nodes free: those come first below
            wanted[str(job.id)] = gpus
            left -= gpus
    order = list(wanted)
    after = Buddy(migrate=False).place(snapshot, shares_of(snapshot, wanted, order=order))
    assert shares_held(after) == wanted


@given(asked=st.lists(sizes_of_cells | st.sampled_from([16, 24]), max_size=30), nodes=st.integers(1, 5))
def test_larger_first_places_whole_nodes_too(asked: list[int], nodes: int) -> None:
    jobs = [a_job(f"j{index}", at_s=index) for index in range(len(asked))]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(*[8] * nodes))
    wanted = within(8 * nodes, [(str(job.id), gpus) for job, gpus in zip(jobs, asked, strict=True)])
    assert shares_held(Buddy(migrate=False).place(snapshot, shares_of(snapshot, wanted))) == wanted


@given(data=st.data(), nodes=st.integers(1, 4))
def test_by_migration_everything_always_finds_a_cell_while_the_count_lasts(
    data: st.DataObject, nodes: int
) -> None:
    names = [f"j{index}" for index in range(12)]
    jobs = [a_job(name, at_s=index) for index, name in enumerate(names)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(*[8] * nodes))
    for _ in range(4):
        sizes = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16]), min_size=12, max_size=12))
        wanted = within(8 * nodes, list(zip(names, sizes, strict=True)))
        order = data.draw(st.none() | st.permutations(names))
        after = Buddy().place(snapshot, shares_of(snapshot, wanted, order=order))
        assert shares_held(after) == wanted
        assert all(in_one_cell(mask) for held in after.values() for mask in held.masks)
        held = {str(job): allocation for job, allocation in after.items()}
        snapshot = a_snapshot(*jobs, cluster=snapshot.cluster, allocations=held)


def in_one_cell(mask: int) -> bool:
    size, first = mask.bit_count(), (mask & -mask).bit_length() - 1
    return mask == ((1 << size) - 1) << first and first % size == 0


def within(capacity: int, asked: list[tuple[str, int]]) -> dict[str, int]:
    """Those who ask, one by one, as long as GPUs are left."""
    wanted = {}
    for job, gpus in asked:
        if 0 < gpus <= capacity:
            wanted[job] = gpus
            capacity -= gpus
    return wanted
