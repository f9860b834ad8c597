"""A backend in memory: workers are values that run until a test, or a stop, ends them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.backends.protocol import (
    BackendUnreachable,
    GpuUse,
    IdUsed,
    LogPiece,
    NodeState,
    NoSuchWorker,
    NotNow,
    StartRefused,
    WorkerStart,
    WorkerState,
)

TERMINATED, KILLED = 143, 137


@dataclass
class FakeBackend:
    """Nodes n0, n1, … of `gpus` GPUs. What is started runs at once; what is stopped ends at once.

    started: every start that was carried out. stubborn: workers that end only by `finish`. silent: nodes that
    do not answer.
    """

    hands_secrets: ClassVar[bool] = True
    fetches_uploads: ClassVar[bool] = True
    runs_images: ClassVar[bool] = True

    nodes_count: int = 2
    gpus: int = 4
    gpu_type: str = "a100"
    started: list[WorkerStart] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    stubborn: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    logs: dict[str, bytes] = field(default_factory=dict)
    known: dict[str, NodeState] = field(init=False)
    shown: dict[str, WorkerState] = field(default_factory=dict)
    use: dict[str, tuple[GpuUse | None, ...]] = field(default_factory=dict)  # of GPUs, by node
    number: int = 1
    closed: bool = False

    def __post_init__(self) -> None:
        names = [f"n{index}" for index in range(self.nodes_count)]
        self.known = {name: NodeState(name, self.gpu_type, self.gpus, 8, 64.0) for name in names}
        self.changed = asyncio.Condition()

    # ── what tests do ─────────────────────────────────────────────────────────────────────────────

    async def finish(self, worker_id: str, status: int = 0) -> None:
        """The worker's command ends, and nothing of it is left."""
        signal = status - 128 if status > 128 else None
        self.shown[worker_id] = replace(self.shown[worker_id], phase="ended", status=status, signal=signal)
        await self.tell()

    async def set_up(self, node: str, up: bool) -> None:
        """A node goes down or comes back; what runs there goes on."""
        self.known[node] = replace(self.known[node], up=up, why="" if up else "does not answer")
        await self.tell()

    async def write(self, worker_id: str, data: bytes) -> None:
        """The worker writes to its output."""
        self.logs[worker_id] = self.logs.get(worker_id, b"") + data
        await self.tell()

    async def tell(self) -> None:
        """Wake whoever waits for changes."""
        async with self.changed:
            self.number += 1
            self.changed.notify_all()

    # ── the protocol ──────────────────────────────────────────────────────────────────────────────

    async def nodes(self) -> Sequence[NodeState]:
        return [self.known[name] for name in sorted(self.known)]

    def gpu_use(self) -> Mapping[str, Sequence[GpuUse | None]]:
        return self.use

    async def workers(self) -> Sequence[WorkerState]:
        return [self.shown[name] for name in sorted(self.shown)]

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        async with self.changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self.changed.wait_for(lambda: self.number != after)
            except TimeoutError:
                pass
            return self.number

    async def start(self, worker: WorkerStart) -> WorkerState:
        if worker.id in self.shown:
            return self.shown[worker.id]
        if worker.node in self.silent:
            raise BackendUnreachable(f"node {worker.node} does not answer")
        if worker.node not in self.known or max(worker.gpus, default=0) >= self.known[worker.node].gpus:
            raise StartRefused(f"worker {worker.id}: no such GPUs on {worker.node}")
        if worker.id in self.logs:
            raise IdUsed(f"worker {worker.id}: its id was used before")
        taken = {
            gpu
            for one in self.shown.values()
            if one.node == worker.node and one.holds_gpus
            for gpu in one.gpus
        }
        if taken & set(worker.gpus):
            raise NotNow(f"worker {worker.id}: a GPU of {worker.node} is in use")
        self.started.append(worker)
        self.logs[worker.id] = b""
        self.shown[worker.id] = WorkerState(worker.id, worker.node, worker.gpus, "running", job=worker.job)
        await self.tell()
        return self.shown[worker.id]

    async def stop(self, worker_id: str, grace_s: float) -> None:
        worker = self._there(worker_id)
        self.stopped.append(worker_id)
        if worker.phase != "ended":
            self.shown[worker_id] = replace(worker, stopped=True)
            if worker_id not in self.stubborn:
                await self.finish(worker_id, TERMINATED if grace_s > 0 else KILLED)

    async def signal(self, worker_id: str, signal: int) -> None:
        if self._there(worker_id).phase != "ended":
            await self.finish(worker_id, 128 + signal)

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        if worker_id not in self.logs:
            raise NoSuchWorker(f"no worker {worker_id}")
        begin = max(offset if offset >= 0 else len(self.logs[worker_id]) + offset, 0)

        def piece() -> LogPiece:
            data = self.logs[worker_id][begin : begin + limit]
            worker = self.shown.get(worker_id)
            ended = worker is None or worker.phase == "ended"
            following = begin + len(data)
            return LogPiece(data, begin, following, ended and following >= len(self.logs[worker_id]))

        async with self.changed:
            try:
                async with asyncio.timeout(wait_s):
                    await self.changed.wait_for(lambda: piece().data or piece().complete)
            except TimeoutError:
                pass
        return piece()

    async def forget(self, worker_id: str) -> None:
        if self._there(worker_id).phase == "ended":
            del self.shown[worker_id]

    async def delete_logs(self, job: str) -> None:
        for name in [name for name in self.logs if name.split(".")[0] == job and name not in self.shown]:
            del self.logs[name]

    async def close(self) -> None:
        self.closed = True

    def _there(self, worker_id: str) -> WorkerState:
        if worker_id not in self.shown:
            raise NoSuchWorker(f"no worker {worker_id}")
        if self.shown[worker_id].node in self.silent:
            raise BackendUnreachable(f"node {self.shown[worker_id].node} does not answer")
        return self.shown[worker_id]
