"""Workers as jobs of Slurm: how each is submitted, what is known of it, and how it ended.

One worker is one job, and has a directory that all nodes see:

runs/WORKER/start.json    what was asked for, with its secrets; readable by the owner only
            secrets.json  values of the job's secrets, which the supervisor takes away as it begins
            orders        what the supervisor is to do, a JSON object a line; a signal has it look
            taken/        made by the first of two: the job as it begins, or the service as it withdraws it;
                          so nothing is run twice however often it was submitted, nor after its withdrawal
            taken/by      the Slurm job that began
            slice.json    the Slurm job that was submitted
            running.json, ended.json, log    as the supervisor writes them on any machine
            keeper.log     what Slurm and the supervisor themselves had to say
"""

import errno
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from stretto.agent import batch_supervisor, container, run_directory, supervisor
from stretto.agent.inherited_env import inherited
from stretto.backends.protocol import WorkerStart, WorkerState
from stretto.backends.slurm.client import CREDENTIALS, option
from stretto.backends.slurm.nodes import NodeResources
from stretto.backends.slurm.options import SlurmOptions
from stretto.backends.slurm.parsers import SlurmJob

LONGEST_NOTICE_S = 65_535  # that Slurm can give before a time limit
NOT_SEEN, TAKEN = 74, 75  # how a worker job ends that does not see its directory, or came second
USUAL_OPTIONS = SlurmOptions()
WITHDRAWN = {"status": 143, "signal": 15, "stopped": True}
ASKED = ("account", "qos", "constraint", "reservation")  # beside the partition

# Of our own surroundings, what a worker job must not inherit: Slurm's words for another job, and this
# machine's.
OWN = ("STRETTO_", "SLURM", "SBATCH_", "SQUEUE_", "SCANCEL_", "SRUN_", "SALLOC_", "SINFO_", "SSH_", "XDG_")
OWN_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
        "GPU_DEVICE_ORDINAL", "TMPDIR", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "DISPLAY", "TERM",
    }
)  # fmt: skip

SCRIPT = """#!/bin/sh
# One worker of a job of Stretto; it becomes the supervisor, to which signals of Slurm then go.
run={run}
cd "$run" || exit {not_seen}
mkdir taken 2>/dev/null || {{ echo "this worker has begun or was withdrawn before"; exit {taken}; }}
echo "$SLURM_JOB_ID" >taken/by
unset {credentials}
python={python}
[ -x "$python" ] || python=python3
exec "$python" -I -S {supervisor} "$run" </dev/null
"""


def script_of(run: Path, supervisor_path: Path) -> str:
    """The batch script of a worker job: it becomes the supervisor, so that Slurm's signals reach it."""
    return SCRIPT.format(
        run=shlex.quote(str(run)),
        python=shlex.quote(sys.executable),
        supervisor=shlex.quote(str(supervisor_path)),
        credentials=" ".join(CREDENTIALS),
        not_seen=NOT_SEEN,
        taken=TAKEN,
    )


def comment_of(service: str, worker_id: str) -> str:
    """By which a worker job is found again."""
    return f"stretto:{service}:{worker_id}"


def asked_of_slurm(worker: WorkerStart) -> Mapping[str, str]:
    """What the job's file asks of Slurm: partition, account, constraint and so on."""
    return worker.asks.get(SlurmOptions.name, {})


def submission(
    worker: WorkerStart,
    options: SlurmOptions,
    service: str,
    run: Path,
    partition: str,
    gres: str,
    resources: NodeResources,
    reservation: str = "",
) -> list[str]:
    """The command that submits a worker job; its script goes to standard input.

    reservation: that its node has while it is on loan, before any that its file names.
    """
    job_options = {"account": options.account, "qos": options.qos, **asked_of_slurm(worker)}
    if reservation:
        job_options["reservation"] = reservation
    return [
        "sbatch",
        "--parsable",
        "--export=ALL",  # of what `Commands` gives it
        "--no-requeue",  # who is to run again is decided by one scheduler only
        f"--job-name={worker.name or 'stretto'}:{worker.id}",
        f"--comment={comment_of(service, worker.id)}",
        f"--nodelist={worker.node}",
        "--nodes=1",  # and no --ntasks: launchers in the script would take its variable for the job's size
        *option("gres", gres),
        f"--cpus-per-task={resources.cpus}",
        *option("mem", f"{resources.memory_mb}M" if resources.memory_mb else ""),
        *option("partition", partition),
        *(part for name in ASKED for part in option(name, job_options.get(name, ""))),
        f"--signal=B:TERM@{min(int(worker.grace_s) + 1, LONGEST_NOTICE_S)}",  # before a time limit
        "--open-mode=append",
        f"--output={str(run / 'keeper.log').replace('%', '%%')}",
        f"--chdir={run}",
    ]


