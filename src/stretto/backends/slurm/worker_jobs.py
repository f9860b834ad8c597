"""Workers as jobs of Slurm: what is known of each, and how it ended.

How a worker job ended, from what its supervisor wrote and what Slurm says.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.agent import run_directory, supervisor
from stretto.backends.protocol import WorkerState
from stretto.backends.slurm import worker_scripts
from stretto.backends.slurm.nodes import Holding
from stretto.backends.slurm.parsers import SlurmJob

ORDINARY = frozenset({"COMPLETED", "FAILED"})  # states that say no more than the exit status does
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})  # nobody is left there who could write anything
WORDS = {
    worker_scripts.NOT_SEEN: "its node does not see the shared directory",
    worker_scripts.TAKEN: "it was submitted twice, and the other one began",
    126: "its node cannot run the keeper",
    127: "its node has no python3",
}


def words_of(job: SlurmJob | None) -> str:
    """How Slurm says a job ended, where that is more than its exit status."""
    if job is None:
        return "Slurm knows it no more"
    if job.states <= ORDINARY:
        return ""
    reason = f": {job.reason}" if job.reason and job.reason.upper() not in job.states else ""
    return f"Slurm says {job.word}{reason}"


def explained(ending: Mapping[str, Any], job: SlurmJob | None, asked: bool) -> dict[str, Any]:
    """What the keeper wrote, with Slurm's words for an end that was not ours.

    asked: whether we had it stopped.
    """
    said = {} if ending.get("why") or asked or job is None else {"why": words_of(job)}
    return {**ending, **said}


def untold(job: SlurmJob | None, began: bool, asked: bool) -> dict[str, Any]:
    """How a slice ended of which no keeper wrote anything, once Slurm says that it is over.

    Never 0: only a keeper knows that, and one that ended well has written it.
    began: whether it may have run.
    """
    wait_status = job.wait_status if job is not None else None
    words = words_of(job)
    told: dict[str, Any] = {"stopped": asked, "started_s": None, "ended_s": time.time(), "lasted_s": None}
    if not began:
        why = f"it was withdrawn before it began. {words}" if words else "it was withdrawn before it began"
        return {**told, **worker_scripts.WITHDRAWN, "stopped": asked, "why": why.strip()}
    if wait_status and not (job and job.states & LOST):
        if os.WIFSIGNALED(wait_status):
            said = supervisor.status_of(wait_status & 0x7F)
        else:
            said = {"status": wait_status >> 8 & 0xFF or 137, "signal": None}
        why = words or WORDS.get(said["status"], "")
        if said["status"] in (worker_scripts.NOT_SEEN, worker_scripts.TAKEN):
            said = dict(supervisor.KILLED)
        return {**told, **said, "why": why or "its keeper did not say how it ended"}
    return {**told, **supervisor.KILLED, "why": words or "its keeper did not say how it ended"}


# ── what is known of one slice, and how what its files and Slurm say becomes a worker ───────────────────────


SETTLE_S = 2.0  # for a file system to show what a keeper wrote last; chosen
SOON_OVER_S = 10.0  # of waiting in Slurm, after which it is looked for less often; chosen
MISSED = 2  # listings in a row that lack a job, until Slurm has forgotten it; chosen

STARTED: run_directory.Shape = {
    **run_directory.STARTED,
    "node": run_directory.is_text,
    "cpus": run_directory.is_number,
    "memory_mb": run_directory.is_number,
}
SUBMITTED: run_directory.Shape = {"job": run_directory.is_count}


@dataclass(frozen=True, slots=True)
class WorkerNotes:
    """What a slice's directory says."""

    running: dict[str, Any] | None
    ending: dict[str, Any] | None
    submitted: int  # the Slurm job that was submitted; 0: not known
    taken: bool
    by: int  # the Slurm job that began; 0: none, or not known
    stop_s: float | None  # the shortest grace of the stops that were asked for


def read_notes(run: Path) -> WorkerNotes:
    """Read a directory. Raises OSError, Damaged."""
    taken = (run / "taken").exists()
    return WorkerNotes(
        running=run_directory.read_shaped(run / "running.json", run_directory.RUNNING),
        ending=run_directory.read_json(run / "ended.json"),
        submitted=(run_directory.read_shaped(run / "slice.json", SUBMITTED) or {}).get("job", 0),
        taken=taken,
        by=worker_scripts.taken_by(run) if taken else 0,
        stop_s=worker_scripts.stop_of(run),
    )


