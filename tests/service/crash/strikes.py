"""Blows of every kind against a service that runs sleepers."""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from stretto.agent import run_directory, supervisor
from stretto.demo.own_service import until
from stretto.model import StrettoError

from ..running import Running

SLEEPER = Path(__file__).parent / "sleeper.py"
JUMPING = Path(__file__).parent / "jumping.py"
SLOTS = 4
GRACE_S = 0.5
OPEN = 5  # jobs that are kept waiting or running while blows fall
SLEPT_S, SET_S = 3600.0, (7200.0, 40 * 86_400.0)  # by how much clocks jump
OPTIONS = ("--slots", str(SLOTS), "--gpu-type", "cpu")
AFTER_STOP = {"stubborn": 137, "polite": 0}  # how a worker of this manner ends that we stopped


@dataclass
class Asked:
    """A job as it was asked for."""

    name: str
    manner: str
    gpus: int
    beats: int
    id: str = ""  # once it was acknowledged


@dataclass(frozen=True)
class Blow:
    """One that fell."""

    kind: str
    target: str = ""  # the worker that was to be stopped; whether it was shows later
    did: str = ""  # what to it


@dataclass
class Scene:
    """A service, its jobs, and the blows so far."""

    folder: Path
    seed: int
    policy: str = "fifo"
    store: str = ""
    small_disk: Path | None = None
    blows: list[Blow] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)  # (job, verb) that was acknowledged

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.notes, self.clocks = self.folder / "notes", self.folder / "clocks"
        for each in (self.notes, self.clocks):
            each.mkdir(parents=True)
        env = {**os.environ, "CLOCKS": str(self.clocks)}
        options = [*OPTIONS, "--policy", self.policy]
        options += ["--set", "policy.round_s=1"] if self.policy in ("sia", "tiresias") else []
        self.running = Running(self.folder, *options, store=self.store, program=(str(JUMPING),), env=env)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def submit(self, manner: str = "", beats: int = 0, gpus: int = 0) -> Asked:
        """Submit a job until that is acknowledged, always with the same key."""
        manner = manner or self.chance.choice(["plain", "plain", "stubborn", "polite", "forking"])
        gpus = gpus or (self.chance.choice([1, 1, 2]) if manner in ("plain", "polite") else 1)
        job = Asked(f"j{len(self.asked)}", manner, gpus, beats or self.chance.randint(20, 60))
        self.asked.append(job)
        self._submit(job)
        return job

    def _submit(self, job: Asked) -> None:
        spec = {
            "name": job.name,
            "run": f"exec {sys.executable} -I -S {SLEEPER} {self.notes} {job.beats} {job.manner}",
            "resources": {"accelerators": job.gpus},
            "grace_period": f"{GRACE_S}s",
            "checkpoint": {"every": "1m"},
            "restart": {"max": 1000},
        }

        def acknowledged() -> bool:
            try:
                with self.running.client() as client:
                    job.id = client.submit(str(spec).replace("'", '"'), key=job.name)["id"]
            except StrettoError:
                return False
            return True

        until(acknowledged, what=f"{job.name} is acknowledged")

    def fill(self) -> None:
        """Keep some jobs open."""
        while len(self.open()) < OPEN:
            self.submit()

    def open(self) -> list[dict[str, Any]]:
        """Jobs that have not ended."""
        with self.running.client() as client:
            return list(client.jobs(everybody=True))

    def _running_workers(self, *manners: str) -> list[str]:
        """Workers that run, of jobs of some manners, those first that were struck least."""
        by_id = {job.id: job for job in self.asked}
        found = [
            name
            for name in self.running.workers()
            if not manners or by_id[name.split(".")[0]].manner.split("/")[0] in manners
        ]
        return sorted(found, key=lambda name: (int(name.split(".")[1]), self.chance.random()))

    def _one_running(self, *manners: str) -> str:
        """A worker of one of these manners; a job is submitted whenever none is open."""

        def running() -> str:
            found = self._running_workers(*manners)
            if not found and not self._is_open(manners):  # the last may end before anybody saw it run
                self.submit(manners[0] if manners else "")
            return found[0] if found else ""

        return until(running, what=f"a worker of {manners} runs")

    def _is_open(self, manners: Sequence[str]) -> bool:
        by_id = {job.id: job for job in self.asked}
        return any(not manners or by_id[one["id"]].manner in manners for one in self.open())

    # ── blows ─────────────────────────────────────────────────────────────────────────────────────

    def strike(self, kind: str) -> None:
        """One blow at a random moment. What it was aimed at may have ended just before: then another."""
        blows: dict[str, Callable[[], Blow | None]] = {
            "worker": lambda: self._kill_of(self._one_running(), "worker", ""),
            "supervisor": lambda: self._kill_of(self._one_running(), "supervisor", "keeper_"),
            "agent": self._kill_agent,
            "service": self._kill_service,
            "graceful": self._end_service,
            "database": self._cut_connections,
            "disk": self._fill_disk,
            "stubborn": lambda: self._stop("stubborn"),
            "polite": lambda: self._stop("polite"),
            "clock": self._jump,
        }

        def fallen() -> Blow | None:
            self.fill()
            time.sleep(self.chance.uniform(0.0, 0.4))
            return blows[kind]()

        self.blows.append(until(lambda: fallen() or False, what=f"a blow of kind {kind} falls"))

    def landed(self) -> Counter[str]:
        """How many blows of each kind did what they were to do; waits for the ends of who was stopped."""
        return Counter(blow.kind for blow in self.blows if not blow.target or self._was_stopped(blow))

    def _was_stopped(self, blow: Blow) -> bool:
        """Whether it was our signal that ended a worker, as it ends those of its manner."""
        run = self.running.agent_state / "runs" / blow.target
        gone = self.running.agent_state / "forgotten" / blow.target

        def ending() -> dict[str, Any]:
            return (
                run_directory.read_json(run / "ended.json")
                or run_directory.read_json(gone / "ended.json")
                or {}
            )

        end = until(ending, what=f"{blow.target} ends after {blow.did}")
        done = self.notes / f"job-{blow.target.split('.')[0]}-done"
        by_itself = done.exists() and blow.target in done.read_text().split()
        return bool(end["stopped"]) and end["status"] == AFTER_STOP[blow.kind] and not by_itself

    def _kill_of(self, worker: str, kind: str, whose: str) -> Blow | None:
        notes = self.running.workers().get(worker)
        now = supervisor.process_at(int(notes[f"{whose}pid"])) if notes else None
        if notes is None or now is None or now.ticks != notes[f"{whose}ticks"]:
            return None
        supervisor.send_to(now, signal.SIGKILL)
        return Blow(kind)

    def _kill_agent(self) -> Blow:
        agent = until(self.running.agent, what="an agent runs")
        os.kill(agent, signal.SIGKILL)
        until(lambda: supervisor.process_at(agent) is None, what="the agent is gone")
        return Blow("agent")

    def _kill_service(self) -> Blow:
        """While somebody submits: what was acknowledged counts, what was not is tried again."""
        job = Asked(f"j{len(self.asked)}", "plain", 1, 20)
        self.asked.append(job)
        submitting = threading.Thread(target=self._submit, args=(job,))
        submitting.start()
        time.sleep(self.chance.uniform(0.0, 0.05))
        assert self.running.kill() == -signal.SIGKILL, "it had ended by itself"
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0.0, 1.0))
        if self.chance.random() < 0.3 and (agent := self.running.agent()):
            os.kill(agent, signal.SIGKILL)
        self.running.begin()
        submitting.join(timeout=120)
        assert not submitting.is_alive()
        again = self.chance.choice([one for one in self.asked if one.id])
        known = again.id
        self._submit(again)  # as somebody does who never heard the answer
        assert again.id == known, f"{again} became another job"
        return Blow("service")

    def _end_service(self) -> Blow:
        """As whoever updates it does: its workers do not notice."""
        before = self.running.workers()
        assert self.running.kill(signal.SIGTERM) == 0, self.running.last_words()
        time.sleep(self.chance.uniform(0.0, 0.5))
        for name, notes in self.running.workers().items():
            assert notes["pid"] == before.get(name, notes)["pid"]
        self.running.begin()
        return Blow("graceful")

    def _cut_connections(self) -> Blow | None:
        """The server ends all of the service's, or the process behind one of them is killed."""
        name = self.store.rpartition("/")[2]
        those = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        with psycopg.connect(self.store, autocommit=True) as connection:
            if self.chance.random() < 0.5:
                query = f"SELECT pg_terminate_backend(pid) {those}"
                cut = connection.execute(query, (name,)).rowcount
            else:
                pids = [pid for (pid,) in connection.execute(f"SELECT pid {those}", (name,))]
                cut = len(pids)
                if pids:
                    os.kill(self.chance.choice(pids), signal.SIGKILL)
        if self.running.process is not None and self.running.process.poll() is not None:
            raise AssertionError(self.running.log.read_text()[-3000:])
        return Blow("database") if cut else None

    def _fill_disk(self) -> Blow:
        """A job saves to a disk that becomes full; it fails, waits, and goes on once there is room."""
        assert self.small_disk is not None
        job = self.submit(str(self.small_disk), beats=40, gpus=1)
        notes = self.notes / f"job-{job.id}-beats"
        until(lambda: notes.exists() and int(notes.read_text() or 0) > 2, what="the job beats")
        filler = self.small_disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass
        with self.running.client() as client:
            until(lambda: client.describe(job.id)["failures"] > 0, what="the job has failed")
            assert client.describe(job.id)["state"] != "FAILED"
        filler.unlink()
        return Blow("disk")

    def _stop(self, manner: str) -> Blow | None:
        """A job that ignores SIGTERM, or says 0 after it, is stopped: it goes on later, or is cancelled."""
        worker = self._one_running(manner)
        verb = self.chance.choice(["requeue", "requeue", "hold", "cancel"])
        if not self.change(worker.split(".")[0], verb):
            return None
        if verb == "hold":
            time.sleep(self.chance.uniform(0.0, 2 * GRACE_S))
            self.change(worker.split(".")[0], "release")
        return Blow(manner, worker, verb)

    def change(self, job: str, verb: str) -> bool:
        """Ask for it; whether that was acknowledged."""
        try:
            with self.running.client() as client:
                client.change(job, verb)
        except StrettoError:
            return False
        self.changed.append((job, verb))
        return True

    def _jump(self) -> Blow:
        """The machine slept for an hour; or the time of day is set, also while the service does not run."""
        kind = self.chance.choice(["slept", "wall", "wall"])
        path = self.clocks / kind
        known = float(path.read_text()) if path.exists() else 0.0
        by_s = SLEPT_S if kind == "slept" else self.chance.choice([-1, 1]) * self.chance.choice(SET_S)
        noticed = self._readings()
        path.write_text(str(known + by_s))
        if self.chance.random() < 0.5:
            self.running.kill()
            self.running.begin()
        until(lambda: self._readings() > noticed, what="the jump is noticed")
        self.submit()  # something is recorded after it
        return Blow("clock", did=kind)

    def _readings(self) -> int:
        """How often the clocks were found to differ from what was known."""
        return sum(kind == "ClockSet" for _, _, kind, _ in self.running.log_of_all())

    # ── afterwards ────────────────────────────────────────────────────────────────────────────────

    def settle(self, patience_s: float) -> None:
        """No more blows: all jobs come to their ends."""
        until(lambda: not self.open(), patience_s, "all jobs have ended")
