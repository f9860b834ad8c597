"""Nodes of a Ray cluster: what Ray says of them, and what they are to the service.

What Ray says of its nodes and of our placement groups, as one plain value.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

ID_LABEL = "ray.io/node-id"
TYPE_LABEL = "ray.io/accelerator-type"
TYPE_RESOURCE = "accelerator_type:"
GROUP_LABEL = "ray.io/node-group"
HEAD_RESOURCE = "node:__internal_head__"
OVER = "REMOVED"  # of a placement group that holds nothing any more


def look() -> dict[str, Any]:
    """Nodes, their free GPUs, those that drain, and all placement groups; to be run inside the cluster.

    {"nodes": [as `ray.nodes`], "free": {node id: GPUs}, "draining": [node ids], "groups": [{"name", "node",
    "gpus", "state"}]}. Free GPUs and draining nodes Ray tells through its own state module only.
    """
    import ray
    from ray._private import state
    from ray.util.placement_group import placement_group_table

    free = state.available_resources_per_node()
    table = placement_group_table().values()
    return {
        "nodes": [kept(node) for node in ray.nodes()],
        "free": {node: resources.get("GPU", 0.0) for node, resources in free.items()},
        "draining": sorted(state.state.get_draining_nodes()),
        "groups": [group_of(each) for each in table if each["state"] != OVER],
    }


def kept(node: dict[str, Any]) -> dict[str, Any]:
    """What we need of a node."""
    return {
        "id": node["NodeID"],
        "alive": node["Alive"],
        "address": node["NodeManagerAddress"],
        "port": node["NodeManagerPort"],
        "host": node["NodeManagerHostname"],
        "why": node.get("DeathReasonMessage", ""),
        "resources": dict(node.get("Resources") or {}),
        "labels": dict(node.get("Labels") or {}),
    }


def group_of(group: dict[str, Any]) -> dict[str, Any]:
    """What we need of a placement group of one bundle; others have no node of theirs."""
    nodes = set(group["bundles_to_node_id"].values())
    return {
        "name": group["name"],
        "state": group["state"],
        "node": nodes.pop() if len(nodes) == 1 else "",
        "gpus": sum(bundle.get("GPU", 0.0) for bundle in group["bundles"].values()),
    }


def looker(is_client: bool) -> Callable[[float], dict[str, Any]]:
    """A function that looks within so many seconds: here, or in a task where we are outside the cluster."""
    if not is_client:
        return lambda _: look()
    import ray

    task = ray.remote(num_cpus=0, max_retries=0)(look)

    def found(wait_s: float) -> dict[str, Any]:
        view: dict[str, Any] = ray.get(task.remote(), timeout=wait_s)
        return view

    return found


# ── nodes of a Ray cluster as nodes of ours: names, GPU types, and what others hold ─────────────────────────


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


def nodes_in(view: Mapping[str, Any], names: Mapping[str, str]) -> list[RayNode]:
    """All nodes that have GPUs, living and dead, by name; of one machine the living one only, else the last.

    names: what nodes were called before, by id. A machine has the name of its host, or its address where
    several living nodes are on hosts of one name. It keeps that name as long as it lives.
    """
    living = [each for each in view["nodes"] if each["alive"]]
    hosts = Counter(each["host"] for each in living)
    nodes: dict[str, RayNode] = {}
    for each in [*(node_info for node_info in view["nodes"] if not node_info["alive"]), *living]:
        plain = each["host"] if hosts[each["host"]] <= 1 and each["host"] else each["address"]
        node = node_of(each, names.get(each["id"], plain), view)
        if node.gpus or not node.alive:
            nodes[node.name] = node
    return [node for _, node in sorted(nodes.items())]


def node_of(each: Mapping[str, Any], name: str, view: Mapping[str, Any]) -> RayNode:
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
        draining=each["id"] in view["draining"],
        why=each["why"],
        free_gpus=view["free"].get(each["id"], 0.0),
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
