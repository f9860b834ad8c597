from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import (
    Allocation,
    Cluster,
    JobId,
    Placement,
    Snapshot,
    powers_and_whole_nodes,
    virtual_nodes,
)
from stretto.place import WholeNodes
from stretto.place.draft import Draft
from stretto.place.evict import Movable, most_free_first, openable_first
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_held, shares_of


def where(placement: Placement) -> dict[str, dict[int, int]]:
    """GPUs by job and node."""
    return {str(job): dict(zip(held.nodes, held.shape, strict=True)) for job, held in placement.items()}


def some(node: int, first: int, gpus: int) -> Allocation:
    """GPUs `first`, `first + 1`, … of a node."""
    return Allocation(0, (node,), (((1 << gpus) - 1) << first,))


def settle(snapshot: Snapshot, asked: dict[str, int], evict: bool = True) -> dict[str, dict[int, int]]:
    """Where everybody is once these jobs have their new shares, and the others what they had."""
    placer = WholeNodes(evict)
    return where(placer.place(snapshot, shares_of(snapshot, shares_held(snapshot.placement) | asked)))


@pytest.mark.parametrize(
    ("cluster", "asked", "expected"),
    [
        pytest.param(
            a_cluster(8, 8, 8),
            {"part": 4, "small": 2, "nodes": 16},
            {"nodes": {1: 8, 2: 8}, "part": {0: 4}, "small": {0: 2}},
            id="whole nodes from the high end, parts from the low end",
        ),
        pytest.param(
            a_cluster(4, 4, 4), {"a": 6}, {"a": {1: 2, 2: 4}}, id="6 GPUs on nodes of 4 take two nodes"
        ),
        pytest.param(
            a_cluster(8, 8), {"a": 6, "b": 2}, {"a": {0: 6}, "b": {0: 2}}, id="6 on nodes of 8 stay together"
        ),
        pytest.param(
            a_cluster(8, 8, 8),
            {"a": 12, "b": 2},
            {"a": {1: 4, 2: 8}, "b": {1: 2}},
            id="12 on nodes of 8 take two",
        ),
        pytest.param(
            a_cluster(8, 8, 8),
            {"a": 12, "b": 12},
            {"a": {1: 4, 2: 8}},
            id="the rest of a job is not put beside the rest of another",
        ),
        pytest.param(
            a_cluster(12, 12), {"a": 10, "b": 2}, {"a": {0: 10}, "b": {0: 2}}, id="10 on a node of 12"
        ),
        pytest.param(
            a_cluster(12, 12),
            {"a": 4, "b": 8, "c": 4, "d": 8},
            {"b": {0: 8}, "d": {1: 8}, "a": {0: 4}, "c": {1: 4}},
            id="a node of 12 holds 8 and 4",
        ),
        pytest.param(
            a_cluster(8, 8), {"a": 6, "b": 6, "c": 4}, {"a": {0: 6}, "b": {1: 6}}, id="a part is never split"
        ),
    ],
)
def test_new_jobs_go(cluster: Cluster, asked: dict[str, int], expected: dict[str, dict[int, int]]) -> None:
    snapshot = a_snapshot(*(a_job(job) for job in asked), cluster=cluster)
    assert settle(snapshot, asked) == expected


def test_small_parts_of_odd_nodes_are_used_before_large_ones_are_broken() -> None:
    # Node 0 has 8 left, node 1 all 12 = 8 + 4: four GPUs leave both eights to others.
    snapshot = a_snapshot(
        a_job("a"), a_job("b"), cluster=a_cluster(12, 12), allocations={"a": grant(0, n0=4)}
    )
    assert settle(snapshot, {"b": 4}) == {"a": {0: 4}, "b": {1: 4}}


def test_whole_nodes_of_odd_size_are_counted_by_their_largest_part() -> None:
    snapshot = a_snapshot(a_job("a"), a_job("b", at_s=1), cluster=a_cluster(12, 12, 12))
    shares = shares_of(snapshot, {"a": 16, "b": 4}, nodes={"a": 2, "b": 1})
    assert where(WholeNodes().place(snapshot, shares)) == {"a": {1: 8, 2: 8}, "b": {1: 4}}


def test_a_job_of_several_nodes_grows_by_nodes_and_keeps_those_it_has() -> None:
    snapshot = a_snapshot(
        a_job("a"), a_job("b"), cluster=a_cluster(4, 4, 4, 4), allocations={"a": grant(0, n0=4, n2=4)}
    )
    assert settle(snapshot, {"a": 12, "b": 4}) == {"a": {0: 4, 2: 4, 3: 4}, "b": {1: 4}}


