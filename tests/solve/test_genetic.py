"""Evolving integer matrices: limits for any population, worth by hand, quality against other searches."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.solve.genetic import (
    AllocationProblem,
    Population,
    best_alone,
    crossed,
    evolve,
    filled,
    is_allowed,
    mutated,
    repair,
    worth_of,
)


@st.composite
def problems(draw: st.DrawFn, most_rows: int = 6, most_columns: int = 5) -> AllocationProblem:
    """Any problem: columns of no units, rows that must stay empty, minima that can never be met."""
    rows, columns = draw(st.integers(1, most_rows)), draw(st.integers(1, most_columns))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    capacity = rng.integers(0, 9, columns)
    least = np.where(rng.random(rows) < 0.6, 1, rng.integers(1, 12, rows))
    most = np.where(rng.random(rows) < 0.1, 0, least + rng.integers(0, 8, rows))
    return AllocationProblem(
        worth=rng.normal(size=(rows, 2, 20)),
        kept_worth=rng.normal(size=rows),
        current=rng.integers(0, 3, (rows, columns)),
        limit=capacity * (rng.random((rows, columns)) < 0.8),
        capacity=capacity,
        least=least,
        most=most,
        spread_room=rng.integers(0, 3, columns),
    )


@st.composite
def populations(draw: st.DrawFn, problem: AllocationProblem, size: int = 7) -> Population:
    """Anything within the limits of single entries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.2, 0.6, 1.0]))
    drawn = (rng.random((size, *problem.limit.shape)) * (problem.limit + 1)).astype(np.int8)
    return np.where(rng.random(drawn.shape) < density, drawn, 0).astype(np.int8)


def concave(rows: int, columns: int, seed: int, gpus: int = 4, lumpy: float = 0.0) -> AllocationProblem:
    """Rows with diminishing returns, slower when spread, that hold something now and lose by a change."""
    rng = np.random.default_rng(seed)
    units = min(64, gpus * columns)
    count = np.arange(units + 1)
    alone, overhead = rng.uniform(0.0, 0.05, (rows, 1)), rng.uniform(0.01, 0.1, (rows, 1))
    step_s = np.stack([1 / np.maximum(count, 1) + alone, 1 / np.maximum(count, 1) + alone + overhead], axis=1)
    speedup = 1 / step_s
    speedup[:, :, 0] = 1e-3
    size = 2 ** rng.integers(0, 3, rows)
    is_lumpy = rng.random(rows) < lumpy
    current = np.zeros((rows, columns), dtype=np.int64)
    current[np.arange(min(rows, columns)), np.arange(min(rows, columns))] = 1
    return AllocationProblem(
        worth=-1 / np.maximum(speedup * 0.9, 1e-3),
        kept_worth=-1 / speedup[np.arange(rows), 0, current.sum(axis=1)],
        current=current,
        limit=np.full((rows, columns), gpus),
        capacity=np.full(columns, gpus),
        least=np.where(is_lumpy, size, 1),
        most=np.where(is_lumpy, size, np.minimum(units, 2 * size)),
        spread_room=np.ones(columns, dtype=np.int64),
    )


def empty(problem: AllocationProblem, size: int) -> Population:
    return np.zeros((size, *problem.limit.shape), dtype=np.int8)


def breaks_a_limit(problem: AllocationProblem, matrix: list[list[int]]) -> bool:
    """The limits once more, one entry after the other."""
    spread = [sum(entry > 0 for entry in row) > 1 for row in matrix]
    for row, entries in enumerate(matrix):
        if sum(entries) and not problem.least[row] <= sum(entries) <= problem.most[row]:
            return True
        if any(not 0 <= entry <= limit for entry, limit in zip(entries, problem.limit[row], strict=True)):
            return True
    for column, entries_of in enumerate(zip(*matrix, strict=True)):
        meeting = sum(entry > 0 and spread[row] for row, entry in enumerate(entries_of))
        if sum(entries_of) > problem.capacity[column] or meeting > problem.spread_room[column]:
            return True
    return False


