"""How long will each job still take, and how many steps is that, for policies that are not told the truth?

The durations of UniSched's Estimator, where some jobs stop by performance: UniSched (TPDS 2024), section
III-B. Chronus uses them too, as in that paper's comparison. And steps that follow from estimated durations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.estimate.learning_curves import FEWEST_EPOCHS, all_epochs_to_reach
from stretto.model import FloatArray, JobId, JobTable

REFIT_AFTER = 1.2  # times the epochs of the last fit: a curve that is little longer says little more; chosen
MOST_STEPS = 1e15  # stands for a job without an end
SMALLEST_EPOCHS = 0.05  # of progress from which the time of an epoch is known; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Fits:
    """Epochs that jobs with a goal will take, as last fitted; columns are (jobs with a goal,)."""

    ids: tuple[JobId, ...] = ()
    seen: tuple[int, ...] = ()  # epochs to which the curve was fitted
    needed: tuple[int, ...] = ()  # in all


def remaining_s(jobs: JobTable, iterations: bool, before: Fits) -> tuple[FloatArray, Fits]:
    """(jobs,) N_iter T_iter: seconds left on what each job asked for, suspensions apart; and the fits kept.

    A job that stops by performance is estimated from its learning curve, refitted as it grows. It is what an
    epoch took so far, times the epochs that the ensemble expects. With `iterations` off, it is times the
    epochs that its owner allows. Until it has made some progress the world's estimate stands in for a profile
    of its epochs.
    """
    left_s = jobs.estimates.remaining_s.copy()
    rows = [row for row, job in enumerate(_jobs(jobs)) if job.goal is not None]
    if not rows:
        return left_s, Fits()
    learning, done_s = jobs.learning, jobs.estimates.duration_s - left_s
    epochs = learning.samples / learning.dataset_samples
    known = dict(zip(before.ids, zip(before.seen, before.needed, strict=True), strict=True))
    goals = [goal for row in rows if (goal := jobs[row].goal) is not None]
    seen, needed = [], []
    for row, goal in zip(rows, goals, strict=True):
        epochs_fitted, epochs_needed = known.get(jobs.ids[row], (-1, goal.most_epochs))
        seen.append(epochs_fitted)
        needed.append(epochs_needed)
    # A refit takes time, so a curve is fitted again only once it is longer by a fifth; all of them at once.
    grown = []
    for index, row in enumerate(rows if iterations else ()):
        length = len(learning.history[row])
        if length >= max(seen[index] * REFIT_AFTER, FEWEST_EPOCHS) and length != seen[index]:
            grown.append(index)
            seen[index] = length
    histories = [learning.history[rows[index]] for index in grown]
    targets = [goals[index].metric for index in grown]
    most_epochs = [goals[index].most_epochs for index in grown]
    for index, epoch in zip(grown, all_epochs_to_reach(histories, targets, most_epochs), strict=True):
        needed[index] = epoch
    # Time so far over progress so far gives the time of an epoch.
    for row, epochs_needed in zip(rows, needed, strict=True):
        if epochs[row] >= SMALLEST_EPOCHS:
            left_s[row] = max(epochs_needed - epochs[row], SMALLEST_EPOCHS) * done_s[row] / epochs[row]
    return left_s, Fits(tuple(jobs.ids[row] for row in rows), tuple(seen), tuple(needed))


def estimated_steps(jobs: JobTable) -> FloatArray:
    """(jobs,) steps left by the world's estimate: seconds left, at a job's best speed on what it asked for.

    0 where no speed is known. Needs the views of estimated durations and of measured speeds.
    """
    tables, allowed = jobs.tables, jobs.allowed_kinds
    # A table ends at the most GPUs that a job can have; what it asks for may be more.
    per_s = [
        np.nan_to_num(tables[row].per_s[allowed[row], count : count + 1], nan=0.0).max(initial=0.0)
        for row, count in enumerate(jobs.gpus.tolist())
    ]
    steps = jobs.estimates.remaining_s * np.array(per_s, dtype=np.float64)
    return np.nan_to_num(steps, nan=0.0, posinf=MOST_STEPS)


def _jobs(jobs: JobTable) -> Sequence:  # type: ignore[type-arg]
    requests = jobs.requests.jobs
    return [requests[row] for row in jobs.rows.tolist()]