@dataclass
class WorkerJob:
    """One slice."""

    run: Path
    started: dict[str, Any]  # start.json
    state: WorkerState
    job_id: int = 0  # 0: it is not known whether Slurm has it
    submitting: bool = False  # sbatch is under way
    answered_s: float = float("-inf")  # monotonic; when its submission was answered
    job: SlurmJob | None = None  # as last listed
    notes: WorkerNotes = field(default_factory=lambda: WorkerNotes(None, None, 0, False, 0, None))
    waits_since_s: float | None = None  # monotonic; since when Slurm has been seen to keep it waiting
    refused_since_s: float | None = None  # monotonic; since when Slurm has not taken it for the time being
    over_since_s: float | None = None  # monotonic; since when it is over and no keeper said how
    missed: int = 0  # listings in a row without it
    told_s: float = float("-inf")  # monotonic; when the keeper was last sent a signal to stop
    pressed_s: float = float("-inf")  # monotonic; when Slurm was last asked to end it by itself

    @property
    def id(self) -> str:
        """Of its worker."""
        return self.state.id

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs, nor will."""
        return self.state.phase == "ended"

    @property
    def listed(self) -> bool:
        """Whether it is a worker at all: one of which it is unknown whether Slurm has it is none yet."""
        return self.job_id != 0 or self.ended

    @property
    def holds(self) -> Holding:
        """What Slurm has given it, or may have."""
        if self.ended or self.job_id == 0 or (self.job is not None and self.job.is_waiting):
            return Holding()
        return Holding(len(self.state.gpus), self.started["cpus"], self.started["memory_mb"])

    def is_about_to_change(self, now_s: float) -> bool:
        """Whether something is under way that ends by itself within moments."""
        if self.ended or self.state.phase == "unknown":
            return False
        waits_long = self.waits_since_s is not None and now_s - self.waits_since_s > SOON_OVER_S
        starting = self.state.phase == "starting" and not waits_long
        ending = self.notes.ending is not None or self.over_since_s is not None
        return starting or self.notes.stop_s is not None or ending


def slice_at(run: Path) -> WorkerJob:
    """A slice as its directory shows it, before Slurm was asked. Raises OSError, Damaged."""
    started = run_directory.read_shaped(run / "start.json", STARTED)
    if started is None:
        raise run_directory.Damaged("start.json is missing")
    notes = read_notes(run)
    state = WorkerState(run.name, started["node"], tuple(started["gpus"]), "starting", job=started["job"])
    known = WorkerJob(run, started, state, job_id=notes.by or notes.submitted, notes=notes)
    if known.job_id == 0 and notes.ending is None:
        return known
    known.state = replace(state, phase="unknown")
    if notes.ending is not None and notes.ending.get("settled"):
        known.state = ended_state(known, notes.ending)
    return known


def chosen_job(known: WorkerJob, jobs: list[SlurmJob]) -> SlurmJob | None:
    """Which of the Slurm jobs that carry its name is the slice: who began, was submitted, or is alive."""
    numbers = {job.id: job for job in jobs}
    if number := known.notes.by or known.job_id:
        return numbers.get(number)
    return min((job for job in jobs if not job.is_over), key=lambda job: job.id, default=None)


def going_state(known: WorkerJob, node_up: bool) -> WorkerState:
    """A slice that is not over, as a worker."""
    running, job = known.notes.running, known.job
    if running is None:
        why = f"Slurm says {job.word}{f': {job.reason}' if job.reason else ''}" if job is not None else ""
        return replace(known.state, phase="starting" if node_up else "unknown", why=why)
    exit_ = running.get("exit") or {}
    return replace(
        known.state,
        phase="running" if node_up else "unknown",
        status=exit_.get("status"),
        signal=exit_.get("signal"),
        stopped=bool(exit_.get("stopped", running.get("stopping", False))),
        pid=running.get("pid"),
        started_s=running.get("started_s"),
        why=exit_.get("why", ""),
    )


def ended_state(known: WorkerJob, ending: dict[str, Any]) -> WorkerState:
    """A slice of which nothing runs any more, as a worker."""
    running = known.notes.running or {}
    status = ending.get("status")
    return replace(
        known.state,
        phase="ended",
        status=137 if status is None else int(status),
        signal=ending.get("signal"),
        stopped=bool(ending.get("stopped", False)),
        pid=running.get("pid"),
        started_s=ending.get("started_s") or running.get("started_s"),
        ended_s=ending.get("ended_s"),
        lasted_s=ending.get("lasted_s"),
        why=ending.get("why", ""),
    )


def is_over(known: WorkerJob) -> bool:
    """Whether Slurm says that nothing of it runs any more."""
    if known.job is not None and known.missed == 0:
        return known.job.is_over
    return known.missed >= (1 if known.notes.ending is not None else MISSED)


def ending_of(known: WorkerJob, now_s: float) -> dict[str, Any] | None:
    """How a slice that is over ended; None while that may still be learned.

    Where no keeper said so, `known.job` must be as `scontrol show job` has it, with the status of the script.
    """
    asked = known.notes.stop_s is not None
    if known.notes.ending is not None:
        return explained(known.notes.ending, known.job, asked)
    began = known.notes.taken
    lost = known.job is not None and bool(known.job.states & LOST)
    if began and not lost and (known.over_since_s is None or now_s - known.over_since_s < SETTLE_S):
        return None
    return untold(known.job, began, asked)


def monotonic_s() -> float:
    """Now, by the clock that all of this counts in."""
    return time.monotonic()
