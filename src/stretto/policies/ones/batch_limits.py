"""How far ONES lets the batch of each job grow: ONES (SC 2021), section 3.3.2. Pure functions on columns."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stretto.model import BoolArray, FloatArray, IntArray

ROUNDING = 1e-9  # by which a product may exceed an integer and count as it


@dataclass(frozen=True, eq=False)
class BatchLimits:
    """The limit R of each job, and what is needed to move it; columns are (jobs,)."""

    limit: IntArray  # samples in all; the batch may not be larger
    reference: FloatArray  # the limit from which it is scaled down; NaN while it may grow
    epochs: IntArray  # finished when the limit was last moved


@dataclass(frozen=True, eq=False)
class Trained:
    """How far each job has come; columns are (jobs,)."""

    epochs: IntArray  # finished by now
    executed_s: FloatArray  # T, the time for which it has run
    may_change: BoolArray  # it runs and is past its warm-up


def penalised(
    reference: npt.ArrayLike, executed_s: npt.ArrayLike, penalty_per_s: npt.ArrayLike
) -> FloatArray:
    """Scale-down: R' = ⌈2 R / ⌈σ T + 1⌉⌉, with T the time for which the job has run."""
    steps = np.ceil(np.asarray(penalty_per_s) * np.asarray(executed_s) + 1 - ROUNDING)
    return np.asarray(np.ceil(2 * np.asarray(reference) / steps))


def after_epochs(
    before: BatchLimits,
    trained: Trained,
    penalty_per_s: float,
    bounds: tuple[IntArray, IntArray],
    crowded: bool = True,
    compounding: bool = False,
) -> BatchLimits:
    """Limits after the epochs that have ended: doubled while σ T < 1 or no job waits, else scaled down.

    bounds: the smallest and the largest limit of each job; crowded: a job waits. The paper names both
    rules without saying which applies when. The second is there so that none waits behind long jobs. While
    none does it would leave GPUs idle, against equation 4. Applied to its own result it collapses. So, as
    long as a job waits, it starts from the limit that the job had before, unless `compounding`. Several
    epochs at once count as one: a limit at most doubles from one decision to the next (figures 13 and 14).
    """
    ended = trained.may_change & (trained.epochs > before.epochs)
    long = penalty_per_s * trained.executed_s >= 1 - ROUNDING
    shrinks = long & crowded
    # While it is scaled down, a limit starts from where it was before the first time.
    from_here = np.isnan(before.reference) | compounding
    reference = np.where(from_here, before.limit, before.reference)
    moved = np.where(shrinks, penalised(reference, trained.executed_s, penalty_per_s), 2 * before.limit)
    limit = np.where(ended, moved, before.limit).astype(np.int64)
    return BatchLimits(
        limit=np.clip(limit, bounds[0], np.maximum(*bounds)),
        reference=np.where(ended, np.where(shrinks, reference, np.nan), before.reference),
        epochs=np.where(trained.may_change, trained.epochs, before.epochs),
    )


def after_rejection(limits: BatchLimits, rejected: BoolArray, least: IntArray) -> BatchLimits:
    """Resume: a job that a new schedule leaves waiting may ask for half as much the next time."""
    halved = np.maximum(-(-limits.limit // 2), least)
    return BatchLimits(np.where(rejected, halved, limits.limit), limits.reference, limits.epochs)


def arrival_rate_per_s(arrivals: int, first_s: float, now_s: float) -> float:
    """λ, the mean rate of arrivals since the first; 0 before there are two at different times."""
    return (arrivals - 1) / (now_s - first_s) if arrivals > 1 and now_s > first_s else 0.0
