"""WebSockets to what runs beside workers: programs, terminals that were left, connections to ports."""

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, WebSocket

from stretto.agent.exec_session import END, EXIT, INPUT, OUTPUT, START, frame
from stretto.backends.protocol import BackendUnreachable, Line, NoSuchWorker, ReachesWorkers
from stretto.errors import InputError
from stretto.service.http.audit import did
from stretto.service.http.auth import Caller
from stretto.service.http.exec_sessions import (
    ENDED_BY_US,
    GONE,
    ExecSessions,
    LineLost,
    Visitor,
    ending_in,
    frame_of,
    passed_on,
)
from stretto.service.http.problems import RETRY_SOON, Problem
from stretto.service.http.routes.jobs import job_of
from stretto.service.service import Service
from stretto.service.state.records import JobRecord, WorkerPhase

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

START_S = 30.0  # for the first message, which says what to start; chosen
LONGEST_COMMAND = 128 << 10  # bytes; chosen: Linux allows no longer word
PORTS = range(1, 1 << 16)


async def _job(socket: WebSocket, job: str) -> tuple[Service, Caller, JobRecord]:
    service: Service = socket.app.state.service
    caller: Caller = socket.state.caller
    return service, caller, await job_of(service, caller, job)


def _rank(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"rank: expected a number from 0, got {text[:20]!r}")
    return int(text)


async def _line_to(service: Service, record: JobRecord, rank: int | None) -> tuple[Line, int]:
    """A line to a worker of a job that runs, and its rank. Raises Problem."""
    if not isinstance(service.backend, ReachesWorkers):
        kind = type(service.backend).__name__.removesuffix("Backend").lower()
        raise Problem(HTTPStatus.CONFLICT, f"workers on the backend {kind} cannot be reached")
    running = {
        int(each.id.rpartition(".")[2]): each.id
        for each in record.alive
        if each.life not in (WorkerPhase.WANTED, WorkerPhase.ENDED)
    }
    if not running:
        raise Problem(HTTPStatus.CONFLICT, f"job {record.id} does not run")
    rank = min(running) if rank is None else rank
    if rank not in running:
        has = ", ".join(map(str, sorted(running)))
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"job {record.id} has no rank {rank}: it has {has}")
    try:
        return await service.backend.reach(running[rank]), rank
    except NoSuchWorker:
        raise Problem(HTTPStatus.CONFLICT, f"job {record.id} does not run") from None
    except InputError as refused:
        raise Problem(HTTPStatus.CONFLICT, str(refused)) from None
    except BackendUnreachable as gone:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(gone), RETRY_SOON) from None


@router.websocket("/{job}/exec")
async def execute(socket: WebSocket, job: str) -> None:
    """Run a program beside a worker."""
    service, caller, record = await _job(socket, job)
    sessions: ExecSessions = socket.app.state.exec_sessions
    visitor = Visitor(socket)
    with contextlib.ExitStack() as beginning:
        beginning.enter_context(sessions.beginning_one(caller.user))
        line, rank = await _line_to(service, record, _rank(socket.query_params.get("rank")))
        try:
            await socket.accept()
            with contextlib.suppress(*GONE, TimeoutError):
                async with asyncio.timeout(START_S):
                    message = await socket.receive_bytes()
                try:
                    program = await sessions.begin(line, record.id, rank, caller, _asked(message), visitor)
                except InputError as refused:
                    await visitor.say(EXIT, json.dumps({"status": 2, "why": str(refused)}).encode())
                    return
                beginning.close()
                await sessions.serve(program, visitor)
        finally:
            if not any(each.line is line for each in sessions.programs.values()):
                line.close()
            with contextlib.suppress(*GONE):
                await socket.close()


