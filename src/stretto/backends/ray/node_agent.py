"""The actor that has the workers of one Ray node: one small process a node, there while there is work for it.

It starts, watches and shows workers through the same run directories and supervisors as an agent does.
Supervisors are children of no process and do not notice when it ends; the next node agent finds them. They do
notice when the raylet of the node ends, or the actor that holds their GPUs. They kill their worker at once
then, since Ray may give the GPUs to others.

A node agent keeps its node from looking idle to Ray's autoscaler, so one without workers leaves.
"""

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto import __version__
from stretto.agent import agent, presence, run_directory, server, supervisor
from stretto.agent.node import Node
from stretto.agent.requests import Refused, start_of, worker_id_of
from stretto.agent.server import Fence
from stretto.agent.worker_table import WorkerTable

LOCK_S = 15.0  # for the node agent of a raylet that has just ended
SWEEP_S = 5.0  # for supervisors of an earlier raylet to end, before it is asked again
LONELY_S = 60.0  # without workers and without a caller, after which it leaves; chosen
FOLDER = "STRETTO_NODE_DIR"  # in the environment of `ray start`: where run directories go


class NodeAgent:
    """The workers of one service on one node.

    A refusal is answered as {"refused": [status, why], "epoch": of the later leader}.
    """

    def __init__(
        self, service_id: str, name: str, address: str, gpus: int, lonely_s: float = LONELY_S
    ) -> None:
        self.lonely_s = lonely_s
        self.raylet = raylet()
        environ = environment_of(self.raylet.pid)
        folder = Path(environ.get(FOLDER) or Path(tempfile.gettempdir()) / f"stretto-{os.getuid()}")
        for each in (folder, folder / service_id):  # the first in a place where everybody may make such
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            agent.check_own(each, follow=bool(environ.get(FOLDER)))
        state = agent.state_folder(folder / service_id / address)
        until_s = time.monotonic() + LOCK_S
        while (lock := presence.take(state)) is None:
            if time.monotonic() > until_s:
                raise RuntimeError(f"another node agent has {state}")
        self.lock = lock
        self.gpus = gpus
        node = Node(name, "", gpus)
        self.workers = WorkerTable(state, node, secrets.token_hex(6), apart=True, environ=environ)
        self.fence = Fence(state / "epoch.json")
        self.called_s = time.monotonic()
        threading.Thread(target=self.leave_when_lonely, daemon=True).start()

    def ready(self) -> dict[str, Any]:
        """Which one this is, once nothing runs that an earlier raylet left, or how much of it still does."""
        until_s = time.monotonic() + SWEEP_S
        while (left := self.of_earlier_raylets()) and time.monotonic() < until_s:
            time.sleep(0.02)
        forgotten = {run.name: str(job_of(run)) for run in run_directory.every(self.workers.forgotten)}
        return {**self.listed("", 0.0), "left": left, "forgotten": forgotten, "stretto": __version__}

    def keep_logs(self, most_bytes: int) -> None:
        """From now on the logs of a job take so much here; 0: any amount."""
        self.workers.bound.most_bytes = most_bytes

    def of_earlier_raylets(self) -> list[str]:
        """Workers that still run although the raylet that they ran under is gone."""
        own = [self.raylet.pid, self.raylet.ticks]
        going = [each for each in list(self.workers.known.values()) if not each.ended]
        return [each.run.name for each in going if own not in (each.started["guards"] or ())]

    def listed(self, after: str, wait_s: float) -> dict[str, Any]:
        """All workers, once they differ from a version."""
        self.called_s = time.monotonic() + wait_s
        return self.workers.listed(after, wait_s)

    def start(
        self, worker_id: str, body: dict[str, Any], reserved: dict[str, Any] | None, epoch: int = 0
    ) -> dict[str, Any]:
        """Start a worker on GPUs that are held for it, for the leader of this epoch.

        Without them, what is shown of one that was started before, and {} for one that was not.
        """
        self.called_s = time.monotonic()

        def started() -> dict[str, Any]:
            self.fence.admit(epoch)
            name, start = worker_id_of(worker_id), start_of(body, self.gpus, images=True)
            if reserved is None:
                was_started = name in self.workers.known or (self.workers.forgotten / name).exists()
                return (
                    self.workers.start(name, start) if was_started else self.check_free(name, start["gpus"])
                )
            placeholder = supervisor.process_at(reserved["pid"])
            if placeholder is None or placeholder.ticks != reserved["ticks"]:
                raise Refused(423, f"what held the GPUs of {name} has ended")
            gpu_env = {"CUDA_VISIBLE_DEVICES": reserved["devices"]}
            guards = [(each.pid, each.ticks) for each in (placeholder, self.raylet)]
            return self.workers.start(name, start, gpu_env, guards)

        return answer(started)

    def check_free(self, worker_id: str, gpus: list[int]) -> dict[str, Any]:
        """Refuse a worker that would have to wait for a GPU, before Ray is asked to hold it; else {}."""
        with self.workers.lock:
            for index in gpus:
                if user := self.workers.user_of_gpu(index):
                    raise Refused(423, f"GPU {index} is in use by {user}; {worker_id} must wait")
        return {}

    def order(self, worker_id: str, order: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
        """Hand an order to a worker's supervisor."""
        return self.commanded(epoch, lambda: self.workers.order(worker_id, order))

    def running(self, worker_id: str) -> dict[str, Any]:
        """The run directory of a worker that runs."""
        return answer(lambda: {"run": str(self.workers.running(worker_id))})

    def forget(self, worker_id: str, epoch: int = 0) -> dict[str, Any]:
        """List an ended worker no more."""
        return self.commanded(epoch, lambda: self.workers.forget(worker_id))

    def delete_logs(self, job: str, epoch: int = 0) -> dict[str, Any]:
        """Remove what is left of a job's forgotten workers."""
        return self.commanded(epoch, lambda: {"removed": self.workers.delete_logs(job)})

    def commanded(self, epoch: int, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a command of the leader of this epoch gives, or why it is refused."""
        self.called_s = time.monotonic()

        def done() -> dict[str, Any]:
            self.fence.admit(epoch)
            return do()

        return answer(done)

    def log(self, worker_id: str, offset: int, limit: int) -> dict[str, Any]:
        """What is there of a log."""
        self.called_s = time.monotonic()

        def piece() -> dict[str, Any]:
            path, worker = self.workers.log_of(worker_id)
            complete = worker is None or worker.ended  # before reading: what is read after its end is all
            start, data, size = server.read_piece(path, offset, min(limit, server.LONGEST_PIECE_BYTES))
            end = start + len(data)
            return {"data": data, "offset": start, "next": end, "complete": complete and end >= size}

        return answer(piece)

    def grown(self, offsets: dict[str, int], wait_s: float) -> dict[str, Any]:
        """Workers whose logs are longer than this, or grow no more, once there are any or time is up."""
        until_s = time.monotonic() + wait_s
        while True:
            self.called_s = time.monotonic()
            grown = [name for name, offset in offsets.items() if self.has_more(name, offset)]
            if grown or time.monotonic() >= until_s:
                return {"grown": grown}
            time.sleep(server.LOG_POLL_S)

    def has_more(self, worker_id: str, offset: int) -> bool:
        """Whether a reader of a log from there is told something new."""
        try:
            path, worker = self.workers.log_of(worker_id)
            return worker is None or worker.ended or path.stat().st_size > offset
        except (Refused, OSError):
            return True

    def leave_when_lonely(self) -> None:
        """End this process once nothing needs it."""
        while True:
            time.sleep(self.lonely_s / 4)
            with self.workers.lock:
                going = any(not each.ended for each in self.workers.known.values())
                if not going and time.monotonic() - self.called_s > self.lonely_s:
                    os._exit(0)


def answer(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was done, or why it was not."""
    try:
        return do()
    except Refused as refusal:
        return {"refused": [refusal.status, refusal.why], "epoch": refusal.epoch}


def raylet() -> supervisor.Process:
    """The raylet that this process belongs to."""
    found = supervisor.process_at(int(os.environ.get("RAY_RAYLET_PID") or os.getppid()))
    if found is None:
        raise RuntimeError("the raylet has ended")
    return found


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with, without what Ray and we put there for our own processes."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {name: value for name, value in found.items() if not name.startswith("RAY_")}


def job_of(run: Path) -> str:
    """Whose worker a run directory was."""
    return str((run_directory.read_json(run / "start.json") or {}).get("job", ""))
