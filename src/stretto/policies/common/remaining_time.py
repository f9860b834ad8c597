"""How long will each job still take, where some stop by performance? The durations of UniSched's Estimator.

UniSched (TPDS 2024), section III-B. Chronus uses them too, as in that paper's comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.estimate.learning_curves import FEWEST_EPOCHS, epochs_to_reach
from stretto.model import FloatArray, JobId, JobTable

REFIT_AFTER = 1.2  # times the epochs of the last fit: a curve that is little longer says little more; chosen
SMALLEST_EPOCHS = 0.05  # of progress from which the time of an epoch is known; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Fits:
    """Epochs that jobs with a goal will take, as last fitted; columns are (jobs with a goal,)."""

    ids: tuple[JobId, ...] = ()
    seen: tuple[int, ...] = ()  # epochs to which the curve was fitted
    needed: tuple[int, ...] = ()  # in all


def remaining_s(jobs: JobTable, iterations: bool, before: Fits) -> tuple[FloatArray, Fits]:
    """(jobs,) N_iter T_iter: seconds left on what each job asked for, suspensions apart; and the fits kept.

    A job that stops by performance is estimated from its learning curve, refitted as it grows: what an
    epoch took so far, times the epochs that the ensemble expects (`iterations` off: times the epochs that its
    owner allows). Until it has made some progress the world's estimate stands in for a profile of its epochs.
    """
    left_s = jobs.estimates.remaining_s.copy()
    rows = [row for row, job in enumerate(_jobs(jobs)) if job.goal is not None]
    if not rows:
        return left_s, Fits()
    learning, done_s = jobs.learning, jobs.estimates.duration_s - left_s
    epochs = learning.samples / learning.dataset_samples
    known = dict(zip(before.ids, zip(before.seen, before.needed, strict=True), strict=True))
    seen_of, needed_of = [], []
    for row in rows:
        job, history = jobs[row], learning.history[row]
        most = job.goal.most_epochs if job.goal else 0
        seen, needed = known.get(job.id, (-1, most))
        # A refit costs milliseconds, so a curve is fitted again only once it is longer by a fifth.
        grown = len(history) >= max(seen * REFIT_AFTER, FEWEST_EPOCHS)
        if iterations and job.goal and grown and seen != len(history):
            seen, needed = len(history), epochs_to_reach(history, job.goal.metric, most)
        seen_of.append(seen)
        needed_of.append(needed)
        # Time so far over progress so far gives the time of an epoch.
        if epochs[row] >= SMALLEST_EPOCHS:
            left_s[row] = max(needed - epochs[row], SMALLEST_EPOCHS) * done_s[row] / epochs[row]
    ids = tuple(jobs.ids[row] for row in rows)
    return left_s, Fits(ids, tuple(seen_of), tuple(needed_of))


def _jobs(jobs: JobTable) -> Sequence:  # type: ignore[type-arg]
    requests = jobs.requests.jobs
    return [requests[row] for row in jobs.rows.tolist()]
