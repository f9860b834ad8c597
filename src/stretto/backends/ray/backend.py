"""Workers on a Ray cluster, from the service's side, and the way to the gateway.

The service's end of the way to its gateway: started, asked, listened to, and started again when gone.
"""

import asyncio
import base64
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    Line,
    LogPiece,
    LongPoll,
    NodeRequest,
    NodeState,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.backends.ray.autoscaling import NEVER, types_said
from stretto.backends.ray.connection import check_address
from stretto.backends.ray.exec_lines import line_to
from stretto.errors import InputError
from stretto.jobfile import JobSpec

CONNECT_S = 45.0  # from the start of a gateway to its connection; Ray takes seconds on a busy machine; chosen
SILENCE_S = 20.0  # of a gateway that says something every second, before it is started again; chosen
PAUSE_S = 1.0  # between attempts
LONGEST_LINE_BYTES = 64 << 20
FAILURES = {
    each.__name__: each
    for each in (BackendUnreachable, IdUsed, InputError, NoSuchWorker, NotNow, StartRefused)
}


@dataclass(frozen=True)
class Call:
    """How a gateway is started."""

    address: str
    service_id: str
    log: Path  # what it prints
    down_after_s: float
    lost_after_s: float
    grow: tuple[str, ...] = ()  # nodes that an autoscaler may add; (): as its configuration says
    max_log_bytes: int = MAX_LOG_BYTES  # that the logs of a job take on each node; 0: any amount

    def command(self, file: int) -> list[str]:
        """Its command line, with the file that leads back to us."""
        return [
            *(sys.executable, "-P", "-m", "stretto.backends.ray.gateway"),
            *("--address", self.address, "--service-id", self.service_id, "--socket", str(file)),
            *("--down-after-s", str(self.down_after_s), "--lost-after-s", str(self.lost_after_s)),
            *("--max-log-bytes", str(self.max_log_bytes)),
            *("--grow", *self.grow),
        ]


class Gateway:
    """One gateway process after the other."""

    def __init__(self, call: Call, on_message: Callable[[dict[str, Any]], None]) -> None:
        self.call = call
        self.heard = on_message  # is given what the gateway sees
        self.first: Callable[[], dict[str, Any]] = dict  # what a new gateway is told at once
        self.heard_s = 0.0  # when it last said anything
        self.connected = asyncio.Event()
        self.why = "is being started"
        self.refused = ""  # why the first one could not be used
        self.log_began = call.log.stat().st_size if call.log.exists() else 0  # where its output begins
        self.last_id = 0
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.writer: asyncio.StreamWriter | None = None
        self.process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Have a gateway, until cancelled."""
        while True:
            try:
                await self.live()
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as failure:
                self.why = f"its gateway to Ray ended: {failure or type(failure).__name__}"
            finally:
                self.connected.clear()
                for answer in self.waiting.values():
                    if not answer.done():
                        answer.set_exception(BackendUnreachable(self.why))
                self.waiting.clear()
                await self.end()
            await asyncio.sleep(PAUSE_S)

    async def live(self) -> None:
        """One gateway, from its start to its end."""
        ours, theirs = socket.socketpair()
        self.call.log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self.call.log.open("ab") as log:
            self.log_began = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *self.call.command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        reader, self.writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE_BYTES)
        self.writer.write(json.dumps(self.first()).encode() + b"\n")
        patience_s = CONNECT_S
        while True:
            async with asyncio.timeout(patience_s):
                line = await reader.readline()
            if not line:
                break
            patience_s, self.heard_s = SILENCE_S, time.monotonic()
            self.take(json.loads(line))
        self.why = self.refused or f"its gateway to Ray ended; see {self.call.log}"

    def take(self, message: dict[str, Any]) -> None:
        """One line of the gateway."""
        if "id" in message:
            answer = self.waiting.pop(message["id"], None)
            if answer is None or answer.done():
                return
            if "epoch" in message:
                answer.set_exception(StaleLeader(message["why"], message["epoch"]))
            elif kind := message.get("fails"):
                answer.set_exception(FAILURES.get(kind, BackendUnreachable)(message["why"]))
            else:
                answer.set_result(message["gives"])
        elif why := message.get("refused"):
            self.refused = self.why = why
        else:
            if "hello" in message:
                self.refused = ""
                self.connected.set()
            self.heard(message)

    async def ask(self, do: str, within_s: float, /, **arguments: Any) -> Any:
        """Give an order; raises BackendUnreachable, and as the order does."""
        if not self.connected.is_set() or self.writer is None:
            raise BackendUnreachable(self.why)
        self.last_id = number = self.last_id + 1
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        order = {"id": number, "do": do, "with": arguments}
        try:
            self.writer.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise BackendUnreachable(f"Ray did not answer within {within_s:g} s") from None
        except OSError as failure:
            raise BackendUnreachable(f"its gateway to Ray ended: {failure}") from failure
        finally:
            self.waiting.pop(number, None)

    def is_turned_away(self) -> bool:
        """Whether Ray has said that our token is wrong, as it does for long before it gives up."""
        with suppress(OSError), self.call.log.open("rb") as log:
            log.seek(self.log_began)
            return b"unauthenticated" in log.read(1 << 16).lower()
        return False

    async def end(self) -> None:
        """End the present gateway."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        self.process = None


