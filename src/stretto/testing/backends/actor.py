"""A worker that needs nothing but the standard library, and notices itself when something is done twice.

Run as `python -I -S actor.py FOLDER MANNER [ARGUMENT...]`. While it or a child of it lives, it holds a lock
for each of its GPUs, named by node and device. It holds one for its place in its job, too. A worker that
finds one taken says so in FOLDER/violations and leaves with 99. It notes its beginning in FOLDER/began, and
its end, where it can, in FOLDER/ended. Each is a JSON object a line, with times by a clock that all processes
of this machine share. It has begun once it heeds, or ignores, what it is to heed or ignore. A worker that
sleeps or counts stops once there is FOLDER/enough-JOB, and is done.

    sleep S [STATUS]  ends by itself after S seconds
    signal N          ends itself by a signal
    polite S          needs S seconds after SIGTERM to save, says so, and leaves with status 0
    stubborn          ignores SIGTERM
    orphan S          leaves at once; a child in a session of its own lives for S seconds
    say COUNT         prints so many lines, one each 20 ms
    beat COUNT        rank 0 counts, saves each count, and goes on from there when started again
    saves COUNT       the same, and saves to FOLDER/disk too: a disk that is full ends it with status 28
    train COUNT       as beat, and may be resized in place: it speaks over the channel of workers
"""

import fcntl
import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

BEAT_S = 0.05
BATCH = 32
LOOK_S = 0.1  # between two questions over the channel
WORKER, RANK = os.environ.get("STRETTO_WORKER_ID", ""), int(os.environ.get("RANK", "0"))
JOB, NODE = WORKER.split(".", maxsplit=1)[0], os.environ.get("STRETTO_NODE", "")


def devices() -> list[str]:
    """What this process may use, as its node calls it."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [one for one in shown.split(",") if one]
    start = json.loads(Path("start.json").read_bytes())  # of our run's directory, where we begin
    return [str(gpu) for gpu in start["gpus"]]


def note(folder: Path, name: str, **said: Any) -> None:
    """Append a line, whole."""
    line = json.dumps({"worker": WORKER, "pid": os.getpid(), "at_s": time.monotonic(), **said})
    file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def lock(folder: Path, name: str) -> None:
    """Hold a lock as long as this process and its children live."""
    file = os.open(folder / f"lock-{name}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(folder, "violations", found=name, of=os.pread(file, 200, 0).decode())
        sys.exit(99)
    os.set_inheritable(file, True)
    os.ftruncate(file, 0)
    os.pwrite(file, WORKER.encode(), 0)


def leave(folder: Path, status: int) -> None:
    """End now, from wherever this is called."""
    note(folder, "ended", status=status)
    os._exit(status)


def counted(folder: Path) -> int:
    """How far the job is, by what was saved last."""
    try:
        return int((folder / f"count-{JOB}").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def count_one(folder: Path) -> None:
    """One step further, saved whole or not at all."""
    part = folder / f"count-{JOB}.part"
    part.write_text(str(counted(folder) + 1), encoding="ascii")
    part.replace(folder / f"count-{JOB}")


def is_enough(folder: Path) -> bool:
    """Whether our job is told that it is done."""
    return (folder / f"enough-{JOB}").exists()


def sleep(folder: Path, seconds: float) -> None:
    """Wait."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0 and not is_enough(folder):
        time.sleep(min(left_s, BEAT_S))


def beat(folder: Path, count: int) -> None:
    """Count up to a number; others than rank 0 only look."""
    while counted(folder) < count and not is_enough(folder):
        time.sleep(BEAT_S)
        if RANK == 0:
            count_one(folder)


def save_to_disk(folder: Path, count: int) -> None:
    """Count up to a number, with a copy of some size on a disk that others may fill."""
    while counted(folder) < count and not is_enough(folder):
        time.sleep(BEAT_S)
        try:
            (folder / "disk" / JOB).write_bytes(b"x" * 4000)
        except OSError as full:
            leave(folder, full.errno or 1)
        count_one(folder)


