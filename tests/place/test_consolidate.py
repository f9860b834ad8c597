from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Allocation, JobId, Placement
from stretto.place import Consolidated, Relaxed
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_held, shares_of


def new_job_on(
    *nodes: tuple[int, int], gpus: int, at_least: int = 0, placer: Consolidated | Relaxed
) -> dict[int, int]:
    """Where a job of so many GPUs goes on nodes of (GPUs, GPUs held by others)."""
    held = {f"on{node}": grant(0, **{f"n{node}": taken}) for node, (_, taken) in enumerate(nodes) if taken}
    others = [a_job(name) for name in held]
    snapshot = a_snapshot(
        *others, a_job("new", at_s=1), cluster=a_cluster(*(size for size, _ in nodes)), allocations=held
    )
    asked = shares_held(snapshot.placement) | {"new": gpus}
    after = placer.place(snapshot, shares_of(snapshot, asked, nodes={"new": at_least}))
    grants = after.get(JobId("new"))
    return dict(zip(grants.nodes, grants.shape, strict=True)) if grants else {}


@pytest.mark.parametrize(
    ("nodes", "gpus", "stated_nodes", "expected"),
    [
        pytest.param([(8, 0), (8, 5), (8, 2)], 3, 0, {1: 3}, id="the tightest node that fits"),
        pytest.param([(8, 0), (8, 5), (8, 2)], 4, 0, {2: 4}, id="tight ones that do not fit are passed"),
        pytest.param([(8, 4), (8, 4)], 4, 0, {0: 4}, id="ties go to the first node"),
        pytest.param([(8, 5), (8, 5)], 4, 0, {}, id="what would fit a node is not split"),
        pytest.param([(4, 1), (4, 0), (4, 0)], 8, 0, {1: 4, 2: 4}, id="a large one takes whole nodes"),
        pytest.param(
            [(4, 0), (4, 2), (4, 1), (4, 0)], 10, 0, {0: 4, 1: 2, 3: 4}, id="and the tightest for the rest"
        ),
        pytest.param([(4, 0), (4, 3), (4, 3), (4, 0)], 10, 0, {}, id="the rest is not split either"),
        pytest.param([(4, 1), (4, 1), (4, 1)], 8, 0, {}, id="parts of nodes do not make up for whole ones"),
        pytest.param([(4, 0), (8, 0), (8, 0)], 16, 0, {1: 8, 2: 8}, id="larger nodes first"),
        pytest.param([(4, 0), (8, 0), (4, 0)], 16, 0, {0: 4, 1: 8, 2: 4}, id="then smaller ones"),
        pytest.param(
            [(8, 0), (8, 2), (8, 7)], 6, 2, {0: 3, 1: 3}, id="evenly on two nodes, where two are stated"
        ),
        pytest.param([(8, 0), (8, 1)], 8, 1, {0: 8}, id="on one, where one is stated"),
        pytest.param([(4, 0), (4, 0), (4, 0)], 10, 2, {}, id="too few nodes cannot be had"),
    ],
)
def test_consolidated_puts_a_new_job(
    nodes: list[tuple[int, int]], gpus: int, stated_nodes: int, expected: dict[int, int]
) -> None:
    assert new_job_on(*nodes, gpus=gpus, at_least=stated_nodes, placer=Consolidated()) == expected


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        pytest.param([(8, 0), (8, 5)], 3, {1: 3}, id="consolidated where that can be"),
        pytest.param(
            [(8, 6), (8, 5), (8, 3)], 6, {1: 1, 2: 5}, id="else over the fewest nodes, most free first"
        ),
        pytest.param([(4, 1), (4, 1), (4, 1)], 8, {0: 3, 1: 3, 2: 2}, id="ties go to the first nodes"),
        pytest.param([(4, 3), (4, 3)], 3, {}, id="not at all where too few are free"),
    ],
)
def test_relaxed_puts_a_new_job(nodes: list[tuple[int, int]], gpus: int, expected: dict[int, int]) -> None:
    assert new_job_on(*nodes, gpus=gpus, placer=Relaxed()) == expected


def test_a_spread_job_that_grows_keeps_its_gpus_and_fills_its_own_nodes_first() -> None:
    held = {
        "a": Allocation(0, (0, 1), (0b0010, 0b0110)),
        **{f"on{node}": grant(0, **{f"n{node}": 1}) for node in range(4)},
    }
    snapshot = a_snapshot(*(a_job(job) for job in held), cluster=a_cluster(4, 4, 4, 4), allocations=held)
    after = Relaxed().place(snapshot, shares_of(snapshot, shares_held(snapshot.placement) | {"a": 7}))
    assert after[JobId("a")] == Allocation(0, (0, 1, 2), (0b1110, 0b1110, 0b0010))


def test_a_job_that_outgrows_its_node_moves_to_one_that_holds_all_of_it() -> None:
    held = {"a": grant(0, n0=2), "b": grant(0, n1=4)}
    snapshot = a_snapshot(a_job("a"), a_job("b"), a_job("c"), cluster=a_cluster(4, 4, 8), allocations=held)
    after = Relaxed().place(snapshot, shares_of(snapshot, {"a": 6, "b": 4}))
    assert shape(after, "a") == {2: 6}


@given(seed=st.integers(0, 10_000))
def test_relaxed_leaves_a_job_out_only_where_too_few_gpus_are_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = a_cluster(*rng.integers(1, 9, size=4).tolist())
    jobs = [a_job(f"j{index}", gpus=int(rng.integers(1, 12)), at_s=index) for index in range(8)]
    snapshot = a_snapshot(*jobs, cluster=cluster)
    snapshot = replace(snapshot, usable=rng.random(4) < 0.8)
    shares = shares_of(snapshot, {str(job.id): job.gpus for job in jobs})
    after = Relaxed().place(snapshot, shares)
    free = int(after.free[snapshot.usable].sum())
    assert all(job.id in after or job.gpus > free for job in jobs)


def shape(placement: Placement, job: str) -> dict[int, int]:
    held = placement[JobId(job)]
    return dict(zip(held.nodes, held.shape, strict=True))
