"""Guarantees within a level: jobs of other queues do not push a queue below its quota.

A policy knows no quotas. Where its answer gives others what a queue is guaranteed, jobs of that queue
keep it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto.model import Allocation, IntArray, Job, JobId
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.shrinking import kept_of


def some_lose(before: Mapping[JobId, Allocation], after: Mapping[JobId, Allocation]) -> bool:
    """Whether any job holds fewer GPUs than before."""
    return any(name not in after or after[name].gpus < held.gpus for name, held in before.items())


@dataclass(frozen=True)
class Lost:
    """What an answer of the policy takes from the jobs of a level."""

    before: Mapping[JobId, Allocation]  # what jobs of the level held
    after: Mapping[JobId, Allocation]
    held: Mapping[str, int]  # GPUs of each queue with a quota, with all jobs in it, before
    left: Mapping[str, int]  # the same afterwards
    idle: IntArray  # (types,) GPUs that nobody holds afterwards

    def owed(self, jobs: Iterable[Job], hierarchy: Hierarchy, sizes: Sizes) -> dict[JobId, Allocation]:
        """What jobs have to keep, so that no queue loses to others what its quota guarantees.

        A queue that is left with less than min(quota, what it held) gets the difference back, as far as jobs
        that lost GPUs have sizes that fit in. What the policy leaves idle, no other queue has taken.
        """
        left = dict(self.left)
        kept: dict[JobId, Allocation] = {}
        for job in jobs:
            had, now = self.before.get(job.id), self.after.get(job.id)
            if had is None:
                continue
            gpus = 0 if now is None else now.gpus
            lacking = [
                min(self.held[one], hierarchy.quota(one)) - left[one] for one in hierarchy.guarded(job.queue)
            ]
            size = sizes.at_most(job, min(had.gpus, job.max_gpus, gpus + max(lacking, default=0)))
            if size > gpus and self.idle[had.kind] < size - gpus:
                kept[job.id] = kept_of(had, size, had)
                hierarchy.add(left, job.queue, size - gpus)
        return kept
