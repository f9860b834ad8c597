"""What events of nodes change, and what jobs keep of a node that is cordoned.

What a job keeps when a node is closed: what trains there stays, what had not begun there does not come.
"""

from collections.abc import Iterable, Mapping
from math import nan

from stretto.model import Allocation, Cluster, GpuType, Node, NodeId, Placement
from stretto.service.state import events as happened
from stretto.service.state.lenders import note_waits, place_new_node
from stretto.service.state.records import KILLED, JobRecord, NodeRecord, WorkerPhase
from stretto.service.state.state import State
from stretto.service.state.usage import Cause, CauseKind


def kept_of(record: JobRecord, placement: Placement, node: int) -> Allocation | None:
    """What a job is to hold once no new worker comes to a node; what it was to hold if that changes nothing.

    A resize that was to take it there is called off. It does without those GPUs where its sizes allow that,
    else it goes on with what it has, else it waits anew (None).
    """
    wanted = placement[record.job.id]
    own = _masks_of_those_who_train(record)
    wanted_masks = dict(zip(wanted.nodes, wanted.masks, strict=True))
    there = wanted_masks[node] & own.get(node, 0)
    if there == wanted_masks[node]:
        return wanted
    if not own:
        return None
    return _first_that_is_possible(record, placement, {**wanted_masks, node: there}, own)


def without(record: JobRecord, placement: Placement, node: int) -> Allocation | None:
    """What a training is to hold once it has left a node in place; None where it must begin anew elsewhere.

    Those of its workers go on that train on other nodes, if there are any and its sizes allow it.
    """
    elsewhere = {index: mask for index, mask in _masks_of_those_who_train(record).items() if index != node}
    if not record.members.workers or not elsewhere:
        return None
    wanted = placement[record.job.id]
    wanted_masks = {
        index: mask for index, mask in zip(wanted.nodes, wanted.masks, strict=True) if index != node
    }
    return _first_that_is_possible(record, placement, wanted_masks, elsewhere)


def _first_that_is_possible(
    record: JobRecord, placement: Placement, *candidates: Mapping[int, int]
) -> Allocation | None:
    """The first of these masks by node that a job may have, and no other job is to have."""
    others = placement.changed({record.job.id: None}).busy
    for masks in candidates:
        kept_masks = {index: mask for index, mask in sorted(masks.items()) if mask}
        gpus = sum(mask.bit_count() for mask in kept_masks.values())
        free = not any(int(others[index]) & mask for index, mask in kept_masks.items())
        kind = int(placement.cluster.kind[next(iter(kept_masks), 0)])
        if gpus and free and _may_have(record, gpus, placement.cluster.type_names[kind]):
            return Allocation(kind, tuple(kept_masks), tuple(kept_masks.values()))
    return None


def _may_have(record: JobRecord, gpus: int, gpu_type: str) -> bool:
    if record.spec.elastic is None:
        return gpus == record.job.gpus
    sizes, job = record.spec.elastic.sizes, record.job
    in_range = job.fewest_gpus(gpu_type) <= gpus <= job.max_gpus and gpus % job.worker_gpus(gpu_type) == 0
    return in_range and (not sizes or gpus in sizes)


def _masks_of_those_who_train(record: JobRecord) -> dict[int, int]:
    """By node, the GPUs of workers that stay unless they are asked to end; newcomers are none of them."""
    masks: dict[int, int] = {}
    names: Iterable[str] = record.members.workers or record.workers
    for worker in (record.workers[name] for name in names):
        if worker in record.alive and not worker.stopped:
            masks[worker.node] = masks.get(worker.node, 0) | worker.mask
    return masks


# ── what events of nodes change: which are there, and what holds their GPUs ───────────────────────────────


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
        place_new_node(state, state.nodes[index])
    node = state.nodes[index]
    node.cpus, node.memory_gb, node.address = event.cpus, event.memory_gb, event.address
    was_closed, tainted = node.closed, node.taints
    node.shut, node.taints, node.others = event.shut, tuple(event.taints), event.others
    node.remark = event.remark
    before = (node.zone, node.rack, node.nvlink_domain)
    node.zone, node.rack, node.nvlink_domain = now = (event.zone, event.rack, event.nvlink_domain)
    state.nodes_changed |= now != before and state.configured.topology == "near"
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
        if node.closed and (not was_closed or node.taints != tainted):
            _close(state, index, now_s)
        _give_way(state, index, now_s)
    note_waits(state, node, now_s)
    state.version += 1