def surroundings(environment: Mapping[str, str], also: Sequence[str] = ()) -> dict[str, str]:
    """What of our environment a worker inherits, by a private file; `also` as `inherited` takes it."""
    return {
        name: value
        for name, value in inherited(environment, also).items()
        if name not in OWN_NAMES and not name.startswith(OWN)
    }


def place_supervisor_script(folder: Path) -> Path:
    """A copy of the supervisor where all nodes see it, by what it contains; raises OSError."""
    texts = {
        Path(each).name: Path(each).read_bytes()
        for each in (supervisor.__file__, batch_supervisor.__file__, container.__file__)
    }
    place = folder / f"keeper-{hashlib.sha256(b''.join(texts.values())).hexdigest()[:12]}"
    place.mkdir(mode=0o700, exist_ok=True)
    for name, text in texts.items():
        if not (place / name).exists():
            part = place / f"{name}.{os.getpid()}.part"
            part.write_bytes(text)
            part.replace(place / name)
    return place / Path(batch_supervisor.__file__).name


def resources_of(worker: WorkerStart, share: NodeResources) -> NodeResources:
    """What a worker is to have: as it says, else its share."""
    cpus, memory_mb = ceil(worker.cpus) or share.cpus, ceil(worker.memory_gb * 1024) or share.memory_mb
    return NodeResources(len(worker.gpus), cpus, memory_mb)


def prepare(
    folder: Path, worker: WorkerStart, resources: NodeResources, options: SlurmOptions = USUAL_OPTIONS
) -> Path:
    """Write a worker job down before it is submitted; raises OSError."""
    inherits = surroundings(os.environ, options.pass_env)
    around = {name: value for name, value in inherits.items() if name not in worker.env}
    start = {**request_of(worker), "cpus": resources.cpus, "memory_mb": resources.memory_mb}
    if "STRETTO_UPLOAD" in worker.env:  # a copy of it is to lie on the node, and not where all nodes see it
        start[batch_supervisor.SCRATCH] = {"name": scratch_name(folder, worker), "below": options.scratch}
    if worker.image:
        start[supervisor.CONTAINER] = container_of(folder, worker, options)
    return run_directory.prepare(folder, worker.id, start, around, fifo=False, secrets=worker.secrets)


def container_of(folder: Path, worker: WorkerStart, options: SlurmOptions) -> dict[str, Any]:
    """In which container its command runs: all see the shared folder, and what the service names."""
    binds = [str(folder.parents[2]), *options.mounts]
    return {
        "image": worker.image,
        "by": options.container,
        "program": options.container_program,
        "binds": binds,
    }


def scratch_name(folder: Path, worker: WorkerStart) -> str:
    """Of the directory that the workers of one attempt share on a node, and those of no other service."""
    attempt = worker.id.rpartition(".")[0] or worker.id
    return f"{attempt}-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def request_of(worker: WorkerStart) -> dict[str, Any]:
    """What a start asks for, as its directory keeps it."""
    return {**worker.request(), "node": worker.node}


def take(run: Path) -> bool:
    """Keep a worker job from ever beginning; False where it has begun, or may have."""
    try:
        (run / "taken").mkdir()
    except FileExistsError:
        return False
    supervisor.sync_directory(run)
    return True


