"""A real service over a cluster, its jobs, and what these say of themselves."""

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.conformance.world import World
from tests.service.crash.strikes import JUMPING
from tests.service.running import PROGRAM, Running

from stretto.client import Client
from stretto.demo.own_service import NotInTime
from stretto.model import StrettoError
from stretto.service.emulated.truth import DURATION, SAVING
from stretto.testing.backends.stage import ACTOR

POLICY = ("--policy", "sia", "--set", "policy.round_s=1", "--set", "policy.wait_penalty=2")
LIMITED = str(Path(__file__).with_name("limited.py"))
DEAD_AFTER_S = 5.0  # more than a busy machine keeps anybody from answering
LOOK_S = 0.05
BEAT_S = 0.05  # as actors have it
ENDLESS = 1_000_000
EMULATED_TRAINING = {
    "model": "resnet18-cifar10",
    "batch": {"policy": "adaptive", "init": 256},
    "labels": {},
}

Found = TypeVar("Found")


@dataclass
class Hall:
    """One service for all tests over one cluster; each leaves it without open jobs."""

    world: World
    folder: Path
    dead_after_s: float = DEAD_AFTER_S
    files: int = 0  # that the service may have open; 0: as many as there may be
    running: Running = field(init=False)

    def __post_init__(self) -> None:
        """Nothing runs yet."""
        self.notes_folder = self.folder / "notes"
        self.notes_folder.mkdir(parents=True, exist_ok=True)
        options = [*POLICY, "--dead-after", f"{self.dead_after_s:g}s", *self.world.serve]
        self.clocks = self.folder / "clocks"
        self.clocks.mkdir(exist_ok=True)
        usual = tuple(self.world.program) == PROGRAM
        program = (str(JUMPING),) if usual else tuple(self.world.program)
        if self.files:
            program = (LIMITED, str(self.files), *program)
        env = {**os.environ, "CLOCKS": str(self.clocks)}
        self.running = Running(self.folder, *options, program=program, env=env)

    def begin(self) -> None:
        """Start a service that has never run."""
        self.world.forget_workers()
        self.running.begin()

    def end(self) -> None:
        """End the service for good."""
        self.running.end()
        self.world.forget_workers()

    def set_clock(self, by_s: float) -> None:
        """Set the time of day that the service sees, as somebody does who sets it wrong, or right again."""
        wall = self.clocks / "wall"
        known_s = float(wall.read_text(encoding="ascii")) if wall.exists() else 0.0
        wall.write_text(str(known_s + by_s), encoding="ascii")

    @property
    def patience_s(self) -> float:
        """For what takes a few steps of which each may take as long as the cluster takes for one."""
        return 2 * self.world.patience_s + self.dead_after_s + 5

    def client(self) -> Client:
        """Of the service."""
        return self.running.client()

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def submit(self, manner: str, *arguments: float, gpus: int = 1, **spec: Any) -> str:
        """Submit a job of which every worker is an actor; its id."""
        with self.client() as client:
            return str(client.submit(self.job(manner, *arguments, gpus=gpus, **spec))["id"])

    def job(self, manner: str, *arguments: float, gpus: int = 1, gpu_type: str = "", **spec: Any) -> str:
        """The text of a job file; what an emulated cluster is to make of it is in its labels."""
        command = [sys.executable, "-I", "-S", ACTOR, str(self.notes_folder), manner]
        asked = f"{gpu_type}:{gpus}" if gpu_type else gpus
        number = arguments[0] if arguments else ENDLESS
        beats_s = dict.fromkeys(("beat", "saves", "train"), number * BEAT_S)
        lasts_s = {"sleep": number, **beats_s}.get(manner, ENDLESS)
        labels = {DURATION: f"{lasts_s:g}"} | ({SAVING: f"{number:g}"} if manner == "polite" else {})
        said = {
            "name": manner,
            "run": "exec " + shlex.join([*command, *(f"{one:g}" for one in arguments)]),
            "resources": {"accelerators": asked},
            "checkpoint": {"every": "1m"},
            "grace_period": "5s",
            "labels": labels,
            **({} if self.tells or manner != "train" else EMULATED_TRAINING),
            **spec,
        }
        return json.dumps(said)

    def shown(self, job: str) -> dict[str, Any]:
        """A job as the service describes it."""
        with self.client() as client:
            return client.describe(job)

    def finish(self, job: str) -> None:
        """A job that sleeps or counts is done."""
        (self.notes_folder / f"enough-{job}").touch()

    def change(self, job: str, verb: str, **values: Any) -> None:
        """Ask for something that is done to a job."""
        with self.client() as client:
            client.change(job, verb, **values)

    def open(self) -> list[dict[str, Any]]:
        """Jobs that have not ended."""
        with self.client() as client:
            return list(client.jobs(everybody=True))

    def log(self, job: str, attempt: int = 0) -> str:
        """What the first worker of an attempt has written."""
        with self.client() as client:
            return "".join(client.log(job, attempt=attempt))

    def cancel_all(self) -> None:
        """End what is open."""
        for one in self.open():
            self.change(one["id"], "cancel")
        self.until(lambda: not self.open(), "all jobs have ended")

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def until(self, found: Callable[[], Found], what: str, patience_s: float = 0.0) -> Found:
        """What `found` returns as soon as that is true; a service that is away is waited for."""
        until_s = time.monotonic() + (patience_s or self.patience_s)
        while True:
            try:
                if value := found():
                    return value
            except StrettoError:
                if time.monotonic() > until_s:
                    raise
            if time.monotonic() > until_s:
                raise NotInTime(f"{what}: not in time; {self.standing()}")
            time.sleep(LOOK_S)

    def standing(self) -> str:
        """How all open jobs and nodes stand, for messages."""
        keys = ("id", "state", "reason", "evidence", "gpus", "attempt", "nodes")
        with self.client() as client:
            nodes = [{key: one[key] for key in ("name", "state") if key in one} for one in client.nodes()]
        return f"{[{key: one[key] for key in keys} for one in self.open()]}; {nodes}"

    def until_state(self, job: str, *states: str) -> dict[str, Any]:
        """A job, once it is in one of these states."""

        def is_so() -> dict[str, Any] | None:
            one = self.shown(job)
            return one if one["state"] in states else None

        found = self.until(is_so, f"{job} is {' or '.join(states)}")
        assert found is not None
        return found

    def until_works(self, job: str, gpus: int = 0, attempt: int = 0) -> dict[str, Any]:
        """A job, once its processes have begun to work, on so many GPUs if that is said."""

        def is_so() -> dict[str, Any] | None:
            one = self.shown(job)
            if one["state"] != "RUNNING" or (gpus and one["gpus"] != gpus) or one["attempt"] < attempt:
                return None
            return one if not self.tells or len(self.began(job, one["attempt"])) >= one["gpus"] else None

        found = self.until(is_so, f"{job} works" + (f" on {gpus} GPUs" if gpus else ""))
        assert found is not None
        return found

    # ── evidence ──────────────────────────────────────────────────────────────────────────────────

    @property
    def tells(self) -> bool:
        """Whether workers are processes, which leave notes."""
        return self.world.name != "emulated"

    def notes(self, name: str) -> list[dict[str, Any]]:
        """What all actors have noted under a name."""
        try:
            text = (self.notes_folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def began(self, job: str, attempt: int = 0) -> list[dict[str, Any]]:
        """Beginnings of workers of a job."""
        prefix = f"{job}.{attempt}." if attempt else f"{job}."
        return [one for one in self.notes("began") if one["worker"].startswith(prefix)]

    def count(self, job: str) -> int:
        """How far it has counted."""
        path = self.notes_folder / f"count-{job}"
        return int(path.read_text(encoding="ascii")) if path.exists() else 0

    def check(self) -> None:
        """Nobody found taken what was given to it, and no worker began twice."""
        assert self.notes("violations") == []
        names = [one["worker"] for one in self.notes("began")]
        assert len(names) == len(set(names)), "no worker begins twice"

    def nodes(self) -> Mapping[str, dict[str, Any]]:
        """Nodes as the service shows them, by name."""
        with self.client() as client:
            return {one["name"]: one for one in client.nodes()}

    def left(self) -> list[str]:
        """What is there because of workers."""
        return list(asyncio.run(self.world.left()))
