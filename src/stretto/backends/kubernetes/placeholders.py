"""Pods that wait for nodes which are not there: by them a cluster's autoscaler sees what jobs need.

A placeholder asks for what one worker would, and does nothing. Cluster Autoscaler and Karpenter add nodes for
pods that fit nowhere. Once a node is there the placeholder goes, and the worker comes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stretto.backends.kubernetes import inventory, manifests
from stretto.backends.kubernetes.api import PODS, Api, Refusal
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.lease import LeaderLease
from stretto.backends.kubernetes.node_pools import NodePool
from stretto.backends.kubernetes.objects import Node, Pod
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import BackendUnreachable, NodeRequest, NodeState, WorkerState

SHUTDOWN_S = 1  # of grace, for one that was bound meanwhile


def still_missing(
    wishes: Iterable[NodeRequest], nodes: Sequence[NodeState], workers: Iterable[tuple[WorkerState, bool]]
) -> list[NodeRequest]:
    """Of workers that are wished for, those that have neither a pod nor room on a node; one each. Pure.

    workers: those that have a pod, each with whether it was told to end.
    """
    type_of = {node.name: node.gpu_type for node in nodes}
    free = {node.name: node.gpus - node.others for node in nodes if node.up and not node.shut}
    present: Counter[tuple[str, int]] = Counter()
    for worker, is_ending in workers:
        if not worker.holds_gpus:
            continue
        if worker.node in free:
            free[worker.node] -= len(worker.gpus)
        if not is_ending:
            present[type_of.get(worker.node, ""), len(worker.gpus)] += 1
    missing: list[NodeRequest] = []
    for wish in sorted(wishes, key=lambda request: -request.gpus):
        for _ in range(wish.workers):
            if present[wish.gpu_type, wish.gpus] > 0:
                present[wish.gpu_type, wish.gpus] -= 1
                continue
            fitting = [
                name for name, gpus in free.items() if gpus >= wish.gpus and type_of[name] == wish.gpu_type
            ]
            if fitting:
                free[min(fitting, key=lambda name: free[name])] -= wish.gpus
            else:
                missing.append(replace(wish, workers=1))
    return missing


def placeholder(
    wish: NodeRequest,
    number: int,
    options: KubernetesOptions,
    service: str,
    resource: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """The manifest of a placeholder.

    number: tells it from others alike. labels: of the nodes that suit it.
    """
    limits: dict[str, str] = {resource: str(wish.gpus)}
    requests = {
        **({"cpu": manifests.millicores(wish.cpus)} if wish.cpus else {}),
        **({"memory": manifests.mebibytes(wish.memory_gb)} if wish.memory_gb else {}),
    }
    digest = manifests.digest_of([service, asdict(wish), resource, dict(labels)])[:8]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": dict(labels),
        "tolerations": manifests.tolerations_for(options, resource),
        "terminationGracePeriodSeconds": SHUTDOWN_S,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "placeholder",
                "image": options.placeholder_image,
                "resources": {"limits": limits, "requests": {**limits, **requests}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    if options.placeholder_priority_class:
        spec["priorityClassName"] = options.placeholder_priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": manifests.safe_name(f"stretto-waits-for-{wish.gpu_type}", f"{digest}-{number}"),
            "labels": {**manifests.labels_of(service, ""), manifests.PLACEHOLDER: "true"},
            # Else Cluster Autoscaler would keep a node for it that nothing needs any more.
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        },
        "spec": spec,
    }


class Placeholders:
    """The placeholders of one service."""

    def __init__(
        self, api: Api, options: KubernetesOptions, service: str, namespace: str, lease: LeaderLease
    ) -> None:
        """lease: by which this service knows whether it may still write."""
        self.api, self.options, self.service, self.namespace = api, options, service, namespace
        self.lease = lease
        self.pods: dict[str, Pod] = {}  # by name, as last shown

    def change(self, before: Pod | None, after: Pod | None) -> None:
        """Take in what became of one."""
        if after is not None:
            self.pods[after.metadata.name] = after
        elif before is not None:
            self.pods.pop(before.metadata.name, None)

    async def have(self, missing: Sequence[NodeRequest], machines: Sequence[tuple[Node, Gpus]]) -> None:
        """Have a placeholder for each of these workers, and no others.

        machines: that are or were there, by which the labels of a pool are known. Raises BackendUnreachable,
        also where a placeholder is refused.
        """
        by_name = {}
        for wish, count in Counter(missing).items():
            if (pool := self._pool_for(wish)) is None:
                continue
            resource, labels = self._kind_of(pool, machines)
            for number in range(count):
                manifest = placeholder(wish, number, self.options, self.service, resource, labels)
                by_name[manifest["metadata"]["name"]] = manifest
        if self.pods.keys() == by_name.keys() and not any(_is_over(pod) for pod in self.pods.values()):
            return
        await self.lease.admit()
        try:
            for name, pod in list(self.pods.items()):
                if (name not in by_name or _is_over(pod)) and not pod.metadata.deletionTimestamp:
                    path = PODS.path(pod.metadata.namespace, name)
                    await self.api.delete(path, uid=pod.metadata.uid)
            for name, manifest in by_name.items():
                if name in self.pods:
                    continue
                try:
                    self.change(None, await self.api.create(PODS, self.namespace, manifest))
                except Refusal as refusal:
                    if refusal.code != 409 or refusal.reason != "AlreadyExists":
                        raise
        except Refusal as refusal:
            raise BackendUnreachable(f"the API server refuses a placeholder: {refusal}") from refusal

    def _pool_for(self, wish: NodeRequest) -> NodePool | None:
        """The kind of nodes that a worker is to have: the smallest that it fits on."""
        fitting = [
            pool for pool in self.options.pools if pool.gpu_type == wish.gpu_type and pool.gpus >= wish.gpus
        ]
        return min(fitting, key=lambda pool: pool.gpus, default=None)

    def _kind_of(
        self, pool: NodePool, machines: Iterable[tuple[Node, Gpus]]
    ) -> tuple[str, Mapping[str, str]]:
        """By which resource pods ask for GPUs of a pool, and which labels its nodes have, as far as known."""
        for machine, gpus in machines:
            if gpus.type == pool.gpu_type and gpus.count:
                label = inventory.type_label(machine, self.options.gpu_label)
                of_type = {label: machine.metadata.labels[label]} if label else {}
                return gpus.resource, pool.labels or of_type
        return self.options.gpu_resource or inventory.GPU_RESOURCES[0], pool.labels


def _is_over(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")
