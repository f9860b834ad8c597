"""Nodes of a Ray cluster as nodes of ours: names, GPU types, and what others hold."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from stretto.live.backends.ray.looking import GROUP_LABEL, HEAD_RESOURCE, TYPE_LABEL, TYPE_RESOURCE

ANY_TYPE = "gpu"  # of GPUs of which Ray does not say more


@dataclass(frozen=True)
class RayNode:
    """One life of a raylet, which is what Ray calls a node."""

    id: str
    name: str
    address: str
    port: int  # at which the raylet listens
    gpus: int
    gpu_type: str
    cpus: float
    memory_gb: float
    alive: bool
    draining: bool = False
    why: str = ""  # it is dead
    free_gpus: float = 0.0
    group: str = ""  # what its cluster's autoscaler calls its type
    is_head: bool = False


def nodes_in(seen: Mapping[str, Any], names: Mapping[str, str]) -> list[RayNode]:
    """All nodes that have GPUs, living and dead, by name; of one machine the living one only, else the last.

    names: what nodes were called before, by id. A machine is called what its host is called, or by its
    address where several living nodes are on hosts of one name; and is called so as long as it lives.
    """
    living = [each for each in seen["nodes"] if each["alive"]]
    hosts = Counter(each["host"] for each in living)
    found: dict[str, RayNode] = {}
    for each in [*(one for one in seen["nodes"] if not one["alive"]), *living]:
        plain = each["host"] if hosts[each["host"]] <= 1 and each["host"] else each["address"]
        node = node_of(each, names.get(each["id"], plain), seen)
        if node.gpus or not node.alive:
            found[node.name] = node
    return [node for _, node in sorted(found.items())]


def node_of(each: Mapping[str, Any], name: str, seen: Mapping[str, Any]) -> RayNode:
    """One node. The resources of a dead one are not known any more."""
    resources = each["resources"]
    return RayNode(
        id=each["id"],
        name=name,
        address=each["address"],
        port=each["port"],
        gpus=int(resources.get("GPU", 0)),
        gpu_type=gpu_type_of(each["labels"], resources),
        cpus=float(resources.get("CPU", 0)),
        memory_gb=round(resources.get("memory", 0) / 2**30, 1),
        alive=each["alive"],
        draining=each["id"] in seen["draining"],
        why=each["why"],
        free_gpus=seen["free"].get(each["id"], 0.0),
        group=each["labels"].get(GROUP_LABEL, ""),
        is_head=HEAD_RESOURCE in resources,
    )


def gpu_type_of(labels: Mapping[str, str], resources: Iterable[str]) -> str:
    """What a node says of its GPUs, in lower case."""
    named = sorted(name.removeprefix(TYPE_RESOURCE) for name in resources if name.startswith(TYPE_RESOURCE))
    return (labels.get(TYPE_LABEL) or (named[0] if named else ANY_TYPE)).lower()


def held_by_us(node: RayNode, groups: Iterable[Mapping[str, Any]], prefix: str) -> float:
    """GPUs of a node that placement groups of ours hold."""
    ours = [each for each in groups if each["node"] == node.id and each["name"].startswith(prefix)]
    return sum(float(each["gpus"]) for each in ours)


def held_by_others(node: RayNode, ours: float) -> int:
    """GPUs in use on a node beside those of ours; a part of a GPU counts as one."""
    used = node.gpus - node.free_gpus - ours
    return max(0, min(node.gpus, ceil(used - 1e-6)))
