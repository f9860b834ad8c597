"""How long jobs took beside how long they were believed to take: what forecasts know of such beliefs.

Owners state times generously, or do not state any. So forecasts do not believe them as they stand: they draw
from what became of earlier beliefs of the same kind. Decisions do not look at this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from stretto.model import FloatArray
from stretto.service.state.records import JobRecord
from stretto.service.state.remaining import Basis, attained_gpu_s, stated_duration

MOST_KEPT = 500  # of each kind of belief, the newest; chosen
LEAST_KNOWN = 20  # jobs that have ended, before they are believed more than what was chosen; chosen
LEAST_AT_RISK = 10  # jobs that lasted so long, for what became of them to say how long others last; chosen
SHORTEST_S = 1.0  # of a job that has ended, in logarithms
TAIL = 0.2  # of all, the largest, from which it is told how large those are that are larger still; chosen
LEAST_IN_TAIL = 5  # jobs of these that have ended; chosen
MOST_LONGER = 10.0  # times the longest of all that a job is taken to need at most; chosen
USUAL_TAIL = 1.0  # a job that has lasted so long is as likely as not to take twice as long; chosen


@dataclass
class DurationErrors:
    """Logarithms of what jobs took over what they were believed to take, by kind of belief."""

    of_ended: dict[Basis, list[float]] = field(default_factory=dict)

    def note_end(self, record: JobRecord, now_s: float) -> None:
        """A job has ended; one that never held GPUs tells nothing."""
        took_s = attained_gpu_s(record, now_s) / record.job.gpus
        if record.accounting.starts:
            whole_s, basis = stated_duration(record)
            errors = self.of_ended.setdefault(basis, [])
            errors.append(log(max(took_s, SHORTEST_S) / whole_s))
            if len(errors) > MOST_KEPT:
                del errors[: MOST_KEPT // 10]

    def distributions(self, running: Sequence[JobRecord], now_s: float) -> dict[Basis, "ErrorDistribution"]:
        """Of each kind of belief of which enough is known. running: jobs that go on, and tell, too."""
        lasted: dict[Basis, list[float]] = {}
        for record in running:
            whole_s, basis = stated_duration(record)
            had_s = attained_gpu_s(record, now_s) / record.job.gpus
            if had_s > 0:
                lasted.setdefault(basis, []).append(log(max(had_s, SHORTEST_S) / whole_s))
        return {
            basis: ErrorDistribution.of(ended, lasted.get(basis, []))
            for basis, ended in self.of_ended.items()
            if len(ended) >= LEAST_KNOWN
        }


@dataclass(frozen=True)
class ErrorDistribution:
    """A distribution of such logarithms, as Kaplan and Meier estimate it (JASA 1958).

    Jobs that still run have told only that theirs is larger than so much. Without them long jobs would be
    missed, since few of these have ended.
    """

    values: FloatArray  # (values,) in growing order
    beyond: FloatArray  # (values,) probability to be larger than each
    tail: float = USUAL_TAIL  # mean of what lies beyond the last of these, less that

    @classmethod
    def of(cls, ended: Sequence[float], lasted: Sequence[float]) -> "ErrorDistribution":
        """From jobs that have ended, and from those that have lasted for so long and go on."""
        values, counts = np.unique(np.array(ended), return_counts=True)
        every = np.sort(np.array([*ended, *lasted]))
        at_risk = len(every) - np.searchsorted(every, values)  # that lasted at least so long
        beyond: FloatArray = np.cumprod(1.0 - counts / at_risk, dtype=np.float64)
        last = max(int(np.searchsorted(-at_risk, -LEAST_AT_RISK, side="right")), 1)
        return cls(values[:last].astype(np.float64), beyond[:last], _tail(np.array(ended), every))

    def draw(self, least: FloatArray, chance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(jobs,) a value above `least` for each, where a share `chance` of those above it is smaller.

        NaN: none so large is known. Then the second says which share of those that are not known is smaller.
        """
        known = np.append(1.0, self.beyond)
        start = np.searchsorted(self.values, least, side="right")  # values up to here are over
        target = known[start] * (1.0 - chance)
        # The first value beyond which no more than the target lies.
        place = len(self.beyond) - np.searchsorted(self.beyond[::-1], target * (1 + 1e-12), side="right")
        is_known = (place < len(self.values)) & (start < len(self.values))
        drawn = np.where(is_known, self.values[np.minimum(place, len(self.values) - 1)], np.nan)
        beyond = np.where(start < len(self.values), 1.0 - target / np.maximum(known[-1], 1e-12), chance)
        return drawn, np.where(is_known, 0.0, beyond)


def left_after(
    whole_s: FloatArray, had_s: FloatArray, errors: ErrorDistribution, chance: FloatArray
) -> FloatArray:
    """(jobs,) what is left of jobs that were believed to take `whole_s` and have had `had_s`.

    A job that lasts longer than is known of others takes by so much longer as the largest of these do.
    """
    with np.errstate(divide="ignore"):
        least = np.log(np.maximum(had_s, 1e-9) / whole_s)
    drawn, beyond = errors.draw(least, chance)
    longest_s = np.maximum(had_s, whole_s * np.exp(errors.values[-1]))
    larger = np.minimum(np.maximum(1.0 - beyond, 1e-2) ** -errors.tail, MOST_LONGER)
    took_s = np.where(np.isnan(drawn), longest_s * larger, whole_s * np.exp(drawn))
    return np.maximum(took_s - had_s, SHORTEST_S)


def _tail(ended: FloatArray, every: FloatArray) -> float:
    """The mean of what lies beyond a high value, less that: Hill's estimate (Annals of Statistics 1975).

    Jobs that go on add to the time and not to the number of ends, as for any rate.
    """
    high = np.quantile(every, 1.0 - TAIL)
    ends = np.count_nonzero(ended > high)
    return float((every[every > high] - high).sum() / ends) if ends >= LEAST_IN_TAIL else USUAL_TAIL


Distributions = Mapping[Basis, ErrorDistribution]
