"""Everything a decision may look at, as it stood at one moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from math import inf, nextafter
from typing import TypeVar

import numpy as np

from stretto.errors import NotDeclared
from stretto.model.arrays import BoolArray, FloatArray, IntArray, ObjectArray, floats, frozen, ints
from stretto.model.cluster import Cluster
from stretto.model.constraints import NO_CONSTRAINTS, Constraints
from stretto.model.job import Array, Column, Job, JobColumns, JobId
from stretto.model.knowledge import (
    Durations,
    EndedJobs,
    Evidence,
    Learning,
    MeasuredSpeeds,
    Progress,
    View,
)
from stretto.model.lending import LenderState
from stretto.model.memory import Memory
from stretto.model.placement import Batch, Placement
from stretto.model.queue import account_of

Columns = TypeVar("Columns")


class Trigger(StrEnum):
    """Why a decision is asked for."""

    ARRIVAL = "arrival"
    COMPLETION = "completion"
    ROUND = "round"  # a clock tick at a fixed period
    EPOCH_END = "epoch_end"
    CAPACITY = "capacity"  # nodes came, went, or are about to
    PROFILE_DONE = "profile_done"
    WAKE = "wake"  # a time that a plan named: lease expiry, queue threshold
    LENDERS = "lenders"  # what lenders need may have changed


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """Rewards of jobs for an end in time, without those of 0: columns are (rewards,), job by job."""

    bounds: IntArray  # (jobs + 1,) where the rewards of each begin, and behind the last
    deadline_s: FloatArray  # ascending within a job
    value: FloatArray


@dataclass(frozen=True, eq=False)
class Requests(JobColumns):
    """What every job of a world asked for, as columns; built once and shared by all snapshots."""

    jobs: Sequence[Job]  # by submission, then id
    cluster: Cluster

    @cached_property
    def ids(self) -> ObjectArray:
        """(all jobs,) their names."""
        names = np.empty(len(self.jobs), dtype=np.object_)
        names[:] = [job.id for job in self.jobs]
        return names

    @cached_property
    def accounts(self) -> ObjectArray:
        """(all jobs,) the account that is charged for each."""
        found = np.empty(len(self.jobs), dtype=np.object_)
        found[:] = [account_of(job) for job in self.jobs]
        return found

    def computed(self, column: Column[Array]) -> Array:
        """(all jobs,) what each asked for."""
        values = column.of_jobs(self.jobs)
        values.flags.writeable = False
        return values

    @cached_property
    def allowed_kinds(self) -> BoolArray:
        """(all jobs, types) the GPU types that a job accepts."""
        allowed = np.ones((len(self.jobs), len(self.cluster.types)), dtype=np.bool_)
        for row, job in enumerate(self.jobs):
            if job.gpu_types:
                allowed[row] = False
                allowed[row, [self.cluster.type_index(name) for name in job.gpu_types]] = True
        return frozen(allowed)

    @cached_property
    def rewards(self) -> Rewards:
        """What an end in time is worth, by job."""
        rewards = [[reward for reward in job.rewards if reward.value > 0] for job in self.jobs]
        flat = [reward for of_job in rewards for reward in of_job]
        bounds = np.cumsum([0, *map(len, rewards)])
        deadline_s, value = floats([r.deadline_s for r in flat]), floats([r.value for r in flat])
        return Rewards(frozen(bounds), frozen(deadline_s), frozen(value))

    # What holds for no job at all is looked up once, so that rounds need not look for it among theirs.

    @cached_property
    def accept_all(self) -> bool:
        """Whether every job accepts every type."""
        return bool(self.allowed_kinds.all())

    @cached_property
    def largest_gpus(self) -> int:
        """GPUs that the largest job asks for."""
        return int(self.gpus.max(initial=0))

    @cached_property
    def any_varies(self) -> bool:
        """Whether the workers of some job have more GPUs on some types."""
        return bool(self.varies_by_type.any())

    @cached_property
    def any_large_workers(self) -> bool:
        """Whether the workers of some job have several GPUs."""
        return self.any_varies or bool((self.gpus_per_worker > 1).any())

    @cached_property
    def any_mixes(self) -> bool:
        """Whether some job may hold GPUs of several types at once."""
        return bool(self.heterogeneous.any())

    @cached_property
    def one_priority(self) -> bool:
        """Whether all jobs have the same priority."""
        return bool((self.priority == self.priority[:1]).all())

    @cached_property
    def worker_gpus(self) -> IntArray:
        """(all jobs, types) GPUs of one worker."""
        return self._by_type(self.gpus_per_worker, lambda job, name: job.worker_gpus(name))

    @cached_property
    def fewest_gpus(self) -> IntArray:
        """(all jobs, types) fewest GPUs of a type to run on, in whole workers."""
        return self._by_type(self.min_gpus, lambda job, name: job.fewest_gpus(name))

    def _by_type(self, column: IntArray, of: Callable[[Job, str], int]) -> IntArray:
        """(all jobs, types) a column, but for jobs whose workers differ by type."""
        names = self.cluster.type_names
        values = np.repeat(column[:, None], len(names), axis=1)
        for row in np.flatnonzero(self.varies_by_type).tolist():
            values[row] = [of(self.jobs[row], name) for name in names]
        return frozen(values)


@dataclass(frozen=True, eq=False)
class JobTable(JobColumns):
    """The unfinished jobs by submission: row `i` of every column is the same job.

    Columns of views that were not declared raise NotDeclared.
    """

    requests: Requests
    rows: IntArray  # (jobs,) positions in `requests`
    held_gpus: IntArray  # (jobs,) GPUs held now, 0 waiting
    held_nodes: IntArray  # (jobs,) nodes held now
    held_kind: IntArray  # (jobs,) GPU type held now, -1 none
    known_progress: Progress | None = None
    known_durations: Durations | None = None
    known_estimates: Durations | None = None
    known_work: FloatArray | None = None
    known_tables: Sequence[MeasuredSpeeds] | None = None
    known_evidence: Sequence[Evidence | None] | None = None
    known_learning: Learning | None = None
    known_cpu_demand: FloatArray | None = None
    known_ended: EndedJobs | None = None  # beside the rows

    def __len__(self) -> int:
        """The number of unfinished jobs."""
        return len(self.rows)

    def __getitem__(self, row: int) -> Job:
        """The request in one row."""
        return self.requests.jobs[int(self.rows[row])]

    @cached_property
    def ids(self) -> tuple[JobId, ...]:
        """The jobs' names, by row."""
        return tuple(self.requests.ids[self.rows].tolist())

    def row_of(self, job: Job) -> int | None:
        """The row of a job; None where it is not among these. It is looked for where it would stand."""
        requests = self.requests
        first, end = np.searchsorted(requests.submitted_s, (job.submitted_s, nextafter(job.submitted_s, inf)))
        for place in range(int(first), int(end)):
            if requests.ids[place] == job.id:
                row = int(np.searchsorted(self.rows, place))
                return row if row < len(self.rows) and self.rows[row] == place else None
        return None

    def computed(self, column: Column[Array]) -> Array:
        """(jobs,) what each asked for."""
        values: Array = getattr(self.requests, column.name)[self.rows]
        return values

    @cached_property
    def allowed_kinds(self) -> BoolArray:
        """(jobs, types) the GPU types that a job accepts."""
        return self.requests.allowed_kinds[self.rows]

    @cached_property
    def worker_gpus(self) -> IntArray:
        """(jobs, types) GPUs of one worker."""
        return self.requests.worker_gpus[self.rows]

    @cached_property
    def fewest_gpus(self) -> IntArray:
        """(jobs, types) fewest GPUs of a type to run on, in whole workers."""
        return self.requests.fewest_gpus[self.rows]

    @property
    def progress(self) -> Progress:
        """View.PROGRESS."""
        return _declared(self.known_progress, View.PROGRESS)

    @property
    def durations(self) -> Durations:
        """View.ORACLE_DURATION."""
        return _declared(self.known_durations, View.ORACLE_DURATION)

    @property
    def estimates(self) -> Durations:
        """View.ESTIMATED_DURATION."""
        return _declared(self.known_estimates, View.ESTIMATED_DURATION)

    @property
    def remaining_work(self) -> FloatArray:
        """View.REMAINING_WORK: (jobs,) what is left by the stop rule, in the units of Speeds per second."""
        return _declared(self.known_work, View.REMAINING_WORK)

    @property
    def tables(self) -> Sequence[MeasuredSpeeds]:
        """View.THROUGHPUT_TABLE, by row."""
        return _declared(self.known_tables, View.THROUGHPUT_TABLE)

    @property
    def evidence(self) -> Sequence[Evidence | None]:
        """View.GOODPUT_MODEL, by row; None for a job of which only a throughput table can be known."""
        return _declared(self.known_evidence, View.GOODPUT_MODEL)

    @property
    def learning(self) -> Learning:
        """View.LEARNING."""
        return _declared(self.known_learning, View.LEARNING)

    @property
    def cpu_demand(self) -> FloatArray:
        """View.CPU_DEMAND: (jobs,) cores a GPU at which a job is at its fastest; NaN unknown."""
        return _declared(self.known_cpu_demand, View.CPU_DEMAND)

    @property
    def ended(self) -> EndedJobs:
        """View.ENDED_JOBS: those that are in no row any more, summed up."""
        return _declared(self.known_ended, View.ENDED_JOBS)

    def with_placement(self, placement: Placement) -> "JobTable":
        """The same jobs when `placement` is what they hold."""
        allocations = [placement.get(job) for job in self.ids]
        return replace(
            self,
            held_gpus=ints([allocation.gpus if allocation else 0 for allocation in allocations]),
            held_nodes=ints([len(allocation.nodes) if allocation else 0 for allocation in allocations]),
            held_kind=ints([allocation.kind if allocation else -1 for allocation in allocations]),
        )

    def of_rows(self, rows: IntArray) -> "JobTable":
        """Some of the jobs: what they asked for and what they hold, without any view."""
        held = (self.held_gpus[rows], self.held_nodes[rows], self.held_kind[rows])
        return JobTable(self.requests, self.rows[rows], *held)

    def limited_to(self, views: frozenset[View]) -> "JobTable":
        """The same table without the columns of any other view."""
        columns = vars(self)
        hidden = {name: None for name in _hidden_from(views) if columns[name] is not None}
        return replace(self, **hidden) if hidden else self  # type: ignore[arg-type]


