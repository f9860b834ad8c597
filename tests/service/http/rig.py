"""A service over a SQLite log and a backend in memory, with tokens for a few people."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from tests.service.fake_backend import FakeBackend

from stretto.backends.protocol import Backend
from stretto.service import control_loop
from stretto.service.eventlog import Store, open_store
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.http.app import app_of
from stretto.service.http.auth import digest_of
from stretto.service.http.connections import Listener
from stretto.service.http.rate_limits import Limits
from stretto.service.http.server import config_of
from stretto.service.reconcile.controller import Reconciler
from stretto.service.reconcile.worker_env import WorkerContext
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.sealed_secrets import SECRET_KEY, SealedSecrets, SecretKey
from stretto.service.service import Service
from stretto.service.state.events import Began, Configured, TokenMade
from stretto.service.state.state import State
from stretto.service.uploads import UPLOADS, UploadStore

PATIENCE_S = 180.0
PEOPLE = {"ada": "user", "bob": "user", "olga": "operator", "root": "admin"}
NOWHERE = {
    "text": "run: 'true'\nresources: {accelerators: '8'}\nname: waits"
}  # more than a node, less than all
SMALL = {"text": "run: 'true'\nname: small"}


def token_of(person: str) -> str:
    return f"stretto_secret-of-{person}"


@dataclass
class Rig:
    """What tests hold on to."""

    service: Service
    backend: Any
    app: FastAPI
    store: Store
    loops: list["asyncio.Task[None]"] = field(default_factory=list)

    def client(self, person: str = "", token: str = "", **more: Any) -> httpx.AsyncClient:
        """Asks in this process, as a person, with another token, or with none."""
        given = token or (token_of(person) if person else "")
        headers = {"authorization": f"Bearer {given}"} if given else {}
        transport = httpx.ASGITransport(app=self.app, client=("127.0.0.1", 1))
        return httpx.AsyncClient(
            transport=transport, base_url=more.pop("base_url", "http://127.0.0.1"), headers=headers, **more
        )

    async def submit(self, person: str = "ada", **body: str) -> str:
        """The id of a job that is there now."""
        async with self.client(person) as client:
            answer = await client.post("/api/v1/jobs", json=body or SMALL)
            assert answer.status_code == 201, answer.text
            name: str = answer.json()["id"]
            return name

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for what follows from something that was done."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[tuple[str, int]]:
        """A real server on loopback."""
        listening = Listener()
        listening.connections = self.app.state.connections
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config_of(self.app))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await self.until(lambda: server.started)
            yield "127.0.0.1", listening.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait({serving}, timeout=PATIENCE_S)
            listening.close()


@contextlib.asynccontextmanager
async def a_rig(
    path: Path,
    *,
    limits: Limits | None = None,
    open_on_loopback: bool = False,
    backend: Backend | None = None,
    decides: bool = True,
    policy: str = "fifo",
    topology: str = "ignored",
    provider: Any = None,
) -> AsyncIterator[Rig]:
    """A running service; without `decides`, no job is ever given GPUs."""
    backend = backend or FakeBackend()
    clock = Clock()
    path.mkdir(exist_ok=True)
    with open_store(path / "log.db") as store:
        log_writer = LogWriter(store, State(), clock)
        secrets = SealedSecrets(store.secrets, SecretKey(path / SECRET_KEY))
        folders = path / "checkpoints", path / "workdirs"
        uploads = UploadStore(path / UPLOADS)
        context = WorkerContext("http://127.0.0.1", b"k" * 32, *folders, secrets=secrets, uploads=uploads)
        configured = Configured(policy, webhooks="kept", topology=topology)
        scheduling = SchedulingLoop(log_writer, scheduler_of(configured), clock)
        reconciler = Reconciler(log_writer, backend, clock, context)
        service = Service(log_writer, scheduling, reconciler, backend, clock, context, open_on_loopback)
        # A busy machine takes long to begin a process; tests of these bounds set their own.
        service.short_work.most_s = service.long_work.most_s = PATIENCE_S
        app = app_of(service, limits, provider)
        loops = [asyncio.create_task(log_writer.run())]
        try:
            tokens = [TokenMade(who, who, role, digest_of(token_of(who))) for who, role in PEOPLE.items()]
            await log_writer.record(Began(1.7e9), configured, *tokens)
            await control_loop.observe_once(reconciler)
            follow: list[Coroutine[Any, Any, None]] = [
                control_loop.observe(reconciler),
                control_loop.reconcile(reconciler),
            ]
            loops += [asyncio.create_task(one) for one in follow]
            if decides:
                loops.append(asyncio.create_task(control_loop.schedule(scheduling)))
            yield Rig(service, backend, app, store, loops)
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await service.end_waits()


def play(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story to its end, within bounds."""

    async def bounded() -> None:
        async with asyncio.timeout(5 * PATIENCE_S):
            await story()

    asyncio.run(bounded())
