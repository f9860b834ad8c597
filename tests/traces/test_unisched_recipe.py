from dataclasses import replace

import numpy as np
import pytest

from stretto.model import Adaptivity, InputError, Job, JobId, Reward
from stretto.traces import Workload, make_workload
from stretto.traces.helios_made import HOURS, VENUS
from stretto.traces.recipes import prepared
from stretto.traces.recipes.unisched import curve_of
from stretto.traces.workload import Truth


def three_classes(each: int = 400) -> Workload:
    """Jobs of 1,000 s: best effort, strict, soft in turn; 1, 2, 4, 8 GPUs."""
    rewards = ((), (Reward(1e7, 10.0),), (Reward(1e7, 10.0), Reward(2e7, 8.0)))
    jobs = [
        Job(
            JobId(f"j{row:04d}"),
            60.0 * row,
            2 ** (row % 4),
            adaptivity=Adaptivity.RIGID,
            rewards=rewards[row % 3],
        )
        for row in range(3 * each)
    ]
    return Workload("made", jobs, [Truth(duration_s=1_000.0)] * len(jobs))


def test_first_deadlines_are_one_point_one_to_two_durations_from_submission() -> None:
    found = prepared(three_classes(), "unisched:performance=0")
    after = np.array([job.rewards[0].deadline_s - job.submitted_s for job in found.jobs if job.rewards])
    assert after.min() >= 1_100.0
    assert after.max() <= 2_000.0
    assert after.mean() == pytest.approx(1_550.0, rel=0.02)


def test_classes_are_those_of_the_trace_with_the_rewards_of_the_paper() -> None:
    given = three_classes()
    found = prepared(given, "unisched")
    for before, after in zip(given.jobs, found.jobs, strict=True):
        values = [one.value for one in after.rewards]
        assert values == {0: [], 1: [100.0], 2: [100.0, 80.0, 50.0, 20.0]}[len(before.rewards)]
        if len(values) > 1:
            relative = np.array([one.deadline_s - after.submitted_s for one in after.rewards])
            assert relative / relative[0] == pytest.approx([1.0, 1.1, 1.2, 1.5])


def test_a_fifth_of_the_jobs_stops_by_performance_in_its_last_epoch() -> None:
    found = prepared(three_classes(), "unisched")
    rows = [row for row, job in enumerate(found.jobs) if job.goal is not None]
    assert len(rows) / len(found.jobs) == pytest.approx(0.2, abs=0.04)
    for row in rows:
        goal, curve = found.jobs[row].goal, found.truths[row].learning
        assert goal is not None
        assert curve is not None
        assert curve.epochs <= goal.most_epochs
        assert (curve.metrics >= goal.metric).tolist() == [False] * (curve.epochs - 1) + [True]


def test_goals_are_the_best_metric_or_99_percent_of_it() -> None:
    curves = [curve_of(np.random.default_rng(seed)) for seed in range(200)]
    whole = [replace(curve, epochs=goal.most_epochs).metrics.max() for curve, goal in curves]
    ratios = np.array([goal.metric / best for (_, goal), best in zip(curves, whole, strict=True)])
    assert set(np.round(ratios, 9)) == {0.99, 1.0}
    assert (ratios > 0.995).mean() == pytest.approx(0.5, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.8, 1.0, 1.2, 1.6, 2.5])
def test_the_density_is_that_many_jobs_with_different_names_in_order(density: float) -> None:
    found = prepared(three_classes(), f"unisched:density={density}")
    assert len(found.jobs) == round(density * 1_200)
    assert len({job.id for job in found.jobs}) == len(found.jobs)
    assert [job.submitted_s for job in found.jobs] == sorted(job.submitted_s for job in found.jobs)
    assert found.jobs[-1].submitted_s <= 60.0 * 1_199


def test_hostile_requests_are_a_share_of_the_small_ones() -> None:
    found = prepared(three_classes(), "unisched:hostile=0.5")
    small = [job.gpus for job in found.jobs if 2 <= job.gpus <= 8]
    assert np.isin(small, [3, 5, 6, 7]).mean() == pytest.approx(0.5, abs=0.001)


def test_elastic_sizes_change_nothing_else() -> None:
    one, other = prepared(three_classes(), "unisched"), prepared(three_classes(), "unisched:elastic=yes")
    for rigid, elastic in zip(one.jobs, other.jobs, strict=True):
        assert (elastic.min_gpus, elastic.max_gpus) == (1, 2 * elastic.gpus)
        assert (rigid.rewards, rigid.goal, rigid.gpus) == (elastic.rewards, elastic.goal, elastic.gpus)


def test_the_same_words_give_the_same_workload() -> None:
    one, other = (prepared(three_classes(), "unisched:density=1.4,seed=3") for _ in range(2))
    assert (list(one.jobs), list(one.truths)) == (list(other.jobs), list(other.truths))
    assert list(prepared(three_classes(), "unisched:seed=4").jobs) != list(other.jobs)


@pytest.mark.parametrize("words", ["unisched:density=0", "unisched:performance=1.5", "unisched:hostile=-1"])
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="recipe unisched"):
        prepared(three_classes(), words)


def test_a_workload_without_durations_is_refused() -> None:
    with pytest.raises(InputError, match="no duration"):
        prepared(make_workload("synthetic-sia:jobs=3"), "unisched")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_made_helios_asks_for_what_venus_did(seed: int) -> None:
    found = make_workload("helios-mix2", seed=seed)
    gpus = np.array([job.gpus for job in found.jobs])
    duration_s = np.array([truth.duration_s for truth in found.truths])
    assert len(found.jobs) == VENUS.jobs
    assert found.synthetic
    assert gpus.mean() == pytest.approx(5.77, rel=0.06)
    assert duration_s.min() >= 1_200.0
    assert duration_s.max() <= 259_200.0
    demand = (gpus * duration_s).sum() / (HOURS * 3_600)
    assert demand == pytest.approx(895.0, rel=0.15)  # GPUs, on average


@pytest.mark.parametrize(("name", "shares"), [
    ("helios-slo", {1: 1.0}),
    ("helios-mix1", {1: 0.702, 0: 0.298}),
    ("helios-mix2", {4: 0.599, 1: 0.300, 0: 0.101}),
])  # fmt: skip
def test_the_classes_of_made_helios_are_as_frequent_as_in_the_philly_files(
    name: str, shares: dict[int, float]
) -> None:
    steps = np.array([len(job.rewards) for job in make_workload(name).jobs])
    assert {step: (steps == step).mean() for step in shares} == pytest.approx(shares, abs=0.02)
    assert set(steps) == set(shares)