_COLUMNS_OF = {
    View.PROGRESS: "known_progress",
    View.ORACLE_DURATION: "known_durations",
    View.ESTIMATED_DURATION: "known_estimates",
    View.REMAINING_WORK: "known_work",
    View.THROUGHPUT_TABLE: "known_tables",
    View.GOODPUT_MODEL: "known_evidence",
    View.LEARNING: "known_learning",
    View.CPU_DEMAND: "known_cpu_demand",
    View.ENDED_JOBS: "known_ended",
}


@lru_cache(maxsize=64)
def _hidden_from(views: frozenset[View]) -> tuple[str, ...]:
    """The columns that none of these views shows."""
    hidden = {name for view, name in _COLUMNS_OF.items() if view not in views}
    if View.GOODPUT_MODEL in views:  # a goodput estimate falls back on a table where there is one
        hidden.discard("known_tables")
    return tuple(sorted(hidden))


def _declared(columns: Columns | None, view: View) -> Columns:
    if columns is None:
        raise NotDeclared(
            f"the policy reads view {view.value!r}, which it does not declare: "
            f"`views` must have View.{view.name}"
        )
    return columns


@dataclass(frozen=True, slots=True)
class CapacityNotice:
    """A node that will come or go."""

    node: int  # index into the cluster's nodes
    usable: bool  # what it will be
    by_s: float  # from when


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything a decision may look at, as it stood at `now_s`. Frozen, columns shared between versions."""

    version: int  # counts changes of membership and capacity, not progress; a plan names its own
    now_s: float  # seconds since the run began
    cluster: Cluster
    usable: BoolArray  # (nodes,) may hold jobs now
    jobs: JobTable
    placement: Placement  # GPUs held now
    due: frozenset[Trigger] = frozenset()  # what happened since the last decision
    notices: tuple[CapacityNotice, ...] = ()  # announced changes of capacity
    lenders: tuple[LenderState, ...] = ()  # whose nodes are usable only while they are on loan
    memory: Memory = None  # what the policy returned last time, handed back
    seed: int = 0  # for policies that draw; the same snapshot draws the same
    constraints: Constraints = NO_CONSTRAINTS  # what the plan keeps to, whatever the policy is
    # What adaptive jobs train with now. None: the world chooses batches itself, as simulations do.
    batches: Mapping[JobId, Batch] | None = None
    closed: BoolArray | None = None  # (nodes,) not usable only because others have them to themselves
    # Of jobs that are shown in one size for all types: what their workers really have on each
    worker_sizes: Mapping[JobId, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def large_workers(self) -> BoolArray | None:
        """(jobs,) whether a job is to have whole workers of several GPUs, each on one node; None: none is."""
        requests, asks = self.jobs.requests, self.constraints.whole_workers
        if not (requests.any_large_workers if asks else requests.any_varies):
            return None
        large = self.jobs.varies_by_type
        if asks:
            large = large | (self.jobs.gpus_per_worker > 1)
        return large if large.any() else None

    def worker_gpus(self, row: int) -> tuple[int, ...]:
        """(types,) GPUs of one worker of a job, of which no two nodes have a part."""
        real = self.worker_sizes.get(self.jobs.ids[row]) if self.worker_sizes else None
        return real or tuple(self.jobs.worker_gpus[row].tolist())

    @cached_property
    def all_usable(self) -> bool:
        """Whether every node may hold jobs."""
        return bool(self.usable.all())

    @cached_property
    def capacity(self) -> IntArray:
        """(types,) GPUs on usable nodes."""
        if self.all_usable:
            return self.cluster.capacity
        gpus = np.where(self.usable, self.cluster.node_gpus, 0)
        return np.bincount(self.cluster.kind, gpus, len(self.cluster.types)).astype(np.int64)

    @cached_property
    def free(self) -> IntArray:
        """(types,) GPUs on usable nodes that no job holds."""
        gpus = np.where(self.usable, self.placement.free, 0)
        return np.bincount(self.cluster.kind, gpus, len(self.cluster.types)).astype(np.int64)

    @cached_property
    def kept_on_closed(self) -> frozenset[int]:
        """Rows of jobs that stay on nodes that are closed to them, since they may not be preempted.

        A job of which another node is gone has lost that, and has to move all the same.
        """
        if self.closed is None:
            return frozenset()
        gone, jobs, kept = ~self.usable & ~self.closed, self.jobs, set[int]()
        for row in np.flatnonzero((jobs.held_gpus > 0) & ~jobs.preemptible).tolist():
            nodes = list(self.placement[jobs.ids[row]].nodes)
            if self.closed[nodes].any() and not gone[nodes].any():
                kept.add(row)
        return frozenset(kept)

    def limited_to(self, views: frozenset[View]) -> "Snapshot":
        """What a policy with these views is shown."""
        jobs = self.jobs.limited_to(views)
        return self if jobs is self.jobs else replace(self, jobs=jobs)
