from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.policies.cornucopia.allocator import Candidates, allocate_greedily
from stretto.policies.cornucopia.profiler import scaling_factors

CURVE = np.array([0.0, 100.0, 190.0, 270.0, 340.0, 400.0, 440.0, 460.0, 470.0])  # throughput on 0 to 8 GPUs
Q1, Q2, Q3 = 1, 2, 3


def gains_of(asked: int, *, linear: bool) -> tuple[float, ...]:
    profile = np.linspace(0.0, 200.0 * asked, 2 * asked + 1) if linear else CURVE
    return tuple(scaling_factors(profile, asked).tolist())


def candidates(
    queue: Sequence[int],
    held: Sequence[int],
    asked: Sequence[int],
    linear: Sequence[bool] = (),
    **columns: Any,
) -> Candidates:
    """Jobs by arrival: elastic from 1 to 2R GPUs, linear unless told otherwise."""
    jobs = len(queue)
    are_linear = linear or [True] * jobs
    gains = [gains_of(wanted, linear=is_linear) for wanted, is_linear in zip(asked, are_linear, strict=True)]
    elastic = np.asarray(columns.get("elastic", [True] * jobs))
    wanted = np.array(asked)
    largest = np.asarray(columns.get("largest", [64] * jobs))
    return Candidates(
        queue=np.array(queue),
        held=np.array(held),
        least=np.asarray(columns.get("least", np.where(elastic, 1, wanted))),
        asked=wanted,
        most=np.minimum(np.where(elastic, 2 * wanted, wanted), largest),
        largest=largest,
        elastic=elastic,
        fixed=np.asarray(columns.get("fixed", [False] * jobs)),
        factors=gains.__getitem__,
    )


def test_interactive_jobs_get_what_they_request_then_each_gpu_goes_to_the_largest_gain() -> None:
    jobs = candidates([Q1, Q2, Q2], [0, 0, 0], [2, 4, 4], linear=[True, False, True])
    assert allocate_greedily(jobs, 7).tolist() == [2, 2, 3]


def test_a_sub_linear_job_gives_before_a_linear_one() -> None:
    jobs = candidates([Q2, Q2, Q1], [4, 3, 0], [4, 4, 2], linear=[False, True, True])
    assert allocate_greedily(jobs, 0).tolist() == [2, 3, 2]


def test_of_linear_jobs_the_largest_gives_first_then_the_latest() -> None:
    jobs = candidates([Q2, Q2, Q1], [5, 3, 0], [5, 3, 3])
    assert allocate_greedily(jobs, 0).tolist() == [3, 2, 3]


def test_the_lowest_queue_gives_first_even_where_it_loses_more() -> None:
    jobs = candidates([Q2, Q3, Q1], [4, 1, 0], [4, 4, 1], linear=[False, True, True])
    assert allocate_greedily(jobs, 0).tolist() == [4, 0, 1]


def test_queue_two_takes_from_queue_three_and_never_from_itself() -> None:
    jobs = candidates([Q3, Q2, Q2], [3, 2, 0], [4, 2, 4])
    assert allocate_greedily(jobs, 0).tolist() == [0, 2, 3]


def test_an_interactive_job_runs_on_a_part_where_there_is_no_more() -> None:
    assert allocate_greedily(candidates([Q2, Q1], [2, 0], [2, 4]), 1).tolist() == [0, 3]


def test_interactive_jobs_never_give_what_they_asked_for_to_each_other() -> None:
    assert allocate_greedily(candidates([Q1, Q1], [3, 0], [4, 1]), 0).tolist() == [3, 0]


def test_lower_queues_get_nothing_before_higher_ones_have_what_they_asked_for() -> None:
    assert allocate_greedily(candidates([Q3, Q2, Q1], [0, 0, 0], [2, 4, 2]), 5).tolist() == [0, 3, 2]


def test_surplus_goes_up_to_twice_the_request_and_to_interactive_jobs_last() -> None:
    jobs = candidates([Q1, Q2, Q3], [0, 0, 0], [2, 2, 2])
    assert allocate_greedily(jobs, 9).tolist() == [2, 4, 3]
    assert allocate_greedily(jobs, 11).tolist() == [3, 4, 4]
    assert allocate_greedily(jobs, 20).tolist() == [4, 4, 4]


def test_surplus_is_idle_to_a_job_that_has_less_than_it_asked_for() -> None:
    jobs = candidates([Q1, Q2, Q3], [3, 4, 0], [2, 2, 2])
    assert allocate_greedily(jobs, 0).tolist() == [3, 2, 2]  # of equal losses, that of the lower queue


def test_gpus_that_bring_nothing_stay_idle() -> None:
    jobs = candidates([Q2], [0], [4], linear=[False])
    assert allocate_greedily(jobs, 20).tolist() == [8]


def test_a_job_that_is_not_elastic_gets_all_or_nothing() -> None:
    jobs = candidates([Q1, Q2], [0, 0], [4, 2], elastic=[False, True])
    assert allocate_greedily(jobs, 3).tolist() == [0, 3]
    assert allocate_greedily(jobs, 4).tolist() == [4, 0]


def test_nothing_is_taken_for_a_job_that_cannot_get_all_it_needs() -> None:
    jobs = candidates([Q1, Q2], [0, 2], [4, 2], elastic=[False, True])
    assert allocate_greedily(jobs, 1).tolist() == [0, 3]


