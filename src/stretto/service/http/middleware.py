"""What goes around each request: its name, its caller, how much that may send, what is noted of it."""

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from stretto.service.http import problem_pages, problems
from stretto.service.http.audit import Audit
from stretto.service.http.auth import (
    CHANNEL,
    NO_TOKEN,
    OPEN,
    Caller,
    address_of,
    bearer_in,
    caller_by,
    caller_known,
    check_scope,
    is_open,
    job_by,
)
from stretto.service.http.connections import Connections
from stretto.service.http.metrics import Metrics
from stretto.service.http.problems import RETRY_SOON, Problem
from stretto.service.http.rate_limits import Limits, Together
from stretto.service.service import Service

if TYPE_CHECKING:
    from stretto.service.http.oidc.provider import Provider

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("stretto.api")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
WAITING = ("/wait", "/events", "/log", "/log/follow", "/generation")  # ends of routes that wait on purpose
READING = frozenset({"GET", "HEAD"})
METHODS = READING | {"POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
DOTS_OF_JWT = 2  # as JWS writes one; tokens of ours have none
LONGEST_PATH = 200  # of a line of the log; chosen
# Bodies, at least in part
UNREAD = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT})
WORKERS_SPARE = 16  # requests of a job at once beyond two of each worker; chosen
LINGER_S, LINGER_BYTES = 1.0, 8 << 20  # for what is still on its way of these; chosen
ENDING = "the service ends: what was asked for may or may not be done; ask again once it is back"
ALWAYS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class Middleware:
    """An ASGI application around another.

    The caller is known before anything of a body is read. A request whose sender hangs up goes on to its end.
    """

    def __init__(
        self,
        app: App,
        service: Service,
        limits: Limits,
        meters: Metrics,
        connections: Connections,
        together: Together,
        requests: "set[asyncio.Task[Any]]",
        audit: Audit,
        provider: "Provider | None" = None,
    ) -> None:
        self.app, self.service, self.limits, self.meters = app, service, limits, meters
        self.most_of_one = max(min(limits.requests, connections.most // 2), 1)
        self.together, self.requests, self.audit = together, requests, audit
        self.provider = provider

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        request_id = headers.get("x-request-id", "")
        state["request_id"] = request_id if REQUEST_ID.fullmatch(request_id) else _new_id()
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = state["request_id"]
                for name, value in ALWAYS.items():
                    answer.setdefault(name, value)
                if status in UNREAD:
                    answer["connection"] = "close"  # what is still on its way is no request
            elif status in UNREAD:  # a caller that still sends has the whole answer before the line is closed
                await send({**message, "more_body": True})
                await _drop(receive)
                message = {"type": "http.response.body"}
            await send(message)

        async def refuse(problem: Problem) -> None:
            parts = problem.status_code, problem.detail, problem.headers
            if problem_pages.is_for_browser(scope):
                await problem_pages.answer(scope, *parts)(scope, receive, sent)
            else:
                await problems.answer(*parts, state["request_id"])(scope, receive, sent)

        task = asyncio.current_task()
        assert task is not None
        self.requests.add(task)
        try:
            await self._let_in(scope, headers)
            with self._counted(scope):
                await self.app(scope, self._bounded(receive, scope["path"]), sent)
        except Problem as problem:
            await refuse(problem)
        except ClientDisconnect:
            status = status or 499  # as others call it: no caller was left to answer
        except asyncio.CancelledError:  # the service ends; uvicorn would answer 500, with a trace to the log
            if not status:
                await refuse(Problem(HTTPStatus.SERVICE_UNAVAILABLE, ENDING, RETRY_SOON))
        except Exception:
            LOG.exception(
                "a request failed", extra={"request_id": state["request_id"], "path": scope["path"]}
            )
            if not status:
                await refuse(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a fault of the service"))
        finally:
            self.requests.discard(task)
            self._note(scope, status, time.perf_counter() - began)

    async def _websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        """Let a WebSocket through, or refuse it before it is one. It counts as a request that changes things.

        So a page of others opens none by a browser's cookie, and a token for reading opens none.
        """
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = _new_id()
        scope["method"] = "POST"
        began, status = time.perf_counter(), HTTPStatus.SWITCHING_PROTOCOLS
        task = asyncio.current_task()
        assert task is not None
        self.requests.add(task)
        try:
            await self._let_in(scope, headers)
            with self._counted(scope):
                await self.app(scope, receive, send)
        except Problem as problem:
            status = HTTPStatus(problem.status_code)
            if problem.refusal and "caller" in state:
                self.audit.refused(state["caller"], problem.refusal, scope["path"])
            answer = problems.answer(status, problem.detail, problem.headers, state["request_id"])
            await answer(scope, receive, send)
        except asyncio.CancelledError:  # the service ends
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1012, "reason": "the service ends"})
        finally:
            self.requests.discard(task)
            self._note(scope, status, time.perf_counter() - began)

    async def _let_in(self, scope: Any, headers: Headers) -> None:
        path = scope["path"]
        if path.startswith(CHANNEL):
            scope["state"]["worker_job"] = job_by(self.service, headers)
        elif not is_open(path):
            try:
                caller = scope["state"]["caller"] = await self._caller(scope, headers)
            except Problem as problem:
                if problem.status_code == HTTPStatus.UNAUTHORIZED and problem.detail != NO_TOKEN:
                    self.audit.failed(address_of(scope), path, problem.detail)
                raise
            check_scope(caller, scope["method"], path)
            self.audit.used(caller)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._most_bytes(path):
            raise self._too_large(path)

    async def _caller(self, scope: Any, headers: Headers) -> Caller:
        """The caller, by a token of this service or of the identity provider. Raises 401."""
        given = bearer_in(headers)
        if self.provider is not None and given is not None and given.count(".") == DOTS_OF_JWT:
            return caller_known(await self.provider.identity(given), scope)
        return caller_by(self.service, scope, headers, self.provider is not None)

    @contextlib.contextmanager
    def _counted(self, scope: Any) -> Iterator[None]:
        """While a request is under way; raises 429 where the same caller has too many."""
        name, most = self._share_of(scope)
        if not name:
            yield
            return
        if not self.together.take(name, most):
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"at most {most} requests of one {name.partition(' ')[0]} at once",
                RETRY_SOON,
            )
        try:
            yield
        finally:
            self.together.give_back(name)

    def _share_of(self, scope: Any) -> tuple[str, int]:
        """Whose share of what is under way a request uses, and how large that is; "" without bound."""
        if job := scope["state"].get("worker_job"):
            record = self.service.state.jobs.get(job)
            workers = 0 if record is None else len(record.alive)
            return f"job {job}", WORKERS_SPARE + 2 * workers  # each waits, and reports
        caller = scope["state"].get("caller")
        bounded = caller is not None and caller.token is not None
        return (f"user {caller.user}", self.most_of_one) if bounded else ("", 0)

    def _most_bytes(self, path: str) -> int:
        return self.limits.report_bytes if path.startswith(CHANNEL) else self.limits.body_bytes

    def _too_large(self, path: str) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {self._most_bytes(path)} bytes here"
        )

    def _bounded(self, receive: Receive, path: str) -> Receive:
        """A body that is counted as it comes, and must have come in time."""
        read, whole = 0, False
        until = asyncio.get_running_loop().time() + self.limits.body_s

        async def bounded() -> Message:
            nonlocal read, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Problem(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if read > self._most_bytes(path):
                    raise self._too_large(path)
            return message

        return bounded

    def _note(self, scope: Any, status: int, took_s: float) -> None:
        """Count it and write it down; never a header, a query or a body."""
        route = getattr(scope.get("route"), "path", "")
        caller = scope["state"].get("caller")
        if route and not route.endswith(WAITING) and scope["type"] != "websocket":
            method = scope["method"] if scope["method"] in METHODS else "other"  # a caller may invent any
            self.meters.requests.labels(method, route).observe(took_s)
        if status >= 400:
            self.meters.refused.labels(str(status)).inc()
        level = logging.DEBUG if scope["method"] in READING and status < 400 else logging.INFO
        if status >= 500:
            not_ready = scope["path"] in OPEN and status == HTTPStatus.SERVICE_UNAVAILABLE
            level = logging.DEBUG if not_ready else logging.ERROR  # that is what a probe asks for
        if LOG.isEnabledFor(level):
            fields = {
                "request_id": scope["state"]["request_id"],
                "method": scope["method"][:LONGEST_PATH],
                "path": scope["path"][:LONGEST_PATH],
                "status": status,
                "took_ms": round(took_s * 1e3, 3),
                "user": caller.user if caller is not None else "",
                "client": (scope.get("client") or ("",))[0],
            }
            if "worker_job" in scope["state"]:
                fields["job"] = scope["state"]["worker_job"]
            LOG.log(level, "request", extra=fields)


def _new_id() -> str:
    """The name of a request: it is no secret, and asking the kernel for each would take longer."""
    return f"{random.getrandbits(64):016x}"


async def _drop(receive: Receive) -> None:
    """Read what is still sent of a body that is not wanted, within bounds."""
    read = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while read < LINGER_BYTES and (message := await receive()).get("more_body", False):
                read += len(message.get("body", b""))
