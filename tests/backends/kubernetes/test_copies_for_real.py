"""Real servers: what is restored in the place of a pod is no worker, also after a restart of the service."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.kubernetes import PRODUCTS, KubernetesWorld

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import WorkerStart

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
NODE = next(iter(PRODUCTS))
WORKER = WorkerStart("7.1.0", "7", NODE, (0,), "sleep 600", {}, grace_s=1.0)
POD = f"api/v1/namespaces/default/pods/{manifests.pod_name('copies', WORKER.id)}"
MERGE = "application/merge-patch+json"


async def ask(world: KubernetesWorld, method: str, path: str, *more: Any) -> Any:
    """What the API server answers: its object, or why not."""
    answer = await asyncio.to_thread(world.plane.ask, method, path, *more)
    return answer.json()


async def let_go(world: KubernetesWorld) -> None:
    """Delete a pod, finalizer and all, and wait until it is gone."""
    while (await ask(world, "GET", POD)).get("code") != 404:
        await ask(world, "DELETE", POD, {"gracePeriodSeconds": 0})
        await ask(world, "PATCH", POD, {"metadata": {"finalizers": None}}, MERGE)
        await asyncio.sleep(0.1)


async def restore(world: KubernetesWorld, pod: dict[str, Any]) -> None:
    """Create a pod from one that was saved: all but what makes an object itself."""
    metadata = {key: pod["metadata"][key] for key in ("name", "labels", "annotations", "finalizers")}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    copy = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    made = await ask(world, "POST", POD.rpartition("/")[0], copy)
    assert made["metadata"]["uid"] != pod["metadata"]["uid"], made


def test_what_is_restored_in_the_place_of_a_pod_is_somebody_elses(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    options = KubernetesOptions(kubeconfig=str(world.kubeconfig), image="tests", python=sys.executable)

    async def service() -> KubernetesBackend:
        return await open_kubernetes(options, "copies", tmp_path / "state", None, {"7": ""})

    async def story() -> None:
        first = await service()
        await first.start(WORKER)
        while manifests.POD_UID not in (saved := await ask(world, "GET", POD))["metadata"]["annotations"]:
            await asyncio.sleep(0.1)
        await first.close()
        await let_go(world)
        await restore(world, saved)
        again = await service()
        try:
            assert await again.workers() == []
            while [node.others for node in await again.nodes() if node.name == NODE] != [1]:
                await asyncio.sleep(0.1)  # kube-scheduler binds the copy
        finally:
            await again.close()
            await let_go(world)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
