"""What kube-scheduler and kubelets make of pods of an API server in memory, as far as gates matter."""

from typing import Any

from tests.backends.kubernetes.memory_server import REQUIRED, MemoryServer, stamp

Name = tuple[str, str]


def gpus_of(pod: dict[str, Any]) -> int:
    return sum(
        int(each.get("resources", {}).get("requests", {}).get("nvidia.com/gpu", 0))
        for each in pod["spec"]["containers"]
    )


def is_over(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def node_of(pod: dict[str, Any]) -> str:
    """Which a required affinity names; "" for none."""
    terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms")
    fields = [each for term in terms or () for each in term.get("matchFields") or ()]
    return next((each["values"][0] for each in fields if each["key"] == "metadata.name"), "")


def gates_of(pod: dict[str, Any]) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def schedule(server: MemoryServer) -> list[str]:
    """Bind and run what waits for no gate, where its node has room; names of pods that were bound.

    A pod without an affinity goes to the first node with room. What is deleted and bound ends at once.
    """
    bound = []
    pods = server.objects.get("pods", {})
    for (namespace, name), pod in sorted(pods.items()):
        if gates_of(pod) or pod["spec"].get("nodeName") or is_over(pod):
            continue
        for node in [node_of(pod)] if node_of(pod) else sorted(name for _, name in server.objects["nodes"]):
            held = sum(
                gpus_of(each)
                for each in pods.values()
                if each["spec"].get("nodeName") == node and not is_over(each)
            )
            allocatable = server.objects["nodes"]["", node]["status"]["allocatable"]
            if held + gpus_of(pod) <= int(allocatable["nvidia.com/gpu"]):
                run(server, (namespace, name), node)
                bound.append(name)
                break
    return bound


def run(server: MemoryServer, name: Name, node: str) -> None:
    running = [{"name": "main", "state": {"running": {"startedAt": stamp()}}}]
    status = {"phase": "Running", "containerStatuses": running}
    server.change("pods", name[1], {"spec": {"nodeName": node}, "status": status}, name[0])


def end(server: MemoryServer, name: str, code: int = 0, namespace: str = "team-a") -> None:
    """The containers of a pod end."""
    terminated = {"exitCode": code, "startedAt": stamp(), "finishedAt": stamp(), "reason": "Error"}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
    }
    server.change("pods", name, {"status": status}, namespace)