# ── workers on a Ray cluster, from the service's side: orders go to a gateway, what it sees is kept here ────


DOWN_AFTER_S = 30.0  # silence after which a node counts as down; chosen, as of agents
LOST_AFTER_S = 75.0  # Ray ends a raylet that has lost its cluster for 60 s, and workers end with theirs
ORDER_S = 15.0  # beyond what an order may wait for; chosen
START_S = 30.0  # of a start; Ray begins a process for it; chosen
TURNED_AWAY = "Ray wants a token: RAY_AUTH_MODE must be token, and RAY_AUTH_TOKEN the cluster's"
FIRST_S = 20.0  # for the nodes to be seen at the start, of the service or of a gateway; chosen
BEGINNING = ("its node agent begins", "not seen yet")  # why a node is down that has only not been looked at


async def open_ray(
    address: str,
    service_id: str,
    shared: Path,
    down_after_s: float = DOWN_AFTER_S,
    lost_after_s: float = LOST_AFTER_S,
    grow: Sequence[str] = (),
    addresses: Mapping[str, str] = MappingProxyType({}),
    max_log_bytes: int = MAX_LOG_BYTES,
) -> "RayBackend":
    """A backend over the Ray cluster at `auto`, HOST:PORT or ray://HOST:PORT; raises InputError.

    service_id: names what is ours in the cluster. shared: where the gateway's output goes. grow: nodes that
    an autoscaler may add, as TYPE:GPUS:NODES. ("no",) is none, and () those of its configuration. addresses:
    of nodes, by name, from an earlier life of the service. max_log_bytes: that the logs of a job take on each
    node; 0: any amount.
    """
    if tuple(grow) != (NEVER,):
        types_said(grow)
    if find_spec("ray") is None:
        raise InputError("--backend ray needs ray: install stretto[ray]")
    log = shared / f"gateway-{service_id}.log"
    call = Call(address, service_id, log, down_after_s, lost_after_s, tuple(grow), max_log_bytes)
    return await RayBackend(call, addresses).open()


