"""How the service bears many jobs and many GPUs: submissions a second, waiting times of requests, decisions.

    python benchmarks/live_load.py --gpus 10000 --pending 10000 --policy fifo --pace 100 --store both

A service with an emulated cluster is started in a process of its own, and its GPUs are filled; then as many
jobs more are submitted as are to wait, and for so many hours of its clock each job that ends is replaced by a
new one, while others list, describe and submit. With `--batch 100` the GPUs are filled by requests of so many
jobs each, and what waits is submitted one by one. At the end the service is killed and started again, then
stopped and started again, and then started from the log alone, without a kept state. Figures are printed as
one JSON object, side by side for both kinds of store: the PostgreSQL server is the distribution's, started
here on loopback with default durability. Client, service and database share the cores of this machine.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import delete

from stretto.service.eventlog import open_store
from stretto.service.eventlog.database import STATES

CONNECTIONS, BATCHES_AT_ONCE = 16, 4
SHORTEST_S, LONGEST_S = 600.0, 21_600.0  # of a job; logarithms are uniform in between
MEAN_S = (LONGEST_S - SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
SIZES = (1, 1, 1, 2, 2, 4, 4, 8)  # GPUs of a job, drawn; 2.9 on average
USERS = 8  # one alone may have 20,000 open jobs


@dataclass
class Connection:
    """One connection that is kept, spoken to in as few instructions as will do: the client must not count."""

    host: str
    port: int
    user: str = "load"
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, bytes]:
        """(status, content); key: of idempotency."""
        if self.writer is None or self.reader is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nx-stretto-user: {self.user}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
            f"idempotency-key: {key}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer.lower())
        return int(answer[9:12]), await self.reader.readexactly(int(length.group(1)) if length else 0)


@dataclass
class Load:
    """A service under load, and what was seen of it."""

    host: str
    port: int
    draw: random.Random
    elastic: bool
    took_s: dict[str, list[float]] = field(default_factory=dict)  # by kind of request
    refused: dict[str, int] = field(default_factory=dict)  # by kind of request and status

    async def timed(self, kind: str, connection: Connection, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer; how long it took is kept."""
        began = time.perf_counter()
        status, content = await connection.ask(method, path, body)
        self.took_s.setdefault(kind, []).append(time.perf_counter() - began)
        if status >= 400:
            self.refused[f"{kind}: {status}"] = self.refused.get(f"{kind}: {status}", 0) + 1
            return None
        return json.loads(content) if content else None

    def job(self) -> str:
        """A job file: recorded jobs of ten minutes to six hours on one to eight GPUs."""
        gpus = self.draw.choice(SIZES)
        lasts_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self.draw.random()
        said: dict[str, Any] = {
            "name": "load",
            "run": "python train.py --epochs 90",
            "resources": {"accelerators": str(gpus)},
            "expected_time": f"{lasts_s:.0f}s",
        }
        if self.elastic:
            said["elastic"] = {"min": 1, "max": 2 * gpus}
        return json.dumps(said)

    async def submit(self, count: int, kind: str) -> float:
        """Submit so many jobs over all connections; jobs a second."""
        left = iter(range(count))
        began = time.perf_counter()

        async def one(number: int) -> None:
            connection = Connection(self.host, self.port, f"load{number % USERS}")
            for _ in left:
                await self.timed(kind, connection, "POST", "/api/v1/jobs", {"text": self.job()})

        await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
        return count / (time.perf_counter() - began)

    async def submit_in_batches(self, count: int, size: int, kind: str) -> float:
        """Submit so many jobs over a few connections, in requests of so many; jobs a second."""
        left = iter(range(0, count, size))
        began = time.perf_counter()

        async def one(number: int) -> None:
            connection = Connection(self.host, self.port, f"load{number % USERS}")
            for start in left:
                jobs = [{"text": self.job()} for _ in range(min(size, count - start))]
                outcomes = await self.timed(kind, connection, "POST", "/api/v1/jobs/batch", {"jobs": jobs})
                for outcome in outcomes["jobs"] if outcomes else ():
                    if not outcome["id"]:
                        word = f"{kind}, of a batch: {outcome['status']}"
                        self.refused[word] = self.refused.get(word, 0) + 1

        await asyncio.gather(*(one(number) for number in range(BATCHES_AT_ONCE)))
        return count / (time.perf_counter() - began)

    async def keep(self, per_s: float, until: float, process: int, rss_mb: list[float]) -> float:
        """Until a time: replace what ends, and ask what people ask; replacements a second."""

        async def people(kind: str, path: str, every_s: float) -> None:
            connection = Connection(self.host, self.port)
            while time.perf_counter() < until:
                await self.timed(kind, connection, "GET", path)
                await asyncio.sleep(every_s)

        began, sent = time.perf_counter(), 0

        async def replace(number: int) -> None:
            nonlocal sent
            connection = Connection(self.host, self.port, f"load{number % USERS}")
            while (now := time.perf_counter()) < until:
                if sent >= per_s * (now - began):
                    await asyncio.sleep(0.01)
                    continue
                sent += 1
                body = {"text": self.job()}
                await self.timed("submit, kept up", connection, "POST", "/api/v1/jobs", body)

        async def watch() -> None:
            while time.perf_counter() < until:
                rss_mb.append(rss_of(process))
                await asyncio.sleep(1.0)

        await asyncio.gather(
            *(replace(number) for number in range(CONNECTIONS)),
            watch(),
            people("describe", "/api/v1/jobs/1", 0.05),
            people("list", "/api/v1/jobs?limit=50&everybody=true", 0.5),
            people("nodes", "/api/v1/nodes", 1.0),
            people("health", "/healthz", 0.05),
        )
        return sent / (time.perf_counter() - began)


