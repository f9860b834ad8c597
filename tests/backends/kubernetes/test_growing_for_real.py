"""Real servers, and a stand-in for their autoscaler that adds a node when a placeholder fits nowhere."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.kubernetes import KubernetesWorld
from tests.service.http.rig import Rig, a_rig

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
PRODUCT, LABEL = "NVIDIA-L4", "nvidia.com/gpu.product"
GROW = f"l4:2:1:{LABEL}={PRODUCT}"
JOB = """
run: sleep {lasts_s}
resources: {{accelerators: {{l4: {gpus}}}}}
"""


async def pods(world: KubernetesWorld) -> list[dict[str, Any]]:
    answer = await asyncio.to_thread(world.plane.ask, "GET", "api/v1/pods")
    return [
        each for each in answer.json()["items"] if manifests.SERVICE in each["metadata"].get("labels", {})
    ]


def is_placeholder(pod: dict[str, Any]) -> bool:
    return manifests.PLACEHOLDER in pod["metadata"]["labels"]


async def autoscale(world: KubernetesWorld) -> None:
    """Wait until a placeholder fits nowhere, and add one node of the kind that it names."""
    while True:
        for pod in await pods(world):
            conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
            fits_nowhere = conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"
            if is_placeholder(pod) and fits_nowhere:
                world.add_node("l4-7d2f", pod["spec"]["nodeSelector"][LABEL])
                return
        await asyncio.sleep(0.1)


@asynccontextmanager
async def service(world: KubernetesWorld, folder: Path) -> Any:
    """A service in this process, which asks for nodes."""
    options = KubernetesOptions(
        kubeconfig=str(world.kubeconfig), image="tests", python=sys.executable, grow=(GROW,)
    )
    growing = await open_kubernetes(options, "growing", folder / "kubernetes")
    async with a_rig(folder, backend=growing) as rig:
        rig.loops.append(asyncio.create_task(rig.service.autoscaler.run()))
        yield rig
    await growing.close()


async def until_state(rig: Rig, job: str, state: str) -> dict[str, Any]:
    async with rig.client("ada") as client:
        while True:
            found: dict[str, Any] = (await client.get(f"/api/v1/jobs/{job}")).json()
            if found["state"] == state:
                return found
            await asyncio.sleep(0.1)


def test_a_node_comes_for_a_job_that_waits_and_the_job_runs_there(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    async def story() -> None:
        async with service(world, tmp_path) as rig:
            job = await rig.submit(text=JOB.format(lasts_s=2, gpus=2))
            await autoscale(world)
            assert (await until_state(rig, job, "PENDING"))["evidence"] == "the cluster is asked for 2 x l4"
            running = await until_state(rig, job, "RUNNING")
            assert list(running["nodes"]) == ["l4x2-1"]
            while any(is_placeholder(pod) for pod in await pods(world)):
                await asyncio.sleep(0.1)
            assert [pod["spec"]["nodeName"] for pod in await pods(world)] == ["l4-7d2f"] * 2
            await until_state(rig, job, "COMPLETED")
            second = await rig.submit(text=JOB.format(lasts_s=60, gpus=1))
            await until_state(rig, second, "RUNNING")
            third = await rig.submit(text=JOB.format(lasts_s=0, gpus=2))
            while "no more" not in (await until_state(rig, third, "PENDING"))["evidence"]:
                await asyncio.sleep(0.1)
            placeholders = [pod for pod in await pods(world) if is_placeholder(pod)]
            assert placeholders == [], "nothing is asked for beyond what may come"
            async with rig.client("ada") as client:
                for each in (second, third):
                    await client.post(f"/api/v1/jobs/{each}/cancel")
            await until_state(rig, third, "CANCELLED")
            while await pods(world):
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_a_placeholder_is_taken_back_with_the_job_that_needed_it(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    async def story() -> None:
        await asyncio.to_thread(world.plane.ask, "DELETE", "api/v1/nodes/l4-7d2f")
        await world.kill_node("l4-7d2f")
        async with service(world, tmp_path) as rig:
            job = await rig.submit(text=JOB.format(lasts_s=60, gpus=2))
            while not await pods(world):
                await asyncio.sleep(0.1)
            async with rig.client("ada") as client:
                await client.post(f"/api/v1/jobs/{job}/cancel")
            while await pods(world):
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