def _check_possible(event: happened.NodeSeen) -> None:
    """Raise InputError now for a node that no cluster can have: the cluster itself is made later."""
    node = Node(NodeId(event.node), event.gpu_type, event.gpus, event.cpus, event.memory_gb)
    Cluster("live", (GpuType(event.gpu_type),), (node,))


def _give_way(state: State, index: int, now_s: float) -> None:
    """A job that was to start on GPUs that others hold by now waits again, the latest first."""
    node = state.nodes[index]
    on_node = dict(state.allocations_on(index)) if node.others else {}
    masks = {job: allocation.masks[allocation.nodes.index(index)] for job, allocation in on_node.items()}
    too_many = sum(mask.bit_count() for mask in masks.values()) - (node.gpus - node.others)
    for record in sorted((state.jobs[job] for job in on_node), key=lambda record: -record.number):
        begun = (worker.mask for worker in record.alive if worker.node == index and worker.has_begun)
        mask = masks[record.job.id]
        if too_many > 0 and mask & ~sum(begun):
            too_many -= mask.bit_count()
            record.why = f"others hold GPUs of node {node.name}"
            state.release(record, now_s, Cause(CauseKind.NODE, node.name))


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
    note_waits(state, node, now_s)
    state.version += 1


def node_dead(state: State, event: happened.NodeDead, now_s: float) -> None:
    """What ran there is over for a job that waits for it. This is not true of a node that is back."""
    index = state.node_index.get(event.node)
    if index is None or state.nodes[index].up or state.nodes[index].dead:
        return
    state.nodes[index].dead = True
    for record in state.open_jobs():
        for worker in record.alive:
            if worker.node == index:
                worker.life, worker.status, worker.orphaned = WorkerPhase.ENDED, KILLED, event.node
                state.touch(record.id)


def node_cordoned(state: State, event: happened.NodeCordoned, now_s: float) -> None:
    """A node was closed, drained, or opened again."""
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
    """A job that trains on a node stays; one that was to come there does not."""
    closed = Cause(CauseKind.OPERATOR, state.nodes[index].name)
    for job, _ in state.allocations_on(index):
        record = state.jobs[job]
        assert state.placement is not None
        if not state.nodes[index].is_closed_to(record):
            continue
        smaller = kept_of(record, state.placement, index)
        if smaller is None:
            record.why = f"node {state.nodes[index].name} takes nobody new"
            state.release(record, now_s, closed)
        elif smaller is not state.placement[job]:
            _keep(state, record, smaller, now_s, closed)


def _vacate(state: State, index: int, now_s: float) -> None:
    """A job that is to hold GPUs of a node waits again; the reconciler ends what still runs.

    A training leaves a node that is drained in place, where it can.
    """
    node = state.nodes[index]
    cause = Cause(CauseKind.OPERATOR if node.up else CauseKind.NODE, node.name)
    for job, _ in state.allocations_on(index):
        record = state.jobs[job]
        if not node.up:
            for worker in record.workers.values():
                if worker.node == index and worker.life is not WorkerPhase.ENDED:
                    worker.orphaned = node.name
        elif state.configured.drains == "in place":
            assert state.placement is not None
            if (rest := without(record, state.placement, index)) is not None:
                _keep(state, record, rest, now_s, cause)
                continue
        record.why = f"node {node.name} {'drained' if node.up else 'lost'}"
        state.release(record, now_s, cause)


def _keep(state: State, record: JobRecord, smaller: Allocation, now_s: float, cause: Cause) -> None:
    """A job is to hold less from now on."""
    assert state.placement is not None
    state.placement = state.placement.changed({record.job.id: smaller})
    state.hold(record, smaller, now_s, cause)
    state.touch(record.id)
