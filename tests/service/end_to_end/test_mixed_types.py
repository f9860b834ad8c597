"""A real training on two GPU types at once: each sample once, and more of them where they take less time."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds.local import LocalWorld

from stretto.client import Client
from stretto.demo.own_service import until
from stretto.model import InputError

from ..running import Running
from .measured_jobs import measured_entries

pytestmark = [pytest.mark.processes, pytest.mark.sqlite, pytest.mark.torch, pytest.mark.alone]

HERE = Path(__file__).parent
SCRIPT, EXAMPLES = HERE / "sharing.py", HERE.parents[2] / "examples"
TYPES = {"fast-0": "fast", "slow-0": "slow"}  # two GPUs each
EPOCHS, ENDLESS, SAMPLES = 10, 100_000, 480
BOTH = {"fast-0": 2, "slow-0": 2}


def submit(client: Client, folder: Path, epochs: int, gpus: str, **more: Any) -> str:
    job = {
        "name": "sharing",
        "model": "sharing",
        "run": f"{sys.executable} {SCRIPT} {folder} {epochs}",
        "resources": {"accelerators": gpus, **more.pop("resources", {})},
        "grace_period": "30s",
        "expected_time": "10m",
        "envs": {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)},
        **more,
    }
    return str(client.submit(json.dumps(job))["id"])


def measure(client: Client, folder: Path) -> None:
    """One worker of each type, so that later jobs of the model know both."""
    alone = {gpu_type: submit(client, folder, ENDLESS, f"{gpu_type}:1") for gpu_type in ("fast", "slow")}
    for gpu_type, job in alone.items():
        until(
            lambda job=job: bool(measured_entries(client, job)),  # type: ignore[misc]
            240.0,
            f"one worker is measured on {gpu_type}",
        )
        client.change(job, "cancel")
    until(lambda: all(client.describe(job)["ended_s"] for job in alone.values()), what="they end")


def shares(running: Running, job: str) -> dict[str, list[int]]:
    """By node, the samples of a step that each worker has in the latest generation; {}: it says none."""
    node_of: dict[str, str] = {}
    latest: dict[str, list[int]] = {}
    for _, _, kind, body in running.log_of_all():
        if kind == "WorkersWanted":
            node_of |= {worker["id"]: worker["node"] for worker in body["workers"]}
        elif kind == "Generation" and body["job"] == job:
            latest = {}
            for worker, samples in zip(body["workers"], body["batch"][3:], strict=False):
                latest.setdefault(node_of[worker], []).append(samples)
    return latest


def test_a_real_job_trains_on_two_gpu_types_at_once_each_sample_once(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path / "nodes", types=TYPES, owners=("service",))
    world.start()
    running = Running(tmp_path, "--policy", "lyra", "--set", "policy.round_s=1", program=world.program)
    try:
        running.begin()
        with running.client() as client:
            measure(client, tmp_path)
            mixed = submit(
                *(client, tmp_path, EPOCHS, "2"),
                elastic={"min": 2, "max": 4},
                resources={"heterogeneous": True},
            )

            def trains_on(nodes: dict[str, int]) -> bool:
                shown = client.describe(mixed)
                return bool(shown["nodes"] == nodes and shown["training_gpus"] == sum(nodes.values()))

            until(lambda: trains_on(BOTH), 240.0, "it trains on both types")
            assert client.describe(mixed)["gpu_type"] == "fast, slow"
            by_node = shares(running, mixed)
            assert sum(map(sum, by_node.values())) == 32
            assert min(by_node["fast-0"]) >= 3 * max(by_node["slow-0"]), by_node
            # Another job needs all GPUs of the slow type: the flexible workers there make room in place.
            other = client.submit(
                json.dumps(
                    {"run": "sleep 999", "resources": {"accelerators": "slow:2"}, "grace_period": "1s"}
                )
            )["id"]
            until(lambda: trains_on({"fast-0": 2}), 240.0, "it trains on the fast type")
            assert shares(running, mixed) == {}, "workers of one type share a step evenly"
            client.change(other, "cancel")
            until(lambda: trains_on(BOTH), 240.0, "it trains on both types again")
            (tmp_path / "enough").touch()
            ended = client.wait(mixed)
            assert (ended["state"], ended["restarts"], ended["failures"]) == ("COMPLETED", 0, 0)
    finally:
        running.end()
        asyncio.run(world.close())
    notes = str(tmp_path / "seen")
    count = [sys.executable, str(EXAMPLES / "seen.py"), notes, notes]
    counted = subprocess.run(count, capture_output=True, text=True, check=False)
    assert counted.stdout == f"{SAMPLES * EPOCHS} samples in {EPOCHS} epochs: each once\n"
    decisions, differences = running.differences()
    assert decisions
    assert differences == 0


def test_under_a_policy_that_gives_one_type_such_a_job_is_refused(tmp_path: Path) -> None:
    running = Running(tmp_path, "--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")
    running.begin()
    try:
        with running.client() as client, pytest.raises(InputError) as refused:
            submit(client, tmp_path, EPOCHS, "2", resources={"heterogeneous": True})
        assert "policy fifo gives a job GPUs of one type only" in str(refused.value)
        assert "lyra" in str(refused.value)
        assert "\n" not in str(refused.value)
    finally:
        running.end()
