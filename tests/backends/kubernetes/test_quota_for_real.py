"""Real servers: a start that a full ResourceQuota refuses waits, says so, and goes on once there is more."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.kubernetes import KubernetesWorld
from tests.service.http.rig import a_rig

from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
QUOTA, ASKED = "team", "requests.nvidia.com/gpu"
JOB = """
run: sleep 60
resources: {accelerators: 1}
"""


async def asked(world: KubernetesWorld, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    where = f"api/v1/namespaces/default/resourcequotas{path}"
    answer = await asyncio.to_thread(world.plane.ask, method, where, body, content_type=kind)
    return answer.json()


async def raised(world: KubernetesWorld, gpus: int) -> None:
    """So many GPUs may be asked for. No controller runs here that would copy this into the status."""
    hard = {ASKED: str(gpus)}
    await asked(world, "PATCH", f"/{QUOTA}", {"spec": {"hard": hard}})
    used = (await asked(world, "GET", f"/{QUOTA}"))["status"].get("used", {ASKED: "0"})
    await asked(world, "PATCH", f"/{QUOTA}/status", {"status": {"hard": hard, "used": used}})


def test_a_start_beyond_the_quota_of_its_namespace_waits_until_there_is_more(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    async def story() -> None:
        options = KubernetesOptions(kubeconfig=str(world.kubeconfig), image="tests", python=sys.executable)
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}}
        await asked(world, "POST", "", {**quota, "spec": {"hard": {ASKED: "1"}}})
        backend = await open_kubernetes(options, "quota", tmp_path / "kubernetes")
        try:
            await raised(world, 1)
            async with a_rig(tmp_path, backend=backend) as rig, rig.client("ada") as client:

                async def described(job: str) -> dict[str, Any]:
                    found: dict[str, Any] = (await client.get(f"/api/v1/jobs/{job}")).json()
                    return found

                async def until(job: str, state: str) -> None:
                    while (await described(job))["state"] != state:
                        await asyncio.sleep(0.1)

                first = await rig.submit(text=JOB)
                await until(first, "RUNNING")
                second = await rig.submit(text=JOB)
                while "exceeded quota" not in json.dumps(await described(second)):
                    await asyncio.sleep(0.1)
                assert (await described(second))["state"] not in ("RUNNING", "FAILED")
                await raised(world, 2)
                await until(second, "RUNNING")
                for each in (first, second):
                    await client.post(f"/api/v1/jobs/{each}/cancel")
                for each in (first, second):
                    await until(each, "CANCELLED")
                while await world.left():
                    await asyncio.sleep(0.1)
        finally:
            await backend.close()
            await asked(world, "DELETE", f"/{QUOTA}")

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
