"""The HTTP server of an agent, how many connections it accepts, and which leader it obeys.

Each connection costs a thread and a file, so their number is limited.

A service that was frozen, or cut off, may wake up after another has taken its place. It would then end
workers that it does not know. Each leader has a number, its epoch, larger than those of all leaders before
it. Commands of a leader that another has followed are refused.
"""

import hmac
import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stretto.agent import open_files, requests, run_directory, supervisor
from stretto.agent.log_bounds import first_byte
from stretto.agent.requests import Refused
from stretto.agent.worker_table import WorkerTable

STALE_STATUS = 412  # of a command whose leader has been followed by another
MOST = 512  # chosen: a service has a few, and one for each log that is followed
CLOSING = 16  # beyond those: they have been told to close, and do so in a moment
TOKEN_S = 10.0  # in which a connection has to show the token; chosen


@dataclass
class ConnectionLimit:
    """All connections; where there is no room, the oldest that has not shown the token makes way."""

    most: int = field(default_factory=lambda: max(min(MOST, open_files.left_for_others()), 1))
    _until_s: dict[socket.socket, float] = field(default_factory=dict)  # by age; inf: it showed the token
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, line: socket.socket) -> bool:
        """Whether a connection that was just accepted may stay."""
        with self._lock:
            if len(self._until_s) >= self.most or open_files.is_of_reserve(line.fileno()):
                unknown = next(
                    (connection for connection, until_s in self._until_s.items() if 0 < until_s < inf), None
                )
                if unknown is None or len(self._until_s) >= self.most + CLOSING:
                    return False
                self._close(unknown)
            self._until_s[line] = time.monotonic() + TOKEN_S
            return True

    def trust(self, line: socket.socket) -> None:
        """A connection has shown the token."""
        with self._lock:
            if self._until_s.get(line, 0) > 0:
                self._until_s[line] = inf

    def forget(self, line: socket.socket) -> None:
        """A connection is closed."""
        with self._lock:
            self._until_s.pop(line, None)

    def close_late(self) -> None:
        """Close those that have not shown the token in time."""
        now_s = time.monotonic()
        with self._lock:
            for line in [one for one, until_s in self._until_s.items() if 0 < until_s < now_s]:
                self._close(line)

    def _close(self, line: socket.socket) -> None:
        """Wake the thread that reads from it, which closes it."""
        self._until_s[line] = 0.0
        try:
            line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # its caller was faster


# ── the agent's HTTP: JSON over one connection for each caller, opened by a bearer token ────────────────────


LONGEST_BODY_BYTES = 1 << 20
LONGEST_PIECE_BYTES = 4 << 20
LONGEST_WAIT_S = 60.0
LOG_POLL_S = 0.05  # how often a log that is followed is looked at
IDLE_S = 120.0  # after which a silent connection is closed
UNREAD = (HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)  # bodies, which are dropped
LINGER_S = 2.0  # for what is still on its way of a request that was refused; chosen


