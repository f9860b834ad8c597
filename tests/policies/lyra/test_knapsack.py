from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import FloatArray, IntArray, floats, ints
from stretto.policies.lyra.phases import most_saved, reductions_s

INF = np.inf


def two_jobs_of_figure_6() -> tuple[FloatArray, IntArray]:
    """A: 2 to 3 workers of 2 GPUs, 100 s at most workers; B: 2 to 6 workers of one GPU, 20 s."""
    least, most = ints([2, 2]), ints([3, 6])
    return reductions_s(floats([100.0, 20.0]) * most, least, most), ints([2, 1])


def test_the_items_of_figure_6_are_worth_the_seconds_that_they_save() -> None:
    value, _ = two_jobs_of_figure_6()
    assert value == pytest.approx(np.array([[50, -INF, -INF, -INF], [20, 30, 36, 40]]))


@pytest.mark.parametrize(
    ("capacity", "saved_s", "workers"),
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
    capacity: int, saved_s: float, workers: tuple[int, int]
) -> None:
    value, each = two_jobs_of_figure_6()
    found = most_saved(value, each, capacity)
    assert tuple(found) == workers
    assert total(value, found) == pytest.approx(saved_s)


def test_nothing_fits_into_no_room() -> None:
    assert most_saved(*two_jobs_of_figure_6(), 0).tolist() == [0, 0]
    assert most_saved(np.zeros((0, 0)), ints([]), 5).tolist() == []


def test_of_equal_values_the_fewest_gpus_are_taken() -> None:
    value = floats([[5.0, 5.0], [5.0, 8.0]])
    assert most_saved(value, ints([2, 3]), 8).tolist() == [1, 2]
    assert most_saved(value, ints([2, 3]), 5).tolist() == [1, 1]
    assert most_saved(floats([[3.0], [3.0]]), ints([2, 1]), 2).tolist() == [0, 1]


def total(value: FloatArray, workers: IntArray) -> float:
    """Seconds saved by so many more workers of each group."""
    return float(sum(value[row, count - 1] for row, count in enumerate(workers.tolist()) if count))


def exhaustive(value: FloatArray, each: IntArray, capacity: int) -> float:
    """The value of the best packing."""
    best = 0.0
    worth = np.concatenate((np.zeros((len(value), 1)), value), axis=1)
    for pick in product(range(worth.shape[1]), repeat=len(value)):
        if sum(pick[row] * each[row] for row in range(len(value))) <= capacity:
            best = max(best, float(sum(worth[row, pick[row]] for row in range(len(value)))))
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


@settings(max_examples=scaled(300), deadline=None)
@given(packings())
def test_the_packing_is_as_good_as_exhaustive_search_finds(drawn: tuple[FloatArray, IntArray, int]) -> None:
    value, each, capacity = drawn
    workers = most_saved(*drawn)
    assert total(value, workers) == exhaustive(*drawn)
    assert (workers * each).sum() <= capacity


def by_dynamic_programming(value: FloatArray, each: IntArray, capacity: int) -> float:
    """The best value as the paper finds it: group by group, over the whole capacity."""
    best = np.zeros(capacity + 1)
    for row in range(len(value)):
        before = best.copy()
        for count in range(1, value.shape[1] + 1):
            gpus = count * int(each[row])
            if gpus <= capacity:
                best[gpus:] = np.maximum(best[gpus:], before[: capacity + 1 - gpus] + value[row, count - 1])
    return float(best[-1])


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 400))
def test_many_jobs_save_as_much_as_the_papers_dynamic_programme_says(seed: int, capacity: int) -> None:
    rng = np.random.default_rng(seed)
    least = rng.integers(1, 9, 40)
    value = reductions_s(rng.exponential(1e5, 40), least, least + rng.integers(0, 9, 40))
    each = rng.choice([1, 2, 4, 8], 40)
    workers = most_saved(value, each, capacity)
    assert total(value, workers) == pytest.approx(by_dynamic_programming(value, each, capacity), rel=1e-9)
    assert (workers * each).sum() <= capacity
