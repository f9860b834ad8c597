"""Sizes are in steps where there are many, and what that may cost is bounded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import GpuType, SizeLadder, cluster_of, configurations_from, powers_and_whole_nodes

A100, T4 = GpuType("a100"), GpuType("t4")
WIDE = cluster_of("wide", (A100, 300, 8), (T4, 5, 4))


@pytest.mark.parametrize("nodes", [1, 2, 3, 24, 64])
def test_it_is_the_papers_set_where_that_is_small(nodes: int) -> None:
    cluster = cluster_of("small", (A100, nodes, 8), (T4, 64, 4))
    every, some = powers_and_whole_nodes(cluster), powers_and_whole_nodes(cluster, digits=6)
    assert some.gpus.tolist() == every.gpus.tolist()
    assert some.kind.tolist() == every.kind.tolist()


def test_whole_numbers_come_first_and_then_steps_that_double() -> None:
    nodes = powers_and_whole_nodes(WIDE, digits=3).ladder
    assert nodes is not None
    assert nodes.numbers_of_nodes(0) == [
        *(2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128),
        *(160, 192, 224, 256, 300),
    ]


@pytest.mark.parametrize("digits", [1, 2, 4, 6])
def test_the_next_smaller_step_has_more_gpus_than_the_bound_says(digits: int) -> None:
    ladder = SizeLadder(digits, ("a100",), (8,), (100_000,))
    nodes = np.arange(1, 100_001)
    below = np.array([ladder.step_below(each) for each in nodes.tolist()])
    lost = 1 - below / nodes
    assert lost.max() < ladder.most_lost
    assert lost.max() > 0.95 * ladder.most_lost  # no better bound of this kind holds
    assert ladder.most_lost == 1 / (2 ** (digits - 1) + 1)


def test_with_all_digits_nothing_is_lost() -> None:
    ladder = powers_and_whole_nodes(WIDE).ladder
    assert ladder is not None
    assert (ladder.most_lost, len(ladder.numbers_of_nodes(0))) == (0.0, 299)


def test_columns_grow_with_the_logarithm_of_the_nodes() -> None:
    counts = [
        len(powers_and_whole_nodes(cluster_of("large", (A100, nodes, 8)), digits=6))
        for nodes in (1_000, 2_000, 4_000, 8_000)
    ]
    assert np.diff(counts).tolist() == [32, 32, 32]


@given(nodes=st.integers(1, 400), digits=st.integers(1, 8), limit=st.sampled_from([0, 1, 7, 150]))
def test_each_size_is_there_or_it_is_said_why_not(nodes: int, digits: int, limit: int) -> None:
    cluster = cluster_of("some", (GpuType("a100", max_nodes_per_job=limit), nodes, 8))
    offered = powers_and_whole_nodes(cluster, digits)
    assert offered.ladder is not None
    sizes = set(offered.gpus.tolist())
    for gpus in range(8 * nodes + 9):
        assert (offered.ladder.why_not(gpus, 0) == "") == (gpus in sizes)


@pytest.mark.parametrize(
    ("gpus", "kind", "why"),
    [
        (6, 0, "6 GPUs are no power of two within a node of 8 a100"),
        (12, 0, "12 GPUs are no whole nodes of 8 a100"),
        (24, 1, "6 nodes are more than the 5 of 4 t4 that a job may have"),
        (67 * 8, 0, "67 nodes lie between the steps of 66 and 68"),
        (299 * 8, 0, "299 nodes lie between the steps of 296 and 300"),
        (0, 0, "expected at least 1 GPU, got 0"),
        (300 * 8, 0, ""),
    ],
)
def test_a_size_that_is_not_offered_has_a_reason(gpus: int, kind: int, why: str) -> None:
    ladder = powers_and_whole_nodes(WIDE, digits=6).ladder
    assert ladder is not None
    assert ladder.why_not(gpus, kind) == why


def test_a_configuration_is_found_by_what_it_is() -> None:
    offered = configurations_from([(1, 1, 0), (1, 2, 0), (2, 2, 0), (1, 1, 1), (1, 2, 0)])
    asked = np.array([(1, 2, 0), (2, 2, 0), (1, 1, 1), (1, 4, 0), (3, 2, 0), (0, 0, -1), (1, 1, 2)])
    assert offered.columns_of(asked[:, 0], asked[:, 1], asked[:, 2]).tolist() == [1, 2, 3, -1, -1, -1, -1]
    assert configurations_from([]).columns_of(asked[:1, 0], asked[:1, 1], asked[:1, 2]).tolist() == [-1]
