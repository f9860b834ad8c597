"""The HTTP server around the application: its bounds, and problems where a request cannot even be read."""

import asyncio
import json
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from stretto.service.http.connections import Connections
from stretto.service.http.problems import MEDIA_TYPE
from stretto.service.http.rate_limits import Limits

IDLE_S = 30  # after which an unused connection is closed; chosen: longer than a client pauses between waits
ENDING_S = 2.0  # for requests that are under way when the service ends; workers and clients ask again
CANCELLED_S = 3  # for their answers; uvicorn cancels those that are then still there, and says so
LINGER_S = 2.0  # for what is still on its way of bytes that were refused; chosen
HALF_CLOSED_S = 2.0  # for an answer to a caller who sends no more, and may have gone; chosen
UNREAD_S = 60.0  # in which a caller must read on of an answer that is longer than the buffers; chosen
LARGEST_MESSAGE = 1 << 20  # of a WebSocket
# Seconds of silence, between two probes, and how many of them, after which a WebSocket's peer is gone; chosen
ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
CLOSED, SILENT, HEAD, BUSY, UNWANTED, IDLE = "closed", "silent", "head", "busy", "unwanted", "idle"


class Upgraded(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket; `lost` is called at its end."""

    def __init__(self, lost: Callable[[Exception | None], None], **more: Any) -> None:
        super().__init__(**more)
        self.lost = lost

    async def send(self, message: Any) -> None:
        """Send on; after a whole refusal nothing is left to say, which uvicorn would take for a fault."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        super().connection_lost(exc)
        self.lost(exc)


class WholeAnswers(h11.Connection):
    """HTTP/1.1 as h11 speaks it, where the head of an answer of known length waits for its first bytes.

    They go out in one write then: a second one would cost a call of the kernel, and wake the caller twice.
    """

    _head = b""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # the bytes of each kind
        """The bytes that are to be written now; None where the connection is to be closed."""
        written = super().send(event)
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = written or b""
            return b""
        if self._head and written is not None:
            written, self._head = self._head + written, b""
        return written


class Protocol(H11Protocol):
    """HTTP/1.1 whose own refusals are problems like all others, and that waits for nothing without a limit.

    uvicorn limits how long a connection may be idle after an answer; not before the first request, nor in the
    midst of one.
    """

    has_refused = False
    table: Connections
    limits: Limits
    _phase = ""
    _has_place = False
    _is_upgraded = False
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, *more: Any, **named: Any) -> None:
        """Speak as `WholeAnswers` does."""
        super().__init__(config, *more, **named)
        most_bytes = config.h11_max_incomplete_event_size
        assert most_bytes is not None
        self.conn = WholeAnswers(h11.SERVER, most_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, and begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._take_place(self.client[0] if self.client else "")
        self._follow()

    def _take_place(self, address: str) -> None:
        """Be counted from here on, once."""
        if not self._has_place:
            self._has_place = True
            state = self.config.app.state  # type: ignore[union-attr]
            self.table, self.limits = state.connections, state.limits
            self.table.enter(self, address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._enter(CLOSED)
        self.resume_writing()
        self.table.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless what came was refused: the rest of that is dropped."""
        if not self.has_refused:
            super().data_received(data)
            self._follow()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it, and uvicorn does not
        """Answer what was asked, where that takes no longer than a moment; whether to stay open for it.

        A caller who sends no more may still read, or have gone for good: nothing tells.
        """
        if self._phase != BUSY or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(HALF_CLOSED_S, self.transport.close)
        return True

    def on_response_complete(self) -> None:
        """Wait for the next request, but not for a body that is read no more."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """An answer waits for its reader, for a while."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.drop)

    def resume_writing(self) -> None:
        """Its reader has read."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def drop(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.transport.abort()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Become a WebSocket, which keeps this place until it is lost.

        The kernel notices a peer that is gone. One that only pauses to read must not be cut off.
        """
        self._enter(BUSY)
        self.table.work(self)
        self._is_upgraded = True
        self.ws_protocol_class = partial(Upgraded, self._upgraded_lost)  # type: ignore[assignment]
        if (line := self.transport.get_extra_info("socket")) is not None and line.family != socket.AF_UNIX:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ALIVE:
                line.setsockopt(socket.IPPROTO_TCP, option, value)
        super().handle_websocket_upgrade(event)

    def _upgraded_lost(self, exc: Exception | None) -> None:
        self._enter(CLOSED)
        self.table.leave(self)

    # ── what is waited for ────────────────────────────────────────────────────────────────────────

    def _follow(self) -> None:
        """Note what this connection waits for now, and wait for it only so long."""
        phase = BUSY if self._is_upgraded else self._phase_now()
        if phase == self._phase:
            return
        before = self._phase
        self._enter(phase)
        if phase == BUSY:
            self.table.work(self)
        elif before in ("", BUSY):
            self.table.rest(self, self._is_trusted())
        limit_s = {SILENT: self.limits.head_s, HEAD: self.limits.head_s, UNWANTED: self.limits.head_s}
        if phase in limit_s:
            self._timer = self.loop.call_later(limit_s[phase], self._too_slow)
        elif phase == IDLE and not self._is_trusted():
            self._timer = self.loop.call_later(min(self.limits.head_s, IDLE_S), self._too_slow)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _phase_now(self) -> str:
        if self._phase == CLOSED or self.has_refused or self.transport.is_closing():
            return CLOSED
        if self.cycle is not None and not self.cycle.response_complete:
            return BUSY
        if self.conn.their_state is h11.SEND_BODY:
            return UNWANTED  # its request was answered before it was there
        if self.conn.trailing_data[0]:
            return HEAD
        return IDLE if self.cycle is not None else SILENT

    def _is_trusted(self) -> bool:
        """Whether the latest request came with a good token."""
        state: dict[str, Any] = self.scope["state"] if self.cycle is not None else {}
        return "caller" in state or "worker_job" in state

    def _too_slow(self) -> None:
        """Hang up; a caller that has begun a request is told why."""
        self.table.closed["slow"] += 1
        if self._phase == HEAD:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The headers did not come in time.")
        else:
            self.drop()

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────

    def send_400_response(self, msg: str) -> None:
        """Say that the bytes are no request, or one with too large headers, and hang up."""
        bound = self.config.h11_max_incomplete_event_size
        self._refuse(HTTPStatus.BAD_REQUEST, f"{msg} Headers may have {bound} bytes.")

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer, and hang up.

        Not at once: a connection that is closed with unread data on it gives an error to a peer that still
        sends. That may cost it the answer.
        """
        problem = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
        body = json.dumps(problem).encode()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.has_refused = True
        self._enter(CLOSED)
        if self.transport.can_write_eof():  # not inside TLS, where what is written comes before the end
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


async def end_requests(app: FastAPI) -> None:
    """Give requests that are under way a moment to end, then cancel them: each is answered with 503."""
    if (sessions := getattr(app.state, "exec_sessions", None)) is not None:
        await sessions.close()
    requests: set[asyncio.Task[Any]] = {*app.state.requests}
    if requests:
        _, late = await asyncio.wait(requests, timeout=ENDING_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCELLED_S)


def config_of(app: FastAPI, protocol: type[Protocol] = Protocol) -> uvicorn.Config:
    """How uvicorn serves the application. It logs nothing by itself: the application does."""
    limits: Limits = app.state.limits
    return uvicorn.Config(
        app,
        http=protocol,
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # who stands behind a proxy is told by their token
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=int(ENDING_S) + CANCELLED_S,
        h11_max_incomplete_event_size=limits.header_bytes,
    )
