"""A gang of gated pods as a job file, or the reason why there is none."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.backends.kubernetes import inventory
from stretto.backends.kubernetes.gated_pods import GATE, GatedPod, misfit, not_ours_to_decide, terms_of
from stretto.backends.kubernetes.objects import Node
from stretto.jobfile.kubernetes_section import GATED_PODS
from stretto.jobfile.parts import LONGEST_NAME, NOT_IN_NAMES
from stretto.kubernetes_operator.events import Involved
from stretto.kubernetes_operator.pod_owners import COUNT, PodOwner, gpus_of

PREFIX = "gated."  # of the names of these jobs


class Obstacle(Exception):
    """Why pods are not submitted: a word for programs, and a sentence for people.

    is_patient: it is no fault, and what is missing may come by itself.
    """

    def __init__(self, reason: str, message: str, is_patient: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.is_patient = reason, message, is_patient


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that are placed together or not at all."""

    owner: Involved
    pods: Sequence[GatedPod]  # in the order of their numbers
    resources: Collection[str] = inventory.GPU_RESOURCES  # by which pods ask for GPUs

    @property
    def gpus(self) -> Sequence[int]:
        """GPUs that each pod asks for."""
        return [gpus_of(pod, self.resources) for pod in self.pods]

    @property
    def key(self) -> str:
        """Of idempotency: pods that are seen again, or by another operator, are the same job."""
        return f"gated-{self.owner.uid}-{min(pod.metadata.uid for pod in self.pods)}"


def gang_of(
    owner: PodOwner,
    pods: Iterable[GatedPod],
    alive: int,
    resources: Collection[str] = inventory.GPU_RESOURCES,
) -> Gang:
    """The gang of these gated pods. alive: pods of the owner that have not ended. Raises Obstacle."""
    gang = Gang(owner.about, sorted(pods, key=_number), resources)
    if owner.pods is None:
        line = f"{owner.about.kind} {owner.about.name} is no Job, JobSet or TrainJob: expected the annotation"
        raise Obstacle("OwnerUnknown", f"{line} {COUNT} on its pods, with their number")
    if others := {gate for pod in gang.pods for gate in pod.gates if gate != GATE}:
        raise Obstacle("OtherGates", f"its pods wait behind the gate {min(others)}, too", is_patient=True)
    if alive < owner.pods:
        raise Obstacle("PodsMissing", f"{alive} of its {owner.pods} pods are there", is_patient=True)
    _check_alike(gang)
    return gang


def _number(pod: GatedPod) -> tuple[list[tuple[int, str]], str]:
    """By which pods are in order: train-2 before train-10."""
    parts = re.split(r"(\d+)", pod.metadata.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], pod.metadata.uid


def _check_alike(gang: Gang) -> None:
    """Raise Obstacle for pods that no job file can say."""
    for pod, gpus in zip(gang.pods, gang.gpus, strict=True):
        if why := not_ours_to_decide(pod):
            line = f"pod {pod.metadata.name} has {why}: only kube-scheduler can weigh that"
            raise Obstacle("NotSupported", f"{line}; leave the gate off such pods")
        if not gpus:
            raise Obstacle(
                "NoGpus",
                f"pod {pod.metadata.name} asks for no GPUs: expected the gate on pods with GPUs only",
            )
    if len(sizes := sorted({*gang.gpus})) > 1:
        numbers = " and ".join(map(str, sizes))
        raise Obstacle("UnequalPods", f"expected as many GPUs for each of its pods, got {numbers}")


def job_file_of(gang: Gang, queue: str, nodes: Iterable[Mapping[str, Any]], known: Mapping[str, Node]) -> str:
    """The job file of a gang, as JSON. Raises Obstacle.

    nodes: as the service lists them. known: by name, as the cluster does.
    """
    each, count = gang.gpus[0], len(gang.pods)
    types = gpu_types_for(gang.pods, list(nodes), known)
    gpus = str(each * count)
    resources: dict[str, Any] = {
        "accelerators": [f"{gpu_type}:{gpus}" for gpu_type in types] if types else gpus,
        "gpus_per_worker": each,
    }
    if cpus := max(inventory.requested(pod, "cpu") for pod in gang.pods):
        resources["cpus"] = cpus * count
    if memory := max(inventory.requested(pod, "memory") for pod in gang.pods):
        resources["memory"] = f"{memory * count / 2**30:.3f}GiB"
    owner = gang.owner
    entries: dict[str, Any] = {
        "name": NOT_IN_NAMES.sub("-", f"{PREFIX}{owner.namespace}.{owner.name}")[:LONGEST_NAME],
        "run": f"the pods of {owner.kind} {owner.namespace}/{owner.name}",
        "resources": resources,
        "preemptible": False,
        "restart": {"max": 0},
        "kubernetes": {
            "namespace": owner.namespace,
            GATED_PODS: [{"name": pod.metadata.name, "uid": pod.metadata.uid} for pod in gang.pods],
            **({"tolerations": tolerated} if (tolerated := _tolerations(gang.pods)) else {}),
        },
    }
    return json.dumps(entries | ({"queue": queue} if queue else {}))


def _tolerations(pods: Sequence[GatedPod]) -> list[dict[str, Any]]:
    """What all pods of a gang tolerate, by which tainted nodes are open to it."""
    return [each for each in pods[0].spec.tolerations if all(each in pod.spec.tolerations for pod in pods)]


def gpu_types_for(
    pods: Sequence[GatedPod], nodes: Sequence[Mapping[str, Any]], known: Mapping[str, Node]
) -> list[str]:
    """GPU types whose nodes suit all pods; [] for all types. Raises Obstacle where no type suits.

    A decision chooses among all nodes of a type. So a type suits only if every node of it does.
    """
    whys: dict[str, list[str]] = {}  # by type, of each node
    for node in nodes:
        if not node["gpus"]:
            continue
        why = next(filter(None, (_why_not(pod, known.get(node["name"])) for pod in pods)), "")
        if why.startswith("the taint") and node["closed"]:
            continue  # nothing of ours starts there anyway
        whys.setdefault(node["gpu_type"], []).append(why)
    suits = sorted(gpu_type for gpu_type, each in whys.items() if not any(each))
    if suits:
        return suits if len(suits) < len(whys) else []
    reasons = next(iter(whys.values()), ["there is none with GPUs"])
    for gpu_type, each in sorted(whys.items()):
        if not all(each):
            some = f"{each.count('')} of the {len(each)} nodes with {gpu_type}"
            why = next(filter(None, each))
            raise Obstacle("PartOfAType", f"only {some} suit it, by {why}: expected all nodes of a GPU type")
    raise Obstacle("NoNode", f"no node with GPUs suits it, by {reasons[0]}", is_patient=True)


def _why_not(pod: GatedPod, node: Node | None) -> str:
    """What keeps a pod off a node; of one that is still to come nothing is known but its GPUs."""
    if node is not None:
        return misfit(pod, node)
    return "its selectors, which nodes that are to come may not meet" if _selects(pod) else ""


def _selects(pod: GatedPod) -> bool:
    return bool(pod.spec.nodeSelector or terms_of(pod))
