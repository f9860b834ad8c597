"""How long does a job keep a configuration? What a change must pay for itself in."""

from dataclasses import dataclass

import numpy as np

from stretto.model import FloatArray, IntArray, JobId, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Since when each job has what it holds, and how long what it held before has lasted.

    The sums are halved every so often, so that they follow the load. Present holdings count with their age:
    the maximum-likelihood mean of lifetimes that are exponential and still going on.
    """

    ids: tuple[JobId, ...] = ()  # of jobs that held GPUs
    holdings: IntArray | None = None  # (those, 3) nodes, GPUs, type
    since_s: FloatArray | None = None  # (those,)
    ended: float = 0.0  # configurations
    lasted_s: float = 0.0  # all of these together
    seen_s: float = 0.0  # when this was written

    def at(self, snapshot: Snapshot, half_life_s: float) -> "Lifetimes":
        """With what has changed until now."""
        jobs, now_s = snapshot.jobs, snapshot.now_s
        rows = np.flatnonzero(jobs.held_gpus > 0)
        holdings = np.stack([jobs.held_nodes, jobs.held_gpus, jobs.held_kind], axis=1)[rows]
        ids = tuple(jobs.ids[row] for row in rows.tolist())
        since_s = np.full(len(ids), now_s)
        kept = 0.5 ** ((now_s - self.seen_s) / half_life_s)
        ended, lasted_s = self.ended * kept, self.lasted_s * kept
        if self.holdings is not None and self.since_s is not None:
            number = {job: index for index, job in enumerate(ids)}
            for job, before, from_s in zip(self.ids, self.holdings, self.since_s.tolist(), strict=True):
                index = number.get(job)
                if index is not None and (holdings[index] == before).all():
                    since_s[index] = from_s
                else:  # it holds something else, or nothing
                    ended, lasted_s = ended + 1, lasted_s + now_s - from_s
        return Lifetimes(ids, holdings, since_s, ended, lasted_s, now_s)

    def mean_s(self, usual_s: float, weight: float) -> float:
        """Expected seconds for which a configuration is kept; `usual_s` counts as so many that have ended."""
        ages_s = 0.0 if self.since_s is None else float((self.seen_s - self.since_s).sum())
        return (weight * usual_s + self.lasted_s + ages_s) / (weight + self.ended)
