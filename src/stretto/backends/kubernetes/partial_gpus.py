"""Nodes on which what counts as a GPU is a part of one: time-sliced, shared by MPS, or a partition."""

import re
from collections.abc import Iterable, Mapping

# By NVIDIA's GPU feature discovery, and by GKE.
REPLICAS = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
SHARING = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"  # such as 1g.5gb
AMD_PARTITION = "amd.com/compute-memory-partition"  # such as cpx_nps4
AMD_WHOLE = "spx_nps1"  # which is no partition
SHARED = "-shared"  # ending of NVIDIA's products that are time-sliced
# Resources that count parts, each kind under a name of its own.
OF_PARTS = re.compile(r"nvidia\.com/(mig-.+|gpu\.shared)|amd\.com/[a-z]px_nps[0-9]+")


def partition_of(labels: Mapping[str, str], resource: str = "") -> str:
    """The size of a node's partitions, where something else than the product says it; "" for whole GPUs.

    resource: by which its GPUs are counted, which may be parts of one size.
    """
    kind = resource.partition("/")[2]
    of_resource = kind.removeprefix("mig-").removesuffix(".shared") if OF_PARTS.fullmatch(resource) else ""
    size = labels.get(GKE_PARTITION) or labels.get(AMD_PARTITION) or of_resource.removeprefix("gpu")
    return "" if size.lower() == AMD_WHOLE else size.lower()


def remark_on(labels: Mapping[str, str], product: str, resource: str) -> str:
    """What people should know of a node whose GPUs are parts; "" for whole ones."""
    replicas = next((labels[name] for name in REPLICAS if labels.get(name)), "")
    strategy = next((labels[name] for name in SHARING if labels.get(name)), "none")
    is_shared = replicas.isdecimal() and int(replicas) > 1
    is_named_so = product.lower().endswith(SHARED) or resource.endswith(".shared")
    if is_shared or strategy != "none" or is_named_so:
        how = "shared by MPS" if strategy == "mps" else "time-sliced"
        return f"a GPU there is a share of one: {how} among {replicas or 'several'}"
    if "-mig-" in product.lower() or "/mig-" in resource or labels.get(GKE_PARTITION):
        return "a GPU there is a MIG instance, a part of one"
    if size := partition_of(labels, resource):
        return f"a GPU there is a partition of one: {size}"
    return ""


def unused_parts(resources: Iterable[str]) -> str:
    """Why GPUs of a node are not used that count in parts under names of their own; "" where none do.

    resources: of which the node has some to give.
    """
    parts = sorted(name for name in resources if OF_PARTS.fullmatch(name))
    if not parts:
        return ""
    line = f"GPUs there are counted in parts ({', '.join(parts)}), which are not used"
    return f"{line}: --gpu-resource {parts[0]} would use these"
