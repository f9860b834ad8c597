"""Work with due dates: the condition against trying every order, and what is taken on."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.solve.due_dates import slack, taken_on

rows = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=5)


def can_all_be_done(tasks: Sequence[tuple[float, float]], from_s: float = 0.0) -> bool:
    """Whether some order is in time; all is there already, so that nothing is gained by interrupting."""
    for order in permutations(tasks):
        now, in_time = from_s, True
        for due, work in order:
            now += work
            in_time &= now <= due
        if in_time:
            return True
    return False


@settings(max_examples=scaled(200), deadline=None)
@given(tasks=rows)
def test_everything_can_be_done_exactly_where_no_slack_is_negative(tasks: list[tuple[int, int]]) -> None:
    due, work = np.array(tasks, dtype=np.float64).T
    assert bool((slack(due, work) >= 0).all()) is can_all_be_done(tasks)


@settings(max_examples=scaled(200), deadline=None)
@given(tasks=rows)
def test_all_can_wait_for_the_least_slack_and_not_for_more(tasks: list[tuple[int, int]]) -> None:
    due, work = np.array(tasks, dtype=np.float64).T
    least = float(slack(due, work).min())
    if least >= 0:
        assert can_all_be_done(tasks, from_s=least)
        assert not can_all_be_done(tasks, from_s=least + 1.0)


def test_rows_of_the_same_due_date_have_the_same_slack() -> None:
    assert slack(np.array([9.0, 4.0, 9.0]), np.array([2.0, 3.0, 1.0])).tolist() == [3.0, 1.0, 3.0]


@settings(max_examples=scaled(200), deadline=None)
@given(tasks=rows, seed=st.integers(0, 9))
def test_what_is_taken_on_can_be_done_and_nothing_left_out_has_room(
    tasks: list[tuple[int, int]], seed: int
) -> None:
    worth = np.random.default_rng(seed).random(len(tasks))
    due, work = np.array(tasks, dtype=np.float64).T
    nothing_kept = np.zeros(len(tasks), dtype=np.bool_)
    taken = taken_on(due, work, np.arange(len(tasks) + 1), nothing_kept, worth).tolist()
    chosen = [task for row, task in enumerate(tasks) if taken[row] == row]
    assert can_all_be_done(chosen)
    for row, task in enumerate(tasks):
        assert taken[row] == row or not can_all_be_done([*chosen, task])


def test_what_is_kept_goes_before_what_is_worth_more_and_later_options_are_tried() -> None:
    due, work, bounds = np.array([4.0, 4.0, 8.0]), np.full(3, 4.0), np.array([0, 1, 3])
    worth = np.array([1.0, 9.0])
    assert taken_on(due, work, bounds, np.array([True, False]), worth).tolist() == [0, 2]
    assert taken_on(due, work, bounds, np.array([False, False]), worth).tolist() == [-1, 1]
