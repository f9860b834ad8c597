import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import ints
from stretto.policies.unisched.cells import (
    cells_of_nodes,
    fit_together,
    gpus_of,
    is_one_node,
    offers,
    policies_for,
    rows_of,
)
from stretto.testing.builders import a_cluster


@pytest.mark.parametrize(
    ("gpus", "exact", "round_up"),
    [(1, 1, 0), (2, 2, 0), (3, 2, 1), (4, 4, 0), (6, 6, 1), (8, 10, 0), (12, 20, 0), (16, 35, 0)],
)
def test_the_number_of_cell_policies_for_every_count_of_gpus(gpus: int, exact: int, round_up: int) -> None:
    policies = policies_for(gpus)
    assert len(set(policies)) == len(policies) == exact + round_up
    assert sum(gpus_of(cells) == gpus for cells in policies) == exact


def test_the_policies_for_six_gpus() -> None:
    assert set(policies_for(6)) == {
        (0, 0, 0, 1),
        (0, 1, 1, 0),
        (2, 0, 1, 0),
        (0, 3, 0, 0),
        (2, 2, 0, 0),
        (4, 1, 0, 0),
        (6, 0, 0, 0),
    }


@pytest.mark.parametrize(("gpus", "first"), [(1, (1, 0, 0, 0)), (4, (0, 0, 1, 0)), (6, (0, 0, 0, 1))])
def test_the_most_consolidated_policy_comes_first(gpus: int, first: tuple[int, ...]) -> None:
    assert policies_for(gpus)[0] == first
    assert is_one_node(first)


def test_beyond_sixteen_gpus_whole_nodes_and_the_binary_rest() -> None:
    assert policies_for(22) == ((0, 1, 1, 2),)
    assert policies_for(64) == ((0, 0, 0, 8),)


def test_four_jobs_of_six_gpus_fit_three_nodes_and_five_do_not() -> None:
    nodes = ints([0, 0, 0, 3])
    four = 4 * ints([0, 1, 1, 0])
    assert rows_of(tuple(four)).tolist() == [24, 12, 4, 0]
    assert rows_of(tuple(nodes)).tolist() == [24, 12, 6, 3]
    assert fit_together(four, nodes)
    assert not fit_together(5 * ints([0, 1, 1, 0]), nodes)
    assert not fit_together(4 * ints([0, 0, 0, 1]), nodes)  # rounded up, each takes a node


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=24), st.integers(1, 3))
def test_what_fits_by_the_rows_can_be_cut_out_of_nodes(levels: list[int], nodes: int) -> None:
    demand = np.bincount(levels, minlength=4).astype(np.int64)
    assert fit_together(demand, ints([0, 0, 0, nodes])) == _can_be_cut(sorted(levels, reverse=True), nodes)


def _can_be_cut(levels: list[int], nodes: int) -> bool:
    """Larger cells first, each out of the smallest free cell that holds it."""
    free = [3] * nodes
    for level in levels:
        holding = [cell for cell in free if cell >= level]
        if not holding:
            return False
        cell = min(holding)
        free.remove(cell)
        free += range(level, cell)
    return True


def test_a_node_is_its_binary_powers() -> None:
    cluster = a_cluster(8, 12, 3, 16)
    everything = cells_of_nodes(cluster, np.ones(4, dtype=np.bool_).tobytes())
    assert everything.tolist() == [[1, 1, 1, 4]]
    without = cells_of_nodes(cluster, np.array([True, False, True, True]).tobytes())
    assert without.tolist() == [[1, 1, 0, 3]]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param(1, ((1, True),), id="a single GPU has no choice"),
        pytest.param(4, ((4, True),), id="a whole cell costs no more than its parts"),
        pytest.param(6, ((8, True), (6, False)), id="fast on eight GPUs or slow on six"),
        pytest.param(12, ((12, False),), id="more than a node is never on one"),
    ],
)
def test_policies_worth_considering(gpus: int, expected: tuple[tuple[int, bool], ...]) -> None:
    assert offers(gpus) == expected


@given(st.integers(1, 40))
def test_no_policy_beats_those_worth_considering(gpus: int) -> None:
    for cells in policies_for(gpus):
        assert any(taken <= gpus_of(cells) and on_one >= is_one_node(cells) for taken, on_one in offers(gpus))
