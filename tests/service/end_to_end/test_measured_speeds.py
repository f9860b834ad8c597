"""Real trainings are given what they have shown to gain by it."""

import json
import sys
from pathlib import Path

import pytest

from stretto.client import Client
from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.alone]

SCRIPT = Path(__file__).parent / "pretending.py"
OPTIONS = ("--slots", "4", "--gpu-type", "cpu", "--policy", "cornucopia")
RAMP = ("--set", "policy.profile=ramp", "--set", "policy.profile_step_s=1", "--set", "policy.notice_s=1")


def submit(client: Client, model: str, gpus: int, most: int) -> str:
    """A job that may train on one to `most` workers, and asks for `gpus`."""
    job = {
        "name": model,
        "model": model,
        "run": f"{sys.executable} {SCRIPT} {model}",
        "resources": {"accelerators": gpus},
        "elastic": {"min": 1, "max": most},
        "grace_period": "5s",
        "envs": {"OMP_NUM_THREADS": "1"},
    }
    return str(client.submit(json.dumps(job))["id"])


def measured(client: Client, name: str) -> list[int]:
    """Counts of workers on which it was measured."""
    entries = client.describe(name)["speeds"]["entries"]
    return [entry["gpus"] for entry in entries if entry["source"] == "measured"]


def test_under_cornucopia_a_real_job_that_does_not_scale_keeps_one_worker(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS, *RAMP)
    running.begin()
    try:
        with running.client() as client:
            first = {model: submit(client, model, 1, 2) for model in ("flat", "linear")}
            for model, name in first.items():  # they ramp up, which measures one worker and two
                until(lambda name=name: measured(client, name) == [1, 2], 240.0, f"{model} is measured")  # type: ignore[misc]
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in first.values()), what="they end")
            everything = {"resources": {"accelerators": 4}, "grace_period": "1s"}
            before = client.submit(json.dumps({"name": "before", "run": "sleep 999", **everything}))["id"]
            until(lambda: client.describe(before)["gpus"] == 4, what="both come to one decision")
            flat, linear = submit(client, "flat", 2, 4), submit(client, "linear", 4, 4)
            client.change(before, "cancel")

            def held() -> tuple[int, int]:
                return client.describe(flat)["training_gpus"], client.describe(linear)["training_gpus"]

            until(lambda: held() == (1, 3), 240.0, "the one trains on one worker, the other on three")
            for name in (flat, linear):
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in (flat, linear)), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
    finally:
        running.end()