def worth_by_hand(problem: AllocationProblem, matrix: list[list[int]]) -> float:
    total = 0.0
    for row, entries in enumerate(matrix):
        if entries == problem.current[row].tolist():
            total += float(problem.kept_worth[row])
        else:
            spread = int(sum(entry > 0 for entry in entries) > 1)
            total += float(problem.worth[row, spread, sum(entries)])
    return total


@given(st.data())
def test_repair_makes_any_population_keep_every_limit(data: st.DataObject) -> None:
    problem = data.draw(problems())
    population = data.draw(populations(problem))
    repaired, _ = repair(problem, population.copy(), np.random.default_rng(0))
    assert not any(breaks_a_limit(problem, matrix) for matrix in repaired.tolist())
    assert is_allowed(problem, repaired).all()


@given(st.data())
def test_repair_only_takes_away_and_leaves_what_is_allowed(data: st.DataObject) -> None:
    problem = data.draw(problems())
    population = data.draw(populations(problem))
    was_allowed = is_allowed(problem, population)
    repaired, entries = repair(problem, population.copy(), np.random.default_rng(0))
    assert (repaired <= population).all()
    assert (repaired[was_allowed] == population[was_allowed]).all()
    assert entries.value.sum() == repaired.sum(dtype=np.int64)


@given(st.data())
def test_an_allowed_matrix_is_one_that_breaks_no_limit(data: st.DataObject) -> None:
    problem = data.draw(problems(most_rows=3, most_columns=2))
    population = data.draw(populations(problem, size=20))
    expected = [not breaks_a_limit(problem, matrix) for matrix in population.tolist()]
    assert is_allowed(problem, population).tolist() == expected


@given(st.data())
def test_worth_is_the_sum_of_table_entries(data: st.DataObject) -> None:
    problem = data.draw(problems())
    population, _ = repair(problem, data.draw(populations(problem)), np.random.default_rng(1))
    population[0] = np.minimum(problem.current, 2)
    expected = [worth_by_hand(problem, matrix) for matrix in population.tolist()]
    assert worth_of(problem, population) == pytest.approx(expected)


@given(st.data())
def test_filling_is_allowed_and_touches_only_empty_rows(data: st.DataObject) -> None:
    problem = data.draw(problems())
    population, _ = repair(problem, data.draw(populations(problem)), np.random.default_rng(0))
    full = filled(problem, population.copy(), np.random.default_rng(1))
    assert is_allowed(problem, full).all()
    had = population.any(axis=2)
    assert (full[had] == population[had]).all()
    assert np.isin(full[~had].sum(axis=1, dtype=np.int64), (0, *problem.least)).all()


def test_filling_serves_every_row_while_units_are_idle() -> None:
    problem = concave(rows=14, columns=4, seed=0)
    served = filled(problem, empty(problem, 5), np.random.default_rng(0)).any(axis=2)
    assert served.all()


def test_children_take_the_rows_above_a_cut_from_one_parent_and_the_others_from_another() -> None:
    parents = np.arange(6, dtype=np.int8)[:, None, None] * np.ones((1, 5, 3), dtype=np.int8)
    children = crossed(parents, np.arange(6), np.random.default_rng(3))[:, :, 0]
    assert children.shape == (6, 5)
    changes = (np.diff(children, axis=1) != 0).sum(axis=1)
    assert (changes <= 1).all()
    assert (changes == 1).any()


@given(st.data())
def test_mutation_stays_within_the_limits_of_entries(data: st.DataObject) -> None:
    problem = data.draw(problems())
    population = data.draw(populations(problem))
    changed = mutated(problem, population.copy(), 3.0, np.random.default_rng(0))
    assert ((changed >= 0) & (changed <= problem.limit)).all()
    assert (mutated(problem, population.copy(), 0.0, np.random.default_rng(0)) == population).all()


