"""An API server in memory with as many nodes and pods as one likes, on which pods of ours run at once.

`python -m tests.backends.kubernetes.large_cluster NODES PODS` serves one until it is killed.
"""

import asyncio
import sys
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress

from tests.backends.kubernetes.kube_scheduler import node_of
from tests.backends.kubernetes.memory_server import MemoryServer, a_node, a_pod, stamp


def fill(server: MemoryServer, nodes: int, pods: int) -> None:
    """Made nodes of eight GPUs each, and pods of one GPU each on them."""
    for number in range(nodes):
        server.put("nodes", a_node(f"n{number:05d}"), told=False)
    for number in range(pods):
        server.put("pods", a_pod(f"p{number:05d}", f"n{number % nodes:05d}"), told=False)


async def run_at_once(server: MemoryServer) -> None:
    """Bind and run each pod of ours as soon as it is made, until cancelled."""
    seen = server.version
    while True:
        await server.changed.wait()
        first = bisect_right(server.happened, seen, key=lambda each: each[0])
        new = [each[3] for each in server.happened[first:] if each[1:3] == ("pods", "ADDED")]
        seen = server.version
        for pod in new:
            if not (node := node_of(pod)):
                continue
            containers = [
                {"name": each["name"], "state": {"running": {"startedAt": stamp()}}}
                for each in pod["spec"]["containers"]
            ]
            status = {"phase": "Running", "containerStatuses": containers}
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            server.change("pods", name, {"spec": {"nodeName": node}, "status": status}, namespace)


async def serve(words: Iterable[str]) -> None:
    """Serve made objects until killed; prints the address."""
    server = await MemoryServer(log_poll_s=5.0).open()
    fill(server, *map(int, words))
    print(server.url, flush=True)
    with suppress(asyncio.CancelledError):
        await run_at_once(server)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