def taken_by(run: Path) -> int:
    """The Slurm job that began; 0 for none, or none that said so yet."""
    try:
        return int((run / "taken" / "by").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def note_job(run: Path, job_id: int) -> None:
    """Write down which Slurm job it is; raises OSError."""
    supervisor.write_durably(run / "slice.json", {"job": job_id, "asked_s": time.time()})


def withdraw(run: Path, why: str) -> None:
    """Write down that a worker job which we took ourselves has ended; raises OSError."""
    (run / supervisor.SECRETS).unlink(missing_ok=True)
    now_s = time.time()
    ending = {**WITHDRAWN, "why": why, "started_s": None, "ended_s": now_s, "lasted_s": 0.0, "settled": True}
    supervisor.write_durably(run / "ended.json", ending)


def give_order(run: Path, order: dict[str, Any]) -> None:
    """Write an order down for the supervisor, which looks for it at the next signal; raises OSError."""
    file = os.open(run / supervisor.ORDERS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        line = b"\n" + json.dumps(order).encode() + b"\n"  # the one before may have been cut
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run / supervisor.ORDERS))
        os.fsync(file)
    finally:
        os.close(file)


def stop_of(run: Path) -> float | None:
    """The shortest grace of all stops that were asked for; None for none."""
    with suppress(OSError):
        orders = supervisor.orders_in((run / supervisor.ORDERS).read_bytes())
        return min((float(order["stop"]) for order in orders if "stop" in order), default=None)
    return None


def refresh(run: Path) -> None:
    """Make a network file system forget that it saw no file there."""
    probe = run / f".probe-{os.getpid()}"
    with suppress(OSError):
        probe.touch()
        probe.unlink()


# ── what is known of a worker job, and how it ended ─────────────────────────────────────────────────────────


