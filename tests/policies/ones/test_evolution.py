from typing import Any

import numpy as np
import pytest

from stretto.model import IntArray
from stretto.policies.ones.evolution import (
    IDLE,
    ProblemInstance,
    ProgressPosterior,
    counts_of,
    crossover,
    fill_idle,
    mutate,
    next_generation,
    random_schedules,
    refresh,
    reorder,
    repair,
    scores,
    select,
    trim,
)


def a_field(jobs: int, gpus: int, **columns: Any) -> ProblemInstance:
    """GPUs of one type; every job runs at one sample per GPU-second, on any number of GPUs, up to one."""
    counts = np.arange(gpus + 1)
    linear = np.broadcast_to(np.where(counts > 0, 1.0, 0.0), (jobs, 2, gpus + 1))
    most = columns.pop("most", [1] * jobs)
    blank: dict[str, Any] = {
        "segment": np.zeros(gpus, dtype=np.int64),
        "node": np.arange(gpus) // 4,
        "per_node": np.array([4]),
        "home": np.zeros(jobs, dtype=np.int64),
        "cost": linear,
        "fit": np.minimum(counts, gpus) + np.zeros((jobs, 1), dtype=np.int64),
        "kept": counts + np.zeros((jobs, 1), dtype=np.int64),
        "grown": np.maximum(counts, np.array(most)[:, None]),
        "least": np.ones(jobs, dtype=np.int64),
        "executed_s": np.zeros(jobs),
    }
    return ProblemInstance(**(blank | {name: np.asarray(column) for name, column in columns.items()}))


def a_belief(*left: float) -> ProgressPosterior:
    """So sure of what is left that draws hardly differ: processed = left, ρ = 1/2."""
    return ProgressPosterior(np.array(left), np.full(len(left), 1e9), np.full(len(left), 1e9))


def genome(text: str) -> IntArray:
    """One schedule: "1223." is job 0 on GPU 0, job 1 on GPUs 1 and 2, job 2 on GPU 3, GPU 4 idle."""
    return np.array([[IDLE if letter == "." else int(letter) - 1 for letter in text]])


def text_of(row: IntArray) -> str:
    return "".join("." if job == IDLE else str(job + 1) for job in row.tolist())


def test_figure_8_children_share_out_the_genes_of_their_parents_gpu_by_gpu() -> None:
    first, second = genome("112233"), genome("322111")
    swapped = np.array([[False, True, False, False, True, False]])
    one, other = crossover(first, second, swapped)
    assert (text_of(one[0]), text_of(other[0])) == ("122213", "312131")
    pairs = zip(one[0], other[0], first[0], second[0], strict=True)
    assert all(sorted((a, b)) == sorted((c, d)) for a, b, c, d in pairs)


def test_every_child_of_a_generation_inherits_from_its_parents_only() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(-1, 5, (2, 40, 16))
    one, other = crossover(first, second, rng.random((40, 16)) < 0.5)
    assert (np.sort([one, other], axis=0) == np.sort([first, second], axis=0)).all()


def test_figure_10_reordering_packs_jobs_in_the_order_in_which_they_occur() -> None:
    assert text_of(reorder(a_field(3, 6), genome("122213"))[0]) == "112223"


def test_reordering_leaves_types_apart_and_idle_gpus_last() -> None:
    problem = a_field(
        3, 6, segment=[0, 0, 0, 1, 1, 1], node=[0, 0, 0, 1, 1, 1], per_node=[3, 3], home=[0, 0, 1]
    )
    assert text_of(reorder(problem, genome("2.1.3."))[0]) == "21.3.."


