"""A worker that needs nothing but the standard library, and notices itself when something is done twice.

Run by a job as `python -I -S sleeper.py FOLDER BEATS MANNER`. While it lives it holds a lock for each of its
GPUs and one for its place in its job; whoever finds one taken says so in FOLDER/violations. Rank 0 counts
beats, saves the count after each, and goes on where the last attempt stopped; when it has come to BEATS, the
job is done.

MANNER: plain; stubborn (ignores SIGTERM); polite (ends with status 0 after SIGTERM); forking (has a child in
a session of its own, which holds the same locks); a path (beats are saved there too, and a disk that is full
ends it with status 28).
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

BEAT_S = 0.05


def lock(folder: Path, name: str) -> None:
    """Hold a lock as long as this process and its children live."""
    file = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(
            folder,
            "violations",
            f"{os.environ['STRETTO_WORKER_ID']} found {name} taken by {read(folder / name)}",
        )
        sys.exit(99)
    os.set_inheritable(file, True)
    os.ftruncate(file, 0)
    os.pwrite(file, os.environ["STRETTO_WORKER_ID"].encode(), 0)


def note(folder: Path, name: str, line: str) -> None:
    """Append a line, whole."""
    file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def read(path: Path) -> str:
    """What a file says; nothing where it is not there."""
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def save(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="ascii")
    part.replace(path)


def main() -> int:
    """Beat; the exit status."""
    folder, beats, manner = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    worker, job, rank = os.environ["STRETTO_WORKER_ID"], os.environ["STRETTO_JOB_ID"], os.environ["RANK"]
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif manner == "polite":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    started = json.loads(Path("start.json").read_bytes())  # our run's directory is where we begin
    for gpu in started["gpus"]:
        lock(folder, f"gpu-{gpu}")
    lock(folder, f"job-{job}-rank-{rank}")
    note(folder, "starts", worker)
    if manner == "forking" and os.fork() == 0:
        os.setsid()
        time.sleep(600)
        return 0
    count = int(read(folder / f"job-{job}-beats") or 0)
    while count < beats:
        time.sleep(BEAT_S)
        if rank != "0":
            count = int(read(folder / f"job-{job}-beats") or 0)
            continue
        count += 1
        save(folder / f"job-{job}-beats", str(count))
        if "/" in manner:
            try:
                save(Path(manner) / f"job-{job}", str(count) * 2000)
            except OSError as full:
                print(full, flush=True)
                return full.errno or 1
    if rank == "0":
        note(folder, f"job-{job}-done", worker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
