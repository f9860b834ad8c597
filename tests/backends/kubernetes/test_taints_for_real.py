"""Real servers: kube-scheduler binds a job to a tainted node where its file tolerates the taint."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.kubernetes import KubernetesWorld
from tests.service.http.rig import Rig, a_rig

from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
TAINTED = "k2"  # the only node of its type
JOB = """
run: sleep 60
resources: {accelerators: {t4: 1}}
"""
TOLERANT = JOB + "kubernetes: {tolerations: [{key: team, operator: Equal, value: a, effect: NoSchedule}]}"


async def taint(world: KubernetesWorld, taints: list[dict[str, str]]) -> None:
    patch, kind = {"spec": {"taints": taints}}, "application/merge-patch+json"
    await asyncio.to_thread(world.plane.ask, "PATCH", f"api/v1/nodes/{TAINTED}", patch, content_type=kind)


async def described(rig: Rig, job: str) -> dict[str, Any]:
    async with rig.client("ada") as client:
        found: dict[str, Any] = (await client.get(f"/api/v1/jobs/{job}")).json()
        return found


async def until_state(rig: Rig, job: str, state: str) -> dict[str, Any]:
    while (found := await described(rig, job))["state"] != state:
        await asyncio.sleep(0.1)
    return found


def test_a_tainted_node_runs_the_job_that_tolerates_its_taint(world: KubernetesWorld, tmp_path: Path) -> None:
    async def story() -> None:
        await taint(world, [{"key": "team", "value": "a", "effect": "NoSchedule"}])
        options = KubernetesOptions(kubeconfig=str(world.kubeconfig), image="tests", python=sys.executable)
        backend = await open_kubernetes(options, "taints", tmp_path / "kubernetes")
        try:
            while not next(each for each in await backend.nodes() if each.name == TAINTED).taints:
                await asyncio.sleep(0.1)
            async with a_rig(tmp_path, backend=backend) as rig:
                others = await rig.submit(text=JOB)
                while "team=a:NoSchedule" not in (await described(rig, others))["evidence"]:
                    await asyncio.sleep(0.1)
                tolerant = await rig.submit(text=TOLERANT)
                assert list((await until_state(rig, tolerant, "RUNNING"))["nodes"]) == [TAINTED]
                waiting = await described(rig, others)
                assert (waiting["state"], waiting["reason"]) == ("PENDING", "RESERVED")
                assert waiting["evidence"] == "nodes take only jobs that tolerate team=a:NoSchedule"
                await taint(world, [])  # now it is for all
                await until_state(rig, others, "RUNNING")
                async with rig.client("ada") as client:
                    for each in (others, tolerant):
                        await client.post(f"/api/v1/jobs/{each}/cancel")
                for each in (others, tolerant):
                    await until_state(rig, each, "CANCELLED")
                while await world.left():
                    await asyncio.sleep(0.1)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
