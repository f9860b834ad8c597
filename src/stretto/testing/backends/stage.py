"""Workers over one connection to a cluster, and what they say of themselves."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    NodeState,
    NoSuchWorker,
    WorkerStart,
    WorkerState,
)
from stretto.testing.backends.connection import Connection
from stretto.testing.backends.world import World

ACTOR = str(Path(__file__).with_name("actor.py"))
LOOK_S = 0.02
NUMBERS = count(1)  # of jobs of this session: on one cluster no id comes twice

Found = TypeVar("Found")


@dataclass
class Stage:
    """A context manager: what is started within is gone afterwards, and no worker found a GPU taken."""

    connection: Connection
    folder: Path
    world: World = field(init=False)
    backend: Backend = field(init=False)
    started: list[WorkerStart] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Over the connection's cluster."""
        self.world = self.connection.world

    async def __aenter__(self) -> Self:
        self.backend = await self.connection.opened()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.clear()
        finally:
            if kind is not None:
                await self.connection.drop()
        if kind is None:
            assert self.notes("violations") == []
            await self.until(self._nothing_left, "nothing is left of any worker")

    async def _nothing_left(self) -> bool:
        left = await self.world.left()
        assert not left or self._fresh(left), left
        return not left

    def _fresh(self, left: Sequence[str]) -> bool:
        """Whether what is left may still be on its way out."""
        self._left_since = getattr(self, "_left_since", time.monotonic())
        return time.monotonic() < self._left_since + self.world.patience_s

    async def clear(self) -> None:
        """End and forget all that was started here."""
        for worker in self.started:
            with suppress(NoSuchWorker):
                await self.insist(lambda name=worker.id: self.backend.stop(name, 0.0))  # type: ignore[misc]
        ours = {worker.id for worker in self.started}
        await self.until(self._all_ended, "all workers have ended")
        for name in sorted(ours):
            with suppress(NoSuchWorker):
                await self.insist(lambda name=name: self.backend.forget(name))  # type: ignore[misc]
        for job in sorted({worker.job for worker in self.started}):
            await self.insist(lambda job=job: self.backend.delete_logs(job))  # type: ignore[misc]

    async def _all_ended(self) -> bool:
        ours = {one.id for one in self.started}
        return not [one for one in await self.backend.workers() if one.id in ours and one.holds_gpus]

    async def reconnect(self) -> None:
        """As a service that ends, and another one that begins."""
        await self.connection.drop()
        self.backend = await self.connection.opened()

    # ── starting ──────────────────────────────────────────────────────────────────────────────────

    def worker(
        self,
        manner: str,
        *arguments: float,
        node: str = "",
        gpus: Sequence[int] = (0,),
        grace_s: float = 5.0,
        **env: str,
    ) -> WorkerStart:
        """An actor that plays a part, as a job of its own."""
        name, node = f"c{next(NUMBERS)}", node or self.world.nodes()[0]
        texts = [f"{argument:g}" for argument in arguments]
        command = (sys.executable, "-I", "-S", ACTOR, str(self.folder), manner, *texts)
        env = {"STRETTO_NODE": node, **env}
        return WorkerStart(f"{name}.1.0", name, node, tuple(gpus), command, env, grace_s=grace_s)

    async def start(self, manner: str, *arguments: float, **how: Any) -> WorkerStart:
        """Start an actor, as often as it takes."""
        worker = self.worker(manner, *arguments, **how)
        await self.begin(worker)
        return worker

    async def begin(self, worker: WorkerStart) -> WorkerState:
        """Start a worker, as often as it takes."""
        self.started.append(worker)
        return await self.insist(lambda: self.backend.start(worker))

    async def run(self, manner: str, *arguments: float, **how: Any) -> WorkerStart:
        """Start an actor, which has begun to play when this returns."""
        worker = await self.start(manner, *arguments, **how)
        await self.began(worker)
        return worker

    async def insist(
        self, order: Callable[[], Awaitable[Found]], unless: tuple[type[Exception], ...] = ()
    ) -> Found:
        """Give an order again until the cluster takes it. unless: refusals that count."""
        until_s = time.monotonic() + self.world.patience_s
        while True:
            try:
                return await order()
            except BackendUnreachable as refusal:
                if isinstance(refusal, unless) or time.monotonic() > until_s:
                    raise
            await asyncio.sleep(0.1)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    async def until(self, is_so: Callable[[], Awaitable[Found]], what: str) -> Found:
        """What is found as soon as it is true."""
        until_s = time.monotonic() + self.world.patience_s
        while not (answer := await is_so()):
            if time.monotonic() > until_s:
                listed = [
                    (worker.id, worker.phase, worker.status, worker.why)
                    for worker in await self.backend.workers()
                ]
                raise AssertionError(f"not within {self.world.patience_s:g} s: {what}; workers {listed}")
            await asyncio.sleep(LOOK_S)
        return answer

    async def shown(self, worker: WorkerStart) -> WorkerState | None:
        """A worker as it is listed."""
        return next((one for one in await self.backend.workers() if one.id == worker.id), None)

    async def ended(self, worker: WorkerStart) -> WorkerState:
        """A worker, once it has ended."""
        return await self.in_phase(worker, "ended")

    async def in_phase(self, worker: WorkerStart, *phases: str) -> WorkerState:
        """A worker, once it is in one of these phases."""

        async def is_so() -> WorkerState | None:
            listed = await self.shown(worker)
            return listed if listed is not None and listed.phase in phases else None

        state = await self.until(is_so, f"{worker.id} is {' or '.join(phases)}")
        assert state is not None
        return state

    async def began(self, worker: WorkerStart) -> dict[str, Any]:
        """What an actor said when it began."""

        async def is_so() -> list[dict[str, Any]]:
            listed = await self.shown(worker)
            assert listed is None or listed.phase != "ended" or self.beginnings(worker), listed
            return self.beginnings(worker)

        await self.in_phase(worker, "running", "ended")
        return (await self.until(is_so, f"{worker.id} begins"))[0] if self.tells else {}

    def finish(self, worker: WorkerStart) -> None:
        """An actor that sleeps is done."""
        (self.folder / f"enough-{worker.job}").touch()

    @property
    def tells(self) -> bool:
        """Whether workers are processes, which leave notes."""
        return self.world.name != "emulated"

    def beginnings(self, worker: WorkerStart) -> list[dict[str, Any]]:
        """How often it began, with when and where."""
        return [one for one in self.notes("began") if one["worker"] == worker.id]

    def notes(self, name: str) -> list[dict[str, Any]]:
        """What all actors have noted under a name."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    async def node(self, name: str) -> NodeState:
        """A node as it is shown."""
        return next(one for one in await self.backend.nodes() if one.name == name)

    async def log(self, worker: WorkerStart) -> str:
        """All that it has written."""
        return (await self.backend.log(worker.id)).data.decode()
