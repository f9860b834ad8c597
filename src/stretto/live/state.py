"""Where everything stands: what folding the log gives. No clock, no I/O; the same events, the same state."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stretto.live import events as happened
from stretto.live.events import Event, body_of
from stretto.live.folding import fold_worker_event
from stretto.live.folding_nodes import node_cordoned, node_dead, node_lost, node_seen, types_seen
from stretto.live.jobfile import JobSpec
from stretto.live.jobfile.to_job import spec_to_job
from stretto.live.learned import with_experience
from stretto.live.past import Past
from stretto.live.plans import actions_of
from stretto.live.records import Batch, JobRecord, Life, NodeRecord, Prior, Queue, Token
from stretto.live.relations import Relations
from stretto.live.reservations import Reservation
from stretto.model import (
    Action,
    Allocation,
    Cluster,
    GpuType,
    JobId,
    Memory,
    Node,
    NodeId,
    Placement,
    no_placement,
)
from stretto.scheduler.stale import still_apply

Changed = Callable[[str], None]

MOST_MODELS = 10_000  # of which it is kept what their jobs have shown; chosen: some 20 MB at most


@dataclass
class State:
    """Everything that the log says, folded, which only `apply` changes.

    Beside it: `memory`, which whoever decides brings, `wake_s` until it has come, and `touched`, a list of
    errands of whoever reconciles.
    """

    seq: int = 0  # of the last event
    at_s: float = 0.0  # its time
    unix_s: float = 0.0  # when the clock was zero
    version: int = 0  # counts changes of membership and capacity, as snapshots do
    configured: happened.Configured = field(default_factory=lambda: happened.Configured("fifo"))
    types: dict[str, GpuType] = field(default_factory=dict)  # what is known of types, whether or not seen
    nodes: list[NodeRecord] = field(default_factory=list)
    node_index: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)  # by id and submission; those retired are not
    submitted: int = 0  # jobs ever, which is the number of the next
    largest_id: int = 0  # of all ids of jobs and arrays that are numbers
    ended: dict[str, None] = field(default_factory=dict)  # jobs that have ended, by that, and are still here
    ends: dict[str, int] = field(default_factory=dict)  # how many jobs have ever ended, by last state
    past: Past = field(default_factory=Past)
    relations: Relations = field(default_factory=Relations)
    open: list[tuple[int, str]] = field(default_factory=list)  # jobs that have not ended, by number
    by_key: dict[str, str] = field(default_factory=dict)  # job by idempotency key, which starts with the user
    models: dict[str, Prior] = field(default_factory=dict)  # what jobs have shown, by model
    untried: dict[str, dict[str, None]] = field(default_factory=dict)  # jobs that never started, by model
    queues: dict[str, Queue] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)  # by name
    sized: dict[str, tuple[int, ...]] = field(default_factory=dict)  # sizes that an open job may have
    tokens: dict[str, Token] = field(default_factory=dict)  # by digest
    memory: Memory = None  # the policy's; not in the log: whoever folds a decision brings it
    wake_s: float | None = None
    prices: tuple[float, ...] | None = None
    decisions: int = 0
    dropped: int = 0  # actions that were stale when they came to be folded
    touched: set[str] = field(default_factory=set)  # jobs that changed since somebody last took this
    changed: dict[str, int] = field(default_factory=dict)  # job → the last event that did, latest last
    unchanged: int = 0  # the last event that changed a job which has left
    _latest_spec: tuple[Mapping[str, Any], JobSpec] | None = None
    _cluster: Cluster | None = None
    _placement: Placement | None = None
    nodes_changed: bool = False  # since the cluster was made
    timed: dict[str, None] = field(default_factory=dict)  # open jobs that may run only so long

    def apply(self, event: Event, seq: int, at_s: float) -> None:
        """Fold one event."""
        self.seq, self.at_s = seq, max(at_s, self.at_s)
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event, self.at_s)
            return
        record = self.jobs.get(str(getattr(event, "job", "")))
        if record is not None and fold_worker_event(record, event, self.at_s, self.cluster):
            self.touch(record.id)
            if isinstance(event, happened.Reported) and record.spec.model and record.learned.points:
                self._learn(record)

    @property
    def cluster(self) -> Cluster | None:
        """The nodes as a cluster; None: no node has been seen."""
        self._settle()
        return self._cluster

    @property
    def placement(self) -> Placement | None:
        """What jobs are wanted to hold."""
        self._settle()
        return self._placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        self._placement = placement

    @property
    def knows_all_nodes(self) -> bool:
        """Whether every node is in the cluster that was made last."""
        return self._cluster is not None and len(self._cluster.nodes) == len(self.nodes)

    def _settle(self) -> None:
        """Nodes come by the thousand: what they make together is made when somebody wants to see it."""
        if self.nodes_changed:
            self.nodes_changed = False
            self._rebuild_cluster()

    def open_jobs(self) -> list[JobRecord]:
        """Jobs that have not ended, by submission."""
        return [self.jobs[name] for _, name in self.open]

    def wanted(self, job: str) -> Allocation | None:
        """What a job is to hold."""
        return None if self.placement is None else self.placement.get(JobId(job))

    def touch(self, job: str) -> None:
        """Note that a job has changed."""
        self.touched.add(job)
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

    def take_touched(self) -> set[str]:
        """Jobs that changed since this was last asked."""
        touched, self.touched = self.touched, set()
        return touched

    def usable(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(nodes,) may hold jobs."""
        return np.array([node.up and not node.closed for node in self.nodes], dtype=np.bool_)

    def staying(self) -> list[JobId]:
        """Jobs that hold GPUs of a closed node: they stay as they are, and no policy is asked about them."""
        closed = {index for index, node in enumerate(self.nodes) if node.closed}
        if not closed:
            return []
        return [job for job, held in (self.placement or {}).items() if not closed.isdisjoint(held.nodes)]

    def _learn(self, record: JobRecord) -> None:
        """What a job has shown is known of its model, and of those of its jobs that have not started."""
        model = record.spec.model
        before = self.models.pop(model, None) or Prior()
        after = self.models[model] = with_experience(before, record.learned)
        if len(self.models) > MOST_MODELS:
            del self.models[next(iter(self.models))]  # of which nothing has been heard for longest
        waiting = self.untried.get(model, {})
        if after is before or not waiting:
            return
        for job in list(waiting):
            if self.jobs[job].attempt:
                self._tried(self.jobs[job])
            else:
                self.jobs[job].prior = after
                self.touch(job)

    def _tried(self, record: JobRecord) -> None:
        """A job has started, or never will."""
        waiting = self.untried.get(record.spec.model, {})
        waiting.pop(record.id, None)
        if not waiting:
            self.untried.pop(record.spec.model, None)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────

    def _rebuild_cluster(self) -> None:
        """Nodes keep their places; types come in the order of their first node."""
        names = list(dict.fromkeys(node.gpu_type for node in self.nodes))
        types = tuple(self.types.get(name, GpuType(name)) for name in names)
        nodes = tuple(
            Node(NodeId(node.name), node.gpu_type, node.gpus, node.cpus, node.memory_gb)
            for node in self.nodes
        )
        self._cluster = Cluster("live", types, nodes)
        held = dict(self._placement.items()) if self._placement is not None else {}
        self._placement = no_placement(self._cluster).changed(held)

    def release(self, record: JobRecord, now_s: float) -> None:
        """A job is to hold nothing any more."""
        if self.placement is not None and record.job.id in self.placement:
            self.placement = self.placement.changed({record.job.id: None})
            record.books.hold(0, now_s)
        self.touch(record.id)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def _submitted(state: State, event: happened.Submitted, now_s: float) -> None:
    if event.job in state.jobs:
        return
    if state._latest_spec is None or state._latest_spec[0] != event.spec:  # tasks of an array have the same
        state._latest_spec = event.spec, JobSpec.from_json(dict(event.spec))
    spec = state._latest_spec[1]
    assert state.cluster is not None
    weight = state.queues[spec.queue].weight if spec.queue in state.queues else 1.0
    job = spec_to_job(
        spec, event.job, now_s, state.cluster, user=event.user, weight=weight, epoch_s=state.unix_s
    )
    number = state.submitted
    record = JobRecord(spec, job, event.user, event.key, event.secret, number)
    record.array, record.index, record.at_once = event.array, event.index, event.at_once
    record.after, record.settled = event.after, event.settled
    if spec.model:
        record.prior = state.models.get(spec.model, record.prior)
        state.untried.setdefault(spec.model, {})[event.job] = None
    if spec.start_after is not None:
        record.not_before_s = spec.start_after.seconds(now_s, state.unix_s)
    state.jobs[event.job] = record
    state.submitted += 1
    own = event.array or event.job
    if own.isascii() and own.isdecimal():
        state.largest_id = max(state.largest_id, int(own))
    insort(state.open, (number, event.job))
    if spec.max_time_s is not None:
        state.timed[event.job] = None
    if spec.elastic is not None and spec.elastic.sizes:
        state.sized[event.job] = spec.elastic.sizes
    state.relations.add(record)
    if event.key:
        state.by_key[f"{event.user}\0{event.key}"] = event.job
    _membership_changed(state, record)


