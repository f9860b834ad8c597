"""Everything a decision may look at, as it stood at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

import numpy as np

from stretto.model.arrays import BoolArray, FloatArray, IntArray, ObjectArray, floats, frozen, ints
from stretto.model.cluster import Cluster
from stretto.model.constraints import NO_CONSTRAINTS, Constraints
from stretto.model.errors import NotDeclared
from stretto.model.fair_share import account_of
from stretto.model.job import Adaptivity, Job, JobId, Kind
from stretto.model.knowledge import Durations, Evidence, Learning, MeasuredSpeeds, Progress, View
from stretto.model.lending import LenderState
from stretto.model.memory import Memory
from stretto.model.placement import Placement

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


@dataclass(frozen=True, eq=False)
class Requests:
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
        """(all jobs,) who is charged for each."""
        found = np.empty(len(self.jobs), dtype=np.object_)
        found[:] = [account_of(job) for job in self.jobs]
        return found

    @cached_property
    def submitted_s(self) -> FloatArray:
        """(all jobs,) seconds."""
        return frozen(floats([job.submitted_s for job in self.jobs]))

    @cached_property
    def gpus(self) -> IntArray:
        """(all jobs,) GPUs asked for."""
        return frozen(ints([job.gpus for job in self.jobs]))

    @cached_property
    def min_gpus(self) -> IntArray:
        """(all jobs,) fewest GPUs to run on."""
        return frozen(ints([job.min_gpus for job in self.jobs]))

    @cached_property
    def max_gpus(self) -> IntArray:
        """(all jobs,) most GPUs to run on."""
        return frozen(ints([job.max_gpus for job in self.jobs]))

    @cached_property
    def batch_size(self) -> IntArray:
        """(all jobs,) total samples a step as submitted, 0 unknown."""
        return frozen(ints([job.batch_size for job in self.jobs]))

    @cached_property
    def deadline_s(self) -> FloatArray:
        """(all jobs,) first deadline, infinite where there is none."""
        return frozen(floats([job.deadline_s for job in self.jobs]))

    @cached_property
    def priority(self) -> IntArray:
        """(all jobs,) larger is sooner."""
        return frozen(ints([job.priority for job in self.jobs]))

    @cached_property
    def weight(self) -> FloatArray:
        """(all jobs,) share weights."""
        return frozen(floats([job.weight for job in self.jobs]))

    @cached_property
    def interactive(self) -> BoolArray:
        """(all jobs,) somebody waits for it."""
        return frozen(np.array([job.kind is Kind.INTERACTIVE for job in self.jobs], dtype=np.bool_))

    @cached_property
    def rigid(self) -> BoolArray:
        """(all jobs,) must get exactly what it asked for."""
        return frozen(np.array([job.adaptivity is Adaptivity.RIGID for job in self.jobs], dtype=np.bool_))

    @cached_property
    def preemptible(self) -> BoolArray:
        """(all jobs,) may be stopped or moved once it runs."""
        return frozen(np.array([job.preemptible for job in self.jobs], dtype=np.bool_))

    @cached_property
    def gpus_per_worker(self) -> IntArray:
        """(all jobs,) GPUs by which it grows and shrinks."""
        return frozen(ints([job.gpus_per_worker for job in self.jobs]))

    @cached_property
    def heterogeneous(self) -> BoolArray:
        """(all jobs,) may hold GPUs of several types at once."""
        return frozen(np.array([job.heterogeneous for job in self.jobs], dtype=np.bool_))

    @cached_property
    def allowed_kinds(self) -> BoolArray:
        """(all jobs, types) the GPU types that a job accepts."""
        allowed = np.ones((len(self.jobs), len(self.cluster.types)), dtype=np.bool_)
        for row, job in enumerate(self.jobs):
            if job.gpu_types:
                allowed[row] = False
                allowed[row, [self.cluster.type_index(name) for name in job.gpu_types]] = True
        return frozen(allowed)


@dataclass(frozen=True, eq=False)
class JobTable:
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

    @cached_property
    def submitted_s(self) -> FloatArray:
        """(jobs,) seconds."""
        return self.requests.submitted_s[self.rows]

    @cached_property
    def gpus(self) -> IntArray:
        """(jobs,) GPUs asked for."""
        return self.requests.gpus[self.rows]

    @cached_property
    def min_gpus(self) -> IntArray:
        """(jobs,) fewest GPUs to run on."""
        return self.requests.min_gpus[self.rows]

    @cached_property
    def max_gpus(self) -> IntArray:
        """(jobs,) most GPUs to run on."""
        return self.requests.max_gpus[self.rows]

    @cached_property
    def batch_size(self) -> IntArray:
        """(jobs,) total samples a step as submitted, 0 unknown."""
        return self.requests.batch_size[self.rows]

    @cached_property
    def deadline_s(self) -> FloatArray:
        """(jobs,) first deadline, infinite where there is none."""
        return self.requests.deadline_s[self.rows]

    @cached_property
    def priority(self) -> IntArray:
        """(jobs,) larger is sooner."""
        return self.requests.priority[self.rows]

    @cached_property
    def weight(self) -> FloatArray:
        """(jobs,) share weights."""
        return self.requests.weight[self.rows]

    @cached_property
    def interactive(self) -> BoolArray:
        """(jobs,) somebody waits for it."""
        return self.requests.interactive[self.rows]

    @cached_property
    def rigid(self) -> BoolArray:
        """(jobs,) must get exactly what it asked for."""
        return self.requests.rigid[self.rows]

    @cached_property
    def preemptible(self) -> BoolArray:
        """(jobs,) may be stopped or moved once it runs."""
        return self.requests.preemptible[self.rows]

    @cached_property
    def allowed_kinds(self) -> BoolArray:
        """(jobs, types) the GPU types that a job accepts."""
        return self.requests.allowed_kinds[self.rows]

    @cached_property
    def gpus_per_worker(self) -> IntArray:
        """(jobs,) GPUs by which it grows and shrinks."""
        return self.requests.gpus_per_worker[self.rows]

    @cached_property
    def heterogeneous(self) -> BoolArray:
        """(jobs,) may hold GPUs of several types at once."""
        return self.requests.heterogeneous[self.rows]

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

    def holding(self, placement: Placement) -> "JobTable":
        """The same jobs when `placement` is what they hold."""
        held = [placement.get(job) for job in self.ids]
        return replace(
            self,
            held_gpus=ints([one.gpus if one else 0 for one in held]),
            held_nodes=ints([len(one.nodes) if one else 0 for one in held]),
            held_kind=ints([one.kind if one else -1 for one in held]),
        )

    def limited_to(self, views: frozenset[View]) -> "JobTable":
        """The same table without the columns of any other view."""
        hidden = {name: None for view, name in _COLUMNS_OF.items() if view not in views}
        if View.GOODPUT_MODEL in views:  # a goodput estimate falls back on a table where there is one
            hidden.pop("known_tables", None)
        return replace(self, **hidden) if any(getattr(self, name) is not None for name in hidden) else self  # type: ignore[arg-type]


_COLUMNS_OF = {
    View.PROGRESS: "known_progress",
    View.ORACLE_DURATION: "known_durations",
    View.ESTIMATED_DURATION: "known_estimates",
    View.REMAINING_WORK: "known_work",
    View.THROUGHPUT_TABLE: "known_tables",
    View.GOODPUT_MODEL: "known_evidence",
    View.LEARNING: "known_learning",
    View.CPU_DEMAND: "known_cpu_demand",
}


def _declared(columns: Columns | None, view: View) -> Columns:
    if columns is None:
        raise NotDeclared(f"the policy reads view {view.value!r}, which it does not declare")
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

    @cached_property
    def capacity(self) -> IntArray:
        """(types,) GPUs on usable nodes."""
        gpus = np.where(self.usable, self.cluster.node_gpus, 0)
        return np.bincount(self.cluster.kind, gpus, len(self.cluster.types)).astype(np.int64)

    @cached_property
    def free(self) -> IntArray:
        """(types,) GPUs on usable nodes that nobody holds."""
        gpus = np.where(self.usable, self.placement.free, 0)
        return np.bincount(self.cluster.kind, gpus, len(self.cluster.types)).astype(np.int64)

    def limited_to(self, views: frozenset[View]) -> "Snapshot":
        """What a policy with these views is shown."""
        return replace(self, jobs=self.jobs.limited_to(views))
