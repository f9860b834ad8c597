"""Where everything stands: what folding the log gives. No clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stretto.jobfile import JobSpec
from stretto.jobfile.kubernetes_section import tolerates_all, tolerations_in
from stretto.model import (
    Allocation,
    Cluster,
    EndedJobs,
    GpuType,
    JobId,
    Node,
    NodeId,
    Placement,
    PriorityClass,
    Queue,
    Reservation,
    UsageLedger,
    gpus_by_type,
    no_placement,
    rate_of,
)
from stretto.service.state import events as happened
from stretto.service.state.budgets import Budget, Budgets
from stretto.service.state.calendar import Calendar
from stretto.service.state.duration_errors import DurationErrors
from stretto.service.state.gpu_prices import GpuPrices
from stretto.service.state.lender_records import LenderRecord
from stretto.service.state.node_facts import NodeFacts
from stretto.service.state.outbox import Outbox
from stretto.service.state.records import (
    NO_SUSPENSIONS,
    ArchivedTotals,
    JobRecord,
    NodeRecord,
    Prior,
    Suspensions,
    Token,
    WorkerPhase,
    by_owner,
    levels_named,
)
from stretto.service.state.relations import Relations
from stretto.service.state.reported_metrics import with_experience
from stretto.service.state.usage import Cause, SizeChange

MOST_SKIPPED = 100  # events that could not be folded, of which it is kept which; chosen
MOST_MODELS = 10_000  # of which it is kept what their jobs have shown; chosen: some 20 MB at most


@dataclass(frozen=True, slots=True)
class Skipped:
    """An event that could not be folded. What it said is in the log, and is left out of the state."""

    seq: int
    kind: str
    subject: str
    why: str


@dataclass
class State:
    """Everything that the log says, folded. The reducer writes it, and nothing else does.

    What a loop of the service has still to do is that loop's own: jobs to be reconciled, the policy's memory.
    `changed_since` tells a reader which jobs to look at again.
    """

    seq: int = 0  # of the last event
    at_s: float = 0.0  # its time
    unix_s: float = 0.0  # when the clock was zero, as the time of day is now
    calendar: Calendar = field(default_factory=Calendar)
    epoch: int = 0  # of the service that leads; 0: none has said so
    version: int = 0  # counts changes of membership and capacity, as snapshots do
    configured: happened.Configured = field(default_factory=lambda: happened.Configured("fifo"))
    types: dict[str, GpuType] = field(default_factory=dict)  # what is known of types, whether or not seen
    nodes: list[NodeRecord] = field(default_factory=list)
    node_index: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)  # by id and submission; those retired are not
    submitted: int = 0  # jobs ever, which is the number of the next
    largest_id: int = 0  # of all ids of jobs and arrays that are numbers
    incarnation: str = ""  # of the log, in ids of workers; "": the first
    lost_ids: tuple[tuple[int, int], ...] = ()  # (first, last) that the log may have given and does not know
    ended: dict[str, None] = field(default_factory=dict)  # jobs that have ended, by that, and are still here
    ends: dict[str, int] = field(default_factory=dict)  # how many jobs have ever ended, by last state
    # How many have ever ended after they ran, and for how long they did
    ended_jobs: EndedJobs = field(default_factory=EndedJobs)
    duration_errors: DurationErrors = field(default_factory=DurationErrors)  # of what jobs were to take
    past: ArchivedTotals = field(default_factory=ArchivedTotals)
    relations: Relations = field(default_factory=Relations)
    open: list[tuple[int, str]] = field(default_factory=list)  # jobs that have not ended, by number
    open_of: dict[str, int] = field(default_factory=dict)  # how many of them each user has
    by_key: dict[str, str] = field(default_factory=dict)  # job by idempotency key, which starts with the user
    models: dict[str, Prior] = field(default_factory=dict)  # what jobs have shown, by model
    # What stops and starts of jobs took, by model; of all jobs under "".
    suspensions: dict[str, Suspensions] = field(default_factory=dict)
    resizes: dict[str, Suspensions] = field(default_factory=dict)  # in place, likewise
    # Jobs by model that never started, and, where jobs share their evidence, those that started since.
    untried: dict[str, dict[str, None]] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    priority_classes: dict[str, PriorityClass] = field(default_factory=dict)  # by name
    reservations: dict[str, Reservation] = field(default_factory=dict)  # by name
    lenders: dict[str, LenderRecord] = field(default_factory=dict)  # by name
    reserved_unix_s: dict[str, tuple[float, float]] = field(default_factory=dict)  # from and until, as named
    sized: dict[str, tuple[int, ...]] = field(default_factory=dict)  # sizes that an open job may have
    usage: UsageLedger = field(default_factory=UsageLedger)  # by queue and user, decayed
    user_shares: dict[str, float] = field(default_factory=dict)  # of those who have not 1
    outbox: Outbox = field(default_factory=Outbox)  # webhooks that are to be delivered
    gpu_prices: GpuPrices = field(default_factory=GpuPrices)
    budgets: Budgets = field(default_factory=Budgets)
    tokens: dict[str, Token] = field(default_factory=dict)  # by digest
    wake_s: float | None = None  # when the policy that decided last wants to be asked again
    prices: tuple[float, ...] | None = None
    decisions: int = 0
    dropped: int = 0  # actions that were stale when they came to be folded
    skips: int = 0  # events that could not be folded
    skipped: tuple[Skipped, ...] = ()  # the first of them
    changed: dict[str, int] = field(default_factory=dict)  # job → the last event that did, latest last
    unchanged: int = 0  # the last event that changed a job which has left
    latest_spec: tuple[Mapping[str, Any], JobSpec] | None = None
    _cluster: Cluster | None = None
    _placement: Placement | None = None
    _released: dict[str, None] = field(default_factory=dict, repr=False)  # jobs that are still in it
    nodes_changed: bool = False  # since the cluster was made
    timed: dict[str, None] = field(default_factory=dict)  # open jobs that may run only so long
    _node_facts: NodeFacts | None = field(default=None, repr=False, compare=False)

    @property
    def cluster(self) -> Cluster | None:
        """The nodes as a cluster; None: no node has been seen."""
        self._settle()
        return self._cluster

    @property
    def placement(self) -> Placement | None:
        """What jobs are wanted to hold."""
        self._settle()
        self._take_away()
        return self._placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        self._placement, self._released = placement, {}

    def allocations_on(self, index: int) -> list[tuple[JobId, Allocation]]:
        """(job, allocation) of all jobs that are to hold GPUs of a node.

        Asked of each of a thousand nodes that come one after another, it makes no cluster of them.
        """
        self._take_away()
        if self._placement is None or self._cluster is None or index >= len(self._cluster.nodes):
            return []  # it has come since the cluster was made: nobody was given anything there
        return [(job, has) for job, has in self._placement.items() if index in has.nodes]

    def __getstate__(self) -> dict[str, Any]:
        """All that the log says, and nothing that was worked out of it to be asked more often."""
        self._take_away()
        return {**vars(self), "_node_facts": None}

    @property
    def node_facts(self) -> NodeFacts:
        """What all nodes are together, as they are now."""
        if self._node_facts is None or not self._node_facts.holds_for(self.nodes):
            self._node_facts = NodeFacts.of(self.nodes)
        return self._node_facts

    @property
    def knows_all_nodes(self) -> bool:
        """Whether every node is in the cluster that was made last."""
        return self._cluster is not None and len(self._cluster.nodes) == len(self.nodes)

    def _settle(self) -> None:
        """Nodes come by the thousand: what they make together is made when it is to be seen."""
        if self.nodes_changed:
            self.nodes_changed = False
            self._rebuild_cluster()

    def _take_away(self) -> None:
        """Jobs end one by one, and a placement is a new one at each change: it is made when it is seen."""
        if self._released and self._placement is not None:
            self.placement = self._placement.changed({JobId(job): None for job in self._released})

    def was_lost(self, job: str) -> bool:
        """Whether a job may be one that the log knew before it lost something."""
        own = job.partition("_")[0]
        if job in self.jobs or not (own.isascii() and own.isdecimal()):
            return False
        number = int(own)
        return number > self.largest_id or any(first <= number <= last for first, last in self.lost_ids)

    def open_jobs(self) -> list[JobRecord]:
        """Jobs that have not ended, by submission."""
        return [self.jobs[name] for _, name in self.open]

    def open_job(self, name: str) -> JobRecord | None:
        """A job that has not ended, if there is such a one."""
        record = self.jobs.get(name)
        return None if record is None or record.has_ended else record

    def wanted(self, job: str) -> Allocation | None:
        """What a job is to hold."""
        if self._placement is None or job in self._released:
            return None
        held: Allocation | None = self._placement.get(JobId(job))
        return held

    def skip(self, one: Skipped) -> None:
        """Note that an event could not be folded."""
        self.skips += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped = (*self.skipped, one)

    def touch(self, job: str) -> None:
        """Note that a job has changed."""
        self.changed.pop(job, None)
        self.changed[job] = self.seq

    def changed_since(self, seq: int) -> list[JobRecord]:
        """Jobs that later events than this one have changed, but for those that have left (`unchanged`)."""
        found = []
        for job in reversed(self.changed):
            if self.changed[job] <= seq:
                break
            found.append(self.jobs[job])
        return found

    def usable(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(nodes,) may hold jobs; some of them only those that tolerate their taints."""
        usable = self.node_facts.open_to_all.copy()
        for indices, _ in self.tolerated():
            usable[list(indices)] = self.node_facts.up_and_ours[list(indices)]
        return usable

    def tolerated(self) -> list[tuple[tuple[int, ...], frozenset[JobId]]]:
        """Nodes that are closed for their taints alone, with the open jobs that tolerate these, if any do."""
        by_taints = self.node_facts.by_taints
        if not by_taints:
            return []
        able = [record for record in self.open_jobs() if tolerations_in(record.spec.kubernetes)]
        groups = []
        for taints, indices in by_taints.items():
            jobs = [each.job.id for each in able if tolerates_all(each.spec.kubernetes, taints)]
            if jobs:
                groups.append((indices, frozenset(jobs)))
        return groups

    def staying(self) -> list[JobId]:
        """Jobs that hold GPUs of a closed node: they stay as they are, and no policy is asked about them."""
        closed = self.node_facts.closed
        if not closed or self.placement is None:
            return []
        there = {job for node in closed for job in self.placement.on(node)}
        return [
            job
            for job, allocation in (self.placement.items() if there else ())
            if job in there
            and any(
                self.nodes[node].is_closed_to(self.jobs[job])
                for node in closed.intersection(allocation.nodes)
            )
        ]

    def learn(self, record: JobRecord) -> None:
        """What a job has shown is known of its model, and of those of its jobs that have not started.

        Where the configuration has jobs share their evidence, it is known of those that train, too.
        """
        shared = self.configured.evidence == "model"
        model = record.spec.measured_as
        before = self.models.pop(model, None) or Prior()
        after = self.models[model] = with_experience(before, record.learned, shared)
        if len(self.models) > MOST_MODELS:
            del self.models[next(iter(self.models))]  # of which nothing has been heard for longest
        waiting = self.untried.get(model, {})
        if after is before or not waiting:
            return
        for job in list(waiting):
            if self.jobs[job].attempt and not shared:
                self.tried(self.jobs[job])
            else:
                self.jobs[job].prior = after
                self.touch(job)

    def note_costs(self, record: JobRecord, suspensions: Suspensions, resizes: Suspensions) -> None:
        """What a stop and a start or a resize took is known of a job's model and of the cluster, too.

        suspensions, resizes: those of the job before.
        """
        if record.suspensions.count > suspensions.count:
            _note(self.suspensions, record, record.suspensions.seconds - suspensions.seconds)
        if record.resizes.count > resizes.count:
            _note(self.resizes, record, record.resizes.seconds - resizes.seconds)

    def suspension_s(self, model: str) -> float:
        """Of a job that was never stopped: that of its model, else of all jobs; NaN: nothing is known."""
        return _of_model(self.suspensions, model)

    def resize_s(self, model: str) -> float:
        """Of a job that was never resized in place: that of its model, else of all jobs; NaN: not known."""
        return _of_model(self.resizes, model)

    def tell(self, event: happened.Event, record: JobRecord) -> None:
        """An event of a job was folded: its owner may want to be told."""
        if self.configured.webhooks == "kept":
            self.outbox.note(event, record, self._prefix, self.unix_s + self.at_s)

    def tell_of_budget(self, event: happened.BudgetReached, budget: Budget) -> None:
        """A budget has come to a level: those that it names are to be told."""
        if self.configured.webhooks == "kept":
            self.outbox.note_budget(event, budget, self._prefix, self.unix_s + self.at_s)

    @property
    def _prefix(self) -> str:
        """Of ids of webhooks, by the place of the last event in the log."""
        return f"{self.incarnation}-{self.seq}" if self.incarnation else str(self.seq)

    def tried(self, record: JobRecord) -> None:
        """A job has started, or never will."""
        waiting = self.untried.get(record.spec.measured_as, {})
        waiting.pop(record.id, None)
        if not waiting:
            self.untried.pop(record.spec.measured_as, None)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────

    def _rebuild_cluster(self) -> None:
        """Nodes keep their places; types come in the order of their first node."""
        names = list(dict.fromkeys(node.gpu_type for node in self.nodes))
        types = tuple(self.types.get(name, GpuType(name)) for name in names)
        near = self.configured.topology == "near"
        levels = levels_named(self.nodes) if near else ()
        nodes = tuple(
            Node(
                NodeId(node.name),
                node.gpu_type,
                node.gpus,
                node.cpus,
                node.memory_gb,
                node.lender,
                tuple(getattr(node, level) for level in levels),
            )
            for node in self.nodes
        )
        self._cluster = Cluster("live", types, nodes, levels)
        allocations = dict(self._placement.items()) if self._placement is not None else {}
        self._placement = no_placement(self._cluster).changed(allocations)

    def release(self, record: JobRecord, now_s: float, cause: Cause | None = None) -> None:
        """A job is to hold nothing any more. cause: why; else its owner wants it so."""
        if self.wanted(record.id) is not None:
            self._released[record.id] = None
            self.hold(record, None, now_s, cause)
        self.touch(record.id)

    def hold(
        self,
        record: JobRecord,
        allocation: Allocation | None,
        now_s: float,
        cause: Cause | None = None,
        due: tuple[str, ...] = (),
    ) -> None:
        """A job holds this from now on, and its account is charged for it. cause: as for `release`.

        due: why the decision was made, if it is one.
        """
        before = record.accounting.rate
        names: dict[str, int] = {}
        if allocation is None:
            record.usage.hold({}, record.queue, now_s, self.unix_s)
            record.accounting.hold(0, now_s)
        else:
            assert self.cluster is not None
            by_type = {
                self.cluster.types[kind]: gpus
                for kind, gpus in gpus_by_type(allocation, self.cluster).items()
            }
            names = {gpu_type.name: gpus for gpu_type, gpus in by_type.items()}
            record.usage.hold(names, record.queue, now_s, self.unix_s)
            record.accounting.hold(allocation.gpus, now_s, allocation.profiling, allocation.kind)
            record.accounting.rate = sum(rate_of(gpus, gpu_type.speed) for gpu_type, gpus in by_type.items())
        record.usage.changed_by = cause or by_owner(record)
        gpus = 0 if allocation is None else allocation.gpus
        record.note_size(SizeChange(now_s, gpus, "+".join(names), record.usage.changed_by, due))
        self.usage.change(record.account, record.accounting.rate - before, now_s)

    def move_to_queue(self, record: JobRecord, queue: str, weight: float, now_s: float) -> None:
        """A job is in another queue from now on; what it has had stays with the one before."""
        rate, before = record.accounting.rate, record.account
        record.job = replace(record.job, queue=queue, weight=weight)
        record.usage.hold(dict(record.usage.held), queue, now_s, self.unix_s)
        if record.account != before:
            self.usage.change(before, -rate, now_s)
            self.usage.change(record.account, rate, now_s)
        self.touch(record.id)


def workers_alive(state: State) -> int:
    """Workers of which processes may exist."""
    return sum(
        worker.life is not WorkerPhase.ENDED
        for _, name in state.open
        for worker in state.jobs[name].workers.values()
    )


def _note(costs: dict[str, Suspensions], record: JobRecord, took_s: float) -> None:
    """One more, of a job's model and of all jobs."""
    for name in dict.fromkeys((record.spec.model, "")):
        costs[name] = costs.pop(name, NO_SUSPENSIONS).with_one(took_s)
    if len(costs) > MOST_MODELS:
        del costs[next(iter(costs))]  # of which nothing has been heard for longest


def _of_model(costs: Mapping[str, Suspensions], model: str) -> float:
    known = costs.get(model) or costs.get("", NO_SUSPENSIONS)
    return known.mean_s
