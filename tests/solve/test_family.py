import numpy as np
import pytest

from stretto.experiments.bench import instance


def test_the_same_seed_gives_the_same_problem() -> None:
    problem, again = instance(50, 64, 3, 7), instance(50, 64, 3, 7)
    for name in ("value", "allowed", "units", "kind", "capacity", "forced"):
        assert np.array_equal(getattr(problem, name), getattr(again, name))
    assert not np.array_equal(instance(50, 64, 3, 7).value, instance(50, 64, 3, 8).value)


@pytest.mark.parametrize(("jobs", "gpus", "types"), [(1, 1, 1), (64, 64, 3), (500, 512, 4)])
def test_every_column_is_a_power_of_two_within_a_node_or_whole_nodes(
    jobs: int, gpus: int, types: int
) -> None:
    problem = instance(jobs, gpus, types, seed=0)
    assert problem.value.shape == problem.allowed.shape == (jobs, problem.units.size)
    assert all(size in (1, 2, 4) or size % 8 == 0 for size in problem.units.tolist())
    assert (problem.units <= problem.capacity[problem.kind]).all()
    assert np.isfinite(problem.value[problem.allowed]).all()


def test_worth_is_concave_in_gpus_of_one_type() -> None:
    problem = instance(40, 256, 2, seed=3, large_minimum_share=0.0)
    first = np.flatnonzero(problem.kind == 0)[:4]  # 1, 2, 4, 8 GPUs
    worth = np.where(problem.allowed[:, first], problem.value[:, first], np.nan)
    growth = worth[:, 1:] / worth[:, :-1]
    assert (growth[~np.isnan(growth)] < 2.0).all()
    assert (growth[~np.isnan(growth)] > 1.0).all()


def test_four_in_ten_jobs_have_a_large_minimum_and_some_are_forced() -> None:
    problem = instance(2000, 2048, 4, seed=0)
    least = np.where(problem.allowed, problem.units, 10**6).min(axis=1)
    assert (least > 1).mean() == pytest.approx(0.4, abs=0.05)
    forced = np.flatnonzero(problem.forced >= 0)
    assert 0.01 < forced.size / 2000 < 0.07
    held = np.bincount(problem.kind[problem.forced[forced]], problem.units[problem.forced[forced]], 4)
    assert (held <= problem.capacity / 2).all()