@settings(max_examples=scaled(30), deadline=None)
@given(st.data())
def test_evolving_never_loses_the_best_and_says_what_it_is_worth(data: st.DataObject) -> None:
    problem = data.draw(problems())
    start, _ = repair(problem, data.draw(populations(problem)), np.random.default_rng(0))
    found = evolve(problem, start, 8, np.random.default_rng(1))
    assert found.population.shape == start.shape
    assert is_allowed(problem, found.population).all()
    assert found.worth == pytest.approx(worth_of(problem, found.population))
    assert (np.diff(found.worth) <= 0).all()
    assert found.worth[0] >= worth_of(problem, start).max() - 1e-12


def test_the_same_generator_breeds_the_same_population_and_another_a_different_one() -> None:
    problem = concave(rows=6, columns=4, seed=0)
    bred = [evolve(problem, empty(problem, 20), 10, np.random.default_rng(seed)) for seed in (4, 4, 5)]
    assert (bred[0].population == bred[1].population).all()
    assert (bred[0].population != bred[2].population).any()


def test_equal_matrices_are_kept_once() -> None:
    problem = concave(rows=4, columns=3, seed=0)
    found = evolve(problem, empty(problem, 30), 30, np.random.default_rng(0))
    assert len({matrix.tobytes() for matrix in found.population}) == 30


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_share_is_no_error(shape: tuple[int, int]) -> None:
    rows, columns = shape
    problem = AllocationProblem(
        worth=np.zeros((rows, 2, 3)),
        kept_worth=np.zeros(rows),
        current=np.zeros(shape, dtype=np.int64),
        limit=np.zeros(shape, dtype=np.int64),
        capacity=np.zeros(columns, dtype=np.int64),
        least=np.ones(rows, dtype=np.int64),
        most=np.full(rows, 2),
        spread_room=np.ones(columns, dtype=np.int64),
    )
    start = filled(problem, empty(problem, 4), np.random.default_rng(0))
    assert evolve(problem, start, 5, np.random.default_rng(0)).population.shape == (4, *shape)


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [("limit", 128, "limit must lie"), ("least", 0, "least must be >= 1"), ("most", 20, "most must be < 17")],
)
def test_a_sharing_that_breaks_its_invariants_is_refused(column: str, value: int, complaint: str) -> None:
    good = concave(rows=2, columns=4, seed=0)
    columns = {name: getattr(good, name) for name in AllocationProblem.__dataclass_fields__}
    with pytest.raises(ValueError, match=complaint):
        AllocationProblem(**(columns | {column: np.full_like(columns[column], value)}))


def best_of_all(problem: AllocationProblem) -> float:
    """The most that any allowed matrix is worth, by trying them all."""
    ranges = [range(int(limit) + 1) for limit in problem.limit.reshape(-1)]
    every = np.array(list(product(*ranges)), dtype=np.int8).reshape(-1, *problem.limit.shape)
    return float(worth_of(problem, every[is_allowed(problem, every)]).max())


@pytest.mark.slow
@pytest.mark.parametrize("lumpy", [0.0, 0.6])
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 4), (4, 2, 2), (2, 4, 2)])
def test_small_problems_are_solved_to_the_optimum(shape: tuple[int, int, int], lumpy: float) -> None:
    rows, columns, gpus = shape
    missed = []
    for seed in range(6):
        problem = concave(rows, columns, seed, gpus, lumpy)
        rng = np.random.default_rng(seed)
        start = filled(problem, empty(problem, 100), rng)
        missed.append(1 - best_of_all(problem) / evolve(problem, start, 100, rng).worth[0])
    assert max(missed) < 0.05
    assert sum(miss > 1e-9 for miss in missed) <= 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lumpy", [0.0, 1.0])
