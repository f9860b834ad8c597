"""A webhook that waits when its service is killed is delivered by the next one, once and signed."""

import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]


class Receiver(BaseHTTPRequestHandler):
    """Takes requests, and keeps their headers and bodies."""

    def do_POST(self) -> None:
        """Note one request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((dict(self.headers), body))  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_what_waits_when_a_service_ends_is_delivered_by_the_next_one(tmp_path: Path, number: int) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    options = ("--slots", "1", "--gpu-type", "cpu", "--policy", "fifo", "--notify-allow", "127.0.0.1")
    running = Running(tmp_path, *options)
    try:
        running.begin()
        with running.client() as client:
            name = str(client.submit(f"run: 'true'\nnotify: http://127.0.0.1:{port}/ends")["id"])
            assert client.wait(name)["state"] == "COMPLETED"
        running.kill(number)
        assert [kind for _, _, kind, _ in running.log_of_all()].count("WebhookDone") == 0
        server = HTTPServer(("127.0.0.1", port), Receiver)
        server.received = []  # type: ignore[attr-defined]
        with server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            running.begin()
            until(lambda: server.received, what="it is delivered")  # type: ignore[attr-defined]
            until(
                lambda: "WebhookDone" in [kind for _, _, kind, _ in running.log_of_all()],
                what="that it was delivered is in the log",
            )
            running.kill(signal.SIGKILL)
            running.begin()
            with running.client() as client:
                assert client.wait(str(client.submit("run: 'true'")["id"]))["state"] == "COMPLETED"
            server.shutdown()
        ((headers, body),) = server.received  # type: ignore[attr-defined]  # once, also after another restart
        assert headers["webhook-signature"].startswith("v1,")
        assert headers["webhook-id"]
        assert f'"job":"{name}"'.encode() in body
        assert b'"moment":"completed"' in body
        assert running.differences()[1] == 0
    finally:
        running.end()