def _membership_changed(state: State, record: JobRecord) -> None:
    state.version += 1
    state.touch(record.id)


def _held(state: State, event: happened.Held, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended:
        return
    record.held = event.held
    if event.held:
        state.release(record, now_s)
    _membership_changed(state, record)


def _scaled(state: State, event: happened.Scaled, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended:
        return
    record.resize(event.min_gpus, event.max_gpus)
    _membership_changed(state, record)


def _prioritised(state: State, event: happened.Prioritised, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended:
        return
    record.job = replace(record.job, priority=event.priority)
    _membership_changed(state, record)


def _requeued(state: State, event: happened.Requeued, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended:
        return
    record.not_before_s, record.why = event.not_before_s, event.why
    state.release(record, now_s)
    _membership_changed(state, record)


def _cancelled(state: State, event: happened.Cancelled, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended or record.ending:
        return
    record.ending, record.why = event.state, event.why
    state.release(record, now_s)
    _membership_changed(state, record)


def _ended(state: State, event: happened.Ended, now_s: float) -> None:
    record = state.jobs.get(event.job)
    if record is None or record.has_ended:
        return
    state.release(record, now_s)
    record.end(event.state, now_s)
    record.status, record.why, record.reason = event.status, event.why, event.reason
    state.timed.pop(record.id, None)
    state.sized.pop(record.id, None)
    state._tried(record)
    state.ended[record.id] = None
    state.ends[record.state] = state.ends.get(record.state, 0) + 1
    del state.open[bisect_left(state.open, (record.number, record.id))]
    for name in state.relations.end(record):
        if not state.jobs[name].has_ended:
            state.touch(name)
    _membership_changed(state, record)


def _retired(state: State, event: happened.Retired, now_s: float) -> None:
    """Whether or not jobs have left, all else is folded alike: nothing changes for one that has ended."""
    for name in event.jobs:
        record = state.jobs.get(name)
        if record is None or not state.relations.may_retire(record):
            continue
        del state.jobs[name], state.ended[name]
        state.touched.discard(name)
        state.unchanged = max(state.unchanged, state.changed.pop(name, 0))
        key = f"{record.user}\0{record.key}"
        if state.by_key.get(key) == name:
            del state.by_key[key]
        state.relations.retire(record)
        state.past.take(record)


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────


def _decided(state: State, event: happened.Decided, now_s: float) -> None:
    assert state.cluster is not None
    assert state.placement is not None
    usable = state.usable()

    def why_stale(action: Action) -> str:
        record = state.jobs.get(action.job)
        if record is None or record.has_ended:
            return "the job has ended"
        if record.ending or record.held:
            return "the job is to end or wait"
        if state.wanted(action.job) != action.before:
            return "its GPUs have changed since"
        if action.after is not None and not usable[list(action.after.nodes)].all():
            return "a node has gone"
        return ""

    dropped: set[str] = set()

    def drop(action: Action, reason: str) -> None:
        state.dropped += 1
        dropped.add(action.job)

    actions = still_apply(state.placement, actions_of(event.actions, state.cluster), why_stale, drop)
    if actions:
        state.placement = state.placement.changed({action.job: action.after for action in actions})
    for action in actions:
        record = state.jobs[action.job]
        after = action.after
        if after is None:
            record.books.hold(0, now_s)
        else:
            record.books.hold(after.gpus, now_s, after.profiling, after.kind)
        state.touch(record.id)
    for job, batch in event.batches.items():  # each is for the GPUs that the plan gave
        if job in state.jobs and not state.jobs[job].has_ended and job not in dropped:
            state.jobs[job].batch = Batch(*batch)
            state.touch(job)
    state.wake_s, state.prices = event.wake_s, event.prices
    state.decisions += 1


def _began(state: State, event: happened.Began, now_s: float) -> None:
    state.unix_s = event.unix_s


def _configured(state: State, event: happened.Configured, now_s: float) -> None:
    state.configured, state.memory = event, None


def _queue_set(state: State, event: happened.QueueSet, now_s: float) -> None:
    state.queues[event.name] = Queue(event.name, event.quota_gpus, event.borrow_gpus, event.weight)
    for record in state.open_jobs():
        if record.spec.queue == event.name and record.job.weight != event.weight:
            record.job = replace(record.job, weight=event.weight)
            state.touch(record.id)


def _reserved(state: State, event: happened.Reserved, now_s: float) -> None:
    state.reservations = {name: one for name, one in state.reservations.items() if one.until_s > now_s}
    state.reservations[event.name] = Reservation(**body_of(event))


def _unreserved(state: State, event: happened.Unreserved, now_s: float) -> None:
    state.reservations.pop(event.name, None)


def _token_made(state: State, event: happened.TokenMade, now_s: float) -> None:
    state.tokens[event.sha256] = Token(event.name, event.user, event.role, event.sha256)


def _token_revoked(state: State, event: happened.TokenRevoked, now_s: float) -> None:
    state.tokens = {digest: token for digest, token in state.tokens.items() if token.name != event.name}


_FOLDS: Mapping[type[Event], Callable[[State, Any, float], None]] = {
    happened.Began: _began,
    happened.Configured: _configured,
    happened.TypesSeen: types_seen,
    happened.NodeSeen: node_seen,
    happened.NodeLost: node_lost,
    happened.NodeDead: node_dead,
    happened.NodeCordoned: node_cordoned,
    happened.QueueSet: _queue_set,
    happened.Reserved: _reserved,
    happened.Unreserved: _unreserved,
    happened.TokenMade: _token_made,
    happened.TokenRevoked: _token_revoked,
    happened.Submitted: _submitted,
    happened.Held: _held,
    happened.Scaled: _scaled,
    happened.Prioritised: _prioritised,
    happened.Requeued: _requeued,
    happened.Cancelled: _cancelled,
    happened.Ended: _ended,
    happened.Retired: _retired,
    happened.Decided: _decided,
}


def workers_alive(state: State) -> int:
    """Workers of which processes may exist."""
    return sum(
        worker.life is not Life.ENDED
        for _, name in state.open
        for worker in state.jobs[name].workers.values()
    )