def test_a_job_that_is_not_elastic_is_stopped_whole_when_nothing_elastic_is_left() -> None:
    jobs = candidates([Q3, Q2, Q1], [4, 2, 0], [4, 2, 3], elastic=[False, True, True])
    assert allocate_greedily(jobs, 0).tolist() == [0, 3, 3]  # the GPU left over goes to the elastic job


def test_of_jobs_that_are_not_elastic_the_smallest_that_suffices_is_stopped() -> None:
    jobs = candidates([Q3, Q3, Q1], [8, 2, 0], [8, 2, 2], elastic=[False, False, True])
    assert allocate_greedily(jobs, 0).tolist() == [8, 0, 2]


def test_who_may_not_be_preempted_is_left_alone() -> None:
    jobs = candidates([Q3, Q1], [2, 0], [2, 1], fixed=[True, False])
    assert allocate_greedily(jobs, 0).tolist() == [2, 0]


def test_a_job_that_cannot_run_on_less_is_stopped_rather_than_made_smaller() -> None:
    jobs = candidates([Q2, Q1], [2, 0], [2, 1], least=[2, 1])
    assert allocate_greedily(jobs, 0).tolist() == [0, 2]


@st.composite
def anybody(draw: st.DrawFn) -> tuple[Candidates, int]:
    count = draw(st.integers(1, 12))
    asked = [draw(st.sampled_from([1, 1, 2, 4])) for _ in range(count)]
    elastic = [draw(st.sampled_from([True, True, False])) for _ in range(count)]
    least = [draw(st.integers(1, one)) if may else one for one, may in zip(asked, elastic, strict=True)]
    held = [
        draw(st.sampled_from([0, draw(st.integers(low, 2 * one if may else one))]))
        for low, one, may in zip(least, asked, elastic, strict=True)
    ]
    jobs = candidates(
        [draw(st.integers(1, 3)) for _ in range(count)],
        held,
        asked,
        linear=[draw(st.booleans()) for _ in range(count)],
        elastic=elastic,
        least=least,
        fixed=[holds > 0 and draw(st.sampled_from([False, False, True])) for holds in held],
    )
    return jobs, draw(st.integers(0, 6))


@given(anybody())
def test_nobody_leaves_its_range_and_no_gpu_is_made_or_lost(drawn: tuple[Candidates, int]) -> None:
    jobs, idle = drawn
    gpus = allocate_greedily(jobs, idle)
    served = gpus > 0
    assert gpus.sum() <= jobs.held.sum() + idle
    assert (gpus[served] >= jobs.least[served]).all()
    assert (gpus <= np.maximum(jobs.most, jobs.held)).all()
    assert (gpus[~jobs.elastic] % jobs.asked[~jobs.elastic] == 0).all()
    assert (gpus[jobs.fixed] == jobs.held[jobs.fixed]).all()


@given(anybody())
def test_queue_one_is_never_a_victim(drawn: tuple[Candidates, int]) -> None:
    jobs, idle = drawn
    gpus = allocate_greedily(jobs, idle)
    first = jobs.queue == Q1
    assert (gpus[first] >= np.minimum(jobs.held, jobs.asked)[first]).all()


@given(anybody())
def test_no_interactive_job_waits_while_a_lower_queue_holds_elastic_gpus(
    drawn: tuple[Candidates, int],
) -> None:
    jobs, idle = drawn
    gpus = allocate_greedily(jobs, idle)
    waits = (jobs.queue == Q1) & (gpus == 0)
    lower = (jobs.queue > Q1) & ~jobs.fixed & (gpus > 0)
    if waits.any():
        assert gpus[lower].sum() < jobs.least[waits].min()


@given(anybody())
def test_no_gpu_is_idle_while_a_job_waits_that_it_would_let_run(drawn: tuple[Candidates, int]) -> None:
    jobs, idle = drawn
    gpus = allocate_greedily(jobs, idle)
    left = jobs.held.sum() + idle - gpus.sum()
    assert not ((gpus == 0) & (jobs.least <= left)).any()


@given(anybody())
def test_a_second_look_changes_nothing_about_who_runs(drawn: tuple[Candidates, int]) -> None:
    jobs, idle = drawn
    gpus = allocate_greedily(jobs, idle)
    left = int(jobs.held.sum() + idle - gpus.sum())
    again = allocate_greedily(contenders_again(jobs, gpus), left)
    assert ((again > 0) == (gpus > 0)).all()


def contenders_again(jobs: Candidates, gpus: np.ndarray[Any, np.dtype[np.int64]]) -> Candidates:
    return Candidates(
        jobs.queue,
        gpus,
        jobs.least,
        jobs.asked,
        jobs.most,
        jobs.largest,
        jobs.elastic,
        jobs.fixed,
        jobs.factors,
    )


def test_a_job_above_what_it_may_have_by_now_gives_all_beyond_it_or_nothing() -> None:
    over: dict[str, Any] = {"largest": [1, 64], "elastic": [True, True]}
    held_four = candidates([Q2, Q1], [4, 0], [1, 1], **over)
    assert allocate_greedily(held_four, 0).tolist() == [1, 2], "three it could not have"
    assert allocate_greedily(held_four, 1).tolist() == [4, 1], "what it holds it may keep"


@given(anybody())
def test_no_job_gets_a_number_that_it_may_not_have(drawn: tuple[Candidates, int]) -> None:
    jobs, idle = drawn
    largest = jobs.least
    limited = replace(
        jobs, largest=largest, asked=np.minimum(jobs.asked, largest), most=np.minimum(jobs.most, largest)
    )
    gpus = allocate_greedily(limited, idle)
    assert ((gpus == jobs.held) | (gpus == 0) | (gpus == largest)).all()