def test_a_job_of_4_gpus_releases_2_where_its_limit_has_halved() -> None:
    counts = np.arange(9)
    kept = np.minimum(counts, 512 * counts // 1024)[None]  # batch 1024 on 4 GPUs, 256 on each; limit 512
    problem = a_field(1, 8, kept=np.maximum(kept, np.minimum(counts, 1)))
    assert text_of(trim(problem, genome("1111...."), problem.kept)[0]) == "11......"


def test_a_job_of_4_gpus_takes_4_more_where_its_limit_has_doubled() -> None:
    grown = np.maximum(np.arange(9), 2048 * 4 // 1024)[None]
    problem = a_field(1, 8, grown=grown)
    assert text_of(fill_idle(problem, genome("1111...."), np.ones((1, 1)))[0]) == "11111111"


def test_the_schedule_with_fewer_gpu_seconds_to_go_wins() -> None:
    costs = np.array([[2 / 400, 2 / 500], [3 / 500, 1 / 300]])
    assert scores(costs, np.array([[80_000.0, 30_000.0]]))[0] == pytest.approx([520.0, 580.0])


def test_two_epochs_of_10_000_samples_and_eight_to_come_leave_80_000() -> None:
    posterior = ProgressPosterior(np.array([20_000.0]), np.array([2.0]), np.array([8.0]))
    assert posterior.expected[0] == pytest.approx(80_000.0)
    assert scores(np.array([[2 / 400]]), posterior.expected[None])[0, 0] == pytest.approx(400.0)


def test_figure_9_mutation_gives_the_gpus_of_a_drawn_job_to_one_that_waits() -> None:
    problem = a_field(4, 6, most=[1, 1, 1, 2])
    mutation_mask = np.array([[False, True, False, False]])
    assert text_of(mutate(problem, genome("122313"), mutation_mask, np.ones((1, 4)))[0]) == "144313"


def test_a_struck_job_comes_back_where_nobody_else_can_use_its_gpus() -> None:
    problem = a_field(2, 4, most=[1, 3])
    assert text_of(mutate(problem, genome("1222"), np.array([[False, True]]), np.ones((1, 2)))[0]) == "1222"


def test_figure_7_idle_gpus_go_to_whoever_adds_least_until_none_is_left() -> None:
    problem = a_field(3, 6, most=[3, 1, 4])
    left = np.array([[1.0, 2.0, 3.0]])
    assert text_of(fill_idle(problem, genome("......"), left)[0]) == "111233"


@pytest.mark.parametrize(
    ("executed_s", "after"),
    [
        pytest.param([9.0, 5.0, 0.0], "132222", id="from the job that has run longest"),
        pytest.param([5.0, 5.0, 0.0], "112223", id="of equals from the one with most GPUs"),
    ],
)
def test_a_new_job_is_given_a_gpu(executed_s: list[float], after: str) -> None:
    problem = a_field(3, 6, executed_s=executed_s)
    rows = refresh(problem, genome("112222"), np.array([2]), a_belief(1, 1, 1), np.random.default_rng(0))
    assert sorted(text_of(rows[0])) == sorted(after)


def test_a_new_job_takes_an_idle_gpu_before_anybody_elses() -> None:
    problem = a_field(3, 6, executed_s=[9.0, 5.0, 0.0])
    rows = refresh(problem, genome("11222."), np.array([2]), a_belief(1, 1, 1), np.random.default_rng(0))
    assert text_of(rows[0]) == "112223"


def test_a_new_job_that_needs_several_gpus_takes_them_one_after_the_other() -> None:
    problem = a_field(3, 6, executed_s=[9.0, 5.0, 0.0], least=[1, 1, 3])
    rows = refresh(problem, genome("112222"), np.array([2]), a_belief(1, 1, 1), np.random.default_rng(0))
    assert text_of(rows[0]) == "332223"


def test_whatever_is_bred_keeps_jobs_within_what_they_may_hold_and_on_their_type() -> None:
    rng = np.random.default_rng(3)
    counts = np.arange(17)
    sizes = np.array([1, 2, 4, 8, 3])
    fit = np.where(counts >= sizes[:, None], sizes[:, None], 0)
    problem = a_field(
        5,
        16,
        segment=[0] * 8 + [1] * 8,
        per_node=[4, 4],
        home=[0, 1, 0, 1, 0],
        fit=fit,
        grown=np.maximum(counts, sizes[:, None]),
        least=sizes,
    )
    posterior = ProgressPosterior(rng.uniform(1, 9, 5), np.full(5, 2.0), np.full(5, 2.0))
    population = repair(problem, random_schedules(problem, 16, rng), posterior.drawn(16, rng))
    for _ in range(10):
        population = next_generation(problem, population, 16, posterior, 0.2, rng)
        held = counts_of(population, 5)
        assert ((held == 0) | (held == sizes)).all()
        for member in population:
            here = member != IDLE
            assert (problem.home[member[here]] == problem.segment[here]).all()


def test_evolution_finds_the_schedule_that_an_exhaustive_search_finds() -> None:
    rng = np.random.default_rng(5)
    jobs, gpus = 4, 4
    counts = np.arange(gpus + 1)
    slower = rng.uniform(0.05, 0.6, (jobs, 1))
    one_node = np.where(counts > 0, (1 + slower * np.maximum(counts - 1, 0)) / 100, 0.0)
    problem = a_field(jobs, gpus, most=[4] * jobs, cost=np.stack([one_node, one_node], axis=1))
    left = rng.uniform(1_000, 9_000, jobs)
    every = np.array(np.meshgrid(*[range(jobs)] * gpus)).reshape(gpus, -1).T
    held = counts_of(every, jobs)
    best = (one_node[np.arange(jobs), held] * left).sum(axis=1).min()
    posterior = a_belief(*left)
    population = repair(problem, random_schedules(problem, 8, rng), posterior.drawn(8, rng))
    for _ in range(30):
        population = next_generation(problem, population, 8, posterior, 0.1, rng)
    found = counts_of(population[:1], jobs)[0]
    assert (one_node[np.arange(jobs), found] * left).sum() == pytest.approx(best)


def test_selection_keeps_a_schedule_once_and_the_best_first() -> None:
    problem = a_field(2, 2, most=[2, 2])
    pool = np.concatenate([genome("22"), genome("11"), genome("22"), genome("12")])
    kept = select(problem, pool, 2, a_belief(1.0, 5.0), np.random.default_rng(0))
    assert [text_of(row) for row in kept] == ["11", "22"]


def test_the_best_schedule_of_a_population_never_gets_worse_while_nothing_is_uncertain() -> None:
    rng = np.random.default_rng(11)
    problem = a_field(6, 12, most=[1, 2, 3, 4, 5, 6])
    posterior = a_belief(3, 1, 4, 1, 5, 9)
    population = repair(problem, random_schedules(problem, 12, rng), posterior.drawn(12, rng))
    population = select(problem, population, 12, posterior, rng)
    best = np.inf
    for _ in range(20):
        now = (counts_of(population[:1], 6) > 0) @ posterior.expected
        assert now[0] <= best * (1 + 1e-6)
        best = float(now[0])
        population = next_generation(problem, population, 12, posterior, 0.1, rng)
