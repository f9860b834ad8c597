"""What ONES remembers from one decision to the next, and what it learns from jobs that have ended."""

from dataclasses import dataclass, replace

import numpy as np

from stretto.model import FloatArray, IntArray, JobId, JobTable
from stretto.policies.ones.batch_limits import BatchLimits
from stretto.policies.ones.evolution import IDLE
from stretto.policies.ones.progress import (
    FEATURES,
    NO_POINTS,
    NOTHING_LEARNED,
    Regression,
    TrainingSet,
    features_of,
    fit_regression,
    with_job,
)

NO_LOG: FloatArray = np.zeros((0, FEATURES))
STEP_S = 60.0  # of a job that reports no samples: so many seconds count as an epoch; chosen


@dataclass(frozen=True, eq=False)
class Remembered:
    """Rows are those of `jobs`, which were there at the last decision."""

    decisions: int  # names the generator of the next
    arrivals: int  # jobs ever seen
    first_s: float  # when the first of them was submitted
    jobs: tuple[JobId, ...]
    limits: BatchLimits  # NaN of its reference until a job has run for long
    deployed_epochs: IntArray  # (jobs,) finished when the last whole schedule was put in place
    logged_epochs: IntArray  # (jobs,) finished when its log last grew
    logs: tuple[FloatArray, ...]  # of each job, its features at the end of every epoch
    points: TrainingSet
    regression: Regression
    places: IntArray  # (gpus,) of the columns below
    population: IntArray  # (members, gpus) rows of `jobs`, best first


NO_MEMORY = Remembered(
    decisions=0,
    arrivals=0,
    first_s=0.0,
    jobs=(),
    limits=BatchLimits(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)),
    deployed_epochs=np.zeros(0, dtype=np.int64),
    logged_epochs=np.zeros(0, dtype=np.int64),
    logs=(),
    points=NO_POINTS,
    regression=NOTHING_LEARNED,
    places=np.zeros(0, dtype=np.int64),
    population=np.zeros((0, 0), dtype=np.int64),
)


@dataclass(frozen=True, eq=False)
class Reports:
    """What jobs have told of their training; columns are (jobs,)."""

    samples: FloatArray  # processed
    dataset_samples: FloatArray  # of an epoch
    features: FloatArray  # (jobs, FEATURES)


def reports_of(jobs: JobTable) -> Reports:
    """A job that reports no samples has processed what it would have in its time on what it asked for."""
    learning = jobs.learning
    told = np.isfinite(learning.samples) & np.isfinite(learning.dataset_samples)
    samples = np.where(told, learning.samples, jobs.progress.attained_gpu_s / jobs.gpus)
    dataset = np.where(told, learning.dataset_samples, STEP_S)
    features = features_of(dataset, learning.initial_loss, samples, learning.loss, learning.metric)
    return Reports(samples, dataset, features)


def carry_forward(before: Remembered, jobs: JobTable, least_limit: IntArray, now: Reports) -> Remembered:
    """The same for the jobs that are there now: new ones begin, logs grow, ended ones have gone."""
    row_then = {job: row for row, job in enumerate(before.jobs)}
    # Where each job stood at the last decision; -1 is read as the last row and masked by `remembered`.
    then = np.array([row_then.get(job, -1) for job in jobs.ids], dtype=np.int64)
    remembered = then >= 0
    epochs = jobs.progress.epochs

    def carried(column: np.ndarray, blank: np.ndarray) -> np.ndarray:
        return np.where(remembered, column[then], blank) if len(column) else blank

    limits = BatchLimits(
        limit=carried(before.limits.limit, least_limit),
        reference=carried(before.limits.reference, np.full(len(then), np.nan)),
        epochs=carried(before.limits.epochs, np.zeros_like(epochs)),
    )
    logs = [before.logs[row] if row >= 0 else NO_LOG for row in then.tolist()]
    for row in np.flatnonzero(epochs > carried(before.logged_epochs, np.zeros_like(epochs))).tolist():
        logs[row] = np.concatenate([logs[row], now.features[row : row + 1]])
    fresh = jobs.submitted_s[~remembered]
    return replace(
        before,
        arrivals=before.arrivals + len(fresh),
        first_s=min([*([before.first_s] if before.arrivals else []), *fresh.tolist()], default=0.0),
        jobs=jobs.ids,
        limits=limits,
        deployed_epochs=carried(before.deployed_epochs, epochs),
        logged_epochs=epochs,
        logs=tuple(logs),
        population=_renumbered(before, {job: row for row, job in enumerate(jobs.ids)}),
    )


def update_training_set(before: Remembered, now: Remembered, rng: np.random.Generator) -> Remembered:
    """With the logs of the jobs that have ended since in the training set, and the regression fitted anew.

    What a job came to is not seen when it ends: another epoch like its last one is added to its log.
    """
    there, points = set(now.jobs), before.points
    for job, log in zip(before.jobs, before.logs, strict=True):
        if job not in there and len(log):
            samples = np.append(0.0, log[:, 2])
            points = with_job(points, log, float(2 * samples[-1] - samples[-2]), rng)
    if points is before.points:
        return now
    return replace(now, points=points, regression=fit_regression(points))


def population_on(memory: Remembered, places: IntArray) -> IntArray:
    """(members, gpus) the population on the GPUs that are there now; what it did not know is idle."""
    _, now, then = np.intersect1d(places, memory.places, return_indices=True)
    population = np.full((len(memory.population), len(places)), IDLE, dtype=np.int64)
    population[:, now] = memory.population[:, then]
    return population


def _renumbered(before: Remembered, row_now: dict[JobId, int]) -> IntArray:
    """The population by the rows of the jobs that are there now; the GPUs of ended jobs are idle."""
    rows = np.array([*(row_now.get(job, IDLE) for job in before.jobs), IDLE], dtype=np.int64)
    return rows[before.population]
