"""Guarantees: a plan of the policy does not push a queue below its quota for jobs of other queues.

A policy knows no quotas. Where its plan gives others what a queue is guaranteed, jobs of that queue keep it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stretto.model import Allocation, Cluster, IntArray, Job, JobId, Placement, gpus_by_type
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.preemption import gpus_by_queue
from stretto.scheduler.constraints.sizes import PermittedSizes, shrink_allocation


def some_lose(before: Mapping[JobId, Allocation], after: Mapping[JobId, Allocation]) -> bool:
    """Whether any job holds fewer GPUs than before."""
    return any(job not in after or after[job].gpus < held.gpus for job, held in before.items())


@dataclass(frozen=True)
class Losses:
    """What a plan of the policy takes from some jobs."""

    before: Mapping[JobId, Allocation]  # what they held
    after: Mapping[JobId, Allocation]
    usage: Mapping[str, int]  # GPUs of each queue with a quota, with all jobs in it, before
    left: Mapping[str, int]  # the same afterwards
    idle: IntArray  # (types,) GPUs that no job holds afterwards
    cluster: Cluster

    def owed(
        self, jobs: Iterable[Job], hierarchy: Hierarchy, sizes: PermittedSizes
    ) -> dict[JobId, Allocation]:
        """What jobs have to keep, so that no queue loses to others what its quota guarantees.

        A queue may be left with less than min(quota, what it held). It gets the difference back, as far as
        jobs that lost GPUs have sizes that fit in. What the policy leaves idle, no other queue has taken.
        """
        left = dict(self.left)
        to_keep: dict[JobId, Allocation] = {}
        for job in jobs:
            allocation, planned = self.before.get(job.id), self.after.get(job.id)
            if allocation is None:
                continue
            # As much as the queue around it lacks that lacks most, in a size that it may have.
            gpus = 0 if planned is None else planned.gpus
            lacking = [
                min(self.usage[queue], hierarchy.quota(queue)) - left[queue]
                for queue in hierarchy.guarded(job.queue)
            ]
            size = sizes.at_most(job, min(allocation.gpus, job.max_gpus, gpus + max(lacking, default=0)))
            idle = sum(int(self.idle[kind]) for kind in gpus_by_type(allocation, self.cluster))
            if size > gpus and idle < size - gpus:
                to_keep[job.id] = shrink_allocation(allocation, size, allocation, self.cluster.kind)
                hierarchy.add(left, job.queue, size - gpus)
        return to_keep


def queues_below_guarantee(context: DecisionContext, after: Placement) -> frozenset[str]:
    """Queues of which others hold what their quotas guarantee, of what they held when reclaiming ended.

    Their jobs made way for jobs of their own, and others came in between.
    """
    before, snapshot, tree = context.reclaimed, context.snapshot, context.hierarchy
    acts = context.constraints.queues and context.constraints.priorities_act
    if not acts or not some_lose(before, after):
        return frozenset()
    jobs = [*context.jobs, *(job for job, _ in context.staying())]
    usage, left = (gpus_by_queue(jobs, placement, tree) for placement in (before, after))
    may_stay = {
        job: allocation for job, allocation in before.items() if snapshot.usable[list(allocation.nodes)].all()
    }
    free, cluster = np.where(snapshot.usable, after.free, 0), snapshot.cluster
    idle = np.bincount(cluster.kind, free, len(cluster.types)).astype(np.int64)
    owed = Losses(may_stay, after, usage, left, idle, cluster).owed(context.jobs, tree, context.sizes)
    # Of the queues around those jobs, those that are left with less than they are guaranteed.
    around = {queue for job in owed for queue in tree.guarded(context.jobs[context.row_of[job]].queue)}
    return frozenset(queue for queue in around if left[queue] < min(usage[queue], tree.quota(queue)))
