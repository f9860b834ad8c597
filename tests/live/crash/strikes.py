"""Blows of every kind against a service that runs sleepers, and what must still be true afterwards."""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from stretto.demo.own_service import until
from stretto.model import StrettoError

from ..running import Running

SLEEPER = Path(__file__).parent / "sleeper.py"
JUMPING = Path(__file__).parent / "jumping.py"
SLOTS = 4
GRACE_S = 0.5
OPEN = 5  # jobs that are kept waiting or running while blows fall
OPTIONS = ("--slots", str(SLOTS), "--gpu-type", "cpu")


@dataclass
class Asked:
    """A job as it was asked for."""

    name: str
    manner: str
    gpus: int
    beats: int
    id: str = ""  # once it was acknowledged
    is_cancelled: bool = False


@dataclass
class Scene:
    """A service, its jobs, and the blows so far."""

    folder: Path
    seed: int
    policy: str = "fifo"
    store: str = ""
    small_disk: Path | None = None
    struck: Counter[str] = field(default_factory=Counter)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.notes, self.clocks = self.folder / "notes", self.folder / "clocks"
        for each in (self.notes, self.clocks):
            each.mkdir(parents=True)
        os.environ["CLOCKS"] = str(self.clocks)
        options = [*OPTIONS, "--policy", self.policy]
        options += ["--set", "policy.round_s=1"] if self.policy in ("sia", "tiresias") else []
        self.running = Running(self.folder, *options, store=self.store, program=(str(JUMPING),))

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
        """A worker of one of these manners; a job is submitted where none is open."""
        by_id = {job.id: job for job in self.asked}
        if not any(by_id[one["id"]].manner in manners for one in self.open() if manners):
            self.submit(manners[0] if manners else "")
        return until(lambda: (self._running_workers(*manners) or [""])[0], what=f"a worker of {manners} runs")

    # ── blows ─────────────────────────────────────────────────────────────────────────────────────

    def strike(self, kind: str) -> None:
        """One blow at a random moment."""
        self.fill()
        time.sleep(self.chance.uniform(0.0, 0.4))
        blows: dict[str, Callable[[], None]] = {
            "worker": lambda: self._kill_of(self._one_running(), "pid"),
            "keeper": lambda: self._kill_of(self._one_running(), "keeper_pid"),
            "agent": self._kill_agent,
            "service": self._kill_service,
            "database": self._end_connections,
            "disk": self._fill_disk,
            "stubborn": lambda: self._stop("stubborn"),
            "polite": lambda: self._stop("polite"),
            "clock": self._jump,
        }
        blows[kind]()
        self.struck[kind] += 1

    def _kill_of(self, worker: str, whose: str) -> None:
        notes = self.running.workers().get(worker)
        if notes is not None:
            with suppress(ProcessLookupError):
                os.kill(int(notes[whose]), signal.SIGKILL)

    def _kill_agent(self) -> None:
        agent = until(self.running.agent, what="an agent runs")
        os.kill(agent, signal.SIGKILL)

    def _kill_service(self) -> None:
        """While somebody submits: what was acknowledged counts, what was not is tried again."""
        job = Asked(f"j{len(self.asked)}", "plain", 1, 20)
        self.asked.append(job)
        submitting = threading.Thread(target=self._submit, args=(job,))
        submitting.start()
        time.sleep(self.chance.uniform(0.0, 0.05))
        self.running.kill()
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(0.0, 1.0))
        if self.chance.random() < 0.3 and (agent := self.running.agent()):
            os.kill(agent, signal.SIGKILL)
        self.running.begin()
        submitting.join(timeout=60)
        assert not submitting.is_alive()

    def _end_connections(self) -> None:
        database = self.store.rpartition("/")[2]
        with psycopg.connect(self.store, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND pid <> pg_backend_pid()",
                (database,),
            )
        if self.running.process is not None and self.running.process.poll() is not None:
            raise AssertionError(self.running.log.read_text()[-3000:])

    def _fill_disk(self) -> None:
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
        filler.unlink()

    def _stop(self, manner: str) -> None:
        """A job that ignores SIGTERM, or says 0 after it, is stopped: it goes on later, or is cancelled."""
        job = self._one_running(manner).split(".")[0]
        verb = self.chance.choice(["requeue", "requeue", "hold", "cancel"])
        with self.running.client() as client, suppress(StrettoError):
            client.change(job, verb)
            if verb == "cancel":
                next(one for one in self.asked if one.id == job).is_cancelled = True
            if verb == "hold":
                time.sleep(self.chance.uniform(0.0, 2 * GRACE_S))
                client.change(job, "release")

    def _jump(self) -> None:
        """The machine slept for an hour; or the time of day is set while the service does not run."""
        kind = self.chance.choice(["monotonic", "wall", "wall"])
        path = self.clocks / kind
        known = float(path.read_text()) if path.exists() else 0.0
        by_s = 3600.0 if kind == "monotonic" else self.chance.choice([-7200.0, 7200.0])
        path.write_text(str(known + by_s))
        if kind == "wall":
            self.running.kill()
            self.running.begin()

    # ── afterwards ────────────────────────────────────────────────────────────────────────────────

    def settle(self, patience_s: float) -> None:
        """No more blows: all jobs come to their ends."""
        until(lambda: not self.open(), patience_s, "all jobs have ended")

    def check(self) -> None:
        """What must be true whatever happened."""
        running = self.running
        with running.client() as client:
            listed = {one["id"]: one for one in client.jobs(everybody=True, ended=True)}
        names = Counter(one["name"] for one in listed.values())
        assert names == Counter(job.name for job in self.asked), "each acknowledged once, and no other"
        for job in self.asked:
            shown, done = listed[job.id], self.notes / f"job-{job.id}-done"
            ends = done.read_text().split() if done.exists() else []
            right = {"COMPLETED", "CANCELLED"} if job.is_cancelled else {"COMPLETED"}
            assert shown["state"] in right, (job, shown)
            if shown["state"] == "COMPLETED":
                assert ends, f"{job} never came to its end"
                assert int((self.notes / f"job-{job.id}-beats").read_text()) == job.beats
        violations = self.notes / "violations"
        assert not violations.exists(), violations.read_text()
        starts = Counter((self.notes / "starts").read_text().split())
        assert max(starts.values()) == 1, starts.most_common(3)
        until(lambda: not running.processes() and not running.keepers(), 15, "no process is left")
        running.stop_gently()
        decisions, differences = running.differences()
        assert decisions > 0
        assert differences == 0
        check_log(list(running.log_of_all()))


