"""Machines as the service sees them. One is looked at anew only where something of it has changed.

A service asks for all of them at each change of any pod, and on a large cluster most are as before.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import msgspec

from stretto.backends.kubernetes import inventory, manifests
from stretto.backends.kubernetes.inventory import NOTHING, Gpus, Used, given_by, used_by
from stretto.backends.kubernetes.node_labels import lacks
from stretto.backends.kubernetes.objects import Node, Pod
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NodeState, NotNow, StartRefused, WorkerStart, WorkerState

log = logging.getLogger(__name__)

SILENT = "shown as before the API server fell silent"


class Circumstances(NamedTuple):
    """What the state of a machine depends on beside the machine."""

    others: int  # GPUs that pods of other people hold there
    is_gone: bool
    is_silent: bool  # the API server has not answered for a while
    lasting: Used = NOTHING  # what pods of DaemonSets ask for there


class Machines:
    """The latest look at each."""

    def __init__(self, options: KubernetesOptions) -> None:
        self.options = options
        self.resources = inventory.gpu_resources(options.gpu_resource)
        self._gpus: dict[str, tuple[Node, Gpus]] = {}  # by name
        self._states: dict[str, tuple[Node, Circumstances, NodeState]] = {}

    def gpus_of(self, node: Node) -> Gpus:
        """Which GPUs it has."""
        name = node.metadata.name
        known = self._gpus.get(name)
        if known is None or known[0] is not node:
            gpus = inventory.gpus_of(node, self.resources, self.options.gpu_label)
            if known is not None and known[0].metadata.uid == node.metadata.uid:
                gpus = inventory.keep_known(known[1], gpus)
            known = node, gpus
            self._gpus[name] = known
        return known[1]

    def warn_of_unused(self, before: Node | None, after: Node) -> None:
        """Say why GPUs of a node are not used; the service lists only nodes that have some."""
        past = None if before is None else self.gpus_of(before)  # first: what it had is kept
        gpus = self.gpus_of(after)
        if gpus.remark and gpus != past and not gpus.count:
            log.warning("node %s is not used: %s", after.metadata.name, gpus.remark)
        elif gpus.withheld and gpus != past:
            log.warning("node %s: %s", after.metadata.name, gpus.remark)

    def state_of(self, node: Node, now: Circumstances) -> NodeState:
        """Its state under its own name."""
        name = node.metadata.name
        known = self._states.get(name)
        if known is None or known[0] is not node or known[1] != now:
            known = node, now, self._look_at(node, now)
            self._states[name] = known
        return known[2]

    def _look_at(self, node: Node, now: Circumstances) -> NodeState:
        gpus = self.gpus_of(node)
        tolerations = manifests.tolerations_for(self.options, gpus.resource)
        state = inventory.node_state(
            node, gpus, now.others, tolerations, now.is_gone, self.options.rack_label, now.lasting
        )
        if now.is_silent and state.gpus and not state.remark:
            # Its kubelet, and what runs there, go on without the API server: nothing follows of that silence.
            return replace(state, remark=SILENT)
        return state

    def forget(self, name: str) -> None:
        """It will not be asked for again."""
        self._gpus.pop(name, None)
        self._states.pop(name, None)


def check_room(worker: WorkerStart, gpus: Gpus, others: Iterable[WorkerState], free: int) -> None:
    """Raise StartRefused for GPUs that a node does not have, NotNow for some that are in use.

    others: all other workers. free: GPUs that the node gives and no pod is known to hold.
    """
    if not all(0 <= gpu < gpus.count for gpu in worker.gpus) or len({*worker.gpus}) != len(worker.gpus):
        raise StartRefused(f"worker {worker.id}: gpus must be below {gpus.count}, got {list(worker.gpus)}")
    for other in others:
        if other.holds_gpus and other.node == worker.node and (both := {*other.gpus} & {*worker.gpus}):
            raise NotNow(f"GPU {min(both)} of {worker.node} is in use by {other.id}")
    if gpus.withheld and len(worker.gpus) > free:
        raise NotNow(f"worker {worker.id}: node {worker.node}: {gpus.remark}")


def shortage(manifest: Mapping[str, Any], node: Node, ours: Iterable[Pod], foreign: Used) -> str:
    """What a node lacks for a pod: a label that it selects, cores or memory; "" for nothing.

    Where the pod has a priority, kube-scheduler alone knows whether others make room. ours: pods there, or on
    their way. foreign: what those of other people ask for.
    """
    selector = manifest["spec"].get("nodeSelector")
    if isinstance(selector, Mapping) and (label := lacks(node.metadata.labels, selector)):
        return f"node {node.metadata.name} has no label {label}, which its nodeSelector names"
    if manifest["spec"].get("priorityClassName"):
        return ""
    try:
        asked = used_by(msgspec.convert(manifest, Pod))
    except msgspec.ValidationError:  # of a patch, which the API server refuses in its own words
        return ""
    given, used = given_by(node), reduce(Used.plus, map(used_by, ours), foreign)
    names = (("cores", 1e3), ("GiB of memory", 2.0**30))
    for (name, unit), wants, there, taken in zip(names, asked, given, used, strict=True):
        left = max(there - taken, 0)
        if wants > left:
            return (
                f"node {node.metadata.name} has {left / unit:.4g} of the {wants / unit:.4g} {name} free that "
                f"it asks for: other pods there ask for {taken / unit:.4g} of {there / unit:.4g}"
            )
    return ""
