"""Which GPUs a node of a Kubernetes cluster has, and whether anything may start there.

How many: what the node's status says, never a label. A node whose device plug-in has not registered yet has
the labels of its GPUs and none to give. One that gave some before keeps its number while it withholds them.
Of which type: a label, by the conventions of the tools that set one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import NamedTuple

from stretto.backends.kubernetes import partial_gpus
from stretto.backends.kubernetes.objects import Container, Node, Pod, Quantity, Taint, condition
from stretto.backends.kubernetes.topology import topology_of
from stretto.backends.protocol import NodeState
from stretto.jobfile.kubernetes_section import taint_text, tolerates

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
TYPE_LABELS = (  # in this order
    "nvidia.com/gpu.product",  # NVIDIA's GPU feature discovery
    "cloud.google.com/gke-accelerator",  # GKE
    "k8s.amazonaws.com/accelerator",  # EKS
    "karpenter.k8s.aws/instance-gpu-name",  # Karpenter on AWS
    "eks.amazonaws.com/instance-gpu-name",  # EKS Auto Mode
    "karpenter.azure.com/sku-gpu-name",  # Karpenter on Azure
    "amd.com/gpu.product-name",  # AMD's node labeller
    "beta.amd.com/gpu.product-name",
    "gpu.intel.com/product",  # Intel's device plug-in
    "accelerator",  # AKS, and habit
)
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
KEEPS_AWAY = ("NoSchedule", "NoExecute")
# Set while a node is what its conditions say anyway: cordoned, not ready.
SAID_ELSEWHERE = tuple(f"node.kubernetes.io/{name}" for name in ("unschedulable", "not-ready", "unreachable"))
UNNAMED = "gpu"  # a type, where no label says one

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30, "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip
QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})")

# Words of product names that no type needs: makers, families, memory and how it is built in.
NOISE = frozenset(
    ["nvidia", "amd", "intel", "tesla", "geforce", "quadro", "radeon", "instinct", "data", "center", "gpu",
     "accelerator", "shared", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "pcie", "hbm2", "hbm2e", "hbm3",
     "hbm3e", "oam", "nvl", "graphics", "generation"]
)  # fmt: skip
MEMORY = re.compile(r"\d+(gb|g|gib)")


@lru_cache(maxsize=4096)  # pods of a cluster ask for the same few
def quantity(text: Quantity) -> float:
    """A quantity of the API, such as 64, 500m or 256Gi; 0 for what is none."""
    match = QUANTITY.fullmatch(str(text).strip())
    if match is None or match[2] not in SUFFIXES:
        return 0.0
    try:
        return float(Decimal(match[1]) * SUFFIXES[match[2]])
    except InvalidOperation:
        return 0.0


def short_type(product: str, partition: str = "") -> str:
    """A type as people call it: NVIDIA-H100-80GB-HBM3 is h100, nvidia-tesla-t4 is t4.

    A partition keeps its size, since it is another device: a100-1g.5gb. An unknown product is taken as it
    is, in small letters. partition: the size of partitions, where the product does not say it.
    """
    whole, _, size = product.lower().removesuffix(partial_gpus.SHARED).partition("-mig-")
    words = [word for word in re.split(r"[-_\s]+", whole) if word]
    plain = [word for word in words if word not in NOISE and not MEMORY.fullmatch(word)]
    name = "".join(plain) if plain and plain[0] in ("rtx", "gtx", "mi", "l") else "-".join(plain)
    size = size or partition.lower()
    return (name or "-".join(words) or UNNAMED) + (f"-{size}" if size else "")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of one node."""

    resource: str  # by which a pod asks for them; "" for none
    count: int
    type: str
    remark: str = ""  # what somebody should know
    withheld: int = 0  # of them, which the node does not give at the moment


def gpus_of(node: Node, resources: Collection[str] = GPU_RESOURCES, label: str = "") -> Gpus:
    """Which GPUs a node has.

    resources: by which pods ask for GPUs, the first that a node has counts. label: that names the type; "":
    those of TYPE_LABELS.
    """
    labels = node.metadata.labels
    given = [name for name, text in node.status.allocatable.items() if quantity(text) >= 1]
    resource = next((each for each in resources if each in given), "")
    product = labels.get(type_label(node, label), "")
    gpu_type = short_type(product, partial_gpus.partition_of(labels, resource)) if product else UNNAMED
    unused = partial_gpus.unused_parts(each for each in given if each != resource)
    if not resource:
        labelled = f"its labels name {product}, and it has none to give: is its device plug-in there?"
        return Gpus("", 0, gpu_type, unused or (labelled if product else ""))
    count = int(quantity(node.status.allocatable[resource]))
    gpus = Gpus(resource, count, gpu_type, partial_gpus.remark_on(labels, product, resource) or unused)
    # A GPU that its device plug-in calls unhealthy leaves what can be allocated, and stays in the capacity.
    return keep_number(int(quantity(node.status.capacity.get(resource, "0"))), gpus)


def gpu_resources(named: str = "") -> tuple[str, ...]:
    """By which resources pods ask for GPUs. named: the only one that counts; "": those of the makers."""
    return (named,) if named else GPU_RESOURCES


def keep_number(count: int, gpus: Gpus) -> Gpus:
    """The GPUs of a node that has so many, where it gives fewer at the moment."""
    if gpus.count >= count:
        return gpus
    remark = (
        f"it gives {gpus.count} of its {count} GPUs: is its device plug-in there, are all of them healthy?"
    )
    return replace(gpus, count=count, remark=remark, withheld=count - gpus.count)


