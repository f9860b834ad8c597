"""A decision while it is shaped: what each job may have, what it holds meanwhile, and why not more."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Constraints,
    IntArray,
    Job,
    Placement,
    Reservation,
    Snapshot,
    Why,
)
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.limits import ANY, Holdings, Limit
from stretto.scheduler.constraints.offers import Claim
from stretto.scheduler.constraints.shrinking import kept_of


@dataclass
class Draft:
    """A decision while it is shaped. Rows are those of the snapshot."""

    snapshot: Snapshot
    constraints: Constraints = field(init=False)  # those of the snapshot
    placement: Placement = field(init=False)  # once what is to be given back is
    most: IntArray = field(init=False)  # (jobs,) GPUs; 0: is not shown
    kinds: BoolArray = field(init=False)  # (jobs, types) that it may use
    limits: list[Limit] = field(default_factory=list)
    why: dict[int, tuple[Why, str]] = field(default_factory=dict)
    closed: list[tuple[Reservation, BoolArray, IntArray]] = field(default_factory=list)
    claimed: list[Claim] = field(default_factory=list)  # what was given back for whom
    promised: Counter[str] = field(default_factory=Counter)  # GPUs for those who can start so, by queue
    claims: set[tuple[str, str | None]] = field(default_factory=set)  # (around, part): see `Hierarchy.claims`

    def __post_init__(self) -> None:
        """Nothing is bounded yet."""
        jobs, self.constraints = self.snapshot.jobs, self.snapshot.constraints
        self.placement, self.most = self.snapshot.placement, jobs.max_gpus.copy()
        self.kinds = jobs.allowed_kinds.copy()
        self.of = [jobs[row] for row in range(len(jobs))]
        self.row_of = {job.id: row for row, job in enumerate(self.of)}
        self.holdings = Holdings(self.row_of)
        self.hierarchy = Hierarchy(self.constraints)
        for row, job in enumerate(self.of):
            if job.id in self.constraints.sizes:
                self.most[row] = self.allowed(row, int(self.most[row]))
                if not self.most[row]:  # its owner has asked for sizes between which none of them lies
                    sizes = ", ".join(map(str, self.constraints.sizes[job.id]))
                    words = f"its sizes are {sizes}, none from {job.min_gpus} to {job.max_gpus}"
                    self.why[row] = (Why.TOO_LARGE, words)
            if job.id in self.constraints.profiles:
                self._profile(row, job, self.constraints.profiles[job.id])

    def _profile(self, row: int, job: Job, kind: int) -> None:
        """One worker of one type; what it holds otherwise is taken."""
        self.most[row] = self.constraints.permitted(job.id, job.gpus_per_worker)
        self.kinds[row] &= np.arange(len(self.kinds[row])) == kind
        held = self.placement.get(job.id)
        if held is not None and (held.kind, held.gpus) != (kind, self.most[row]):
            self.release(job)

    def staying(self) -> Iterator[tuple[Job, Allocation]]:
        """Jobs of closed nodes, which are in no row, and what they hold."""
        for name, job in self.constraints.staying.items():
            held = self.snapshot.placement.get(name)
            if held is not None:
                yield job, held

    def held(self, limit: Limit) -> int:
        """GPUs that those who are limited hold meanwhile."""
        return self.holdings.total(limit, self.placement)

    def lasts(self, job: Job) -> float:
        """Until when a job that starts now has its GPUs, where it cannot be moved."""
        return self.snapshot.now_s + self.constraints.lasting_s.get(job.id, 0.0)

    def serves(self, one: Reservation, job: Job) -> bool:
        """Whether a job may use a reservation: for its user, its queue or one around that."""
        around = self.hierarchy.line(job.queue) if self.constraints.quotas_kept else ()
        return any(one.serves(job.user, queue) for queue in (job.queue, *around))

    def holders(self, limit: Limit) -> list[int]:
        """Of those that are limited, who can be made to give back, in the order in which they do."""
        jobs, rows = self.snapshot.jobs, self.holdings.holding(limit, self.placement)
        rows = rows[jobs.preemptible[rows]]
        found: list[int] = rows[np.lexsort((-rows, jobs.priority[rows]))].tolist()
        return found

    def release(self, job: Job) -> None:
        """Take everything from a job. Of who holds nothing, nothing changes, nor need be counted again."""
        if job.id in self.placement:
            self.placement = self.placement.changed({job.id: None})

    def take(self, row: int, gpus: int) -> int:
        """Take so many GPUs from a job that can do with less, else all; how many that were."""
        job, held = self.of[row], self.placement[self.of[row].id]
        left = self.allowed(row, held.gpus - gpus)
        after = kept_of(held, left, held) if left else None
        self.placement = self.placement.changed({job.id: after})
        return held.gpus - left

    def allowed(self, row: int, gpus: int) -> int:
        """The largest size of at most so many GPUs that a job may have; 0: none."""
        job = self.of[row]
        gpus = self.constraints.permitted(job.id, gpus // job.gpus_per_worker * job.gpus_per_worker)
        return gpus if gpus >= job.min_gpus else 0

    def cap(self, row: int, limit: Limit, most: int) -> None:
        """A job gets no more than this, of the type of the limit."""
        job = self.of[row]
        held = self.placement.get(job.id)
        if held is not None and not job.preemptible and self.constraints.quotas_kept:
            most = max(most, held.gpus)  # it is never made smaller
        allowed = self.allowed(row, most)
        if allowed:
            others = np.delete(self.kinds[row], [] if limit.kind == ANY else limit.kind)
            if limit.kind == ANY or not others.any():
                self.most[row] = min(int(self.most[row]), allowed)
            if held is not None and held.gpus > self.most[row]:  # policies leave it to us to take away
                self.placement = self.placement.changed({job.id: kept_of(held, int(self.most[row]), held)})
            return
        if limit.kind != ANY:
            self.kinds[row, limit.kind] = False
            if held is not None and held.kind == limit.kind and job.preemptible:
                self.release(job)
            if self.kinds[row].any():
                return
        if self.placement.get(job.id) is not None and not job.preemptible:
            return
        self.most[row] = 0
        self.release(job)
        self.note(row, limit)

    def note(self, row: int, limit: Limit) -> None:
        """Why a job is left out, and by how many GPUs."""
        needs = self.of[row].min_gpus
        if limit.ever is not None and needs > limit.ever:
            words = f"{limit.evidence}; it needs {needs}, {needs - limit.ever} too many"
            self.why[row] = (Why.EXCEEDS_QUOTA, words)
            return
        beyond = max(self.held(limit) + needs - limit.most, 1)
        self.why[row] = (limit.why, f"{limit.evidence}; it needs {needs}, {beyond} too many")