def test_a_job_that_shrinks_into_one_node_is_not_left_on_two() -> None:
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(8, 8), allocations={"a": grant(0, n0=4, n1=4)})
    assert settle(snapshot, {"a": 6}) == {"a": {0: 6}}


def test_a_fragmented_cluster_moves_as_few_jobs_as_it_takes() -> None:
    held = {"a": some(0, 0, 4), "b": some(1, 0, 2), "c": some(1, 4, 2), "d": some(2, 0, 1)}
    snapshot = a_snapshot(*(a_job(job) for job in "abcde"), cluster=a_cluster(8, 8, 8), allocations=held)
    after = WholeNodes().place(snapshot, shares_of(snapshot, shares_held(snapshot.placement) | {"e": 8}))
    assert where(after) == {"a": {0: 4}, "b": {1: 2}, "c": {1: 2}, "d": {0: 1}, "e": {2: 8}}
    assert all(after[JobId(job)] is held[job] for job in "abc")


def test_room_for_whole_nodes_is_made_where_fewest_jobs_have_to_move() -> None:
    held = {"a": some(0, 0, 2), "b": some(1, 0, 1), "c": some(1, 1, 1), "d": some(3, 0, 4)}
    snapshot = a_snapshot(*(a_job(job) for job in "abcde"), cluster=a_cluster(4, 4, 4, 4), allocations=held)
    assert settle(snapshot, {"e": 8}) == {
        "a": {1: 2},
        "b": {1: 1},
        "c": {1: 1},
        "d": {3: 4},
        "e": {0: 4, 2: 4},
    }


def test_without_eviction_a_job_waits_for_its_shape() -> None:
    held = {"a": grant(0, n0=1), "b": grant(0, n1=1)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(4, 4), allocations=held)
    assert settle(snapshot, {"c": 4}, evict=False) == where(snapshot.placement)
    assert set(settle(snapshot, {"c": 4})) == {"a", "b", "c"}


def test_a_job_that_may_not_be_stopped_is_not_moved() -> None:
    held = {"a": grant(0, n0=1), "b": grant(0, n1=2)}
    jobs = [a_job("a", preemptible=False), a_job("b"), a_job("c")]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4, 4), allocations=held)
    assert settle(snapshot, {"c": 4}) == {"a": {0: 1}, "b": {0: 2}, "c": {1: 4}}
    fixed = a_snapshot(a_job("a", preemptible=False), a_job("b", preemptible=False), a_job("c"),
                       cluster=a_cluster(4, 4), allocations=held)  # fmt: skip
    assert settle(fixed, {"c": 4}) == where(fixed.placement)


def test_nobody_is_moved_in_vain() -> None:
    # c could have node 1 if b found room on node 0, where five are taken: nothing may change.
    held = {"a": grant(0, n0=5), "b": grant(0, n1=4)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(8, 8), allocations=held)
    assert settle(snapshot, {"c": 7}) == where(snapshot.placement)


NAMES = [f"j{index}" for index in range(14)]


@given(data=st.data(), node_gpus=st.sampled_from([1, 2, 4, 8, 16]), nodes=st.integers(1, 6))
def test_every_valid_set_of_shares_is_placed_in_full(data: st.DataObject, node_gpus: int, nodes: int) -> None:
    """Sia, section 3.3: its configurations within the capacity always have a placement."""
    _every_valid_set_is_placed(data, a_cluster(*[node_gpus] * nodes))


@given(data=st.data(), sizes=st.lists(st.sampled_from([3, 4, 6, 8, 12]), min_size=1, max_size=5))
def test_so_are_those_on_odd_and_mixed_nodes_if_each_size_fits_the_virtual_nodes(
    data: st.DataObject, sizes: list[int]
) -> None:
    _every_valid_set_is_placed(data, a_cluster(*sizes))


def _every_valid_set_is_placed(data: st.DataObject, cluster: Cluster) -> None:
    jobs = [a_job(name, at_s=index) for index, name in enumerate(NAMES)]
    snapshot = a_snapshot(*jobs, cluster=cluster)
    configurations = powers_and_whole_nodes(cluster)
    for _ in range(4):
        columns = data.draw(
            st.lists(st.integers(-1, len(configurations) - 1), min_size=len(NAMES), max_size=len(NAMES))
        )
        asked, on_nodes = _valid(cluster, columns)
        order = data.draw(st.none() | st.permutations(NAMES))
        shares = shares_of(snapshot, asked, nodes=on_nodes, order=order)
        after = WholeNodes().place(snapshot, shares)
        assert shares_held(after) == asked
        assert all(len(held.nodes) == on_nodes[job] for job, held in after.items())
        large = [node for held in after.values() if len(held.nodes) > 1 for node in held.nodes]
        assert len(large) == len(set(large))
        for job, held in after.items():
            before = snapshot.placement.get(job)
            if before is not None and len(before.nodes) > 1 and before.gpus == held.gpus:
                assert held is before  # only jobs within a node ever have to move
        snapshot = a_snapshot(
            *jobs, cluster=cluster, allocations={str(job): held for job, held in after.items()}
        )


