from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.model import FloatArray, IntArray, floats, ints
from stretto.policies.lyra.knapsack import pack, pack_all, reductions_s

INF = np.inf


def two_jobs_of_figure_6() -> tuple[FloatArray, IntArray]:
    """A: 2 to 3 workers of 2 GPUs, 100 s at most workers; B: 2 to 6 workers of one GPU, 20 s."""
    least, most = ints([2, 2]), ints([3, 6])
    return reductions_s(floats([100.0, 20.0]) * most, least, most), ints([2, 1])


def test_the_items_of_figure_6_are_worth_the_seconds_that_they_save() -> None:
    value, _ = two_jobs_of_figure_6()
    assert value == pytest.approx(np.array([[50, -INF, -INF, -INF], [20, 30, 36, 40]]))


@pytest.mark.parametrize(
    ("capacity", "value", "workers"),
    [
        (1, 20, (0, 1)),
        (2, 50, (1, 0)),
        (3, 70, (1, 1)),
        (4, 80, (1, 2)),
        (5, 86, (1, 3)),
        (6, 90, (1, 4)),
        (7, 90, (1, 4)),
    ],
)
def test_the_best_packing_of_figure_6_for_every_capacity(
    capacity: int, value: float, workers: tuple[int, int]
) -> None:
    for packing in (pack(*two_jobs_of_figure_6(), capacity), pack_all(*two_jobs_of_figure_6(), capacity)):
        assert packing.value == pytest.approx(value)
        assert tuple(packing.workers) == workers
        assert packing.is_best


def test_nothing_fits_into_no_room() -> None:
    assert pack(*two_jobs_of_figure_6(), 0).workers.tolist() == [0, 0]
    assert pack(np.zeros((0, 0)), ints([]), 5).workers.tolist() == []


def test_of_equal_values_the_fewest_gpus_are_taken() -> None:
    value = floats([[5.0, 5.0], [5.0, 8.0]])
    packing = pack(value, ints([2, 3]), 8)
    assert packing.workers.tolist() == [1, 2]
    assert pack(value, ints([2, 3]), 5).workers.tolist() == [1, 1]
    assert pack(floats([[3.0], [3.0]]), ints([2, 1]), 2).workers.tolist() == [0, 1]


def exhaustive(value: FloatArray, each: IntArray, capacity: int) -> tuple[float, int]:
    """(value, GPUs) of the best packing, fewest GPUs first among equals."""
    best = (0.0, 0)
    worth = np.concatenate((np.zeros((len(value), 1)), value), axis=1)
    for pick in product(range(worth.shape[1]), repeat=len(value)):
        gpus = int(sum(pick[row] * each[row] for row in range(len(value))))
        total = float(sum(worth[row, pick[row]] for row in range(len(value))))
        if gpus <= capacity and (total, -gpus) > (best[0], -best[1]):
            best = (total, gpus)
    return best


@st.composite
def packings(draw: st.DrawFn) -> tuple[FloatArray, IntArray, int]:
    """Up to five groups of up to three items with whole values, concave or not."""
    groups, items = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    cell = st.integers(0, 20).map(float) | st.just(-INF)
    rows = st.lists(cell, min_size=items, max_size=items)
    value = floats(draw(st.lists(rows, min_size=groups, max_size=groups)))
    each = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=groups, max_size=groups))
    return value, ints(each), draw(st.integers(0, 40))


@settings(max_examples=400, deadline=None)
@given(packings())
def test_both_ways_agree_with_exhaustive_search(drawn: tuple[FloatArray, IntArray, int]) -> None:
    _, each, _ = drawn
    for packing in (pack(*drawn), pack_all(*drawn)):
        assert (packing.value, int((packing.workers * each).sum())) == exhaustive(*drawn)
        assert packing.is_best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 400))
def test_the_items_that_can_matter_are_enough(seed: int, capacity: int) -> None:
    rng = np.random.default_rng(seed)
    least = rng.integers(1, 9, 40)
    value = reductions_s(rng.exponential(1e5, 40), least, least + rng.integers(0, 9, 40))
    each = rng.choice([1, 2, 4, 8], 40)
    some, everything = pack(value, each, capacity), pack_all(value, each, capacity)
    assert some.is_best
    assert some.value == pytest.approx(everything.value, rel=1e-12)
    assert (some.workers * each).sum() <= capacity


@settings(max_examples=60, deadline=None)
@given(packings(), st.integers(1, 200))
def test_with_little_work_allowed_the_packing_fits_and_the_bound_holds(
    drawn: tuple[FloatArray, IntArray, int], updates: int
) -> None:
    value, each, capacity = drawn
    packing = pack(value, each, capacity, updates)
    best, _ = exhaustive(*drawn)
    assert (packing.workers * each).sum() <= capacity
    assert packing.value <= best + 1e-9 <= packing.bound + 1e-6