class Channel:
    """The service, as a worker asks it; silent while it does not answer."""

    def __init__(self) -> None:
        self.at = urlsplit(os.environ["STRETTO_URL"])
        self.headers = {"authorization": f"Bearer {os.environ['STRETTO_TOKEN']}"}

    def ask(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """Status and object; status 0 without an answer."""
        connection = http.client.HTTPConnection(self.at.hostname or "", self.at.port, timeout=10)
        try:
            content = json.dumps({"worker": WORKER, **body}) if body or method == "POST" else None
            headers = {**self.headers, "content-type": "application/json"}
            connection.request(method, f"/api/v1/worker/{path}", content, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text and answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def say(self, path: str, **body: Any) -> int:
        """Say it until it was heard."""
        while not (status := self.ask("POST", path, **body)[0]):
            time.sleep(LOOK_S)
        return status


def speed_of(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """What a training that scales well would have measured."""
    nodes, gpus = len({one["node"] for one in workers}), sum(len(one["gpus"]) for one in workers)
    point = [nodes, gpus, BATCH, 1, BEAT_S, BEAT_S]
    return {"points": [point], "init_batch": BATCH, "max_batch": 64 * BATCH, "max_local": BATCH}


def train(folder: Path, count: int) -> None:
    """Count in generations: rank 0 of the latest one counts, and all take part in every one."""
    channel, number, rank, looked_s = Channel(), 0, -1, 0.0
    if channel.say("ready") == 410:
        return
    while counted(folder) < count or rank < 0:
        time.sleep(BEAT_S)
        if rank == 0:
            count_one(folder)
        if time.monotonic() < looked_s + LOOK_S:
            continue
        looked_s = time.monotonic()
        status, generation = channel.ask("GET", f"generation?worker={quote(WORKER)}&after={number}&wait_s=0")
        if status == 410:
            leave(folder, 0 if rank < 0 else 143)
        if status != 200:
            continue
        if generation["leave"]:
            leave(folder, 143)
        members = [member["id"] for member in generation["workers"]]
        if WORKER not in members and rank >= 0:
            return
        if WORKER not in members:  # a newcomer's time will come
            number = int(generation["generation"])
            continue
        stayed, number, rank = rank >= 0, int(generation["generation"]), members.index(WORKER)
        if rank == 0:
            channel.say("store", generation=number, address="127.0.0.1:1")
        channel.say("joined", generation=number, step=counted(folder), **({"lost_s": 0.0} if stayed else {}))
        note(folder, "joined", generation=number, rank=rank, of=len(members))
        if rank == 0:
            channel.say("report", step=counted(folder), **speed_of(generation["workers"]))
    if rank == 0:
        channel.say("report", step=count, finished=True)


def orphan(seconds: float) -> None:
    """Leave a child behind that is not waited for."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(seconds)
        os._exit(0)


def main() -> int:
    """Play a part; the exit status."""
    folder, manner, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    number = float(arguments[0]) if arguments else 0.0
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for device in devices():
        lock(folder, f"gpu-{NODE}-{device}")
    lock(folder, f"place-{WORKER}")

    def save(*_: object) -> None:
        print("asked to end", flush=True)
        time.sleep(number)
        print("saved", flush=True)
        leave(folder, 0)

    if manner == "polite":
        signal.signal(signal.SIGTERM, save)
    elif manner != "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: leave(folder, 143))
    print(f"{manner} begins", flush=True)
    note(folder, "began", node=NODE, devices=devices(), manner=manner)
    if manner in ("polite", "stubborn"):
        time.sleep(600)
    elif manner == "sleep":
        sleep(folder, number)
    elif manner == "signal":
        signal.signal(int(number), signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), int(number))
    elif manner == "orphan":
        orphan(number)
    elif manner == "say":
        for index in range(int(number)):
            print(f"line {index}", flush=True)
            time.sleep(0.02)
    elif manner == "beat":
        beat(folder, int(number))
    elif manner == "saves":
        save_to_disk(folder, int(number))
    elif manner == "train":
        train(folder, int(number))
    status = int(arguments[1]) if len(arguments) > 1 else 0
    note(folder, "ended", status=status)
    return status


if __name__ == "__main__":
    sys.exit(main())
