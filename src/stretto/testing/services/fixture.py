"""A real service over a cluster, its jobs, and what these say of themselves."""

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stretto.client import Client
from stretto.demo.own_service import NotInTime, OwnService
from stretto.errors import StrettoError
from stretto.testing.backends.stage import ACTOR
from stretto.testing.services.world import ServiceWorld

POLICY = ("--policy", "sia", "--set", "policy.round_s=1", "--set", "policy.wait_penalty=2")
DEAD_AFTER_S = 5.0  # more than a busy machine keeps anybody from answering
LOOK_S = 0.05
BEAT_S = 0.05  # as actors have it
ENDLESS = 1_000_000

Found = TypeVar("Found")


class ServiceFixture:
    """One service for all tests over one cluster; each test leaves it without open jobs.

    folder: of its state and its jobs' notes; every node must see it. dead_after_s: `serve --dead-after`.
    """

    running: OwnService

    def __init__(self, world: ServiceWorld, folder: Path, dead_after_s: float = DEAD_AFTER_S) -> None:
        self.world, self.folder, self.dead_after_s = world, folder, dead_after_s
        self.notes_folder = folder / "notes"
        self.notes_folder.mkdir(parents=True, exist_ok=True)
        self.running = self.own_service([*POLICY, "--dead-after", f"{dead_after_s:g}s", *world.serve])

    def own_service(self, options: Sequence[str]) -> OwnService:
        """The service, which does not run yet."""
        return OwnService(self.folder, options, tuple(self.world.program), os.environ)

    @property
    def tells(self) -> bool:
        """Whether workers are processes, which leave notes."""
        return True

    def entries_of(self, manner: str, lasts_s: float, arguments: Sequence[float]) -> Mapping[str, Any]:
        """What a job file says besides, where workers only follow a model."""
        return {}

    def begin(self) -> None:
        """Start a service that has never run."""
        self.world.forget_workers()
        self.running.begin()

    def end(self) -> None:
        """End the service for good."""
        self.running.end()
        self.world.forget_workers()

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
        """The text of a job file."""
        command = [sys.executable, "-I", "-S", ACTOR, str(self.notes_folder), manner]
        asked = f"{gpu_type}:{gpus}" if gpu_type else gpus
        number = arguments[0] if arguments else ENDLESS
        beats_s = dict.fromkeys(("beat", "saves", "train"), number * BEAT_S)
        lasts_s = {"sleep": number, **beats_s}.get(manner, ENDLESS)
        entries = {
            "name": manner,
            "run": "exec " + shlex.join([*command, *(f"{argument:g}" for argument in arguments)]),
            "resources": {"accelerators": asked},
            "checkpoint": {"every": "1m"},
            "grace_period": "5s",
            **self.entries_of(manner, lasts_s, arguments),
            **spec,
        }
        return json.dumps(entries)

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
        """End what is open, an array at once."""
        for name in dict.fromkeys(job["array"] or job["id"] for job in self.open()):
            self.change(name, "cancel")
        self.until(lambda: not self.open(), "all jobs have ended")

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def until(self, condition: Callable[[], Found], what: str, patience_s: float = 0.0) -> Found:
        """What `condition` returns as soon as that is true; a service that is away is waited for."""
        until_s = time.monotonic() + (patience_s or self.patience_s)
        while True:
            try:
                if value := condition():
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
            nodes = [{key: node[key] for key in ("name", "state") if key in node} for node in client.nodes()]
        return f"{[{key: job[key] for key in keys} for job in self.open()]}; {nodes}"

    def until_state(self, job: str, *states: str) -> dict[str, Any]:
        """A job, once it is in one of these states."""

        def is_so() -> dict[str, Any] | None:
            description = self.shown(job)
            return description if description["state"] in states else None

        description = self.until(is_so, f"{job} is {' or '.join(states)}")
        assert description is not None
        return description

    def until_works(self, job: str, gpus: int = 0, attempt: int = 0) -> dict[str, Any]:
        """A job, once its processes have begun to work, on so many GPUs if that is said."""

        def is_so() -> dict[str, Any] | None:
            description = self.shown(job)
            if (
                description["state"] != "RUNNING"
                or (gpus and description["gpus"] != gpus)
                or description["attempt"] < attempt
            ):
                return None
            return (
                description
                if not self.tells or len(self.began(job, description["attempt"])) >= description["gpus"]
                else None
            )

        description = self.until(is_so, f"{job} works" + (f" on {gpus} GPUs" if gpus else ""))
        assert description is not None
        return description

    # ── evidence ──────────────────────────────────────────────────────────────────────────────────

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
        return [note for note in self.notes("began") if note["worker"].startswith(prefix)]

    def count(self, job: str) -> int:
        """How far it has counted."""
        path = self.notes_folder / f"count-{job}"
        return int(path.read_text(encoding="ascii")) if path.exists() else 0

    def check(self) -> None:
        """No GPU was given twice, and no worker began twice."""
        assert self.notes("violations") == []
        names = [note["worker"] for note in self.notes("began")]
        assert len(names) == len(set(names)), "no worker begins twice"

    def nodes(self) -> Mapping[str, dict[str, Any]]:
        """Nodes as the service shows them, by name."""
        with self.client() as client:
            return {node["name"]: node for node in client.nodes()}

    def left(self) -> list[str]:
        """What is there because of workers."""
        return list(asyncio.run(self.world.left()))
