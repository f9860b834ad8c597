"""Actions of a plan as the log keeps them, with nodes by name, and back."""

from collections.abc import Iterable, Mapping
from typing import Any

from stretto.model import Action, Allocation, Cluster, JobId, Verb


def actions_json(actions: Iterable[Action], cluster: Cluster) -> list[dict[str, Any]]:
    """JSON values that `actions_of` turns into equal actions."""
    return [
        {
            "verb": action.verb.value,
            "job": action.job,
            "before": _allocation_json(action.before, cluster),
            "after": _allocation_json(action.after, cluster),
        }
        for action in actions
    ]


def actions_of(said: Iterable[Mapping[str, Any]], cluster: Cluster) -> list[Action]:
    """The actions that were written."""
    return [
        Action(
            Verb(one["verb"]),
            JobId(one["job"]),
            _allocation(one["before"], cluster),
            _allocation(one["after"], cluster),
        )
        for one in said
    ]


def _allocation_json(allocation: Allocation | None, cluster: Cluster) -> dict[str, Any] | None:
    if allocation is None:
        return None
    said: dict[str, Any] = {
        "nodes": {
            cluster.nodes[node].id: mask
            for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
        }
    }
    if allocation.local_batch:
        said["local_batch"] = list(allocation.local_batch)
    if allocation.flexible:
        said["flexible"] = list(allocation.flexible)
    if allocation.profiling:
        said["profiling"] = True
    if allocation.cpus:
        said["cpus"] = allocation.cpus
    return said


def _allocation(said: Mapping[str, Any] | None, cluster: Cluster) -> Allocation | None:
    if said is None:
        return None
    held = sorted((cluster.node_index[name], mask) for name, mask in said["nodes"].items())
    nodes = tuple(node for node, _ in held)
    return Allocation(
        kind=int(cluster.kind[nodes[0]]),
        nodes=nodes,
        masks=tuple(mask for _, mask in held),
        local_batch=tuple(said.get("local_batch", ())),
        flexible=tuple(said.get("flexible", ())),
        profiling=bool(said.get("profiling", False)),
        cpus=float(said.get("cpus", 0.0)),
    )