ORDINARY = frozenset({"COMPLETED", "FAILED"})  # states that say no more than the exit status does
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})  # nobody is left there who could write anything
WORDS = {
    NOT_SEEN: "its node does not see the shared directory",
    TAKEN: "it was submitted twice, and the other one began",
    126: "its node cannot run the supervisor",
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
    """What the supervisor wrote, with Slurm's words for an end that was not ours.

    asked: whether we had it stopped.
    """
    said = {} if ending.get("why") or asked or job is None else {"why": words_of(job)}
    return {**ending, **said}


def untold(job: SlurmJob | None, began: bool, was_asked: bool) -> dict[str, Any]:
    """How a worker job ended of which no supervisor wrote anything, once Slurm says that it is over.

    Never 0: only a supervisor knows that, and one that ended well has written it.
    began: whether it may have run.
    """
    wait_status = job.wait_status if job is not None else None
    words = words_of(job)
    ending: dict[str, Any] = {
        "stopped": was_asked,
        "started_s": None,
        "ended_s": time.time(),
        "lasted_s": None,
    }
    if not began:
        why = f"it was withdrawn before it began. {words}" if words else "it was withdrawn before it began"
        return {**ending, **WITHDRAWN, "stopped": was_asked, "why": why.strip()}
    if wait_status and not (job and job.states & LOST):
        if os.WIFSIGNALED(wait_status):
            exit_status = supervisor.status_of(wait_status & 0x7F)
        else:
            exit_status = {"status": wait_status >> 8 & 0xFF or 137, "signal": None}
        why = words or WORDS.get(exit_status["status"], "")
        if exit_status["status"] in (NOT_SEEN, TAKEN):
            exit_status = dict(supervisor.KILLED)
        return {**ending, **exit_status, "why": why or "its supervisor did not say how it ended"}
    return {**ending, **supervisor.KILLED, "why": words or "its supervisor did not say how it ended"}


# ── what is known of one worker job, and how what its files and Slurm say becomes a worker
# ───────────────────────


SETTLE_S = 2.0  # for a file system to show what a supervisor wrote last; chosen
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
    """What a worker job's directory says."""

    running: dict[str, Any] | None
    ending: dict[str, Any] | None
    submitted: int  # the Slurm job that was submitted; 0: not known
    taken: bool
    by: int  # the Slurm job that began; 0: none, or not known
    stop_s: float | None  # the shortest grace of the stops that were asked for


def read_notes(run: Path) -> WorkerNotes:
    """Read a directory. Raises OSError, Damaged."""
    is_taken = (run / "taken").exists()
    return WorkerNotes(
        running=run_directory.read_shaped(run / "running.json", run_directory.RUNNING),
        ending=run_directory.read_json(run / "ended.json"),
        submitted=(run_directory.read_shaped(run / "slice.json", SUBMITTED) or {}).get("job", 0),
        taken=is_taken,
        by=taken_by(run) if is_taken else 0,
        stop_s=stop_of(run),
    )


@dataclass
class WorkerJob:
    """One worker job."""

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
    over_since_s: float | None = None  # monotonic; since when it is over and no supervisor said how
    missed: int = 0  # listings in a row without it
    told_s: float = float("-inf")  # monotonic; when the supervisor was last sent a signal to stop
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
    def holds(self) -> NodeResources:
        """What Slurm has given it, or may have."""
        if self.ended or self.job_id == 0 or (self.job is not None and self.job.is_waiting):
            return NodeResources()
        return NodeResources(len(self.state.gpus), self.started["cpus"], self.started["memory_mb"])

    def is_about_to_change(self, now_s: float) -> bool:
        """Whether something is under way that ends by itself within moments."""
        if self.ended or self.state.phase == "unknown":
            return False
        waits_long = self.waits_since_s is not None and now_s - self.waits_since_s > SOON_OVER_S
        starting = self.state.phase == "starting" and not waits_long
        ending = self.notes.ending is not None or self.over_since_s is not None
        return starting or self.notes.stop_s is not None or ending


def worker_job_at(run: Path) -> WorkerJob:
    """A worker job as its directory shows it, before Slurm was asked. Raises OSError, Damaged."""
    started = run_directory.read_shaped(run / "start.json", STARTED)
    if started is None:
        raise run_directory.Damaged("start.json is missing")
    notes = read_notes(run)
    state = WorkerState(run.name, started["node"], tuple(started["gpus"]), "starting", job=started["job"])
    worker = WorkerJob(run, started, state, job_id=notes.by or notes.submitted, notes=notes)
    if worker.job_id == 0 and notes.ending is None:
        return worker
    worker.state = replace(state, phase="unknown")
    if notes.ending is not None and notes.ending.get("settled"):
        worker.state = ended_state(worker, notes.ending)
    return worker


def chosen_job(known: WorkerJob, jobs: list[SlurmJob]) -> SlurmJob | None:
    """Which of the Slurm jobs of its name is the worker: that which began, was submitted, or is alive."""
    numbers = {job.id: job for job in jobs}
    if number := known.notes.by or known.job_id:
        return numbers.get(number)
    return min((job for job in jobs if not job.is_over), key=lambda job: job.id, default=None)


def going_state(worker: WorkerJob, node_up: bool) -> WorkerState:
    """A worker job that is not over, as a worker."""
    running, job = worker.notes.running, worker.job
    if running is None:
        why = f"Slurm says {job.word}{f': {job.reason}' if job.reason else ''}" if job is not None else ""
        return replace(worker.state, phase="starting" if node_up else "unknown", why=why)
    exit_ = running.get("exit") or {}
    return replace(
        worker.state,
        phase="running" if node_up else "unknown",
        status=exit_.get("status"),
        signal=exit_.get("signal"),
        stopped=bool(exit_.get("stopped", running.get("stopping", False))),
        pid=running.get("pid"),
        started_s=running.get("started_s"),
        why=exit_.get("why", ""),
    )


def ended_state(worker: WorkerJob, ending: dict[str, Any]) -> WorkerState:
    """A worker job of which nothing runs any more, as a worker."""
    running = worker.notes.running or {}
    status = ending.get("status")
    return replace(
        worker.state,
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


def ending_of(worker: WorkerJob, now_s: float) -> dict[str, Any] | None:
    """How a worker job that is over ended; None while that may still be learned.

    Where no supervisor wrote it, `worker.job` must come from `scontrol show job`, with the script's status.
    """
    was_asked = worker.notes.stop_s is not None
    if worker.notes.ending is not None:
        return explained(worker.notes.ending, worker.job, was_asked)
    began = worker.notes.taken
    lost = worker.job is not None and bool(worker.job.states & LOST)
    if began and not lost and (worker.over_since_s is None or now_s - worker.over_since_s < SETTLE_S):
        return None
    return untold(worker.job, began, was_asked)


def monotonic_s() -> float:
    """Now, by the clock that all of this counts in."""
    return time.monotonic()
