"""Real trainings that are killed at random moments lose no sample, and do none twice."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import supervisor
from stretto.demo.own_service import until
from stretto.demo.scene import compare_samples

from ..running import Running
from .conftest import Tell, mount_small, unmount
from .verdict import RIGHT, check_log, check_runs

pytestmark = [pytest.mark.processes, pytest.mark.large]

EXAMPLES = Path(__file__).parents[3] / "examples"
OPTIONS = ("--slots", "4", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=3")
ANYTIME = ("worker", "service", "agent", "supervisor", "requeue")
GROWING = ("newcomer", "source", "service", "agent", "graceful")
EPOCHS, LONG, SAMPLES = 60, 150, 1437


@dataclass
class Trainings:
    """A service, and what each of its trainings has noted of its samples."""

    folder: Path
    seed: int
    seen: dict[str, tuple[Path, int]] = field(default_factory=dict)  # by job: where, and how many epochs
    fell: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.running = Running(self.folder / "service", *OPTIONS)

    def submit(self, epochs: int = EPOCHS, every: str = "1m") -> str:
        seen = self.folder / f"seen-{len(self.seen)}"
        job = {
            "name": "digits",
            "run": f"exec {sys.executable} digits_cnn.py --channels 32 --epochs {epochs} --target 0"
            f" --seen {seen}",
            "workdir": str(EXAMPLES),
            "resources": {"accelerators": 1},
            "elastic": {"min": 1, "max": 4},
            "batch": {"init": 64},
            "checkpoint": {"every": every},
            "grace_period": "10s",
            "restart": {"max": 100},
            "envs": {"OMP_NUM_THREADS": "1"},
        }
        with self.running.client() as client:
            name = str(client.submit(json.dumps(job))["id"])
        self.seen[name] = seen, epochs
        return name

    def open(self) -> list[str]:
        """Trainings that have not ended."""
        with self.running.client() as client:
            return [one["id"] for one in client.jobs(everybody=True)]

    def fill(self) -> None:
        while len(self.open()) < 2:
            self.submit()

    def shown(self, job: str) -> dict[str, Any]:
        with self.running.client() as client:
            return client.describe(job)

    def log_of(self, job: str) -> str:
        """What its first worker of this attempt has printed."""
        with self.running.client() as client:
            return "".join(client.log(job))

    def change(self, job: str, verb: str, **values: int) -> None:
        with self.running.client() as client:
            client.change(job, verb, **values)

    # ── blows ─────────────────────────────────────────────────────────────────────────────────────

    def strike(self, kind: str) -> None:
        """At a random moment of a training that is under way."""

        def fallen() -> bool:
            self.fill()
            until(lambda: any(self.shown(one)["training_gpus"] for one in self.open()), what="one trains")
            time.sleep(self.chance.uniform(0.0, 3.0))
            return self._blow(kind, sorted(self.running.workers()))

        until(fallen, what=f"a blow of kind {kind} falls")
        self.fell[kind] += 1

    def strike_growing(self, kind: str, job: str) -> None:
        """While newcomers of a job start, import, or wait to be let in."""
        until(lambda: self.shown(job)["training_gpus"] > 0, what=f"{job} trains")
        self.change(job, "scale", min_gpus=1, max_gpus=1)
        until(lambda: self._sizes(job) == (1, 1), what=f"{job} is on one worker")
        self.change(job, "scale", min_gpus=2, max_gpus=2)
        until(lambda: self._sizes(job) == (1, 2), what=f"{job} grows")
        time.sleep(self.chance.uniform(0.0, 4.0))
        before = self._sizes(job)
        mine = self._workers(job)
        chosen = mine[-1:] if kind == "newcomer" else mine[:1]
        assert self._blow("worker" if kind in ("newcomer", "source") else kind, chosen)
        self.fell[f"{kind} in a growth" if before == (1, 2) else f"{kind} just after a growth"] += 1

    def strike_without_room(self, kind: str, filler: Path) -> None:
        """While a job cannot write checkpoints any more: it goes on from the last that was complete."""
        job = self.submit(every="2s")
        until(lambda: self.shown(job)["checkpoint"], what="a checkpoint is written")
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        until(lambda: "no checkpoint of step" in self.log_of(job), what="one finds no room")
        attempt = self.shown(job)["attempt"]
        assert self._blow(kind, self._workers(job)[:1])  # a newcomer would only be replaced
        until(lambda: self.shown(job)["attempt"] > attempt, what="it is tried again")
        until(lambda: self.shown(job)["training_gpus"] > 0, what="it trains again")
        filler.unlink()
        until(lambda: job not in self.open(), 300, "the training ends")
        self.fell[f"{kind} while the disk is full"] += 1

    def _sizes(self, job: str) -> tuple[int, int]:
        """GPUs that train, and processes that there are."""
        return self.shown(job)["training_gpus"], len(self._workers(job))

    def _workers(self, job: str) -> list[str]:
        """Workers of a job that run, the oldest first."""
        names = [name for name in self.running.workers() if name.startswith(f"{job}.")]
        return sorted(names, key=lambda name: [int(part) for part in name.split(".")])

    def _blow(self, kind: str, workers: Sequence[str]) -> bool:
        """Whether it fell."""
        if kind == "requeue":
            self.change(self.chance.choice(self.open()), "requeue")
        elif kind in ("worker", "supervisor"):
            if not workers:
                return False
            notes = self.running.workers().get(self.chance.choice(workers), {"pid": 0, "keeper_pid": 0})
            process = supervisor.process_at(int(notes["pid" if kind == "worker" else "keeper_pid"]))
            if process is None:
                return False
            supervisor.send_to(process, signal.SIGKILL)
        elif kind in ("service", "graceful"):
            expected = {"service": -signal.SIGKILL, "graceful": 0}[kind]
            assert self.running.kill(signal.SIGTERM if kind == "graceful" else signal.SIGKILL) == expected
            time.sleep(self.chance.uniform(0.0, 2.0))
            self.running.begin()
        elif kind == "agent":
            os.kill(until(self.running.agent, what="an agent runs"), signal.SIGKILL)
        return True

    # ── afterwards ────────────────────────────────────────────────────────────────────────────────

    def check(self) -> str:
        """All have ended well, and trained on each sample of each epoch once; the verdict in words."""
        until(lambda: not self.open(), 300, "all trainings have ended")
        shown = {job: self.shown(job) for job in self.seen}
        assert {job: one["state"] for job, one in shown.items()} == dict.fromkeys(self.seen, "COMPLETED")
        words = []
        for job, (folder, epochs) in self.seen.items():
            exact, said = compare_samples(EXAMPLES, folder, folder)
            assert exact, f"job {job}: {said}"
            assert said == f"{epochs * SAMPLES} samples in {epochs} epochs: each once"
            words.append(said)
        until(
            lambda: not self.running.processes() and not self.running.supervisors(), what="no process is left"
        )
        self.running.stop_gently()
        decisions, differences = self.running.differences()
        assert differences == 0
        log = list(self.running.log_of_all())
        check_log(log)
        check_runs(self.running.agent_state, log)
        attempts = sum(one["attempt"] for one in shown.values())
        return f"{'; '.join(words)}; {attempts} attempts, {decisions} decisions: {RIGHT}"


@contextmanager
def trainings(folder: Path, seed: int) -> Iterator[Trainings]:
    """A service that runs, and is ended."""
    scene = Trainings(folder, seed)
    try:
        scene.running.begin()
        yield scene
    finally:
        scene.running.end()


@pytest.mark.long
def test_ten_blows_against_real_trainings_lose_no_sample(tmp_path: Path, tell: Tell) -> None:
    with trainings(tmp_path, 5) as scene:
        blows = [*ANYTIME, *ANYTIME]
        scene.chance.shuffle(blows)
        for kind in blows:
            scene.strike(kind)
        tell(scene.fell, scene.check())


@pytest.mark.long
def test_blows_in_the_middle_of_a_growth_lose_no_sample(tmp_path: Path, tell: Tell) -> None:
    with trainings(tmp_path, 6) as scene:
        job = scene.submit(LONG)
        for kind in (*GROWING, *GROWING):
            if job not in scene.open():
                job = scene.submit(LONG)
            scene.strike_growing(kind, job)
        tell(scene.fell, scene.check())


@pytest.mark.long
def test_trainings_whose_checkpoints_find_no_room_lose_no_sample(tmp_path: Path, tell: Tell) -> None:
    small = tmp_path / "service" / "state" / "checkpoints"
    mount_small(small, "4m")
    try:
        with trainings(tmp_path, 7) as scene:
            for kind in ("worker", "requeue", "supervisor"):
                scene.strike_without_room(kind, small / "filler")
            tell(scene.fell, scene.check())
    finally:
        unmount(small)
