"""What a cluster that grows is asked for: room for jobs that wait for nothing but GPUs.

A policy decides over the nodes that are there. Only where it has passed over a job is the cluster asked for
more, for the least that the job may hold. What it could use beyond that is no reason for another node.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.backends.protocol import (
    AnswersRequests,
    Autoscales,
    Backend,
    BackendUnreachable,
    NodeRequest,
    NodeState,
)
from stretto.model import Constraints, Plan, Snapshot, Why
from stretto.model.queue import with_quotas
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.leadership import Leadership
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.state.messages import gpus_of
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State
from stretto.service.state.status import Reason, why_not_yet

LOOK_S = 1.0  # of wall time between two looks; chosen
SURE_S = 3.0  # of wall time that a job is passed over before the cluster is asked; chosen: most get their
# turn at the next decision
# What more nodes would help against. A job that others hold up by a quota, a reservation or a restart is
# not helped, and of those that are too large or of another type only nodes that may come make something.
HELPED = frozenset(
    {
        Why.NO_FREE_GPUS,
        Why.BEHIND_IN_ORDER,
        Why.WORTH_LESS,
        Why.FRAGMENTED,
        Why.TOO_LARGE,
        Why.NO_SUCH_TYPE,
        Why.MAY_NOT_BORROW,  # where its queue has what is left over: that becomes more
    }
)
WAITS = "NODES_TO_COME"  # the reason that people and programs see

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CapacityRequest:
    """The jobs that wait for nodes, and what was or is to be asked for it; None: the cluster has no more."""

    of: Mapping[str, NodeRequest | None] = field(default_factory=dict)
    held: tuple[NodeRequest, ...] = ()  # by those that run, on GPUs of the same types
    begins: bool = False  # one of them does not run yet: its node must not be taken for idle


def requested_nodes(
    state: State, plan: Plan, snapshot: Snapshot, now_s: float, nodes: Sequence[NodeState]
) -> CapacityRequest:
    """What jobs need that the latest decision passed over, in the order of priority and submission. Pure.

    nodes: as the backend shows them. No more is asked for than may come, nor than the bounds of queues let
    start.
    """
    tree = Hierarchy(_once_all_are_there(snapshot.constraints, state, nodes))
    room, left, fixed = _room(state, nodes), _left_in_queues(state, tree), _left_to_fixed(state, tree)
    waiting = []
    for row, name in enumerate(snapshot.jobs.ids):
        record = state.jobs.get(name)
        if name in plan.placement or record is None or record.has_ended:
            continue
        if plan.why.of(row) not in HELPED:
            continue
        if state.wanted(name) is None and why_not_yet(state, record, now_s) is Reason.NONE:
            waiting.append(record)
    requests: dict[str, NodeRequest | None] = {}
    for record in sorted(waiting, key=lambda record: (-record.job.priority, record.number)):
        kinds = kinds_of(record, nodes)
        if not kinds:
            continue
        least_on = {kind: _least_gpus(record, kind) for kind in kinds}
        least = min(least_on.values())
        bounds = (left,) if record.job.preemptible else (left, fixed)
        if any(bound[queue] < least for bound in bounds for queue in tree.guarded(record.queue)):
            continue
        kind = next((kind_name for kind_name in kinds if room[kind_name] >= least_on[kind_name]), "")
        least = least_on.get(kind, least)
        workers = least // record.job.worker_gpus(kind)
        requests[record.id] = _node_request(record, kind, workers) if kind else None
        if kind:
            room[kind] -= least
            for bound in bounds:
                tree.add(bound, record.queue, -least)
    held_nodes, begins = _held(state, frozenset(room))
    return CapacityRequest(requests, held_nodes, begins)


def _held(state: State, kinds: frozenset[str]) -> tuple[tuple[NodeRequest, ...], bool]:
    """What jobs are to hold of these types, and whether one of them does not run yet."""
    requests, begins = [], False
    for job, allocation in (state.placement or {}).items():
        kind = state.nodes[allocation.nodes[0]].gpu_type
        if kind in kinds:
            record = state.jobs[job]
            workers = max(allocation.gpus // record.job.worker_gpus(kind), 1)
            requests.append(_node_request(record, kind, workers))
            alive = record.alive
            begins = begins or not alive or not all(worker.has_begun for worker in alive)
    return tuple(requests), begins


def _room(state: State, nodes: Sequence[NodeState]) -> dict[str, int]:
    """GPUs by type that would be free on nodes that come and go if all of them were there."""
    coming = {node.name: node for node in nodes if node.comes}
    room = dict.fromkeys((node.gpu_type for node in coming.values()), 0)
    for node in coming.values():
        room[node.gpu_type] += node.gpus - (node.others if node.up else 0)
    for allocation in (state.placement or {}).values():
        for index, mask in zip(allocation.nodes, allocation.masks, strict=True):
            if (coming_node := coming.get(state.nodes[index].name)) is not None:
                room[coming_node.gpu_type] -= mask.bit_count()
    return room


def _left_in_queues(state: State, tree: Hierarchy) -> dict[str, int]:
    """GPUs that each bounded queue may still hold, with all that is in it."""
    left = {name: tree.most(name) for name in tree.queues}
    for job, held in (state.placement or {}).items():
        tree.add(left, state.jobs[job].queue, -held.gpus)
    return left


def _left_to_fixed(state: State, tree: Hierarchy) -> dict[str, int]:
    """GPUs that jobs that cannot be preempted may still hold in each bounded queue."""
    of = tree.most if not tree.constraints.quotas_kept else tree.quota
    left = {name: of(name) for name in tree.queues}
    for job, held in (state.placement or {}).items():
        if not (record := state.jobs[job]).job.preemptible:
            tree.add(left, record.queue, -held.gpus)
    return left


def _once_all_are_there(constraints: Constraints, state: State, nodes: Sequence[NodeState]) -> Constraints:
    """The constraints as they would be with all nodes that may come: more is left over for some."""
    if not constraints.quotas_kept:
        return constraints
    coming = sum(node.gpus for node in nodes if node.comes and not node.up)
    return replace(constraints, queues=with_quotas(state.queues, state.node_facts.capacity + coming))


def kinds_of(record: JobRecord, nodes: Sequence[NodeState]) -> list[str]:
    """Types of nodes that may come and that a worker of a job fits on, by its preference."""
    fit = dict.fromkeys(node.gpu_type for node in nodes if node.comes and _fits_on(record, node))
    most = record.job.max_gpus
    return [kind for kind in record.job.gpu_types or fit if kind in fit and _least_gpus(record, kind) <= most]


def _fits_on(record: JobRecord, node: NodeState) -> bool:
    """Whether a node has the GPUs, cores and memory of one worker."""
    each, resources = record.job.worker_gpus(node.gpu_type), record.spec.resources
    share = each / record.spec.gpus
    has_cores = not node.cpus or node.cpus >= (resources.cpus or 0) * share
    has_memory = not node.memory_gb or node.memory_gb >= (resources.memory_gb or 0) * share
    return node.gpus >= each and has_cores and has_memory


def _least_gpus(record: JobRecord, kind: str) -> int:
    """Fewest GPUs of a type that a job runs on, in whole workers."""
    each = record.job.worker_gpus(kind)
    return -(-max(record.job.fewest_gpus(kind), 1) // each) * each


def _node_request(record: JobRecord, kind: str, workers: int) -> NodeRequest:
    resources, each = record.spec.resources, record.job.worker_gpus(kind)
    share = each / record.spec.gpus
    cpus, memory_gb = (resources.cpus or 0) * share, (resources.memory_gb or 0) * share
    return NodeRequest(kind, workers, each, cpus, memory_gb, record.id)


@dataclass
class Autoscaler:
    """Looks at what waits, and asks the backend where its cluster grows."""

    log_writer: LogWriter
    backend: Backend
    scheduling: SchedulingLoop
    clock: Clock
    leadership: Leadership | None = None
    requested: CapacityRequest = field(default_factory=CapacityRequest)
    requested_gpus: Counter[str] = field(default_factory=Counter)  # by type, that the cluster was asked for
    _since_s: dict[str, float] = field(default_factory=dict)  # by job, of wall time
    _asked: tuple[NodeRequest, ...] = ()
    _trouble: str = ""  # why the cluster could not be asked the last time
    _answers: Mapping[str, str] = field(default_factory=dict)  # what the cluster says, by job

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while isinstance(self.backend, Autoscales):
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask for what is needed now, if that is not what was asked for last."""
        assert isinstance(self.backend, Autoscales)
        nodes = await self.backend.nodes()
        if isinstance(self.backend, AnswersRequests):
            self._answers = await self.backend.answers()
        plan, snapshot = self.scheduling.latest, self.scheduling.latest_snapshot
        if plan is None or snapshot is None:
            return
        if any(node.comes for node in nodes):
            self.requested = requested_nodes(self.log_writer.state, plan, snapshot, self.clock.now_s(), nodes)
        now_s = asyncio.get_running_loop().time()
        self._since_s = {name: self._since_s.get(name, now_s) for name in self.requested.of}
        sure = {name for name, since_s in self._since_s.items() if now_s - since_s >= SURE_S}
        new = tuple(
            request for name, request in self.requested.of.items() if request is not None and name in sure
        )
        is_needed = bool(new) or (bool(self._asked) and self.requested.begins)
        wanted = (*self.requested.held, *new) if is_needed else ()
        if wanted == self._asked:
            return
        try:
            if self.leadership is not None:
                await self.leadership.check()
            await self.backend.wish(wanted)
        except BackendUnreachable as failure:
            if self._trouble != str(failure):
                log.warning("cannot ask for nodes: %s", failure)
            self._trouble = str(failure)
            return
        self._asked, self._trouble = wanted, ""
        self.requested_gpus = Counter()
        for request in new:
            self.requested_gpus[request.gpu_type] += request.workers * request.gpus
        description = ", ".join(gpus_of(request.workers * request.gpus, request.gpu_type) for request in new)
        if description or not wanted:
            log.info("%s", f"asked the cluster for {description or 'nothing any more'}")

    def message_for(self, job: str) -> str:
        """What is said of a job that waits for nodes; "" of others."""
        if job not in self.requested.of:
            return ""
        wish = self.requested.of[job]
        if wish is None:
            return "there are no more that are not in use, or asked for by others"
        gpus = gpus_of(wish.workers * wish.gpus, wish.gpu_type)
        if self._trouble:
            return f"the cluster cannot be asked for {gpus}: {self._trouble}"
        answer = self._answers.get(job, "")
        return f"the cluster is asked for {gpus}{f': {answer}' if answer else ''}"
