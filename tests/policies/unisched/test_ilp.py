from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import IntArray, ints
from stretto.policies.unisched.cells import rows_of
from stretto.policies.unisched.ilp import Options, choose_options, must_by, solve_leases
from stretto.policies.unisched.lease_plan import best_options, lay_out, plan_in_order, plan_leases, stretches


def options_of(*rows: tuple[int, float, int, int, int]) -> Options:
    """(job, value, gpus, leases, window) rows."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    job, gpus, leases, window = (table[column].astype(np.int64) for column in (0, 2, 3, 4))
    return Options(job, table[1], gpus, leases, window)


def row_0(options: Options) -> IntArray:
    """Each option's cells as single GPUs."""
    return np.array([rows_of((int(gpus), 0, 0, 0)) for gpus in options.gpus]).reshape(-1, 4)


def free_cells(gpus: int, leases: int) -> IntArray:
    return np.tile(rows_of((gpus, 0, 0, 0)), (leases, 1))


A_STRICT = (0, 100.0, 8, 2, 2)
B_SOFT = ((1, 100.0, 8, 1, 2), (1, 80.0, 8, 1, 3))


def test_a_strict_job_goes_first_and_the_soft_one_takes_its_second_deadline() -> None:
    options = options_of(A_STRICT, *B_SOFT)
    cells = np.array([rows_of((0, 0, 0, 1))] * 3)
    found = solve_leases(options, cells, np.tile(rows_of((0, 0, 0, 1)), (3, 1)), most_nodes=1_000)
    assert found is not None
    choice, runs = found
    assert choice.value == choice.bound == 180.0
    assert choice.taken.tolist() == [True, False, True]
    assert runs[0].tolist() == [True, True, False]
    assert runs[2].tolist() == [False, False, True]


def test_a_plan_without_a_variable_for_every_lease_comes_to_the_same() -> None:
    plan = plan_leases(options_of(A_STRICT, *B_SOFT), capacity_gpus=8, most_nodes=1_000)
    assert (plan.value, plan.gap) == (180.0, 0.0)
    assert plan.taken.tolist() == [True, False, True]
    assert plan.now.tolist() == [True, False, False]


jobs_of_one_gpu = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=6
)


def drawn(jobs: list[tuple[int, int, int, bool]], gpus: int = 1) -> Options:
    """A strict option for each job, and a later and cheaper one for some."""
    rows = []
    for job, (value, leases, spare, soft) in enumerate(jobs):
        rows.append((job, 10.0 * value, gpus, leases, leases + spare))
        if soft:
            rows.append((job, 5.0 * value, gpus, leases, leases + spare + 1))
    return options_of(*rows)


@settings(max_examples=scaled(60), deadline=None)
@given(jobs=jobs_of_one_gpu, capacity=st.integers(1, 3))
def test_for_jobs_of_one_gpu_the_short_form_equals_the_programme(
    jobs: list[tuple[int, int, int, bool]], capacity: int
) -> None:
    options = drawn(jobs)
    last = int(options.window.max())
    whole = solve_leases(options, row_0(options), free_cells(capacity, last), 10_000)
    short = choose_options(options, np.full(last, capacity), np.arange(1, last + 1), 10_000)
    assert whole is not None
    assert short is not None
    assert short.value == pytest.approx(whole[0].value)
    assert (short.gap, whole[0].gap) == pytest.approx((0.0, 0.0), abs=1e-12)


@settings(max_examples=scaled(60), deadline=None)
@given(jobs=jobs_of_one_gpu, capacity=st.integers(1, 3))
def test_for_jobs_of_one_gpu_the_plan_is_the_best_and_puts_off_most(
    jobs: list[tuple[int, int, int, bool]], capacity: int
) -> None:
    options = drawn(jobs)
    plan = plan_leases(options, capacity, 10_000)
    last = int(options.window.max())
    whole = solve_leases(options, row_0(options), free_cells(capacity, last), 10_000)
    assert whole is not None
    assert plan.value == pytest.approx(whole[0].value)
    assert plan.gap == pytest.approx(0.0)
    taken = options.of(plan.taken)
    assert int(plan.now.sum()) == _fewest_now(taken, capacity, last)


def _fewest_now(taken: Options, capacity: int, leases: int) -> int:
    """Jobs of one GPU in lease 0 in the best case, by the whole programme with less and less room there."""
    for room in range(capacity + 1):
        free = free_cells(capacity, leases)
        free[0] = rows_of((room, 0, 0, 0))
        found = solve_leases(taken, row_0(taken), free, 10_000)
        if found is not None and found[0].taken.all():
            return room
    raise AssertionError("the plan cannot be laid out")


