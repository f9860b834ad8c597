"""Pods that wait for nodes which are not there: by them a cluster's autoscaler sees what jobs need.

A placeholder asks for what one worker would, and does nothing. Cluster Autoscaler and Karpenter add nodes for
pods that fit nowhere. Once a node is there the placeholder goes, and the worker comes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from stretto.backends.kubernetes import inventory, manifests
from stretto.backends.kubernetes.api import PODS, Api, Refusal
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.lease import LeaderLease
from stretto.backends.kubernetes.objects import Node, Pod
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import BackendUnreachable, NodeRequest, NodeState, WorkerState

SHUTDOWN_S = 1  # of grace, for one that was bound meanwhile


@dataclass(frozen=True)
class Asker:
    """The service that asks a cluster for nodes."""

    api: Api
    options: KubernetesOptions
    service: str
    namespace: str  # of what it creates for that
    lease: LeaderLease  # by which it knows whether it may still write
    # References to what goes with the service, and has what it creates go with it.
    owners: Callable[[], Sequence[Mapping[str, Any]]] = list


def still_missing(
    wishes: Iterable[NodeRequest], nodes: Sequence[NodeState], workers: Iterable[tuple[WorkerState, bool]]
) -> list[NodeRequest]:
    """Of workers that are wished for, those that have neither a pod nor room on a node; one each. Pure.

    workers: those that have a pod, each with whether it was told to end. A wish that names its job has the
    pods of that job alone.
    """
    type_of = {node.name: node.gpu_type for node in nodes}
    free = {node.name: node.gpus - node.others for node in nodes if node.up and not node.shut}
    present: Counter[tuple[str, str, int]] = Counter()  # by job, "" for all of them, type and size
    for worker, is_ending in workers:
        if not worker.holds_gpus:
            continue
        if worker.node in free:
            free[worker.node] -= len(worker.gpus)
        if not is_ending:
            for job in (worker.job, ""):
                present[job, type_of.get(worker.node, ""), len(worker.gpus)] += 1
    missing: list[NodeRequest] = []
    for wish in sorted(wishes, key=lambda request: -request.gpus):
        kind = (wish.job, wish.gpu_type, wish.gpus)
        for _ in range(wish.workers):
            if present[kind] > 0:
                present[kind] -= 1
                continue
            fitting = [
                name for name, gpus in free.items() if gpus >= wish.gpus and type_of[name] == wish.gpu_type
            ]
            if fitting:
                free[min(fitting, key=lambda name: free[name])] -= wish.gpus
            else:
                missing.append(replace(wish, workers=1))
    return missing


def suiting(
    wish: NodeRequest, options: KubernetesOptions, machines: Iterable[tuple[Node, Gpus]]
) -> tuple[str, Mapping[str, str]] | None:
    """By which resource a worker asks for GPUs, and which labels nodes have that suit it.

    None where no such node may come. machines: that are or were there, by which the labels of a pool are
    known. Of pools it is the smallest on which the worker fits.
    """
    pools = [pool for pool in options.pools if pool.gpu_type == wish.gpu_type and pool.gpus >= wish.gpus]
    pool = min(pools, key=lambda pool: pool.gpus, default=None)
    if pool is None:
        return None
    for machine, gpus in machines:
        if gpus.type == pool.gpu_type and gpus.count:
            label = inventory.type_label(machine, options.gpu_label)
            of_type = {label: machine.metadata.labels[label]} if label else {}
            return gpus.resource, pool.labels or of_type
    return options.gpu_resource or inventory.GPU_RESOURCES[0], pool.labels


def spec_of(
    wish: NodeRequest, options: KubernetesOptions, resource: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The `spec` of a pod that asks for what one worker would, and does nothing."""
    limits: dict[str, str] = {resource: str(wish.gpus)}
    requests = {
        **({"cpu": manifests.millicores(wish.cpus)} if wish.cpus else {}),
        **({"memory": manifests.mebibytes(wish.memory_gb)} if wish.memory_gb else {}),
    }
    return {
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


def placeholder(
    wish: NodeRequest,
    number: int,
    asker: Asker,
    resource: str,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """The manifest of a placeholder. number: tells it from others alike. labels: of nodes that suit it."""
    options = asker.options
    digest = manifests.digest_of([asker.service, asdict(wish), resource, dict(labels)])[:8]
    spec = spec_of(wish, options, resource, labels)
    if options.placeholder_priority_class:
        spec["priorityClassName"] = options.placeholder_priority_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": manifests.safe_name(f"stretto-waits-for-{wish.gpu_type}", f"{digest}-{number}"),
            "labels": {**manifests.labels_of(asker.service, ""), manifests.PLACEHOLDER: "true"},
            # Else Cluster Autoscaler would keep a node for it that nothing needs any more.
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "ownerReferences": [*asker.owners()],
        },
        "spec": spec,
    }


class Placeholders:
    """The placeholders of one service."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
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
        # Whose worker it is does not matter: the next job may well have the same.
        for wish, count in Counter(replace(each, job="") for each in missing).items():
            if (nodes := suiting(wish, self.asker.options, machines)) is None:
                continue
            resource, labels = nodes
            for number in range(count):
                manifest = placeholder(wish, number, self.asker, resource, labels)
                by_name[manifest["metadata"]["name"]] = manifest
        if self.pods.keys() == by_name.keys() and not any(_is_over(pod) for pod in self.pods.values()):
            return
        api, namespace = self.asker.api, self.asker.namespace
        await self.asker.lease.admit()
        try:
            for name, pod in list(self.pods.items()):
                if (name not in by_name or _is_over(pod)) and not pod.metadata.deletionTimestamp:
                    path = PODS.path(pod.metadata.namespace, name)
                    await api.delete(path, uid=pod.metadata.uid)
            for name, manifest in by_name.items():
                if name in self.pods:
                    continue
                try:
                    self.change(None, await api.create(PODS, namespace, manifest))
                except Refusal as refusal:
                    if refusal.code != 409 or refusal.reason != "AlreadyExists":
                        raise
        except Refusal as refusal:
            raise BackendUnreachable(f"the API server refuses a placeholder: {refusal}") from refusal


def _is_over(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")
