"""Placers keep workers of several GPUs whole where the world asks for it."""

from dataclasses import replace

import pytest

from stretto.model import Adaptivity, Allocation, Constraints, GpuType, Job, JobId, Pinned, cluster_of
from stretto.place.registry import PLACERS, load_placer
from stretto.place.shapes import pieces
from stretto.testing.builders import a_job, a_snapshot, shares_of

WHOLE = Constraints(whole_workers=True)
TWO = cluster_of("two", (GpuType("a100"), 2, 4))
A = JobId("a")
THREE = cluster_of("three", (GpuType("a100"), 3, 4))


def elastic(name: str, least: int, most: int) -> Job:
    sizes = {"min_gpus": least, "max_gpus": most, "gpus_per_worker": 3}
    return a_job(name, least, adaptivity=Adaptivity.STRONG_SCALING, **sizes)


@pytest.mark.parametrize(
    ("gpus", "nodes", "node_gpus", "each", "expected"),
    [
        pytest.param(6, 0, 4, 3, (3, 3), id="as few nodes as can be"),
        pytest.param(9, 0, 8, 3, (6, 3), id="several workers on a node"),
        pytest.param(12, 3, 8, 3, (6, 3, 3), id="evenly on more nodes"),
        pytest.param(12, 2, 4, 3, (), id="too few nodes"),
        pytest.param(6, 0, 2, 3, (), id="nodes smaller than a worker"),
        pytest.param(6, 0, 4, 1, (4, 2), id="workers of one GPU"),
    ],
)
def test_pieces_are_whole_workers(
    gpus: int, nodes: int, node_gpus: int, each: int, expected: tuple[int, ...]
) -> None:
    assert pieces(gpus, nodes, node_gpus, each) == expected


@pytest.mark.parametrize("name", PLACERS)
def test_each_node_has_whole_workers(name: str) -> None:
    snapshot = replace(a_snapshot(elastic("a", 6, 6), cluster=TWO), constraints=WHOLE)
    assert load_placer(name).place(snapshot, shares_of(snapshot, {"a": 6}))[A].shape == (3, 3)


@pytest.mark.parametrize("name", PLACERS)
def test_where_not_all_have_room_a_job_has_fewer_workers_or_waits(name: str) -> None:
    snapshot = replace(a_snapshot(elastic("a", 3, 12), cluster=THREE), constraints=WHOLE)
    assert load_placer(name).place(snapshot, shares_of(snapshot, {"a": 12}))[A].shape == (3, 3, 3)
    snapshot = replace(a_snapshot(elastic("a", 12, 12), cluster=THREE), constraints=WHOLE)
    assert A not in load_placer(name).place(snapshot, shares_of(snapshot, {"a": 12}))


@pytest.mark.parametrize("name", PLACERS)
def test_a_job_that_runs_on_fewer_workers_stays_until_more_have_room(name: str) -> None:
    held = Allocation(0, (0, 1, 2), (0b111, 0b111, 0b111))
    snapshot = a_snapshot(elastic("a", 3, 12), cluster=THREE, allocations={"a": held})
    snapshot = replace(snapshot, constraints=WHOLE)
    assert load_placer(name).place(snapshot, shares_of(snapshot, {"a": 12})) == snapshot.placement


def test_a_pin_that_breaks_a_worker_is_no_pin() -> None:
    snapshot = replace(a_snapshot(elastic("a", 6, 6), cluster=TWO), constraints=WHOLE)
    shares = shares_of(snapshot, {"a": 6}, pinned={"a": Pinned((0, 1), (4, 2))})
    assert load_placer("pinned").place(snapshot, shares)[A].shape == (3, 3)


def test_where_the_world_does_not_ask_for_it_workers_are_cut() -> None:
    snapshot = a_snapshot(elastic("a", 6, 6), cluster=TWO)
    assert load_placer("consolidated").place(snapshot, shares_of(snapshot, {"a": 6}))[A].shape == (4, 2)
