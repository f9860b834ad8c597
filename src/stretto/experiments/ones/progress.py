"""How far a training has come, predicted with an interval while it runs (figure 6 of ONES)."""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from stretto.experiments.ones.comparison import TRACE
from stretto.experiments.reproduction import PLUS_MINUS, Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import FloatArray, floats
from stretto.policies.ones.progress import (
    NO_POINTS,
    alpha_of,
    features_of,
    fit_regression,
    with_job,
)
from stretto.traces.learning import LearningCurve

CLUSTER = "ones-64"
HOURS, SEEDS = 6, range(3)  # of arrivals, of made traces; chosen
LEARNED_FROM = 0.7  # share of the jobs that have ended before the others are predicted; chosen
INTERVAL = 0.9  # figure 6
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a training, where its prediction is printed


@dataclass(frozen=True, eq=False)
class Predicted:
    """One training at the end of each of its epochs but the last; columns are (epochs,)."""

    progress: FloatArray  # samples processed / in all
    mean: FloatArray  # of the Beta distribution
    low: FloatArray  # bounds of the interval
    high: FloatArray


def figure6(request: Request) -> Made:
    """Share of epochs whose progress lies within the interval, and how far off its mean is."""
    inside, error, width, example = [], [], [], None
    for seed in SEEDS:
        trainings = predict(_curves(seed))
        inside.append(float(np.mean([_inside(training) for training in trainings])))
        error.append(
            float(np.mean([np.abs(training.mean - training.progress).mean() for training in trainings]))
        )
        width.append(float(np.mean([(training.high - training.low).mean() for training in trainings])))
        if example is None:  # a usual one: of the median number of epochs
            example = sorted(trainings, key=lambda training: len(training.progress))[len(trainings) // 2]
    rows = [
        *rows_over_seeds("trainings ahead", "share_within_90_percent", None, inside),
        *rows_over_seeds("trainings ahead", "mean_error", None, error),
        *rows_over_seeds("trainings ahead", "mean_width", None, width),
    ]
    assert example is not None
    for share in SHOWN:
        epoch = int(np.argmin(np.abs(example.progress - share)))
        name = f"a training at {share:.0%}"
        rows += [
            Row(name, "progress", None, float(example.progress[epoch])),
            Row(name, "predicted_mean", None, float(example.mean[epoch])),
            Row(
                name, f"predicted_mean{PLUS_MINUS}", None, float(example.high[epoch] - example.low[epoch]) / 2
            ),
        ]
    made = Input("learning curves", False, f"those of the made trace {TRACE!r}, {HOURS} hours of arrivals")
    notes = [
        f"learned from the first {LEARNED_FROM:.0%} of each trace's jobs; shown are the others",
        "the paper draws one training and prints no figure. An interval of 90 % promises 0.9: ours is too "
        "narrow, since β is linear in what jobs report, and epochs to go are not",
        "plus_minus of a training: half the width of its interval",
    ]
    return [made], rows, notes


def predict(curves: list[LearningCurve]) -> list[Predicted]:
    """What equations 6 and 7 believe of the last curves, fitted to the first ones."""
    known = round(LEARNED_FROM * len(curves))
    points, rng = NO_POINTS, np.random.default_rng(0)
    for curve in curves[:known]:
        points = with_job(points, _features(curve), curve.epochs * curve.dataset_samples, rng)
    regression = fit_regression(points)
    trainings = []
    for curve in curves[known:]:
        features = _features(curve)
        alpha, beta = alpha_of(features[:, 2], features[:, 0]), regression.beta(features)
        low, high = (
            floats(betaincinv(alpha, beta, tail)) for tail in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
        )
        progress = features[:, 2] / (curve.epochs * curve.dataset_samples)
        trainings.append(Predicted(progress, alpha / (alpha + beta), low, high))
    return trainings


def _curves(seed: int) -> list[LearningCurve]:
    workload, _ = set_up(RunSpec(CLUSTER, f"{TRACE}:hours={HOURS},seed={seed}", "ones"))
    curves = [truth.learning for truth in workload.truths]
    return [curve for curve in curves if curve is not None and curve.epochs > 1]


def _features(curve: LearningCurve) -> FloatArray:
    """(epochs - 1, features) of what a training reports at the end of each epoch but the last."""
    done = np.arange(1.0, curve.epochs)
    dataset = np.full(len(done), curve.dataset_samples)
    loss = np.array([curve.loss(epochs) for epochs in done])
    return features_of(
        dataset, np.full(len(done), curve.initial_loss), dataset * done, loss, curve.metrics[: len(done)]
    )


def _inside(training: Predicted) -> float:
    return float(((training.low <= training.progress) & (training.progress <= training.high)).mean())
