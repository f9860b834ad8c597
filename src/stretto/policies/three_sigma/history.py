"""What do earlier jobs say about how long one like them runs? Distributions instead of numbers.

3Sigma (Park et al., EuroSys 2018), sections 3 and 4, for trainings whose duration is estimated from a
profile: what is learned is the ratio of a duration to its estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.model import FloatArray, Job

BINS = 80  # of a histogram, at most [3Sigma]
WIDEST = 16.0  # chosen: ratios beyond 1/16 and 16 count as these
EDGES = np.geomspace(1 / WIDEST, WIDEST, BINS)  # the middles of the bins; that of 1 lies between two
FEATURES = ("user", "queue", "model", "gpus", "model and gpus")


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Ratios of durations to estimates that jobs of one kind have had."""

    seen: FloatArray = field(default_factory=lambda: np.zeros(0))  # middles of the bins with anything in them
    count: FloatArray = field(default_factory=lambda: np.zeros(0))  # of each
    error: float = 0.0  # sum of the relative errors of the mean, each before the ratio was known
    tried: int = 0  # ratios that were predicted

    @property
    def mean(self) -> float:
        """The estimator whose error is kept; 1 before anything was seen."""
        return float((self.seen * self.count).sum() / self.count.sum()) if self.count.size else 1.0

    @property
    def mean_error(self) -> float:
        """Relative error of the mean so far; infinite before the first try."""
        return self.error / self.tried if self.tried else float("inf")

    def with_ratio(self, ratio: float) -> "Histogram":
        """One more job."""
        middle = 1.0 if abs(ratio - 1.0) < EXACT else float(EDGES[np.abs(np.log(EDGES / ratio)).argmin()])
        at = int(np.searchsorted(self.seen, middle))
        error = self.error + abs(self.mean - ratio) / ratio
        if at < self.seen.size and self.seen[at] == middle:
            count = self.count.copy()
            count[at] += 1
            return Histogram(self.seen, count, error, self.tried + 1)
        return Histogram(
            np.insert(self.seen, at, middle), np.insert(self.count, at, 1.0), error, self.tried + 1
        )


EXACT = 0.01  # chosen: an estimate within this part of the duration was right
NOTHING_SEEN = Histogram(np.ones(1), np.ones(1))  # estimates are believed until jobs have ended

History = Mapping[str, Histogram]  # by feature and value; "" is everybody's


def features_of(job: Job) -> tuple[str, ...]:
    """The keys under which a job's ratio is kept, and everybody's."""
    values = (job.user, job.queue, job.model, str(job.gpus), f"{job.model} x {job.gpus}" if job.model else "")
    return ("", *(f"{name}={value}" for name, value in zip(FEATURES, values, strict=True) if value))


def learned(history: History, job: Job, ratio: float) -> History:
    """The history with one more job that has ended."""
    added = {key: history.get(key, Histogram()).with_ratio(ratio) for key in features_of(job)}
    return {**history, **added}


def distribution(history: History, job: Job) -> tuple[FloatArray, FloatArray]:
    """(bins,) ratios and their probabilities, of the feature whose mean has erred least; else the broader."""
    known = [history[key] for key in features_of(job) if key in history]
    if not known:
        return NOTHING_SEEN.seen, NOTHING_SEEN.count
    best = min(known, key=lambda histogram: histogram.mean_error)
    return best.seen, best.count / best.count.sum()


def given_elapsed(
    support_s: FloatArray, probability: FloatArray, elapsed_s: float, cycle_s: float
) -> tuple[FloatArray, FloatArray]:
    """Durations still possible once a job has run for so long, and P(duration | > elapsed).

    Where it has outrun all of them (under-estimate), 2^n cycles more are assumed, n the times that this has
    been done before: 1, 2, 4, … cycles beyond the longest.
    """
    possible = support_s > elapsed_s
    if possible.any():
        return support_s[possible], probability[possible] / probability[possible].sum()
    beyond = max(elapsed_s - float(support_s.max()), 0.0) / cycle_s
    times = int(np.floor(np.log2(beyond + 1.0) + 1e-9))
    return np.array([float(support_s.max()) + cycle_s * (2.0 ** (times + 1) - 1.0)]), np.ones(1)
