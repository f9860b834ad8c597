"""Pods of other people, which hold the GPUs that they ask for."""

from collections import defaultdict

from stretto.backends.kubernetes import inventory
from stretto.backends.kubernetes.objects import Pod


class ForeignPods:
    """By node, those that hold GPUs there, or may."""

    def __init__(self) -> None:
        self.by_node: dict[str, dict[str, Pod]] = defaultdict(dict)  # and by uid
        self._gpus: dict[str, dict[str, int]] = defaultdict(dict)  # by node and resource, as last counted

    def put(self, pod: Pod, is_there: bool) -> bool:
        """Take in a pod, which counts from the moment it is bound; whether anything has changed."""
        node = pod.spec.nodeName
        if not node:
            return False
        is_over = pod.status.phase in ("Succeeded", "Failed")
        holds = is_there and not is_over and _asks_for_devices(pod)
        if holds == (pod.metadata.uid in self.by_node[node]):
            return False
        self._gpus.pop(node, None)
        if holds:
            self.by_node[node][pod.metadata.uid] = pod
        else:
            del self.by_node[node][pod.metadata.uid]
        return True

    def gpus_on(self, node: str, resource: str) -> int:
        """How many they hold there."""
        counted = self._gpus[node]
        if resource not in counted:
            pods = self.by_node.get(node, {}).values()
            counted[resource] = sum(inventory.gpus_requested(pod, resource) for pod in pods)
        return counted[resource]


def _asks_for_devices(pod: Pod) -> bool:
    containers = [*pod.spec.containers, *pod.spec.initContainers]
    return any(
        "/" in name for each in containers for name in {**each.resources.requests, **each.resources.limits}
    )
