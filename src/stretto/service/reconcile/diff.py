"""What the backend shows against what the log says: its workers, their GPUs, and the events that follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stretto.backends.protocol import NodeState, WorkerState
from stretto.service.eventlog.writer import LogWriter
from stretto.service.reconcile.held_gpus import HOLDER, GpuOccupancy
from stretto.service.state.events import (
    Event,
    NodeDead,
    NodeLost,
    NodeSeen,
    WorkersEnded,
    WorkersRan,
    WorkersStopped,
)
from stretto.service.state.records import KILLED, TERMINATED, JobRecord, NodeRecord, WorkerPhase
from stretto.service.state.state import State

# ── workers as the backend last showed them, and the GPUs that they hold, whatever the log says of them ─────


@dataclass
class WorkerCache:
    """let_go: is called when a worker's GPUs have become free."""

    log_writer: LogWriter
    occupied: GpuOccupancy
    let_go: Callable[[], None]
    workers: dict[str, WorkerState] = field(default_factory=dict)  # by id

    def see(self, one: WorkerState) -> None:
        """Note what a worker was shown to be."""
        self.workers[one.id] = one
        node = self.log_writer.state.node_index.get(one.node)
        held = sum(1 << gpu for gpu in one.gpus) if one.holds_gpus and node is not None else 0
        self._show(one.id, [(node, held)] if node is not None and held else [])

    def unsee(self, name: str) -> None:
        """A worker is not shown any more."""
        self.workers.pop(name, None)
        self._show(name, [])

    def _show(self, name: str, slots: list[tuple[int, int]]) -> None:
        had = self.occupied.of.get(HOLDER + name)
        self.occupied.put(HOLDER + name, slots)
        if had and not slots:
            self.let_go()


# ── what a backend shows and the log does not say yet: events to be recorded. Pure ──────────────────────────


LOST_GRACE_S = 300.0  # of workers of a job that the log has lost: time to save; chosen
VANISHED, UNKNOWN = 137, "its node does not know it"  # of one that is not there any more


def about_nodes(state: State, nodes: Sequence[NodeState]) -> list[Event]:
    """Nodes that have come, gone or changed."""
    events: list[Event] = []
    names = {node.name for node in nodes}
    if names:  # of a cluster that was begun anew, or of another machine
        gone = (node_gone.name for node_gone in state.nodes if node_gone.up and node_gone.name not in names)
        events += [NodeLost(name, "its cluster does not list it") for name in gone]
    for node in nodes:
        index = state.node_index.get(node.name)
        old = None if index is None else state.nodes[index]
        if old is None and not node.gpus:  # its GPUs have not shown themselves yet
            continue
        if node.up and (old is None or _has_changed(old, node)):
            events.append(_seen(node))
        elif old is None and node.comes:  # a place that may be filled: jobs may ask for what it would have
            events += [_seen(node), NodeLost(node.name, node.why)]
            events += [NodeDead(node.name, 0.0)] if node.dead else []
        elif not node.up and old is not None:
            if old.up:
                events.append(NodeLost(node.name, node.why))
            if node.dead and not old.dead:
                events.append(NodeDead(node.name, 0.0))
    return events


def _seen(node: NodeState) -> NodeSeen:
    """A node as the log keeps it."""
    return NodeSeen(
        node.name,
        node.gpu_type,
        node.gpus,
        node.cpus,
        node.memory_gb,
        node.address,
        node.shut,
        node.others,
        node.remark,
        node.zone,
        node.rack,
        node.nvlink_domain,
        node.taints,
    )