def _asked(message: bytes) -> dict[str, Any]:
    """What is to be started, checked. Raises InputError."""
    if message[:1] != START or len(message) > LONGEST_COMMAND:
        raise InputError(f"expected a command of at most {LONGEST_COMMAND} bytes")
    try:
        asked = json.loads(message[1:])
    except ValueError:
        raise InputError("expected a command as JSON") from None
    argv = asked.get("argv") if isinstance(asked, dict) else None
    if not (
        isinstance(argv, list) and argv and all(isinstance(each, str) and "\0" not in each for each in argv)
    ):
        raise InputError("argv must be a list of words")
    sizes = {name: asked.get(name) for name in ("rows", "columns")}
    whole = {name: size for name, size in sizes.items() if type(size) is int and 0 <= size < 1 << 16}
    term = asked.get("term")
    known = {"term": term} if isinstance(term, str) and "\0" not in term else {}
    return {"argv": argv, "tty": asked.get("tty") is True, **whole, **known}


@router.websocket("/{job}/attach")
async def attach(socket: WebSocket, job: str) -> None:
    """Come back to a terminal that was left."""
    _, caller, record = await _job(socket, job)
    sessions: ExecSessions = socket.app.state.exec_sessions
    program = sessions.parked(record.id, _rank(socket.query_params.get("rank")), caller)
    if program is None:
        raise Problem(HTTPStatus.CONFLICT, f"job {record.id} has no terminal of yours to come back to")
    await socket.accept()
    visitor = Visitor(socket)
    with contextlib.suppress(*GONE):
        await sessions.come_back(program, visitor)
        if program.ended is None:
            await sessions.serve(program, visitor)
    with contextlib.suppress(*GONE):
        await socket.close()


@router.websocket("/{job}/forward")
async def forward(socket: WebSocket, job: str) -> None:
    """One connection to a port of a worker."""
    service, caller, record = await _job(socket, job)
    given = socket.query_params.get("port", "")
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and int(given) in PORTS):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"port must be 1 to 65535, got {given[:20]!r}")
    sessions: ExecSessions = socket.app.state.exec_sessions
    with sessions.forwarding_one(caller.user):
        line, rank = await _line_to(service, record, _rank(socket.query_params.get("rank")))
        await _forward(socket, caller, line, f"job {record.id} rank {rank}: port {given}", int(given))


async def _forward(socket: WebSocket, caller: Caller, line: Line, about: str, port: int) -> None:
    """Carry a connection to a port by a line, with an audit."""
    service: Service = socket.app.state.service
    ended: dict[str, Any] = {}
    try:
        await service.record(did(caller, "forward", about))
        await socket.accept()
        line.write(frame(START, json.dumps({"port": port}).encode()))
        telling = asyncio.create_task(_tell(socket, line, ended))
        hearing = asyncio.create_task(_hear(socket, line, telling))
        watching = asyncio.create_task(_until_revoked(service, caller))
        tasks = {hearing, telling, watching}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        line.close()
        how = ended.get("why") or "closed"
        service.log_writer.record(did(caller, "forward ended", f"{about}: {how}"))
        with contextlib.suppress(*GONE):
            await socket.close()


async def _hear(socket: WebSocket, line: Line, telling: "asyncio.Task[None]") -> None:
    """Until the client goes, or the line breaks: then why is for `_tell` to say."""
    with contextlib.suppress(*GONE):
        while True:
            message = await socket.receive_bytes()
            if message[:1] in (INPUT, END) and not await passed_on(line, message):
                await asyncio.wait({telling})
                return


async def _tell(socket: WebSocket, line: Line, ended: dict[str, Any]) -> None:
    with contextlib.suppress(*GONE):
        while True:
            try:
                letter, content = await frame_of(line)
                if letter == EXIT:
                    ended.update(ending_in(content))
            except LineLost as lost:
                letter, ended["status"], ended["why"] = EXIT, ENDED_BY_US, str(lost)
            if letter == OUTPUT:
                await socket.send_bytes(OUTPUT + content)
            elif letter == EXIT:
                await socket.send_bytes(EXIT + json.dumps(ended).encode())
                return


async def _until_revoked(service: Service, caller: Caller) -> None:
    while caller.holds_still(service):
        await asyncio.sleep(1.0)
