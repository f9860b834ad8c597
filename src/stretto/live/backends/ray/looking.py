"""What Ray says of its nodes and of our placement groups, as one plain value."""

from collections.abc import Callable
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
        "free": {node: given.get("GPU", 0.0) for node, given in free.items()},
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
        said: dict[str, Any] = ray.get(task.remote(), timeout=wait_s)
        return said

    return found