def test_a_single_row_has_the_best_of_all_matrices(seed: int, lumpy: float) -> None:
    problem = replace(concave(1, 3, seed, 4, lumpy), limit=np.array([[2, 4, 3]]))
    found = best_alone(problem)
    assert found.worth[0] == pytest.approx(best_of_all(problem))
    assert is_allowed(problem, found.population).all()
    assert found.worth == pytest.approx(worth_of(problem, found.population))


def test_a_single_row_that_nothing_betters_keeps_what_it_has() -> None:
    problem = concave(1, 3, 0)
    at_last = np.array([[0, 0, 1]])
    kept = replace(problem, current=at_last, kept_worth=np.full(1, problem.worth.max() + 1))
    assert best_alone(kept).population[0].tolist() == at_last.tolist()


def by_loops(problem: AllocationProblem, size: int, generations: int, seed: int) -> float:
    """The same search, one matrix and one entry at a time; the best harmonic worth that it finds."""
    rng = np.random.default_rng(seed)
    rows, columns = problem.limit.shape

    def mended(matrix: list[list[int]]) -> list[list[int]]:
        for row in range(rows):
            while sum(matrix[row]) > problem.most[row]:
                matrix[row][rng.choice(np.flatnonzero(matrix[row]))] -= 1
        for column in range(columns):
            meeting = [row for row in range(rows) if matrix[row][column] and sum(map(bool, matrix[row])) > 1]
            for row in rng.permutation(meeting).tolist()[int(problem.spread_room[column]) :]:
                matrix[int(row)][column] = 0
            room = int(problem.capacity[column])
            for row in rng.permutation(rows).tolist():
                matrix[row][column] = min(matrix[row][column], room)
                room -= matrix[row][column]
        return [
            row if sum(row) >= least else [0] * columns
            for row, least in zip(matrix, problem.least, strict=True)
        ]

    def changed(matrix: list[list[int]]) -> list[list[int]]:
        places = [(r, c) for r in range(rows) for c in range(columns) if matrix[r][c]]
        vacant = [(r, c) for r in range(rows) if not any(matrix[r]) for c in range(columns)]
        anywhere = [(r, c) for r in range(rows) for c in range(columns)]
        for kind in (places, vacant, anywhere):
            if kind and rng.random() < 0.5:
                row, column = kind[int(rng.integers(len(kind)))]
                matrix[row][column] = int(rng.integers(0, problem.limit[row, column] + 1))
        return matrix

    start = filled(problem, empty(problem, size), rng).tolist()
    ranked = sorted(start, key=lambda matrix: -worth_by_hand(problem, matrix))
    for _ in range(generations):
        children = []
        for _ in range(size):
            first, second = (ranked[int(rng.integers(0, size, 2).min())] for _ in range(2))
            cut = int(rng.integers(rows))
            child = [list(row) for row in (*first[:cut], *second[cut:])]
            children.append(mended(changed(child)))
        distinct = {str(matrix): matrix for matrix in ranked + children}
        ranked = sorted(distinct.values(), key=lambda matrix: -worth_by_hand(problem, matrix))[:size]
    return worth_by_hand(problem, ranked[0])


def test_the_search_is_as_good_as_the_same_search_in_plain_loops() -> None:
    whole, plain = [], []
    for seed in range(4):
        problem = concave(rows=8, columns=4, seed=seed)
        rng = np.random.default_rng(seed)
        start = filled(problem, empty(problem, 20), rng)
        whole.append(8 / -evolve(problem, start, 40, rng).worth[0])
        plain.append(8 / -by_loops(problem, 20, 40, seed))
    assert np.mean(whole) > 0.97 * np.mean(plain)


@pytest.mark.slow
def test_a_larger_problem_comes_close_to_what_ten_times_the_budget_finds() -> None:
    problem = concave(rows=20, columns=16, seed=1)
    found = []
    for generations in (100, 1000):
        rng = np.random.default_rng(0)
        start = filled(problem, empty(problem, 100), rng)
        found.append(20 / -evolve(problem, start, generations, rng).worth[0])
    assert found[0] > 0.93 * found[1]