def about_workers(
    state: State, listing: Sequence[WorkerState]
) -> tuple[list[Event], list[tuple[WorkerState, float]]]:
    """Which workers have begun and which have ended; and which to stop within so many seconds.

    What no job wants must not go on holding GPUs. Such is a worker that the log knows nothing of, or counts
    as ended. Such is also what a worker's command started and left behind when it ended. A job that the log
    has lost is no fault of its owner: its workers have time to save what they did. So have those of an
    attempt that has grown in a time that the log has lost; it ends as a whole. A worker stopped in such a
    time says nothing by a status of its own.
    """
    stop: list[tuple[WorkerState, float]] = []
    ran: dict[str, list[str]] = {}
    ended: dict[str, list[dict[str, object]]] = {}
    stopped: dict[str, dict[str, None]] = {}
    for listed in listing:
        record = state.jobs.get(listed.id.split(".")[0])
        worker = record.workers.get(listed.id) if record is not None else None
        if worker is None or worker.life is WorkerPhase.ENDED:
            if listed.holds_gpus and listed.phase == "running":
                grace_s = LOST_GRACE_S if state.was_lost(listed.id.split(".")[0]) else 0.0
                if record is not None and worker is None and (peers := _peers_of(record, listed.id)):
                    stopped.setdefault(record.id, {}).update(dict.fromkeys(peers))
                    grace_s = record.spec.grace_period_s
                stop.append((listed, grace_s))
            continue
        if listed.phase == "running" and listed.status is not None and record is not None:
            stop.append((listed, record.spec.grace_period_s))
        if listed.phase == "running" and not worker.has_begun:
            ran.setdefault(worker.job, []).append(worker.id)
        elif listed.phase == "ended":
            status = VANISHED if listed.status is None else listed.status
            ending = {"id": worker.id, "status": status, **({"why": listed.why} if listed.why else {})}
            ending |= {"orphaned": listed.node} if listed.is_nodes_fault else {}
            if listed.stopped and not worker.stopped and status not in (TERMINATED, KILLED):
                stopped.setdefault(worker.job, {})[worker.id] = None
            ended.setdefault(worker.job, []).append(ending)
    events: list[Event] = [WorkersStopped(job, tuple(workers)) for job, workers in stopped.items()]
    events += [WorkersRan(job, tuple(workers)) for job, workers in ran.items()]
    events += [WorkersEnded(job, tuple(workers)) for job, workers in ended.items()]
    return events, stop


def _peers_of(record: JobRecord, stranger: str) -> list[str]:
    """Workers that run in the attempt which an unknown worker is of by its id; none where that is over."""
    attempt = stranger.rpartition(".")[0]
    of_attempt = [name.rpartition(".")[0] == attempt for name in record.workers]
    return [worker.id for worker in record.alive] if record.is_open and any(of_attempt) else []


def about_vanished(
    state: State, nodes: Sequence[NodeState], there: set[str], gone: set[str]
) -> list[WorkersEnded]:
    """Workers of nodes that answer and do not know them any more: they will not say how they ended.

    there: what the backend shows; gone: what it showed before and does not now. Of a start that was never
    carried out nothing is concluded: it may be under way.
    """
    up = {node.name for node in nodes if node.up}
    events = []
    for record in state.open_jobs():
        lost = [
            worker.id
            for worker in record.alive
            if worker.id not in there
            and (worker.life is not WorkerPhase.WANTED or worker.id in gone)
            and state.nodes[worker.node].name in up
        ]
        if lost:
            endings = tuple({"id": name, "status": VANISHED, "why": UNKNOWN} for name in lost)
            events.append(WorkersEnded(record.id, endings))
    return events


def _has_changed(known: NodeRecord, node: NodeState) -> bool:
    """Whether a node that answers is not what the log says of it."""
    if node.gpu_type == known.gpu_type and node.gpus >= known.gpus:
        before, now = (
            (each.shut, each.taints, each.others, each.remark, each.zone, each.rack, each.nvlink_domain)
            for each in (known, node)
        )
        offers = (node.cpus, node.memory_gb)  # it says neither where it does not know
        return not known.up or now != before or (any(offers) and offers != (known.cpus, known.memory_gb))
    return known.other != (node.gpus, node.gpu_type)
