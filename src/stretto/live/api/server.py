"""The HTTP server around the application: its bounds, and problems where a request cannot even be read."""

import json
from http import HTTPStatus

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from stretto.live.api.limits import Limits
from stretto.live.api.problems import MEDIA_TYPE

IDLE_S = 30  # after which an unused connection is closed; chosen: longer than a client pauses between waits
ENDING_S = 2  # for requests that are under way when the service ends; workers and clients ask again
LINGER_S = 2.0  # for what is still on its way of bytes that were refused; chosen


class Protocol(H11Protocol):
    """HTTP/1.1, whose own refusals are problems like all others."""

    has_refused = False

    def data_received(self, data: bytes) -> None:
        """Read on, unless what came was refused: the rest of that is dropped."""
        if not self.has_refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Say that the bytes are no request, or one with too large headers, and hang up.

        Not at once: a line that is closed while something unread lies on it is an error for whoever is still
        sending, and may cost him the answer.
        """
        said = {
            "type": "about:blank",
            "title": HTTPStatus.BAD_REQUEST.phrase,
            "status": HTTPStatus.BAD_REQUEST,
            "detail": f"{msg} Headers may have {self.config.h11_max_incomplete_event_size} bytes.",
        }
        body = json.dumps(said).encode()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.has_refused = True
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def config_of(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves the application. It logs nothing by itself: the application does."""
    limits: Limits = app.state.limits
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # who stands behind a proxy is told by their token
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=ENDING_S,
        h11_max_incomplete_event_size=limits.header_bytes,
    )