def check_log(log: list[tuple[int, float, str, dict[str, Any]]]) -> None:
    """Numbers without gaps, time that does not go back, one holder of a GPU at a time, one end of a job.

    A job that was killed between its last word and its exit may say that word again: what counts is the exit.
    """
    assert [seq for seq, *_ in log] == list(range(1, len(log) + 1))
    assert all(before[1] <= after[1] for before, after in pairwise(log))
    holder: dict[tuple[str, int], str] = {}
    gpus: dict[str, list[tuple[str, int]]] = {}
    over: set[tuple[str, str]] = set()
    for seq, _, kind, body in log:
        if kind == "Ended" or (kind == "AttemptClosed" and body["outcome"] == "done"):
            assert (body["job"], kind) not in over, f"job {body['job']} came to its end twice, at {seq}"
            over.add((body["job"], kind))
        if kind == "WorkersWanted":
            assert (body["job"], "AttemptClosed") not in over, f"job {body['job']} was over, at {seq}"
            for one in body["workers"]:
                mask = int(one["mask"])
                held = [(one["node"], gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1]
                assert one["id"] not in gpus, f"{one['id']} was wanted twice, at {seq}"
                assert not [place for place in held if place in holder], f"a GPU was given twice at {seq}"
                gpus[one["id"]] = held
                holder |= dict.fromkeys(held, one["id"])
        elif kind in ("WorkerEnded", "WorkersEnded"):
            ended = [body["worker"]] if kind == "WorkerEnded" else [one["id"] for one in body["workers"]]
            for place in (place for name in ended for place in gpus[name]):
                holder.pop(place, None)
