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


def actions_of(actions: Iterable[Mapping[str, Any]], cluster: Cluster) -> list[Action]:
    """The actions that were written."""
    return [
        Action(
            Verb(action["verb"]),
            JobId(action["job"]),
            _allocation(action["before"], cluster),
            _allocation(action["after"], cluster),
        )
        for action in actions
    ]


def _allocation_json(allocation: Allocation | None, cluster: Cluster) -> dict[str, Any] | None:
    if allocation is None:
        return None
    as_json: dict[str, Any] = {
        "nodes": {
            cluster.nodes[node].id: mask
            for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
        }
    }
    if allocation.local_batch:
        as_json["local_batch"] = list(allocation.local_batch)
    if allocation.flexible:
        as_json["flexible"] = list(allocation.flexible)
    if allocation.profiling:
        as_json["profiling"] = True
    if allocation.cpus:
        as_json["cpus"] = allocation.cpus
    return as_json


def _allocation(as_json: Mapping[str, Any] | None, cluster: Cluster) -> Allocation | None:
    if as_json is None:
        return None
    masks = sorted((cluster.node_index[name], mask) for name, mask in as_json["nodes"].items())
    nodes = tuple(node for node, _ in masks)
    return Allocation(
        kind=int(cluster.kind[nodes[0]]),
        nodes=nodes,
        masks=tuple(mask for _, mask in masks),
        local_batch=tuple(as_json.get("local_batch", ())),
        flexible=tuple(as_json.get("flexible", ())),
        profiling=bool(as_json.get("profiling", False)),
        cpus=float(as_json.get("cpus", 0.0)),
    )
