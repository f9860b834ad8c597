"""Jobs that cannot be preempted borrow nothing: what is beyond a quota is lent, and must come back."""

from dataclasses import dataclass

import numpy as np

from stretto.model import Job, Why
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.limits import ANY, Limit


def limit_non_preemptible(draft: Draft) -> None:
    """Limit jobs that cannot be preempted to the quota of each queue around them, together.

    They are never stopped nor made smaller, so all that they hold counts. Where a queue borrows nothing, its
    own limit says the same.
    """
    tree, fixed = draft.hierarchy, ~draft.snapshot.jobs.preemptible
    if not draft.constraints.quotas_kept or not fixed.any():
        return
    waits = np.array([job.id not in draft.placement for job in draft.of], dtype=np.bool_)
    for name in tree.innermost_first():
        if tree.most(name) == tree.quota(name):
            continue
        inside = np.array([name in tree.line(job.queue) for job in draft.of], dtype=np.bool_)
        staying = sum(
            held.gpus for job, held in draft.staying() if not job.preemptible and name in tree.line(job.queue)
        )
        limit = Limit(
            fixed & inside, ANY, max(tree.quota(name) - staying, 0), Why.MAY_NOT_BORROW, "", staying=staying
        )
        limit.ever = None if tree.queues[name].is_default else tree.quota(name)
        holds = draft.held(limit)
        limit.evidence = (
            f"queue {name} is guaranteed {tree.quota(name)} GPUs, of which jobs that cannot be preempted "
            f"hold {holds + staying}"
        )
        room = max(limit.most - holds, 0)
        for row in np.flatnonzero(limit.rows & waits & (draft.most > room)).tolist():
            draft.cap(row, limit, room)
        draft.limits.append(limit)


@dataclass
class NonPreemptibleRoom:
    """GPUs that jobs that cannot be preempted may still get in each queue with a quota."""

    tree: Hierarchy
    left: dict[str, int]

    def fits(self, job: Job) -> bool:
        """Whether a job may start on its least size."""
        return job.preemptible or all(
            self.left[one] >= job.min_gpus for one in self.tree.guarded(job.queue) if one in self.left
        )

    def take(self, job: Job) -> None:
        """A job starts on its least size."""
        if not job.preemptible:
            self.tree.add(self.left, job.queue, -job.min_gpus)


def non_preemptible_room(draft: Draft) -> NonPreemptibleRoom:
    """What is left for them now; nothing is bounded where they may borrow."""
    tree = draft.hierarchy
    names = tree.innermost_first() if draft.constraints.quotas_kept else []
    room = NonPreemptibleRoom(tree, {name: tree.quota(name) for name in names})
    holders = [(job, held) for job in draft.of if (held := draft.placement.get(job.id)) is not None]
    for job, held in [*holders, *draft.staying()] if names else ():
        if not job.preemptible:
            tree.add(room.left, job.queue, -held.gpus)
    return room
