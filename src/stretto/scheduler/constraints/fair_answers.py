"""An answer of the policy, how far it leaves accounts below their shares, and what others could give up."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    IntArray,
    Job,
    JobId,
    JobTable,
    Plan,
    Snapshot,
    Why,
)
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.shrinking import kept_of
from stretto.scheduler.fair_share import Accounts


@dataclass(frozen=True, eq=False)
class Shown:
    """What the policy is shown when it is asked again."""

    rows: IntArray  # of the snapshot
    requests: Mapping[int, Job]  # by row, with a lower maximum
    changes: Mapping[JobId, Allocation | None]  # what jobs hold then: less, or nothing


@dataclass(eq=False)
class Answer:
    """A plan for all jobs of a snapshot. sizes: None where the policy keeps to what jobs ask for."""

    plan: Plan
    snapshot: Snapshot
    accounts: Accounts  # by position among the requests
    sizes: Sizes | None
    entitled: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (accounts,) GPUs

    def __post_init__(self) -> None:
        """Count what everybody gets."""
        jobs, code = self.snapshot.jobs, self.plan.why.code
        self.account: IntArray = self.accounts.of_row[jobs.rows]
        self.gpus, self.kind = _columns(jobs, self.plan)  # (jobs,)
        least = jobs.min_gpus if self.sizes else jobs.gpus
        self.least: IntArray = np.where(self.gpus > 0, np.minimum(least, self.gpus), least)  # to run at all
        self.waits: BoolArray = (self.gpus == 0) & (code > 0) & (code != Why.RECOVERING)
        new = np.maximum(self.gpus - jobs.held_gpus, 0)
        beyond = np.where(jobs.preemptible, self.gpus - self.least, 0) if self.sizes else new
        self.spare: IntArray = np.maximum(new, beyond)  # (jobs,) GPUs that each could do without

    @property
    def may_be_unfair(self) -> bool:
        """Whether somebody waits while somebody else could give way, whatever their shares are."""
        waiting, giving = self.account[self.waits], self.account[self.spare > 0]
        if not waiting.size or not giving.size:
            return False
        return bool((waiting != giving[0]).any() or (giving != giving[0]).any())

    @property
    def held(self) -> IntArray:
        """(accounts,) GPUs that each one would hold."""
        return np.bincount(self.account, self.gpus, len(self.accounts.names)).astype(np.int64)

    @property
    def lacking(self) -> IntArray:
        """(accounts,) GPUs of its share that each lacks; 0 where they are too few for its jobs that wait."""
        least = np.full(len(self.entitled), np.iinfo(np.int64).max)
        np.minimum.at(least, self.account[self.waits], self.least[self.waits])
        missing = self.entitled - self.held
        return np.where(missing >= least, missing, 0)

    @property
    def unfairness(self) -> tuple[int, int]:
        """What accounts lack, then how few GPUs are used: less is better."""
        return int(self.lacking.sum()), -int(self.gpus.sum())

    def without_excess(self, *, strict: bool) -> Shown | None:
        """Accounts that lack some of their share, and others with what they got, less what is in the way.

        strict: of accounts that lack some, only so many jobs as they are entitled to. None where nobody lacks
        anything, or what others have beyond their shares is of no use.
        """
        lacking = self.lacking
        if not lacking.any():
            return None
        behind = lacking[self.account] > 0
        useful = np.logical_or.reduce(self.snapshot.jobs.allowed_kinds[behind & self.waits], axis=0)
        needed = int(lacking.sum()) - int(self._idle()[useful].sum())
        given = self._given(lacking, useful, needed)
        if not given.any():
            return None
        waiting = behind & self.waits
        rows = (self.gpus > given) | (self._first(waiting) if strict else waiting)
        return self._shown(rows, self.gpus - given, capped=~behind)

    def with_idle(self) -> Shown | None:
        """Those that are served, and those that idle GPUs may be enough for; None where there are none."""
        idle = int(self._idle().sum())
        waiting = np.flatnonzero(self.waits & (self.least <= idle))
        waiting = waiting[self.least[waiting].cumsum() <= idle]
        idle -= int(self.least[waiting].sum())
        most, served = self.gpus.copy(), self.gpus > 0
        if self.sizes is not None and idle:
            room = np.where(served, np.maximum(self.snapshot.jobs.max_gpus - self.gpus, 0), 0)
            most += np.clip(idle - (room.cumsum() - room), 0, room)
        if not waiting.size and (most == self.gpus).all():
            return None
        rows = served.copy()
        rows[waiting] = True
        return self._shown(rows, most, capped=served)

    def _given(self, lacking: IntArray, useful: BoolArray, needed: int) -> IntArray:
        """(jobs,) GPUs that jobs give up: of who has most beyond its share first, there the last job first.

        useful: (types,). Starts are given up before growth and what is held.
        """
        excess = np.where(lacking > 0, 0, self.held - self.entitled)
        given = np.zeros_like(self.gpus)
        starts = self.snapshot.jobs.held_gpus == 0
        for number in np.argsort(-excess, kind="stable").tolist():
            left = min(int(excess[number]), needed)
            if left <= 0:
                break
            mine = np.flatnonzero((self.account == number) & (self.spare > 0) & useful[self.kind])
            for row in mine[np.lexsort((-mine, ~starts[mine]))].tolist():
                if left > 0:
                    given[row] = self._gives(row, left)
                    left -= int(given[row])
                    needed -= int(given[row])
        return given

    def _gives(self, row: int, gpus: int) -> int:
        """How many GPUs one job gives up where so many are needed; it may be more, by its sizes."""
        jobs, now = self.snapshot.jobs, int(self.gpus[row])
        held, wanted = int(jobs.held_gpus[row]), max(now - gpus, 0)
        least = int(self.least[row]) if held and self.sizes and jobs.preemptible[row] else held
        size = 0 if self.sizes is None else self.sizes.at_most(jobs[row], max(wanted, least))
        return max(now - max(size, least), 0)

    def _first(self, waiting: BoolArray) -> BoolArray:
        """(jobs,) of those that wait, the first of each account that fit into what it lacks."""
        chosen, room = np.zeros_like(waiting), self.entitled - self.held
        for row in np.flatnonzero(waiting).tolist():
            number, least = int(self.account[row]), int(self.least[row])
            if least <= room[number]:
                chosen[row] = True
                room[number] -= least
        return chosen

    def _idle(self) -> IntArray:
        """(types,) GPUs that nobody would hold."""
        cluster = self.snapshot.cluster
        free = np.where(self.snapshot.usable, self.plan.placement.free, 0)
        return np.bincount(cluster.kind, free, len(cluster.types)).astype(np.int64)

    def _shown(self, rows: BoolArray, most: IntArray, capped: BoolArray) -> Shown:
        """Some rows, where those that are capped may have no more GPUs than this, and hold no more."""
        jobs, before = self.snapshot.jobs, self.snapshot.placement
        most = np.maximum(most, jobs.min_gpus if self.sizes else jobs.gpus)
        requests: dict[int, Job] = {}
        changes: dict[JobId, Allocation | None] = {}
        for row in np.flatnonzero(rows & capped & (most < jobs.max_gpus)).tolist():
            job, size = jobs[row], int(most[row])
            requests[row] = replace(job, max_gpus=size, gpus=min(job.gpus, size))
            held = before.get(job.id)
            if held is not None and held.gpus > size and self.sizes and job.preemptible:
                changes[job.id] = kept_of(held, size, held)
        for row in np.flatnonzero(~rows & (jobs.held_gpus > 0)).tolist():
            changes[jobs.ids[row]] = None  # the policy has stopped it
        return Shown(np.flatnonzero(rows), requests, changes)


def _columns(jobs: JobTable, plan: Plan) -> tuple[IntArray, IntArray]:
    """(jobs,) GPUs that a plan gives each job, and their type, -1 none."""
    gpus, kind = jobs.held_gpus.copy(), jobs.held_kind.copy()
    after = {action.job: action.after for action in plan.actions}
    touched = np.fromiter(map(after.__contains__, jobs.ids), dtype=np.bool_, count=len(jobs))
    for row in np.flatnonzero(touched).tolist():
        held = after[jobs.ids[row]]
        gpus[row], kind[row] = (0, -1) if held is None else (held.gpus, held.kind)
    return gpus, kind