@settings(max_examples=scaled(60), deadline=None)
@given(jobs=jobs_of_one_gpu, capacity=st.integers(3, 7), gpus=st.integers(2, 3))
def test_for_wider_jobs_the_bound_holds_and_the_plan_can_be_laid_out(
    jobs: list[tuple[int, int, int, bool]], capacity: int, gpus: int
) -> None:
    options = drawn(jobs, gpus)
    plan = plan_leases(options, capacity, 10_000)
    last = int(options.window.max())
    whole = solve_leases(options, row_0(options), free_cells(capacity, last), 10_000)
    assert whole is not None
    assert plan.value <= whole[0].value + 1e-6 <= plan.bound + 2e-6
    taken = options.of(plan.taken)
    again = solve_leases(taken, row_0(taken), free_cells(capacity, last), 10_000)
    assert again is not None
    assert again[0].taken.all()


def test_where_nobody_has_to_be_left_out_no_programme_is_solved() -> None:
    plan = plan_leases(options_of(A_STRICT, *B_SOFT), capacity_gpus=16, most_nodes=0)
    assert not plan.solved
    assert (plan.value, plan.gap) == (200.0, 0.0)


def test_where_the_solver_gives_up_worth_per_gpu_lease_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.policies.unisched.lease_plan.choose_options", lambda *_: None)
    options = options_of((0, 10.0, 4, 1, 1), (1, 9.0, 2, 1, 1), (2, 9.0, 2, 1, 1), (3, 1.0, 1, 1, 1))
    plan = plan_leases(options, 4, most_nodes=100)
    assert plan.taken.tolist() == [False, True, True, False]
    assert plan.bound == 29.0
    assert plan.gap == pytest.approx(11 / 29)


def test_feasible_and_no_more_takes_jobs_in_their_order() -> None:
    options = options_of((0, 1.0, 8, 1, 1), (1, 100.0, 8, 1, 1), (2, 5.0, 8, 1, 2))
    assert plan_in_order(options, 8).taken.tolist() == [True, False, True]


def test_equal_jobs_are_one_variable_and_each_gets_its_own_answer() -> None:
    options = options_of(*((job, 10.0, 1, 2, 2) for job in range(5)))
    found = choose_options(options, ints([3, 3]), ints([1, 2]), 100)
    assert found is not None
    assert found.taken.tolist() == [True, True, True, False, False]


def test_what_must_happen_soon_is_what_the_window_leaves_no_time_for() -> None:
    options = options_of((0, 1.0, 4, 3, 5), (1, 1.0, 1, 2, 2))
    assert must_by(options, ints([1, 2, 3, 5])).tolist() == [[0, 1], [0, 2], [4, 2], [12, 2]]


def test_stretches_are_single_leases_first() -> None:
    ends = stretches(2_000)
    assert ends[:13].tolist() == list(range(13))
    assert ends[-1] == 2_000
    assert len(ends) < 50
    assert (np.diff(ends) > 0).all()
    assert stretches(1).tolist() == [0, 1]


def test_laying_out_puts_everything_to_the_end() -> None:
    options = options_of((0, 1.0, 1, 1, 3), (1, 1.0, 1, 3, 3), (2, 1.0, 1, 2, 2))
    now, missed = lay_out(options, 2, stretches(3))
    assert now.tolist() == [False, True, True]
    assert not missed.any()


def test_a_job_without_room_is_told_so_by_brute_force() -> None:
    """Two GPUs, three leases: which sets of four jobs of one GPU can be laid out, tried one by one."""
    table = [(0, 1.0, 1, 2, 2), (1, 1.0, 1, 2, 3), (2, 1.0, 1, 1, 1), (3, 1.0, 1, 2, 3)]
    for chosen in product([False, True], repeat=4):
        options = options_of(*(row for row, is_in in zip(table, chosen, strict=True) if is_in))
        if len(options):
            _, missed = lay_out(options, 2, stretches(int(options.window.max())))
            whole = solve_leases(options, row_0(options), free_cells(2, 3), 1_000)
            assert whole is not None
            assert missed.any() == (not whole[0].taken.all())


def test_best_options_are_the_first_of_each_job() -> None:
    assert best_options(options_of(A_STRICT, *B_SOFT)).tolist() == [True, True, False]
