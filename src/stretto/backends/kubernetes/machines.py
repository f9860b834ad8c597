"""Machines as the service sees them. One is looked at anew only where something of it has changed.

A service asks for all of them at each change of any pod, and on a large cluster most are as before.
"""

import logging
from dataclasses import replace
from typing import NamedTuple

from stretto.backends.kubernetes import inventory, manifests
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.objects import Node
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NodeState

log = logging.getLogger(__name__)

SILENT = "shown as before the API server fell silent"


class Circumstances(NamedTuple):
    """What the state of a machine depends on beside the machine."""

    others: int  # GPUs that pods of other people hold there
    is_gone: bool
    is_silent: bool  # the API server has not answered for a while


class Machines:
    """The latest look at each."""

    def __init__(self, options: KubernetesOptions) -> None:
        self.options = options
        self.resources = (options.gpu_resource,) if options.gpu_resource else inventory.GPU_RESOURCES
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
        rack_label = self.options.rack_label
        state = inventory.node_state(node, gpus, now.others, tolerations, now.is_gone, rack_label)
        if now.is_silent and state.gpus and not state.remark:
            # Its kubelet, and what runs there, go on without the API server: nothing follows of that silence.
            return replace(state, remark=SILENT)
        return state

    def forget(self, name: str) -> None:
        """It will not be asked for again."""
        self._gpus.pop(name, None)
        self._states.pop(name, None)