def say(words: str) -> None:
    """Where we are, for whoever waits."""
    print(f"{time.strftime('%X')} {words}", file=sys.stderr, flush=True)


def rss_of(process: int) -> float:
    """Memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


def cpu_s_of(process: int) -> float:
    """What a process has used of the cores, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in ms."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "n": len(values),
        "p50_ms": round(1e3 * statistics.median(values), 1),
        "p99_ms": round(1e3 * ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)], 1),
        "max_ms": round(1e3 * ordered[-1], 1),
    }


def decisions(store: str) -> dict[str, Any]:
    """What the log says of decisions."""
    took, actions, events = [], 0, 0
    with open_store(store) as log:
        events = log.last()
        for one in log.read(kinds=["Decided"]):
            took.append(one.body["took_ms"] / 1e3)
            actions += len(one.body["actions"])
    return {"decisions": len(took), **spread(took), "actions": actions, "events": events}


def flatness(rss_mb: Sequence[float], hours: float) -> dict[str, Any]:
    """Memory over the time under full load: means of its quarters, and how it rises over the second half."""
    half = np.array(rss_mb[len(rss_mb) // 2 :])
    per_look = float(np.polyfit(np.arange(len(half)), half, 1)[0]) if len(half) > 2 else math.nan
    return {
        "quarters": [round(float(part.mean())) for part in np.array_split(np.array(rss_mb), 4)],
        "by minute": [round(mb) for mb in rss_mb[::60]],
        "end": round(rss_mb[-1]),
        "rises by, in the second half, an hour": round(per_look * len(rss_mb) / hours, 1),
    }


async def measure(given: argparse.Namespace, url: str, process: int) -> dict[str, Any]:
    """Fill, pile up, keep."""
    host, _, port = url.removeprefix("http://").partition(":")
    load = Load(host, int(port), random.Random(1), given.elastic)
    first = Connection(host, int(port))
    while (await first.ask("GET", "/readyz"))[0] != 200:
        await asyncio.sleep(0.05)
    filling_jobs, used_s = int(given.gpus / statistics.mean(SIZES)), cpu_s_of(process)
    if given.batch:
        filling = await load.submit_in_batches(filling_jobs, given.batch, "submit a batch")
    else:
        filling = await load.submit(filling_jobs, "submit, filling")
    filled_mb, filling_s, used_s = rss_of(process), cpu_s_of(process) - used_s, cpu_s_of(process)
    say(f"filled at {filling:.0f} submissions a second")
    piling = await load.submit(given.pending, "submit, piling up")
    piled_mb, used_s = rss_of(process), cpu_s_of(process) - used_s
    say(f"piled up at {piling:.0f} a second")
    rss_mb: list[float] = []
    wall_s = given.hours * 3600 / given.pace
    load.took_s["submit"] = load.took_s.pop("submit, filling", []) + load.took_s.pop("submit, piling up")
    ends_per_s = given.pace * given.gpus / statistics.mean(SIZES) / MEAN_S
    kept = await load.keep(ends_per_s, time.perf_counter() + wall_s, process, rss_mb)
    return {
        "submits_per_s": {
            "filling": round(filling),
            "piling up": round(piling),
            "to replace": round(ends_per_s, 1),
            "replaced": round(kept, 1),
        },
        "cpu_ms_a_submission": {
            "in batches" if given.batch else "filling": round(1e3 * filling_s / filling_jobs, 2),
            "piling up": round(1e3 * used_s / given.pending, 2),
        },
        "requests": {kind: spread(values) for kind, values in load.took_s.items()},
        "all requests": spread([one for values in load.took_s.values() for one in values]),
        "refused": load.refused,
        "memory_mb": {
            "filled": round(filled_mb),
            "piled up": round(piled_mb),
            **flatness(rss_mb, given.hours),
        },
    }


@contextmanager
def stores(words: str, folder: str) -> Iterator[dict[str, str]]:
    """The address of each store that is to be measured, by its kind."""
    with ExitStack() as stack:
        found = {}
        if words in ("sqlite", "both"):
            found["sqlite"] = f"{folder}/log.db"
        if words in ("postgresql", "both"):
            sys.path.insert(0, str(Path(__file__).parents[1]))
            from tests.service.eventlog.servers import new_server

            server = new_server(sys.exit, durable=True)
            stack.callback(shutil.rmtree, server.folder, ignore_errors=True)
            stack.callback(server.stop)
            found["postgresql"] = server.url
        yield found or {"other": words}


def measured(given: argparse.Namespace, store: str) -> dict[str, Any]:
    """Start a service on a store, measure, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder, "cluster.yaml")
        nodes = [{"type": "v100", "gpus": 8, "count": -(-given.gpus // 8)}]
        said = {"name": "load", "gpu_types": {"v100": {"memory_gb": 32}}, "nodes": nodes}
        cluster.write_text(json.dumps(said))
        words = [str(Path(sys.executable).with_name("stretto")), "serve", "--state", f"{folder}/state"]
        if given.profile:
            words = [sys.executable, "-m", "cProfile", "-o", given.profile, *words]
        words += ["--listen", "127.0.0.1:0", "--backend", "emulated", "--cluster", str(cluster)]
        words += ["--pace", f"{given.pace:g}", "--policy", given.policy, "--insecure-loopback"]
        words += ["--store", store, *(word for one in given.set for word in ("--set", one))]
        log = Path(folder, "said")
        with served(words, log) as (service, url):
            figures = asyncio.run(measure(given, url, service.pid))
            service.kill()
        first_lines = log.read_text()
        say("the service was killed")
        figures["starts"] = {
            "after it was killed": started_again(words, log),
            "after it was stopped": started_again(words, log),
        }
        with open_store(store) as kept, kept.engine.begin() as connection:
            connection.execute(delete(STATES))
        figures["starts"]["from the log alone"] = started_again(words, log)
        sys.stderr.write(first_lines)
        return {**figures, "log": decisions(store)}


@contextmanager
def served(words: Sequence[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A service and its address, once it has one; it is stopped at the end."""
    with log.open("w") as told:
        service = subprocess.Popen(words, stdout=told, stderr=told)
    try:
        url = ""
        while not url and service.poll() is None:
            found = re.search(r"http://[\w.:]+", log.read_text())
            url = found.group() if found else ""
            time.sleep(0.05)
        yield service, url
    finally:
        if service.poll() is None:
            service.send_signal(signal.SIGTERM)
        service.wait(120)


def started_again(words: Sequence[str], log: Path) -> dict[str, float]:
    """How long a start takes until the service is ready, and until it has decided about what it found."""
    began = time.perf_counter()
    with served(words, log) as (service, url):
        host, _, port = url.removeprefix("http://").partition(":")
        connection = Connection(host, int(port))

        async def until(path: str, shows: str) -> float:
            while True:
                status, content = await connection.ask("GET", path)
                if status == 200 and shows in content.decode():
                    return time.perf_counter() - began
                await asyncio.sleep(0.05)

        async def both() -> tuple[float, float]:
            return await until("/readyz", ""), await until("/api/v1/decisions?limit=1", '"seq"')

        ready_s, decided_s = asyncio.run(both())
        used_s, rss_mb = cpu_s_of(service.pid), rss_of(service.pid)
    say(f"ready after {ready_s:.1f} s")
    return {
        "ready_s": round(ready_s, 1),
        "decided_s": round(decided_s, 1),
        "cpu_s": round(used_s, 1),
        "memory_mb": round(rss_mb),
    }


def main() -> None:
    """Measure on each store, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=0, help="jobs of a request that fills; 0: one by one")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--pace", type=float, default=100.0)
    parser.add_argument("--hours", type=float, default=1.0, help="of the service's clock, under full load")
    parser.add_argument("--elastic", action="store_true", help="jobs may have half to twice their GPUs")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgresql, both, or a URL")
    parser.add_argument("--profile", default="", help="a file for what cProfile finds of the event loop")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stores(given.store, folder) as found:
        figures = {kind: measured(given, store) for kind, store in found.items()}
    print(json.dumps({"given": vars(given), "cores": os.cpu_count(), **figures}, indent=1))


if __name__ == "__main__":
    main()
