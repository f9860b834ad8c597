"""How far has each job come? A Beta distribution whose shape is learned from the jobs that have ended.

ONES (SC 2021), section 3.2.1, equations 6 and 7:

    ρ ~ Be(α, β),    α = max(Y_processed / |D|, 1),    β = max(A x + b, 1)

with the features x = (|D|, initial loss, Y_processed, 1 - loss / initial loss, accuracy). α stands for the
epochs done and β for those to come. A and b maximise the likelihood of what ended jobs had done, epoch by
epoch, of what they came to. Features are standardised; a feature that a job does not report is taken as the
mean of the others.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, psi

from stretto.model import FloatArray

FEATURES = 5
EPOCHS_TO_GO = 10.0  # β before the first job has ended; chosen
MOST_POINTS = 1_000  # chosen; the paper: a limited number, sampled uniformly from the logs of ended jobs
LARGEST = 1e100  # chosen: a report beyond it counts as none, or squares would not be numbers
RIDGE = 1e-2  # on A, for each point; chosen: with one job in the books A would follow its noise


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Points from the logs of ended jobs: a uniform sample, those with the smallest keys."""

    features: FloatArray  # (points, FEATURES)
    epochs_done: FloatArray  # (points,) Y_processed / |D|
    progress: FloatArray  # (points,) in (0, 1)
    keys: FloatArray  # (points,) drawn once for every point that ever was


@dataclass(frozen=True, eq=False)
class Regression:
    """A, b and how features are standardised."""

    weights: FloatArray  # (FEATURES,) A
    intercept: float  # b
    mean: FloatArray  # (FEATURES,)
    scale: FloatArray  # (FEATURES,)

    def beta(self, features: FloatArray) -> FloatArray:
        """(jobs,) β = max(A x + b, 1) of (jobs, FEATURES)."""
        return np.maximum(_standard(features, self.mean, self.scale) @ self.weights + self.intercept, 1.0)


NOTHING_LEARNED = Regression(np.zeros(FEATURES), EPOCHS_TO_GO, np.zeros(FEATURES), np.ones(FEATURES))
NO_POINTS = TrainingSet(np.zeros((0, FEATURES)), np.zeros(0), np.zeros(0), np.zeros(0))


def alpha_of(samples: FloatArray, dataset_samples: FloatArray) -> FloatArray:
    """α: epochs done, at least one."""
    return np.maximum(samples / dataset_samples, 1.0)


def features_of(
    dataset_samples: FloatArray,
    initial_loss: FloatArray,
    samples: FloatArray,
    loss: FloatArray,
    metric: FloatArray,
) -> FloatArray:
    """(jobs, FEATURES) of columns; NaN what is not reported. Before the first epoch nothing is gained.

    Of a loss that was 0 at first nothing can be gained: its part counts as not reported.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        gained = np.where(samples < dataset_samples, 0.0, 1.0 - loss / initial_loss)
    features = np.stack([dataset_samples, initial_loss, samples, gained, metric], axis=1)
    return np.where(np.abs(features) <= LARGEST, features, np.nan)


def with_job(
    points: TrainingSet, features: FloatArray, total_samples: float, rng: np.random.Generator
) -> TrainingSet:
    """The training set with the log (epochs, FEATURES) of one more job, and what that came to in the end."""
    dataset, samples = features[:, 0], features[:, 2]
    inside = (samples > 0) & (samples < total_samples)
    features, dataset, samples = features[inside], dataset[inside], samples[inside]
    keys = np.concatenate([points.keys, rng.random(len(samples))])
    chosen = np.sort(np.argsort(keys, kind="stable")[:MOST_POINTS])
    return TrainingSet(
        features=np.concatenate([points.features, features])[chosen],
        epochs_done=np.concatenate([points.epochs_done, samples / dataset])[chosen],
        progress=np.concatenate([points.progress, samples / total_samples])[chosen],
        keys=keys[chosen],
    )


def fit_regression(points: TrainingSet) -> Regression:
    """The regression of greatest likelihood; what is believed at first where there is no point."""
    if not len(points.keys):
        return NOTHING_LEARNED
    from scipy.optimize import minimize  # takes a tenth of a second to import

    # Features to mean 0 and spread 1, so that the search is as steep in one as in another.
    with np.errstate(invalid="ignore"):
        is_finite = np.isfinite(points.features)
        counted = np.maximum(is_finite.sum(axis=0), 1)
        mean = np.where(is_finite, points.features, 0.0).sum(axis=0) / counted
        spread = np.sqrt((np.where(is_finite, points.features - mean, 0.0) ** 2).sum(axis=0) / counted)
    scale = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1.0), spread, 1.0)
    inputs = np.concatenate([_standard(points.features, mean, scale), np.ones((len(points.keys), 1))], axis=1)
    alpha = np.maximum(points.epochs_done, 1.0)
    log_rest = np.log1p(-points.progress)

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        """Mean negative log-likelihood in β, without what does not depend on it, and its gradient."""
        linear = inputs @ theta
        beta = np.maximum(linear, 1.0)
        value = (betaln(alpha, beta) - (beta - 1.0) * log_rest).mean()
        slope = np.where(linear > 1.0, psi(beta) - psi(alpha + beta) - log_rest, 0.0) / len(alpha)
        ridge = RIDGE * np.append(theta[:-1], 0.0)
        return float(value + 0.5 * ridge @ theta), inputs.T @ slope + ridge

    # From what is believed before anything is learned.
    start = np.append(np.zeros(FEATURES), EPOCHS_TO_GO)
    solution = minimize(loss, start, jac=True, method="L-BFGS-B")
    return Regression(solution.x[:-1], float(solution.x[-1]), mean, scale)


def _standard(features: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    """Standardised features; 0, the mean, where one is not known."""
    return np.nan_to_num((features - mean) / scale)
