"""Sia's figures of speeds, types and loads, from simulations and truths small enough to count by hand."""

from itertools import pairwise

import numpy as np
import pytest

from stretto.experiments.reproduction import Request
from stretto.experiments.sia.figures import changes_of, figure2, goodput, gpt, hours_by_model
from stretto.experiments.spec import RunSpec, run_spec, setup_of
from stretto.model import Job, JobId
from stretto.sim.result import Result
from stretto.sim.setup import truth_of
from stretto.sim.truth.training import TrainingTruth

SPEC = RunSpec("sia-hetero-64", "synthetic-sia:jobs=8,hours=1,seed=2", "sia")


@pytest.fixture(scope="module")
def result() -> Result:
    """Eight jobs under Sia on three types of GPUs."""
    return run_spec(SPEC)


@pytest.fixture(scope="module")
def truth() -> TrainingTruth:
    """Of a model that trains on every type."""
    setup = setup_of(SPEC)
    job = Job(JobId("1"), 0.0, 1, model="resnet18-cifar10")
    return truth_of(job, setup.cluster, setup.sim, setup.profiles)


def test_the_best_batches_are_no_slower_than_any_that_stays(truth: TrainingTruth) -> None:
    limits = truth.limits
    for gpus in (1, 2, 4):
        best = goodput(truth, 0, gpus, 4)
        for batch in (limits.init_batch, 2 * limits.init_batch):
            ends_s = truth.alone_s(0, gpus, batch)
            assert not ends_s or 1 / best <= ends_s[-1] * 1.02  # batches are tried in steps


def test_more_gpus_than_the_largest_batch_keeps_busy_cannot_train(truth: TrainingTruth) -> None:
    assert goodput(truth, 0, 4 * truth.limits.max_batch, 4) == 0.0


def test_figure_2_is_relative_to_one_t4() -> None:
    inputs, rows, _ = figure2(Request(None, scale=0.02))
    assert not any(source.real for source in inputs)
    of_one = [row for row in rows if row.row.endswith(" on 1 t4")]
    assert len(of_one) > 3
    assert [row.ours for row in of_one] == [1.0] * len(of_one)
    assert all(row.paper is None and row.ours is not None and row.ours > 0 for row in rows)


def test_the_hours_of_all_models_are_those_of_all_jobs(result: Result) -> None:
    jobs = result.requests.jobs
    of_model = {model: sum(by_type.values()) for model, by_type in hours_by_model([result]).items()}
    total = sum(of_model[job.model] for job in jobs)
    assert total == pytest.approx(result.attained_gpu_s.sum() / 3600, rel=1e-6)


def test_changes_are_counted_job_by_job(result: Result) -> None:
    sizes, types = zip(*changes_of(result), strict=True)
    rows, _, _, kinds, gpus = result.history.columns()
    for row in range(len(sizes)):
        held = [
            (int(kind), int(count)) for kind, count in zip(kinds[rows == row], gpus[rows == row], strict=True)
        ]
        pairs = list(pairwise(held))
        assert sizes[row] == sum(before[1] != after[1] for before, after in pairs)
        assert types[row] == sum(before[0] != after[0] for before, after in pairs)
    assert np.sum(sizes) > 0


def test_without_its_profiles_the_pipeline_is_left_out() -> None:
    inputs, rows, _ = gpt(Request(None, scale=0.02))
    assert rows == []
    assert [(source.what, source.real) for source in inputs] == [("gpt_pmp", False)]
