"""The service's side of the worker's channel, for tests of what runs inside a worker. Standard library only.

It remembers what workers say, answers with the generations that the test publishes, and decides nothing.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PREFIX = "/api/v1/worker/"


class Conductor:
    """One job's service on a free port of loopback. As a context manager it ends what it started."""

    def __init__(self, token: str = "secret") -> None:
        self.token = token
        self.ready: list[str] = []  # workers, in the order of saying so
        self.stores: dict[int, str] = {}  # by generation
        self.joined: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.refused: list[str] = []  # requests that were none of the channel's
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.is_away = False  # answers 503 to everything
        self.generation: dict[str, Any] = {"generation": 0}
        self._unwanted: set[str] = set()
        self._leaving: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """What workers are given as STRETTO_URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self, worker: str, command: Sequence[str], env: Mapping[str, str], **options: Any) -> None:
        """Start a worker's process with the environment it needs."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment_of(worker), **env}
        self.workers[worker] = subprocess.Popen(command, env=environment, **options)

    def environment_of(self, worker: str) -> dict[str, str]:
        """The variables that lead a worker here."""
        return {"STRETTO_URL": self.url, "STRETTO_TOKEN": self.token, "STRETTO_WORKER_ID": worker}

    def publish(self, workers: Sequence[str], *, source: str | None = None, **more: Any) -> int:
        """The number of a new generation of these workers, in the order of ranks."""
        members = [
            {
                "id": worker,
                "node": "here",
                "address": "127.0.0.1",
                "local_rank": rank,
                "gpus": 1,
                "gpu_type": "cpu",
            }
            for rank, worker in enumerate(workers)
        ]
        return self._publish({"workers": members, "source": source, **more})

    def leave(self, until_s: float | None = None) -> int:
        """Tell all workers that are there to leave; one that comes later belongs to another attempt."""
        with self._changed:
            self._leaving = {*self.ready}
        return self._publish({"workers": [], "leave": True, "until_s": until_s})

    def _publish(self, document: dict[str, Any]) -> int:
        with self._changed:
            number = int(self.generation["generation"]) + 1
            self.generation = {"batch": None, "store": None, "until_s": None, "leave": False, **document}
            self.generation |= {"generation": number, "secret": f"of generation {number}"}
            self._changed.notify_all()
            return number

    def dismiss(self, worker: str) -> None:
        """Answer 410 to that worker from now on."""
        with self._changed:
            self._unwanted.add(worker)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Until something that workers say makes it true; raises TimeoutError."""
        until_s = time.monotonic() + within_s
        with self._changed:
            while not condition():
                if time.monotonic() > until_s:
                    raise TimeoutError(f"{what}: not within {within_s:g} s; {self.endings()}")
                self._changed.wait(0.05)

    def wait_joined(self, generation: int, within_s: float) -> None:
        """Until every member of that generation trains in it."""

        def have_joined() -> bool:
            members = {worker["id"] for worker in self.generation["workers"]}
            return members <= {each["worker"] for each in self.joined if each["generation"] == generation}

        self.wait_until(have_joined, within_s, f"all in generation {generation}")

    def wait_ended(self, worker: str, within_s: float) -> int:
        """The exit status of that worker."""
        return self.workers[worker].wait(within_s)

    def endings(self) -> dict[str, int | None]:
        """Exit statuses by worker; None for one that runs."""
        return {name: worker.poll() for name, worker in self.workers.items()}

    def answer_generation(self, query: Mapping[str, str]) -> tuple[int, Any]:
        """Status and body of a long poll."""
        after, until_s = int(query["after"]), time.monotonic() + float(query.get("wait_s", 0))
        with self._changed:
            while not self._closed and not self.is_away:
                if query["worker"] in self._unwanted:
                    return 410, None
                newest = self.generation
                is_told = not newest.get("leave") or query["worker"] in self._leaving
                if newest["generation"] > after and is_told and (newest["store"] or not query.get("store")):
                    return 200, {**newest}
                if not self._changed.wait(max(0.0, until_s - time.monotonic())):
                    return 204, None
        return 503, None

    def take(self, what: str, body: dict[str, Any]) -> int:
        """The status that answers a post."""
        with self._changed:
            if self.is_away:
                return 503
            if what == "ready":
                self.ready.append(body["worker"])
            elif what == "store":
                self.stores[body["generation"]] = body["address"]
                if body["generation"] == self.generation["generation"]:
                    self.generation["store"] = body["address"]
            elif what in ("joined", "report", "checkpoint"):
                {"joined": self.joined, "report": self.reports, "checkpoint": self.checkpoints}[what].append(
                    body
                )
            else:
                self.refused.append(what)
                return 404
            self._changed.notify_all()
            return 204


def handler_of(conductor: Conductor) -> type[BaseHTTPRequestHandler]:
    """A handler of requests that asks this conductor."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if self.is_ours() and url.path == PREFIX + "generation":
                self.reply(*conductor.answer_generation(query))
            else:
                self.reply(404, None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.is_ours():
                self.reply(conductor.take(self.path.removeprefix(PREFIX), body), None)

        def is_ours(self) -> bool:
            """Whether it knows the token; else it is told so."""
            if self.headers.get("Authorization") == f"Bearer {conductor.token}":
                return True
            conductor.refused.append(self.path)
            self.reply(401, None)
            return False

        def reply(self, status: int, content: Any) -> None:
            body = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # the worker has ended meanwhile
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Nothing: tests read what workers print."""

    return Handler
