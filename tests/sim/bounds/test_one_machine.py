"""One machine that may be interrupted: nobody does better than by the least left."""

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.sim.bounds.one_machine import least_completions_s

JOBS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=5)


def best_by_hand(jobs: list[tuple[int, int]]) -> int:
    """The least over all orders of priority, second by second: one of them is the best for whole numbers."""

    def total(order: tuple[int, ...]) -> int:
        left, ended, now = [work for _, work in jobs], 0, 0
        while any(left):
            job = next((one for one in order if left[one] and jobs[one][0] <= now), None)
            now += 1
            if job is not None:
                left[job] -= 1
                ended += 0 if left[job] else now
        return ended

    return min(total(order) for order in permutations(range(len(jobs))))


@given(jobs=JOBS)
def test_nothing_is_better_than_the_least_left_first(jobs: list[tuple[int, int]]) -> None:
    arrives_s, work_s = np.array(jobs, dtype=np.float64).T
    # Where jobs overtake each other twice, no fixed order is the best one, but none is better.
    assert float(least_completions_s(arrives_s, work_s).sum()) <= best_by_hand(jobs)


def test_who_has_less_left_interrupts() -> None:
    # The first has 7 left when the second comes with 2, and 5 left when the third comes with 6.
    ends_s = least_completions_s(np.array([0.0, 3.0, 7.0]), np.array([10.0, 2.0, 6.0]))
    assert ends_s.tolist() == [5.0, 12.0, 18.0]


def test_without_arrivals_the_shortest_go_first() -> None:
    work_s = np.array([3.0, 1.0, 2.0, 4.0])
    assert least_completions_s(np.zeros(4), work_s).tolist() == [1.0, 3.0, 6.0, 10.0]
    assert not least_completions_s(np.zeros(0), np.zeros(0)).size