def _valid(cluster: Cluster, columns: list[int]) -> tuple[dict[str, int], dict[str, int]]:
    """The jobs, one by one, as long as the virtual nodes of each size and above have room for their parts."""
    configurations = powers_and_whole_nodes(cluster)
    parts = [part for gpus in cluster.node_gpus.tolist() for part in virtual_nodes(gpus)]
    sizes = sorted(set(parts) | {1, 2, 4, 8, 16})
    room = {size: sum(part for part in parts if part >= size) for size in sizes}
    asked, on_nodes = {}, {}
    for name, column in zip(NAMES, columns, strict=True):
        if column < 0:
            continue
        gpus, nodes = int(configurations.gpus[column]), int(configurations.nodes[column])
        if all(room[size] >= gpus for size in sizes if size <= gpus // nodes):
            asked[name], on_nodes[name] = gpus, nodes
            for size in sizes:
                room[size] -= gpus if size <= gpus // nodes else 0
    return asked, on_nodes


@given(seed=st.integers(0, 100_000))
def test_rigid_jobs_of_any_size_keep_together_and_to_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = a_cluster(*[int(rng.choice([4, 8]))] * 5)
    names = NAMES[:10]
    jobs = [a_job(name, gpus=int(rng.integers(1, 21)), at_s=at_s) for at_s, name in enumerate(names)]
    snapshot = a_snapshot(*jobs, cluster=cluster)
    for _ in range(3):
        turn = rng.permutation(len(names))
        left, asked = cluster.total_gpus, {}
        for row in turn.tolist():
            if jobs[row].gpus <= left and rng.random() < 0.7:
                asked[names[row]] = jobs[row].gpus
                left -= jobs[row].gpus
        after = WholeNodes().place(snapshot, shares_of(snapshot, asked))
        node_gpus = int(cluster.gpus_per_node[0])
        large = [node for held in after.values() if len(held.nodes) > 1 for node in held.nodes]
        assert len(large) == len(set(large))
        for job, held in after.items():
            assert held.gpus == asked[job]
            assert len(held.nodes) == -(-held.gpus // node_gpus)
        kept = {job for job, held in snapshot.placement.items() if asked.get(job) == held.gpus}
        assert kept <= set(after)  # nobody loses GPUs for a newcomer
        snapshot = a_snapshot(
            *jobs, cluster=cluster, allocations={str(job): held for job, held in after.items()}
        )


def test_a_lost_node_is_never_a_place_to_move_to() -> None:
    held = {"a": grant(0, n0=1), "b": grant(0, n1=1)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(4, 4, 4), allocations=held)
    without = replace(snapshot, usable=np.array([True, True, False]))
    assert settle(without, {"c": 4}) == {"a": {1: 1}, "b": {1: 1}, "c": {0: 4}}


@given(
    parts=st.lists(st.lists(st.sampled_from([1, 2, 4]), max_size=2), min_size=5, max_size=5),
    size=st.sampled_from([1, 2, 4, 8]),
    from_the_end=st.booleans(),
)
def test_no_node_that_could_be_opened_is_passed_over(
    parts: list[list[int]], size: int, from_the_end: bool
) -> None:
    allocations = {
        f"{node}-{number}": some(node, sum(sizes[:number]), gpus)
        for node, sizes in enumerate(parts)
        for number, gpus in enumerate(sizes)
    } | {"wide": Allocation(0, (5, 6), (0xFF, 0xFF))}
    jobs = [a_job(name, gpus=held.gpus) for name, held in allocations.items()]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(*[8] * 7), allocations=allocations)
    draft = Draft(snapshot)
    who = Movable(snapshot, shares_of(snapshot, shares_held(snapshot.placement)))
    for job in (jobs[0].id, jobs[-1].id):
        nodes = list(openable_first(draft, 0, size, from_the_end))
        assert nodes == [
            node
            for node in most_free_first(draft, 0, size, from_the_end)
            if draft.free[node] + sum(victim[1] for victim in who.victims_on(draft, node, size)) >= size
        ]
        draft.lift(job)  # steps of the draft count, too
