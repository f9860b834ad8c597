"""The most deadlines that can be kept: a relaxation of choosing jobs that all end in time."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.sim.bounds.deadlines import most_rewards

JOB = st.tuples(st.integers(0, 10), st.integers(1, 5), st.integers(1, 12), st.integers(1, 3))


def most_by_hand(jobs: list[tuple[int, int, int, int]]) -> int:
    """The most worth of a subset that the earliest deadline first keeps: it keeps whatever can be kept."""

    def all_kept(chosen: tuple[int, ...]) -> bool:
        left = {job: jobs[job][1] for job in chosen}
        for now in range(30):
            there = [job for job in chosen if left[job] and jobs[job][0] <= now]
            if there:
                left[min(there, key=lambda job: jobs[job][0] + jobs[job][2])] -= 1
            if any(left[job] and jobs[job][0] + jobs[job][2] <= now + 1 for job in chosen):
                return False
        return True

    subsets = (chosen for size in range(len(jobs) + 1) for chosen in combinations(range(len(jobs)), size))
    return max(sum(jobs[job][3] for job in chosen) for chosen in subsets if all_kept(chosen))


@given(jobs=st.lists(JOB, min_size=1, max_size=5))
def test_no_choice_of_jobs_earns_more(jobs: list[tuple[int, int, int, int]]) -> None:
    ready_s, work_s, within_s, worth = np.array(jobs, dtype=np.float64).T
    due = [[(at, value)] for at, value in zip((ready_s + within_s).tolist(), worth.tolist(), strict=True)]
    assert most_rewards(ready_s, work_s, work_s, due) >= most_by_hand(jobs) - 1e-6


def test_two_jobs_that_need_the_same_second_share_it() -> None:
    ones = np.ones(2)
    assert most_rewards(np.zeros(2), ones, ones, [[(1.0, 1.0)], [(1.0, 1.0)]]) == 1.0
    assert most_rewards(np.zeros(2), ones, ones, [[(1.0, 1.0)], [(2.0, 1.0)]]) == 2.0


def test_a_deadline_that_comes_too_soon_for_the_job_alone_earns_nothing() -> None:
    assert most_rewards(np.zeros(1), np.ones(1), np.full(1, 5.0), [[(4.0, 1.0)]]) == 0.0


def test_of_several_deadlines_a_job_earns_one() -> None:
    ones = np.ones(1)
    assert most_rewards(np.zeros(1), ones, ones, [[(2.0, 1.0), (4.0, 0.5)]]) == 1.0
    assert most_rewards(np.zeros(1), 3 * ones, 3 * ones, [[(2.0, 1.0), (4.0, 0.5)]]) == 0.5
