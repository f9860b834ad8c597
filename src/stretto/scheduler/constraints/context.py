"""A decision while it is made: what the policy may see, what its plan may keep, and why not more."""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Constraints,
    IntArray,
    Job,
    JobId,
    Placement,
    Reservation,
    Snapshot,
    Why,
    gpus_by_type,
)
from stretto.scheduler.constraints.fair_limits import FairLimits
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.preemption import Claim
from stretto.scheduler.constraints.sizes import PermittedSizes, shrink_allocation

ANY_TYPE = -1  # GPUs of every type


@dataclass
class Limit:
    """Some jobs hold at most so many GPUs together."""

    rows: BoolArray  # (jobs,) which jobs these are
    gpu_type: int  # GPUs of this type; ANY_TYPE: of all
    most: int  # GPUs
    why: Why
    evidence: str
    queue: str = ""
    staying: int = 0  # GPUs of jobs that are in no row: they count beside, and cannot be taken
    ever: int | None = None  # GPUs that a job of the queue could have at best; None: as many as it needs
    _usage: tuple[Placement, int] | None = field(default=None, init=False)  # last counted


@dataclass
class UsageCounter:
    """Counts GPUs of a placement; what it counted of the last one is remembered. row_of: of every job."""

    row_of: dict[JobId, int]
    types: int  # of the cluster
    _last: tuple[Placement, IntArray] | None = None

    def by_type(self, placement: Placement) -> IntArray:
        """(types, jobs) GPUs that a placement gives each job, and of all types in a last row."""
        if self._last is not None and self._last[0] is placement:
            return self._last[1]
        # Most placements are a few changes away from the one before: only these are counted again.
        touched = None if self._last is None else placement.touched_since(self._last[0])
        if self._last is None or touched is None:
            touched = tuple(placement)
            gpus = np.zeros((self.types + 1, len(self.row_of)), dtype=np.int64)
        else:
            gpus = self._last[1].copy()
        for job in touched:
            row, allocation = self.row_of.get(job), placement.get(job)
            if row is None:
                continue
            gpus[:, row] = 0
            if allocation is not None:
                gpus[ANY_TYPE, row] = allocation.gpus
                for kind, count in gpus_by_type(allocation, placement.cluster).items():
                    gpus[kind, row] = count
        self._last = placement, gpus
        return gpus

    def counting(self, limit: Limit, placement: Placement) -> IntArray:
        """(jobs,) GPUs of each job that count for a limit."""
        gpus: IntArray = np.where(limit.rows, self.by_type(placement)[limit.gpu_type], 0)
        return gpus

    def holders(self, limit: Limit, placement: Placement) -> IntArray:
        """Rows of a limit that hold GPUs of its type."""
        return np.flatnonzero(self.counting(limit, placement))

    def total(self, limit: Limit, placement: Placement) -> int:
        """GPUs that count for a limit; asked for every job that has to wait, it is remembered."""
        if limit._usage is None or limit._usage[0] is not placement:
            limit._usage = placement, int(self.counting(limit, placement).sum())
        return limit._usage[1]


