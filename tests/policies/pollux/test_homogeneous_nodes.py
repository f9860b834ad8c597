"""What Pollux is shown of nodes, and what becomes of its rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Allocation, GpuType, IntArray, JobId, cluster_of
from stretto.policies.pollux.homogeneous import (
    VirtualNodes,
    of_one_type,
    pin_of,
    rows_held,
    shrunk_to,
    virtual_nodes_of,
)
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

FAST, SLOW = GpuType("fast", speed=3.0), GpuType("slow", speed=1.0)
NARROW = GpuType("narrow", speed=2.0, max_nodes_per_job=1)


def shown(*nodes: int) -> VirtualNodes:
    return virtual_nodes_of(a_cluster(*nodes), np.ones(len(nodes), dtype=np.bool_))


def row(*gpus: int) -> IntArray:
    return np.array(gpus, dtype=np.int64)


@pytest.mark.parametrize(
    ("nodes", "parts", "owner"),
    [
        pytest.param((4, 4), [4, 4], [0, 1], id="equal nodes are shown as they are"),
        pytest.param((4, 8), [4, 4, 4], [0, 1, 1], id="a node twice as large is shown as two"),
        pytest.param((8, 12), [8, 8, 4], [0, 1, 1], id="a rest is a smaller node"),
    ],
)
def test_nodes_are_shown_in_parts_of_the_smallest(nodes: tuple[int, ...], parts: Any, owner: Any) -> None:
    view = shown(*nodes)
    assert (view.gpus.tolist(), view.node.tolist()) == (parts, owner)


def test_nodes_that_are_not_usable_are_not_shown_and_places_stay() -> None:
    cluster = a_cluster(4, 8, 4)
    every = virtual_nodes_of(cluster, np.array([True, True, True]))
    some = virtual_nodes_of(cluster, np.array([False, True, True]))
    assert some.node.tolist() == [1, 1, 2]
    assert some.place.tolist() == every.place[1:].tolist()


def test_parts_of_a_node_are_merged_into_a_pin() -> None:
    pin = pin_of(shown(4, 8), row(0, 3, 4))
    assert (pin.nodes, pin.gpus) == ((1,), (7,))
    assert pin_of(shown(4, 8), row(2, 0, 1)).gpus == (2, 1)


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [
        pytest.param(row(4, 2, 0), row(4, 0, 0), id="most GPUs"),
        pytest.param(row(4, 0, 4), row(0, 0, 4), id="a tie goes to the faster type"),
        pytest.param(row(0, 3, 3), row(0, 3, 3), id="one type is left alone"),
        pytest.param(row(0, 0, 0), row(0, 0, 0), id="nothing is left alone"),
    ],
)
def test_of_a_mixed_row_is_kept(gpus: IntArray, kept: IntArray) -> None:
    cluster = cluster_of("mixed", (SLOW, 1, 4), (FAST, 2, 4))
    view = virtual_nodes_of(cluster, np.ones(3, dtype=np.bool_))
    assert of_one_type(view, gpus).tolist() == kept.tolist()


def test_a_type_may_limit_the_nodes_of_a_job_and_the_fullest_are_kept() -> None:
    cluster = cluster_of("narrow", (NARROW, 2, 8), (SLOW, 1, 4))
    view = virtual_nodes_of(cluster, np.ones(3, dtype=np.bool_))
    assert of_one_type(view, row(3, 0, 2, 2, 0)).tolist() == [0, 0, 2, 2, 0]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(0, 50))
def test_shrinking_keeps_so_many_gpus_and_breaks_one_piece_at_most(pieces: list[int], gpus: int) -> None:
    before = row(*pieces)
    kept = shrunk_to(before, gpus)
    assert kept.sum() == min(gpus, before.sum())
    assert (kept <= before).all()
    assert ((kept > 0) & (kept < before)).sum() <= 1


def test_what_is_held_is_read_as_it_was_given() -> None:
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(4, 8), allocations={"a": grant(0, n1=4)})
    view = shown(4, 8)
    assert rows_held(snapshot, view, {JobId("a"): row(0, 2, 2)}).tolist() == [[0, 2, 2], [0, 0, 0]]
    assert rows_held(snapshot, view, {JobId("a"): row(4, 0, 0)}).tolist() == [[0, 4, 0], [0, 0, 0]]


def test_parts_are_never_filled_twice() -> None:
    held = {"a": Allocation(0, (1,), (0b111,)), "b": Allocation(0, (1,), (0b11111000,))}
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(4, 8), allocations=held)
    rows = rows_held(snapshot, shown(4, 8), {})
    assert rows.sum(axis=1).tolist() == [3, 5]
    assert (rows.sum(axis=0) <= [4, 4, 4]).all()


def test_what_was_given_on_larger_parts_fills_those_that_there_are_now() -> None:
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(1, 2), allocations={"a": grant(0, n1=2)})
    given_on_a_part_of_two = {JobId("a"): row(0, 2, 0)}
    assert rows_held(snapshot, shown(1, 2), given_on_a_part_of_two).tolist() == [[0, 1, 1]]
