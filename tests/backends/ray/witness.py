"""A process of somebody else's, connected to the cluster: looks at it, and holds GPUs that are not ours.

Reads lines of [function, arguments], and writes what each gives after a "=".
"""

import json
import sys
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

foreign: dict[str, Any] = {}


def left() -> list[str]:
    """Actors and placement groups of workers of any service, in words."""
    actors = [
        f"actor {each['name']}"
        for each in list_named_actors(all_namespaces=True)
        if each["namespace"].startswith("stretto-") and not each["name"].startswith("steward-")
    ]
    groups = [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
    return actors + [f"placement group {each['name']}" for each in groups]


def node_agents(namespace: str) -> list[str]:
    """Names of the node agents of a service."""
    return sorted(
        each["name"]
        for each in list_named_actors(all_namespaces=True)
        if each["namespace"] == namespace and each["name"].startswith("steward-")
    )


def hold(name: str, node: str, gpus: float) -> list[int]:
    """An actor of somebody else's on a node; the GPUs that it was given."""

    class Foreign:
        def gpus(self) -> list[int]:
            return [int(each) for each in ray.get_gpu_ids()]

    node_id = next(
        each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeManagerAddress"] == node
    )
    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(Foreign).options(num_gpus=gpus, num_cpus=0, scheduling_strategy=affinity).remote()
    foreign[name] = actor
    found: list[int] = ray.get(actor.gpus.remote(), timeout=60)
    return found


def let_go(name: str) -> None:
    """End an actor of somebody else's."""
    ray.kill(foreign.pop(name))


def kill(name: str, namespace: str) -> None:
    """End a named actor of anybody's."""
    ray.kill(ray.get_actor(name, namespace))


def drain(node: str) -> bool:
    """Have Ray drain a node, ten minutes long."""
    import time

    from ray._private.worker import global_worker

    node_id = next(
        each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeManagerAddress"] == node
    )
    preemption = 2
    accepted, _ = global_worker.gcs_client.drain_node(
        node_id, preemption, "a test", int((time.time() + 600) * 1000)
    )
    return bool(accepted)


def main() -> None:
    """Answer until nobody asks."""
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
    for line in sys.stdin:
        do, arguments = json.loads(line)
        try:
            said = {"gives": globals()[do](**arguments)}
        except Exception as failure:
            said = {"wrong": repr(failure)}
        print("=" + json.dumps(said), flush=True)


main()