@dataclass
class DecisionContext:
    """A decision while it is made. Rows are those of the snapshot.

    Reclaiming fills it, in place and step by step. From then on it is a value: what tightens or relaxes it
    returns another one.
    """

    snapshot: Snapshot
    fair_limits: FairLimits | None = None  # of accounts; None: shares limit nothing
    constraints: Constraints = field(init=False)  # those of the snapshot
    placement: Placement = field(init=False)  # what jobs hold once they have given back what they must
    most: IntArray = field(init=False)  # (jobs,) GPUs; 0: the policy does not see it
    gpu_types: BoolArray = field(init=False)  # (jobs, types) that a job may use
    limits: list[Limit] = field(default_factory=list)
    why: dict[int, tuple[Why, str]] = field(default_factory=dict)  # by row that was left out
    # Nodes that only some jobs may use: (jobs,) that may, and which nodes
    closed: list[tuple[BoolArray, IntArray]] = field(default_factory=list)
    claimed: list[Claim] = field(default_factory=list)  # GPUs that were given back, and for which jobs
    promised: Counter[str] = field(default_factory=Counter)  # GPUs for jobs that can start so, by queue
    claims: set[tuple[str, str | None]] = field(default_factory=set)  # (around, part): see `Hierarchy.claims`
    reclaimed: Placement = field(init=False)  # `placement` when reclaiming ended
    granted: IntArray = field(init=False)  # `most` when reclaiming ended

    def __post_init__(self) -> None:
        """Nothing is limited yet."""
        jobs, self.constraints = self.snapshot.jobs, self.snapshot.constraints
        self.placement = self.reclaimed = self.snapshot.placement
        self.most, self.gpu_types = jobs.max_gpus.copy(), jobs.allowed_kinds.copy()
        self.granted = self.most

    def copy(self) -> "DecisionContext":
        """Another one, to be limited further: what reclaiming has settled is shared."""
        other = copy(self)
        other.most, other.gpu_types, other.why = self.most.copy(), self.gpu_types.copy(), dict(self.why)
        return other

    @cached_property
    def jobs(self) -> list[Job]:
        """The jobs, by row."""
        return [self.snapshot.jobs[row] for row in range(len(self.snapshot.jobs))]

    @cached_property
    def row_of(self) -> dict[JobId, int]:
        """The row of each job."""
        return {job.id: row for row, job in enumerate(self.jobs)}

    @cached_property
    def usage(self) -> UsageCounter:
        """What counts for limits."""
        return UsageCounter(self.row_of, len(self.snapshot.cluster.types))

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The tree of queues."""
        return Hierarchy(self.constraints)

    @cached_property
    def sizes(self) -> PermittedSizes:
        """Which sizes jobs may have."""
        return PermittedSizes(self.constraints)

    def staying(self) -> Iterator[tuple[Job, Allocation]]:
        """Jobs of closed nodes, which are in no row, and what they hold."""
        for name, job in self.constraints.staying.items():
            allocation = self.snapshot.placement.get(name)
            if allocation is not None:
                yield job, allocation

    def usage_of(self, limit: Limit) -> int:
        """GPUs that count for a limit now."""
        return self.usage.total(limit, self.placement)

    def ends_s(self, job: Job) -> float:
        """Until when a job that starts now has its GPUs, where it cannot be moved."""
        return self.snapshot.now_s + self.constraints.lasting_s.get(job.id, 0.0)

    def may_use(self, job: Job, reservation: Reservation) -> bool:
        """Whether a job may use a reservation: for its user, its queue or one around that."""
        around = self.hierarchy.line(job.queue) if self.constraints.quotas_kept else ()
        return any(reservation.serves(job.user, queue) for queue in (job.queue, *around))

    def victims(self, limit: Limit) -> list[int]:
        """Rows of a limit that can be made to give back, in the order in which they do.

        The lowest priority first, then the job that came last.
        """
        jobs, rows = self.snapshot.jobs, self.usage.holders(limit, self.placement)
        rows = rows[jobs.preemptible[rows]]
        in_order: list[int] = rows[np.lexsort((-rows, jobs.priority[rows]))].tolist()
        return in_order

    def release(self, job: Job) -> None:
        """Take everything from a job. Where it holds nothing, nothing changes, nor need be counted again."""
        if job.id in self.placement:
            self.placement = self.placement.changed({job.id: None})

    def take(self, row: int, gpus: int, gpu_type: int = ANY_TYPE) -> int:
        """Take so many GPUs from a job that can do with less, else all; how many that were.

        gpu_type: of several types that it may hold, GPUs of this one come first.
        """
        job, before = self.jobs[row], self.placement[self.jobs[row].id]
        size = self.sizes.at_most(job, before.gpus - gpus)
        after = self.shrunk(before, size, before, gpu_type) if size else None
        self.placement = self.placement.changed({job.id: after})
        return before.gpus - size

    def shrunk(
        self, allocation: Allocation, gpus: int, before: Allocation | None, gpu_type: int = ANY_TYPE
    ) -> Allocation:
        """So many GPUs of an allocation; those of a type go first, where it has others, too."""
        kinds = self.snapshot.cluster.kind
        return shrink_allocation(allocation, gpus, before, kinds, () if gpu_type == ANY_TYPE else (gpu_type,))

    def held(self, row: int, gpu_type: int) -> int:
        """GPUs of a type that a job holds now."""
        return int(self.usage.by_type(self.placement)[gpu_type, row])

    def cap(self, row: int, limit: Limit, most: int) -> None:
        """A job gets no more than so many GPUs of the type of a limit."""
        job = self.jobs[row]
        holding = self.placement.get(job.id)
        if holding is not None and not job.preemptible and self.constraints.quotas_kept:
            most = max(most, holding.gpus)  # it is never made smaller
        size = self.sizes.at_most(job, most)
        if size:
            # It stays, on less. A limit of one type says nothing of a job that may use others, too.
            others = np.delete(self.gpu_types[row], [] if limit.gpu_type == ANY_TYPE else limit.gpu_type)
            counts = limit.gpu_type == ANY_TYPE or not others.any()
            if counts:
                self.most[row] = min(int(self.most[row]), size)
            if holding is not None:  # policies leave it to us to take away
                gpus = self._as_held(holding, int(self.most[row]))  # `size` is in GPUs that are held, too
                gpus = min(gpus, size) if counts else gpus
                if holding.gpus > gpus:
                    smaller = self.shrunk(holding, gpus, holding)
                    self.placement = self.placement.changed({job.id: smaller})
            return
        if limit.gpu_type != ANY_TYPE:
            # Nothing of this type is left for it; it may run on another one.
            self.gpu_types[row, limit.gpu_type] = False
            if holding is not None and (of_type := self.held(row, limit.gpu_type)) and job.preemptible:
                self.take(row, of_type, limit.gpu_type)
            if self.gpu_types[row].any():
                return
        if self.placement.get(job.id) is not None and not job.preemptible:
            return
        # Nothing is left for it at all.
        self.most[row] = 0
        self.release(job)
        self.note(row, limit)

    def _as_held(self, holding: Allocation, asked: int) -> int:
        """GPUs of an allocation's types that stand in for so many; of several types the most that one takes.

        asked: GPUs as a job counts them.
        """
        cluster = self.snapshot.cluster
        return asked * int(cluster.stand_ins[cluster.kind[list(holding.nodes)]].max())

    def note(self, row: int, limit: Limit) -> None:
        """Say why a job is left out: by how many GPUs, or for jobs that only start with this decision."""
        needs = self.jobs[row].min_gpus
        if limit.ever is not None and needs > limit.ever:
            words = f"{limit.evidence}; it needs {needs}, {needs - limit.ever} too many"
            self.why[row] = (Why.EXCEEDS_QUOTA, words)
            return
        beyond = self.usage_of(limit) + needs - limit.most
        why = f"{beyond} too many" if beyond > 0 else "and jobs before it get the rest"
        self.why[row] = (limit.why, f"{limit.evidence}; it needs {needs}, {why}")
