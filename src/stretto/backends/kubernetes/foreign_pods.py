"""Pods of other people, which hold the GPUs, cores and memory that they ask for."""

from collections import defaultdict

from stretto.backends.kubernetes import inventory
from stretto.backends.kubernetes.inventory import NOTHING, Used
from stretto.backends.kubernetes.objects import Pod


class ForeignPods:
    """By node, those that are bound there and have not ended. Each is looked at where it has changed."""

    def __init__(self) -> None:
        self.by_node: dict[str, dict[str, Pod]] = defaultdict(dict)  # those with devices, and by uid
        self._gpus: dict[str, dict[str, int]] = defaultdict(dict)  # by node and resource, as last counted
        self._asks: dict[str, dict[str, Used]] = defaultdict(dict)  # by node and uid, of all
        self._sums: dict[str, Used] = {}  # of these, by node
        # By node and owner, what a pod of a DaemonSet last asked for there. One that is just replaced by its
        # next version is still counted. So is one that has left for good, until the service begins anew.
        self._lasting: dict[str, dict[str, Used]] = defaultdict(dict)

    def put(self, pod: Pod, is_there: bool) -> bool:
        """Take in a pod, which counts from the moment it is bound; whether its node is another one now."""
        node = pod.spec.nodeName
        if not node:
            return False
        counts = is_there and pod.status.phase not in ("Succeeded", "Failed")
        is_new = self._count(node, pod, counts)
        holds = counts and _asks_for_devices(pod)
        if holds == (pod.metadata.uid in self.by_node[node]):
            return is_new
        self._gpus.pop(node, None)
        if holds:
            self.by_node[node][pod.metadata.uid] = pod
        else:
            del self.by_node[node][pod.metadata.uid]
        return True

    def _count(self, node: str, pod: Pod, counts: bool) -> bool:
        """Count cores and memory of a pod; whether more or less of them lasts."""
        asks = inventory.used_by(pod) if counts else NOTHING
        before = self._asks[node].pop(pod.metadata.uid, NOTHING)
        if counts:
            self._asks[node][pod.metadata.uid] = asks
        if asks != before:
            self._sums[node] = self.used_on(node).plus(asks).less(before)
        owner = _lasting_owner(pod) if counts else ""
        if not owner or self._lasting[node].get(owner) == asks:
            return False
        self._lasting[node][owner] = asks
        return True

    def gpus_on(self, node: str, resource: str) -> int:
        """How many they hold there."""
        counted = self._gpus[node]
        if resource not in counted:
            pods = self.by_node.get(node, {}).values()
            counted[resource] = sum(inventory.gpus_requested(pod, resource) for pod in pods)
        return counted[resource]

    def used_on(self, node: str) -> Used:
        """Cores and memory that they ask for there."""
        return self._sums.get(node, NOTHING)

    def lasting_on(self, node: str) -> Used:
        """The part of it that stays for as long as the node does: DaemonSets, and a kubelet's own pods."""
        total = NOTHING
        for asks in self._lasting.get(node, {}).values():
            total = total.plus(asks)
        return total


def _asks_for_devices(pod: Pod) -> bool:
    containers = [*pod.spec.containers, *pod.spec.initContainers]
    return any(
        "/" in name for each in containers for name in {**each.resources.requests, **each.resources.limits}
    )


def _lasting_owner(pod: Pod) -> str:
    """What makes a pod on every node, or on this one for ever; "" for a pod that comes and goes."""
    owner = next((each for each in pod.metadata.ownerReferences if each.controller), None)
    if owner is None or owner.kind not in ("DaemonSet", "Node"):
        return ""
    return owner.uid if owner.kind == "DaemonSet" else pod.metadata.name  # of a kubelet there are several