class RayBackend:
    """A `Backend` over one Ray cluster."""

    hands_secrets = True
    fetches_uploads = True
    runs_images = True

    def __init__(self, call: Call, addresses: Mapping[str, str] = MappingProxyType({})) -> None:
        self.call = call
        self.epoch = 0  # of the service that leads
        self.addresses = dict(addresses)  # of nodes, by name
        self.wishes: list[dict[str, Any]] = []
        self.gateway = Gateway(call, self.hear)
        self.known_nodes: tuple[NodeState, ...] = ()
        self.known_workers: tuple[WorkerState, ...] = ()
        self.poll = LongPoll()
        self.hello_s = -inf  # when the present gateway had connected
        self.not_yet: dict[str, Any] | None = None  # what it said and does not count, since it has just begun
        self.silent = False  # the gateway has said nothing for so long that nodes count as down
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> Self:
        """Connect; returns once the nodes are known. Raises InputError for a cluster that cannot be used."""
        self.gateway.first = lambda: {"known": self.addresses, "wishes": self.wishes}
        await asyncio.to_thread(check_address, self.call.address)
        self.tasks = [asyncio.create_task(self.gateway.keep()), asyncio.create_task(self.watch())]
        try:
            await self._until(self._decided, CONNECT_S)
            if not self.gateway.connected.is_set():
                why = self.gateway.refused or f"no Ray answers there within {CONNECT_S:g} s"
                why = TURNED_AWAY if self.gateway.is_turned_away() else why
                raise InputError(why if "--address" in why else f"--address {self.call.address}: {why}")
            await self._until(self._all_seen, FIRST_S)
            self.check_installed()
        except BaseException:
            await self.close()
            raise
        return self

    async def _until(self, is_so: Any, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while not is_so() and time.monotonic() < until_s:
            await asyncio.sleep(0.02)

    def _decided(self) -> bool:
        """Whether it is known if this cluster can be used."""
        gateway = self.gateway
        return gateway.connected.is_set() or bool(gateway.refused) or gateway.is_turned_away()

    def _all_seen(self) -> bool:
        """Whether every living node has been swept, or why not is known."""
        nodes = self.known_nodes
        return bool(nodes) and all(node.up or node.dead or node.why not in BEGINNING for node in nodes)

    def check_installed(self) -> None:
        """Raise InputError where Stretto is on none of the nodes."""
        why = [node.why for node in self.known_nodes if not node.dead]
        if why and all("Stretto" in each for each in why):
            raise InputError(f"--address {self.call.address}: node {self.known_nodes[0].name}: {why[0]}")

    def hear(self, message: dict[str, Any]) -> None:
        """Take in what the gateway sees."""
        self.silent = False
        if "hello" in message:
            self.hello_s = time.monotonic()
        if "nodes" not in message:
            return
        nodes = tuple(NodeState(**each) for each in message["nodes"])
        self.not_yet = message if self._finds_its_way(nodes) else None
        if self.not_yet is not None:
            return
        workers = tuple(sorted(_workers_in(message["workers"], nodes), key=lambda each: each.id))
        if (nodes, workers) != (self.known_nodes, self.known_workers):
            self.known_nodes, self.known_workers = nodes, workers
            self.addresses |= {node.name: node.address for node in nodes if node.up}
            self.poll.notify()

    def _finds_its_way(self, nodes: Sequence[NodeState]) -> bool:
        """Whether a new gateway has not seen again what the one before saw: then that holds for a while."""
        if time.monotonic() > self.hello_s + FIRST_S:
            return False
        now = {node.name: node for node in nodes}
        were_up = [now.get(node.name) for node in self.known_nodes if node.up]
        return any(node is None or node.why in BEGINNING for node in were_up)

    async def watch(self) -> None:
        """Notice that the gateway has been gone for too long."""
        while True:
            await asyncio.sleep(min(1.0, self.call.down_after_s / 4))
            if self.not_yet is not None:
                self.hear(self.not_yet)
            since_s = time.monotonic() - self.gateway.heard_s
            if self.known_nodes and not self.silent and since_s > self.call.down_after_s:
                self.silent = True
                self.poll.notify()

    async def nodes(self) -> Sequence[NodeState]:
        """Every node, by name."""
        if not self.silent:
            return self.known_nodes
        return [
            replace(node, up=False, why=self.gateway.why) if node.up else node for node in self.known_nodes
        ]

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker, by id."""
        if not self.silent:
            return self.known_workers
        return [replace(one, phase="unknown") if one.holds_gpus else one for one in self.known_workers]

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """The newest number, once it is not `after` any more or `wait_s` is over."""
        return await self.poll.wait(after, wait_s)

    async def check(self, spec: JobSpec) -> None:
        """Raise InputError for a job of whose workers none fits on any node of this cluster."""
        nodes = [node for node in self.known_nodes if node.gpus and (node.comes or not node.dead)]
        types = sorted({node.gpu_type for node in nodes})
        wanted = [alternative.gpu_type for alternative in spec.resources.accelerators]
        if types and wanted and not any(not each or each.lower() in types for each in wanted):
            raise InputError(
                f"resources.accelerators {', '.join(wanted)}: expected a GPU type of the Ray cluster: "
                + ", ".join(types)
            )
        of_worker = spec.resources.gpus_per_worker
        if nodes and all(node.gpus < of_worker for node in nodes):
            most = max(node.gpus for node in nodes)
            raise InputError(
                f"resources.gpus_per_worker {of_worker}: expected at most {most}, as many as a node has"
            )
        share = of_worker / max(1, spec.gpus)
        bounds: tuple[tuple[str, float | None, float], ...] = (
            ("cpus", spec.resources.cpus, _most((node, float(node.cpus)) for node in nodes)),
            ("memory", spec.resources.memory_gb, _most((node, node.memory_gb) for node in nodes)),
        )
        for name, requested, has in bounds:
            if nodes and requested is not None and requested * share > has:
                raise InputError(
                    f"resources.{name} {requested:g}: a worker's share is {requested * share:g}, expected "
                    f"at most {has:g}, as much as a node of the Ray cluster has"
                )

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Start a worker."""
        nodes = {node.name: node for node in self.known_nodes}
        if nodes and worker.node not in nodes:
            raise StartRefused(
                f"worker {worker.id}: no node {worker.node}, expected one of {', '.join(nodes)}"
            )
        reply = await self.gateway.ask(
            "start",
            START_S,
            worker_id=worker.id,
            node=worker.node,
            request=worker.request_with_secrets(),
            cpus=worker.cpus,
            memory_gb=worker.memory_gb,
            epoch=self.epoch,
        )
        return _worker_of(worker.node, reply)

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        await self.gateway.ask("stop", ORDER_S, worker_id=worker_id, grace_s=grace_s, epoch=self.epoch)

    async def wish(self, wishes: Sequence[NodeRequest]) -> None:
        """Ask for room for these."""
        self.wishes = [asdict(one) for one in wishes]
        await self.gateway.ask("wish", ORDER_S, wishes=self.wishes)

    async def signal(self, worker_id: str, signal: int) -> None:
        """Send a signal to a worker's process group."""
        await self.gateway.ask("signal", ORDER_S, worker_id=worker_id, signal=int(signal), epoch=self.epoch)

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """A piece of a log, from the node that has it."""
        asked = {"worker_id": worker_id, "offset": offset, "limit": limit, "wait_s": wait_s}
        said = await self.gateway.ask("log", wait_s + ORDER_S, **asked)
        return LogPiece(base64.b64decode(said["data"]), said["offset"], said["next"], said["complete"])

    async def reach(self, worker_id: str) -> Line:
        """A line to a new exec session, through the gateway and an actor on the worker's node."""
        return await line_to(self.gateway, worker_id)

    async def forget(self, worker_id: str) -> None:
        """List an ended worker no more."""
        await self.gateway.ask("forget", ORDER_S, worker_id=worker_id, epoch=self.epoch)

    async def delete_logs(self, job: str) -> None:
        """Remove what is left of a job's forgotten workers on all nodes."""
        await self.gateway.ask("delete_logs", ORDER_S, job=job, epoch=self.epoch)

    async def close(self) -> None:
        """Let go of the cluster. Workers go on."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.gateway.end()  # again: this may have been what was cancelled
        self.tasks = []


def _workers_in(said: dict[str, list[dict[str, Any]]], nodes: Sequence[NodeState]) -> list[WorkerState]:
    """Workers as they are known: of a node that is down, not whether they still run."""
    up = {node.name for node in nodes if node.up}
    found = [_worker_of(name, each) for name, workers in said.items() for each in workers]
    return [one if one.node in up or not one.holds_gpus else replace(one, phase="unknown") for one in found]


def _worker_of(node: str, said: dict[str, Any]) -> WorkerState:
    """A worker as its node agent shows it."""
    known = {name: value for name, value in said.items() if name in WorkerState.__dataclass_fields__}
    return WorkerState(**{**known, "node": node, "gpus": tuple(said["gpus"])})


def _most(has: Iterable[tuple[NodeState, float]]) -> float:
    """The most that a node has; infinite where it is not known of one that may come."""
    return max((inf if node.comes and not much else much for node, much in has), default=0.0)
