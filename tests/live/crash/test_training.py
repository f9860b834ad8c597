"""Real trainings that are killed at random moments lose no sample, and do none twice."""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.demo.own_service import until
from stretto.demo.scene import compare_samples

from ..running import Running

EXAMPLES = Path(__file__).parents[3] / "examples"
OPTIONS = ("--slots", "4", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=3")
KINDS = ("worker", "service", "agent", "keeper", "requeue")
EPOCHS = 60


def submit(running: Running, seen: Path, epochs: int) -> str:
    job = {
        "name": "digits",
        "run": f"{sys.executable} digits_cnn.py --channels 32 --epochs {epochs} --seen {seen}",
        "workdir": str(EXAMPLES),
        "resources": {"accelerators": 1},
        "elastic": {"min": 1, "max": 3},
        "batch": {"init": 64},
        "checkpoint": {"every": "1m"},
        "grace_period": "10s",
        "envs": {"OMP_NUM_THREADS": "1"},
    }
    with running.client() as client:
        return str(client.submit(json.dumps(job))["id"])


def strike(running: Running, kind: str, chance: random.Random) -> None:
    """At a random moment of a training that is under way."""
    with running.client() as client:
        open_ = [one["id"] for one in client.jobs(everybody=True)]
        until(lambda: any(client.describe(one)["generation"] for one in open_), what="a job trains")
        time.sleep(chance.uniform(0.0, 3.0))
        if kind == "requeue":
            client.change(chance.choice(open_), "requeue")
    workers = running.workers()
    if kind in ("worker", "keeper") and workers:
        notes = workers[chance.choice(sorted(workers))]
        with suppress(ProcessLookupError):
            os.kill(notes["pid" if kind == "worker" else "keeper_pid"], signal.SIGKILL)
    elif kind == "service":
        running.kill()
        time.sleep(chance.uniform(0.0, 2.0))
        running.begin()
    elif kind == "agent" and (agent := running.agent()):
        os.kill(agent, signal.SIGKILL)


@pytest.mark.long
def test_ten_blows_against_real_trainings_lose_no_sample(tmp_path: Path) -> None:
    chance = random.Random(5)
    blows = [*KINDS, *KINDS]
    chance.shuffle(blows)
    running = Running(tmp_path / "service", *OPTIONS)
    seen: dict[str, Path] = {}
    try:
        running.begin()
        for kind in blows:
            with running.client() as client:
                while len(list(client.jobs(everybody=True))) < 2:
                    folder = tmp_path / f"seen-{len(seen)}"
                    seen[submit(running, folder, EPOCHS)] = folder
            strike(running, kind, chance)
        with running.client() as client:
            until(lambda: not list(client.jobs(everybody=True)), 300, "all trainings have ended")
            ends = {one["id"]: one["state"] for one in client.jobs(everybody=True, ended=True)}
        assert ends == dict.fromkeys(seen, "COMPLETED")
        first = next(iter(seen.values()))
        for job, folder in seen.items():
            exact, words = compare_samples(EXAMPLES, folder, first)
            assert exact, f"job {job}: {words}"
        until(lambda: not running.processes() and not running.keepers(), 15, "no process is left")
        running.stop_gently()
        assert running.differences()[1] == 0
    finally:
        running.end()
