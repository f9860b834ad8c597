"""Speeds that are measured otherwise than they are."""

import numpy as np
import pytest

from stretto.model import Point
from stretto.sim.settings import SimSettings
from stretto.sim.truth.measured_speeds import EXACTLY, LEAST, Measuring
from stretto.sim.truth.training import TrainingRun

from .made_worlds import a_truth

TRUE = Point(1, 2, 8, 0.1, 0.2)


def factor(measuring: Measuring, kind: int = 0, true: Point = TRUE) -> float:
    seen = measuring.seen(kind, true)
    assert seen[:3] == true[:3]
    assert seen.grad_s / true.grad_s == pytest.approx(seen.step_s / true.step_s)
    return seen.step_s / true.step_s


def test_without_an_error_the_true_step_is_measured() -> None:
    assert EXACTLY.seen(0, TRUE) is TRUE
    assert Measuring("bert", 0.0, 3).seen(1, TRUE) is TRUE


def test_all_jobs_of_a_model_see_the_same_and_each_placement_is_off_otherwise() -> None:
    bert = Measuring("bert", 0.3, 3)
    assert factor(bert) == factor(Measuring("bert", 0.3, 3), true=TRUE._replace(local_batch=64))
    others = [
        factor(bert, kind=1),
        factor(bert, true=TRUE._replace(gpus=4)),
        factor(bert, true=TRUE._replace(nodes=2)),
        factor(Measuring("yolov3", 0.3, 3)),
        factor(Measuring("bert", 0.3, 4)),
    ]
    assert len({factor(bert), *others}) == 6


def test_errors_are_as_large_as_asked_for_and_no_step_takes_no_time() -> None:
    factors = np.array([factor(Measuring("bert", 0.3, seed)) for seed in range(400)])
    assert 0.25 < factors.std() < 0.35
    assert abs(factors.mean() - 1.0) < 0.05
    assert min(factor(Measuring("bert", 5.0, seed)) for seed in range(100)) == pytest.approx(LEAST)


def test_what_a_job_shows_is_what_was_measured_and_its_progress_is_true() -> None:
    def after_a_minute(measuring: Measuring) -> TrainingRun:
        truth = a_truth()
        run = TrainingRun(truth, truth.limits, 10, SimSettings(), measuring=measuring)
        run.give(0, (2,), moved=True, now_s=0.0)
        run.advance(60.0)
        return run

    exact, wrong = after_a_minute(EXACTLY), after_a_minute(Measuring("bert", 0.3, 3))
    assert exact.evidence is not None
    assert wrong.evidence is not None
    (true,), (seen,) = exact.evidence.observed[0].points, wrong.evidence.observed[0].points
    assert seen == Measuring("bert", 0.3, 3).seen(0, true) != true
    assert wrong.progress == exact.progress
    noise = [(run.evidence.grad_sqr, run.evidence.grad_var) for run in (exact, wrong) if run.evidence]
    assert noise[0] == noise[1]