def keep_known(before: Gpus, now: Gpus) -> Gpus:
    """The GPUs of a node that had some before, where it has none now.

    A kubelet that was started again gives none until its device plug-in has registered. What runs there
    keeps its GPUs meanwhile, which are the same ones afterwards.
    """
    return now if now.resource else keep_number(before.count, replace(before, count=0))


def type_label(node: Node, label: str = "") -> str:
    """The label of a node that names the type of its GPUs; "" for none. label: the only one that counts."""
    names = (label,) if label else TYPE_LABELS
    return next((name for name in names if node.metadata.labels.get(name)), "")


def requested(pod: Pod, resource: str) -> float:
    """What a pod asks for of a resource: the most of its phases, as the scheduler counts."""

    def of(containers: Iterable[Container]) -> list[float]:
        asks = [each.resources for each in containers]
        return [quantity(ask.requests.get(resource) or ask.limits.get(resource, "0")) for ask in asks]

    return max(sum(of(pod.spec.containers)), *of(pod.spec.initContainers), 0.0)


def gpus_requested(pod: Pod, resource: str) -> int:
    """GPUs that a pod holds on its node, or is about to."""
    if not resource or pod.status.phase in ("Succeeded", "Failed"):
        return 0
    return int(requested(pod, resource))


class Used(NamedTuple):
    """Cores and memory that pods ask for; whole numbers, so that sums stay exact."""

    millicores: int = 0
    memory_bytes: int = 0

    def plus(self, other: "Used") -> "Used":
        """Both together."""
        return Used(self.millicores + other.millicores, self.memory_bytes + other.memory_bytes)

    def less(self, other: "Used") -> "Used":
        """One without the other."""
        return Used(self.millicores - other.millicores, self.memory_bytes - other.memory_bytes)


NOTHING = Used()


def given_by(node: Node) -> Used:
    """What a node has for pods."""
    room = node.status.allocatable
    return Used(round(quantity(room.get("cpu", "0")) * 1000), round(quantity(room.get("memory", "0"))))


def used_by(pod: Pod) -> Used:
    """What a pod asks for beside devices."""
    return Used(round(requested(pod, "cpu") * 1000), round(requested(pod, "memory")))


def gpus_held(pods: Iterable[Pod], machine: str, resource: str) -> int:
    """GPUs that those of some pods hold which are bound to a machine."""
    return sum(gpus_requested(pod, resource) for pod in pods if pod.spec.nodeName == machine)


def keeps_away(taint: Taint, tolerations: Iterable[Mapping[str, str]]) -> bool:
    """Whether a taint keeps our pods off a node."""
    if taint.effect not in KEEPS_AWAY or taint.key in SAID_ELSEWHERE:
        return False
    return not any(tolerates(each, taint.key, taint.value, taint.effect) for each in tolerations)


def node_state(
    node: Node,
    gpus: Gpus,
    others: int,
    tolerations: Iterable[Mapping[str, str]],
    gone: bool = False,
    rack_label: str = "",
    lasting: Used = NOTHING,
) -> NodeState:
    """A node as the service sees it.

    others: GPUs that pods of other people hold there. lasting: what pods ask for that every such node has,
    as those of DaemonSets, so that no worker ever gets it. gone: the API server does not list it any more, as
    when an autoscaler has ended the machine. rack_label: that alone names racks; "": by convention.
    """
    where, given = topology_of(node.metadata.labels, rack_label), given_by(node)
    ready = condition(node.status.conditions, "Ready")
    out_of_service = any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)
    is_up = ready is not None and ready.status == "True" and not gone and not out_of_service
    why = ""
    if gone:
        why = "the cluster lists it no more"
    elif out_of_service:
        why = "it has the taint out-of-service"
    elif not is_up:
        why = "its kubelet says nothing"
        if ready is not None:
            why = f"not ready: {ready.reason}: {ready.message}".rstrip(": ")
    taints = [taint for taint in node.spec.taints if keeps_away(taint, list(tolerations))]
    shut = "cordoned" if node.spec.unschedulable else ""
    tainted = () if shut else tuple(taint_text(each.key, each.value, each.effect) for each in taints)
    if tainted:
        many = len(tainted) > 1
        shut = f"its taint{'s' * many} {', '.join(tainted)} keep{'s' * (not many)} pods away that do not "
        shut += f"tolerate {'them' if many else 'it'}"
    return NodeState(
        name=node.metadata.name,
        gpu_type=gpus.type,
        gpus=gpus.count,
        cpus=max(given.millicores - lasting.millicores, 0) // 1000,
        memory_gb=max(given.memory_bytes - lasting.memory_bytes, 0) / 2**30,
        up=is_up,
        address=address_of(node),
        why=why,
        dead=gone or out_of_service,
        shut=shut if is_up else "",
        taints=tainted if is_up else (),
        others=min(others, gpus.count),
        remark=gpus.remark,
        zone=where.zone,
        rack=where.rack,
        nvlink_domain=where.nvlink_domain,
    )


def address_of(node: Node) -> str:
    """Under which others reach a node."""
    by_type = {each.type: each.address for each in reversed(node.status.addresses)}
    return by_type.get("InternalIP") or by_type.get("Hostname") or node.metadata.name
