"""What events of nodes change: which are there, and who holds their GPUs."""

from math import nan

from stretto.live.state import events as happened
from stretto.live.state.closing import kept_of
from stretto.live.state.records import KILLED, Life, NodeRecord
from stretto.live.state.state import State
from stretto.model import Cluster, GpuType, Node, NodeId


def types_seen(state: State, event: happened.TypesSeen, now_s: float) -> None:
    """What is known of types, whether or not nodes of them are there."""
    types = [GpuType(**{**one, "aliases": tuple(one.get("aliases", ()))}) for one in event.types]
    state.types |= {one.name: one for one in types}
    state.nodes_changed = bool(state.nodes)


def node_seen(state: State, event: happened.NodeSeen, now_s: float) -> None:
    """A node answers: it is new, is back, or has changed."""
    index = state.node_index.get(event.node)
    if index is None:
        _check_possible(event)
        state.node_index[event.node] = len(state.nodes)
        state.nodes.append(NodeRecord(event.node, event.gpu_type, event.gpus))
        index = len(state.nodes) - 1
    node = state.nodes[index]
    node.cpus, node.memory_gb, node.address = event.cpus, event.memory_gb, event.address
    was_closed, node.shut, node.others = node.closed, event.shut, event.others
    node.remark = event.remark
    node.up, node.lost_why, node.silent_s, node.dead, node.other = True, "", nan, False, None
    # A node that comes back with GPUs of another type, or with fewer, is another one under the same name:
    # indices of GPUs would mean two things. Of one that comes back with more, the new ones are not used.
    if event.gpu_type != node.gpu_type or event.gpus < node.gpus:
        node.up, node.other = False, (event.gpus, event.gpu_type)
        node.lost_why = f"came back with {event.gpus} x {event.gpu_type}, had {node.gpus} x {node.gpu_type}"
        _vacate(state, index, now_s)
    else:
        if not state.knows_all_nodes:
            state.nodes_changed = True
        if node.closed and not was_closed:
            _close(state, index, now_s)
        _give_way(state, index, now_s)
    state.version += 1


def _check_possible(event: happened.NodeSeen) -> None:
    """Raise InputError now for a node that no cluster can have: the cluster itself is made later."""
    node = Node(NodeId(event.node), event.gpu_type, event.gpus, event.cpus, event.memory_gb)
    Cluster("live", (GpuType(event.gpu_type),), (node,))


def _give_way(state: State, index: int, now_s: float) -> None:
    """Who was to start on GPUs that others hold by now waits again, the latest first."""
    node = state.nodes[index]
    if not node.others or state.placement is None:
        return
    held = {job: one for job, one in state.placement.items() if index in one.nodes}
    masks = {job: one.masks[one.nodes.index(index)] for job, one in held.items()}
    too_many = sum(mask.bit_count() for mask in masks.values()) - (node.gpus - node.others)
    for record in sorted((state.jobs[job] for job in held), key=lambda one: -one.number):
        begun = (one.mask for one in record.alive if one.node == index and one.began_s == one.began_s)
        mask = masks[record.job.id]
        if too_many > 0 and mask & ~sum(begun):
            too_many -= mask.bit_count()
            record.why = f"others hold GPUs of node {node.name}"
            state.release(record, now_s)


def node_lost(state: State, event: happened.NodeLost, now_s: float) -> None:
    """A node does not answer: its jobs wait again, and nothing is known of what runs there."""
    index = state.node_index.get(event.node)
    if index is None:
        return
    node = state.nodes[index]
    if node.up:
        node.silent_s = now_s
    node.up, node.lost_why = False, event.why
    _vacate(state, index, now_s)
    state.version += 1


def node_dead(state: State, event: happened.NodeDead, now_s: float) -> None:
    """What ran there is over for whoever waits for it. Of a node that is back meanwhile this is not true."""
    index = state.node_index.get(event.node)
    if index is None or state.nodes[index].up or state.nodes[index].dead:
        return
    state.nodes[index].dead = True
    for record in state.open_jobs():
        for worker in record.alive:
            if worker.node == index:
                worker.life, worker.status, worker.orphaned = Life.ENDED, KILLED, event.node
                state.touch(record.id)


def node_cordoned(state: State, event: happened.NodeCordoned, now_s: float) -> None:
    """Somebody has closed a node, drained it, or opened it again."""
    index = state.node_index.get(event.node)
    if index is None:
        return
    node = state.nodes[index]
    node.cordoned, node.drained, node.cordon_why = event.closed, event.closed and event.drain, event.why
    if node.drained:
        _vacate(state, index, now_s)
    elif node.cordoned:
        _close(state, index, now_s)
    state.version += 1


def _close(state: State, index: int, now_s: float) -> None:
    """Whoever trains on a node stays; whoever was to come there does not."""
    placement = state.placement
    for job in [job for job, held in (placement or {}).items() if index in held.nodes]:
        record = state.jobs[job]
        assert state.placement is not None
        kept = kept_of(record, state.placement, index)
        if kept is None:
            record.why = f"node {state.nodes[index].name} takes nobody new"
            state.release(record, now_s)
        elif kept is not state.placement[job]:
            state.placement = state.placement.changed({job: kept})
            state.hold(record, kept, now_s)
            state.touch(record.id)


def _vacate(state: State, index: int, now_s: float) -> None:
    """Whoever is to hold GPUs of a node waits again; the reconciler ends what still runs."""
    for job, allocation in list((state.placement or {}).items()):
        if index in allocation.nodes:
            record = state.jobs[job]
            if not state.nodes[index].up:
                for worker in record.workers.values():
                    if worker.node == index and worker.life is not Life.ENDED:
                        worker.orphaned = state.nodes[index].name
            record.why = f"node {state.nodes[index].name} {'drained' if state.nodes[index].up else 'lost'}"
            state.release(record, now_s)