class Fence:
    """Remembers the largest epoch in a file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """A file that cannot be read counts as none: an agent that does not begin would cost more."""
        self.path = path
        self.lock = threading.Lock()
        self.epoch = 0
        with suppress(OSError, ValueError, KeyError, TypeError):
            self.epoch = int((run_directory.read_json(path) or {"epoch": 0})["epoch"])

    def note(self, epoch: int) -> None:
        """A leader of this epoch is there; 0: the caller is no leader."""
        with self.lock:
            if epoch <= self.epoch:
                return
            self.epoch = epoch
            with suppress(OSError):  # then an agent that starts anew learns it from the next command
                supervisor.write_durably(self.path, {"epoch": epoch})

    def admit(self, epoch: int) -> None:
        """Raise Refused for a command of a leader that has been followed by another."""
        self.note(epoch)
        if 0 < epoch < self.epoch:
            raise Refused(
                STALE_STATUS,
                f"leader {epoch} has been followed by leader {self.epoch}: commands of it are refused",
                self.epoch,
            )


class Server(ThreadingHTTPServer):
    """Answers for one set of workers."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], workers: WorkerTable, token: str, fence: Fence) -> None:
        self.workers = workers
        self.token = token
        self.lines = ConnectionLimit()
        self.fence = fence
        self.lock = threading.Lock()
        self.asking = 0  # requests that are being answered
        self.asked_s = time.monotonic()  # when the last one was
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what we are called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def idle_s(self) -> float:
        """Seconds since a request was last served; 0 while one is."""
        with self.lock:
            return 0.0 if self.asking else time.monotonic() - self.asked_s

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While this lasts a permitted request is served."""
        with self.lock:
            self.asking += 1
        try:
            yield
        finally:
            with self.lock:
                self.asking, self.asked_s = self.asking - 1, time.monotonic()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection."""
        return self.lines.admit(request)

    def service_actions(self) -> None:
        """Every now and then: close connections that have shown no good token."""
        self.lines.close_late()

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        self.lines.forget(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that go away are no news; the rest is."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = 1 << 16  # head and body in one packet
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
        """Say nothing of ordinary requests."""

    def answer(self) -> None:
        """Do one request."""
        try:
            self.check_token()
            self.server.lines.trust(self.connection)
            body = self.read_body()
            with self.server.asked():
                self.check_epoch()
                self.route(body)
        except Refused as refusal:
            self.reply(refusal.status, refusal.to_json())
            if refusal.status in UNREAD:
                self.let_go()
        except OSError as failure:
            if isinstance(failure, ConnectionError | TimeoutError):
                raise
            status = HTTPStatus.INSUFFICIENT_STORAGE if open_files.are_short(failure) else 500
            self.reply(status, {"why": f"{type(failure).__name__}: {failure}"})

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  # the base class looks for these names

    def route(self, body: dict[str, Any]) -> None:
        """Find the handler of a request, and call it."""
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        workers = self.server.workers
        match (self.command, *parts):
            case ("GET", "v1", "node"):
                self.reply(200, {**asdict(workers.node), "instance": workers.instance})
            case ("PUT", "v1", "node", "lender"):
                self.reply(200, workers.hand_over(requests.lender_of(body)))
            case ("GET", "v1", "workers"):
                wait_s = min(number_in(query, "wait_s", 0.0), LONGEST_WAIT_S)
                self.reply(200, workers.listed(query.get("after", ""), wait_s))
            case ("PUT", "v1", "workers", name):
                worker_id = requests.worker_id_of(name)
                self.reply(200, workers.start(worker_id, requests.start_of(body, workers.node.gpus)))
            case ("POST", "v1", "workers", name, "stop"):
                order = {"stop": requests.grace_of(body)}
                self.reply(200, workers.order(requests.worker_id_of(name), order))
            case ("POST", "v1", "workers", name, "signal"):
                order = {"signal": requests.signal_of(body)}
                self.reply(200, workers.order(requests.worker_id_of(name), order))
            case ("GET", "v1", "workers", name, "log"):
                self.reply_log(requests.worker_id_of(name), query)
            case ("POST", "v1", "workers", name, "reach"):
                self.hand_on(requests.worker_id_of(name))
            case ("DELETE", "v1", "workers", name):
                self.reply(200, workers.forget(requests.worker_id_of(name)))
            case ("DELETE", "v1", "jobs", job, "logs"):
                self.reply(200, {"removed": workers.delete_logs(job)})
            case _:
                raise Refused(404, f"no {self.command} {url.path}")

    def hand_on(self, worker_id: str) -> None:
        """Give this connection to a program beside a worker (`exec_session`), for as long as that lasts."""
        running = self.server.workers.running(worker_id)
        self.close_connection = True  # what follows are no requests
        self.send_response_only(HTTPStatus.SWITCHING_PROTOCOLS)
        for name, value in (("Connection", "Upgrade"), ("Upgrade", "stretto-frames")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        self.server.workers.reach(running, self.connection.fileno())

    def reply_log(self, worker_id: str, query: dict[str, str]) -> None:
        """A piece of a log, waiting for one where nothing is there yet."""
        offset, limit = int(number_in(query, "offset", 0)), int(number_in(query, "limit", 1 << 20))
        until = time.monotonic() + min(number_in(query, "wait_s", 0.0), LONGEST_WAIT_S)
        while True:
            path, worker = self.server.workers.log_of(worker_id)
            complete = worker is None or worker.ended  # before reading: what is read after its end is all
            try:
                offset, data, size = read_piece(path, offset, min(max(limit, 0), LONGEST_PIECE_BYTES))
            except run_directory.Damaged as damage:
                raise Refused(409, f"worker {worker_id}: {damage}") from damage
            if data or complete or time.monotonic() >= until or self.server.workers.closing:
                break
            time.sleep(LOG_POLL_S)
        head = {
            "Content-Type": "application/octet-stream",
            "Stretto-Offset": str(offset),
            "Stretto-Next": str(offset + len(data)),
            "Stretto-Complete": str(int(complete and offset + len(data) >= size)),
        }
        self.send(200, head, data)

    def read_body(self) -> dict[str, Any]:
        """The JSON object that came with the request, empty without one; raises Refused."""
        text = self.headers.get("Content-Length") or "0"
        if not text.isdigit() or int(text) > LONGEST_BODY_BYTES or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # what follows cannot be told from the next request
            raise Refused(413, f"a body must have at most {LONGEST_BODY_BYTES} bytes and say how many")
        data = self.rfile.read(int(text))
        try:
            body = json.loads(data) if data else {}
        except (ValueError, RecursionError) as failure:
            raise Refused(400, f"the body must be JSON: {failure}") from failure
        if not isinstance(body, dict):
            raise Refused(400, f"the body must be a JSON object, got {type(body).__name__}")
        return body

    def let_go(self) -> None:
        """Say that nothing more comes, and drop what does of a body that is not read.

        A connection that is closed with unread data on it gives an error to a peer that still sends, and may
        cost it the answer.
        """
        until = time.monotonic() + LINGER_S
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_S)
            while self.connection.recv(1 << 16) and time.monotonic() < until:
                pass

    def check_token(self) -> None:
        """Refuse a caller who does not know the token."""
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self.close_connection = True
            raise Refused(401, "the agent's token is missing or wrong")

    def check_epoch(self) -> None:
        """Refuse commands of a leader that has been followed by another; it may look all the same."""
        epoch = requests.epoch_of(self.headers.get("Stretto-Epoch"))
        if self.command == "GET":
            self.server.fence.note(epoch)
        else:
            self.server.fence.admit(epoch)

    def reply(self, status: int, value: dict[str, Any]) -> None:
        """Send an object."""
        self.send(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def send(self, status: int, head: dict[str, str], data: bytes) -> None:
        """Send bytes."""
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:  # or the next request would be sent where it is read no more
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def read_piece(path: Path, offset: int, limit: int) -> tuple[int, bytes, int]:
    """Where a piece of a file begins (negative: counted from the end), its bytes, and the file's size.

    Raises Damaged for what is no file.
    """
    try:
        file = run_directory.open_file(path)
    except FileNotFoundError:  # nothing was written yet
        return max(0, offset), b"", 0
    with os.fdopen(file, "rb") as reader:
        size = reader.seek(0, 2)
        offset = max(0, size + offset) if offset < 0 else offset
        if offset >= size:  # some file systems refuse to go there
            return offset, b"", size
        offset = max(offset, first_byte(reader.fileno()))  # what was before it has been dropped
        reader.seek(offset)
        return offset, reader.read(limit), size


def number_in(query: dict[str, str], name: str, default: float) -> float:
    """A finite number of a query; raises Refused."""
    try:
        number = float(query.get(name, default))
        int(number)
    except (ValueError, OverflowError):
        raise Refused(400, f"{name} must be a number, got {query[name]!r}") from None
    return number
