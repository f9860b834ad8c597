"""A slice: one worker as one job of Slurm, and the directory that all nodes see and that says how it went.

runs/WORKER/start.json    what was asked for, with its secrets; readable by the owner only
            orders        what the keeper is to do, a JSON object a line; a signal has it look
            taken/        made by whoever is first: the slice as it begins, or we as we withdraw it;
                          so nothing is run twice however often it was submitted, nor after its withdrawal
            taken/by      the Slurm job that began
            slice.json    the Slurm job that was submitted
            running.json, ended.json, log    as the keeper writes them on any machine
            keeper.log     what Slurm and the keeper themselves had to say
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
from math import ceil
from pathlib import Path
from typing import Any

from stretto.agent import run_directory, supervisor
from stretto.agent.inherited_env import inherited
from stretto.backends.protocol import WorkerStart
from stretto.backends.slurm.client import CREDENTIALS, option
from stretto.backends.slurm.nodes import Holding
from stretto.backends.slurm.options import SlurmOptions

LONGEST_NOTICE_S = 65_535  # that Slurm can give before a time limit
NOT_SEEN, TAKEN = 74, 75  # how a slice ends that does not see its directory, or came second
WITHDRAWN = {"status": 143, "signal": 15, "stopped": True}
ASKED = ("account", "qos", "constraint", "reservation")  # beside the partition

# Of our own surroundings, what a slice must not inherit: Slurm's words for another job, and this machine's.
OWN = ("STRETTO_", "SLURM", "SBATCH_", "SQUEUE_", "SCANCEL_", "SRUN_", "SALLOC_", "SINFO_", "SSH_", "XDG_")
OWN_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
        "GPU_DEVICE_ORDINAL", "TMPDIR", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "DISPLAY", "TERM",
    }
)  # fmt: skip

SCRIPT = """#!/bin/sh
# One worker of a job of Stretto; it becomes the keeper, to which signals of Slurm then go.
run={run}
cd "$run" || exit {not_seen}
mkdir taken 2>/dev/null || {{ echo "this worker has begun or was withdrawn before"; exit {taken}; }}
echo "$SLURM_JOB_ID" >taken/by
unset {credentials}
python={python}
[ -x "$python" ] || python=python3
exec "$python" -I -S {keeper} "$run" </dev/null
"""


def script_of(run: Path, keeper_path: Path) -> str:
    """The batch script of a slice: it becomes the keeper, so that Slurm's signals reach it."""
    return SCRIPT.format(
        run=shlex.quote(str(run)),
        python=shlex.quote(sys.executable),
        keeper=shlex.quote(str(keeper_path)),
        credentials=" ".join(CREDENTIALS),
        not_seen=NOT_SEEN,
        taken=TAKEN,
    )


def comment_of(service: str, worker_id: str) -> str:
    """By which a slice is found again."""
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
    holding: Holding,
) -> list[str]:
    """The command that submits a slice; its script goes to standard input."""
    asked = {"account": options.account, "qos": options.qos, **asked_of_slurm(worker)}
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
        f"--cpus-per-task={holding.cpus}",
        *option("mem", f"{holding.memory_mb}M" if holding.memory_mb else ""),
        *option("partition", partition),
        *(part for name in ASKED for part in option(name, asked.get(name, ""))),
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


def place_keeper(folder: Path) -> Path:
    """A copy of the keeper where all nodes see it, by what it contains; raises OSError."""
    text = Path(run_directory.KEEPER).read_bytes()
    path = folder / f"keeper-{hashlib.sha256(text).hexdigest()[:12]}.py"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(text)
        part.replace(path)
    return path


def holding_of(worker: WorkerStart, share: Holding) -> Holding:
    """What a worker is to have: as it says, else its share."""
    cpus, memory_mb = ceil(worker.cpus) or share.cpus, ceil(worker.memory_gb * 1024) or share.memory_mb
    return Holding(len(worker.gpus), cpus, memory_mb)


def prepare(folder: Path, worker: WorkerStart, holding: Holding, pass_env: Sequence[str] = ()) -> Path:
    """Write a slice down before it is submitted; raises OSError."""
    inherits = surroundings(os.environ, pass_env)
    around = {name: value for name, value in inherits.items() if name not in worker.env}
    start = {**request_of(worker), "cpus": holding.cpus, "memory_mb": holding.memory_mb}
    return run_directory.prepare(folder, worker.id, start, around, fifo=False)


def request_of(worker: WorkerStart) -> dict[str, Any]:
    """What a start asks for, as its directory keeps it."""
    return {**worker.request(), "node": worker.node}


def take(run: Path) -> bool:
    """Keep a slice from ever beginning; False where it has begun, or may have."""
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
    """Write down that a slice which we took ourselves has ended; raises OSError."""
    now_s = time.time()
    ending = {**WITHDRAWN, "why": why, "started_s": None, "ended_s": now_s, "lasted_s": 0.0, "settled": True}
    supervisor.write_durably(run / "ended.json", ending)


def give_order(run: Path, order: dict[str, Any]) -> None:
    """Write an order down for the keeper, which looks for it at the next signal; raises OSError."""
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
