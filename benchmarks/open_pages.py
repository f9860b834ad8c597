"""What open pages of the dashboard cost those who submit: times of submissions without any, and beside 50.

    python benchmarks/open_pages.py --pages 50 --jobs 1000 --seconds 60

A service with an emulated cluster is started, arrays of jobs are submitted, and then single jobs one after
the other, ten a second at most, half of which are cancelled: first while nobody looks, then beside the pages.
A page is what a browser keeps asking: its stream of changes, in gzip, and what its kind asks for every few
seconds, no sooner than a while after the answer. Four in ten show the cluster, two the queue, two a job, one
sizes over time and one queues and people. They run in a process of their own, which draws nothing: what
drawing costs is measured by `dashboard_frames.py`. Times are those of the machine as it is just then: where
others use it, compare what the service used of a processor for each text that it sent.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from stretto.client import Client
from stretto.demo.own_service import OwnService, until

NODES, GPUS = 128, 8
TASKS = 1_000  # of an array at most
SIZES, MINUTES = (1, 1, 2, 4, 8), (240, 5, 480, 600, 120)
SUBMIT_EVERY_S = 0.1
JOB = "/api/v1/jobs/1_0"
# What a kind of page asks for besides its stream, and how long after an answer it asks again at the soonest.
# As in the scripts of the pages, where something has changed, which is so all the time here.
ASKS: dict[str, tuple[tuple[str, float], ...]] = {
    "cluster": (("/api/v1/usage/idle", 15.0),),
    "queue": (("/api/v1/line?limit=100", 1.0),),
    "job": (
        ("/api/v1/line?limit=1&job=1_0", 1.0),
        (f"{JOB}/training", 5.0),
        (f"{JOB}/events?words=true&after=0", 3.0),
        (f"{JOB}/log", 3.0),
    ),
    "timeline": (("/api/v1/timeline?hours=6&limit=60", 0.7), ("/api/v1/timeline/forecast?hours=2", 60.0)),
    "people": (("/api/v1/shares", 5.0), ("/api/v1/budgets", 5.0), ("/api/v1/usage?by=user", 5.0)),
}
PATIENT = 8  # times as long as an answer took, until a page asks again
KINDS = ("cluster", "queue", "cluster", "job", "timeline", "cluster", "queue", "people", "cluster", "job")


def fill(service: OwnService, jobs: int) -> None:
    """So many jobs, in arrays of several sizes."""
    with service.client() as client:
        for number in range(max(jobs // TASKS, 1)):
            said = {
                "name": f"train-{number}",
                "run": "true",
                "array": f"0-{min(TASKS, jobs) - 1}",
                "resources": {"accelerators": str(SIZES[number % len(SIZES)])},
                "expected_time": f"{MINUTES[number % len(MINUTES)]}m",
            }
            client.submit(json.dumps(said))
        until(lambda: client.describe("1_0")["gpus"] > 0, what="the first job has GPUs")


class Pages:
    """Open pages, in a process of their own."""

    def __init__(self, url: str, pages: int, only_streams: bool = False) -> None:
        spawned = multiprocessing.get_context("spawn")
        self.told, there = spawned.Pipe(duplex=False)
        self.process = spawned.Process(target=kept_open, args=(url, pages, only_streams, there))
        self.process.start()
        self.told.recv()  # every stream has begun

    def end(self) -> dict[str, Any]:
        """Close them. What they have received and how often they were refused."""
        self.process.terminate()
        found: dict[str, Any] = self.told.recv()
        self.process.join()
        return found


def kept_open(url: str, pages: int, only_streams: bool, told: Any) -> None:
    """Be so many pages, until this process is asked to end."""
    asyncio.run(_kept_open(url, pages, only_streams, told))


async def _kept_open(url: str, pages: int, only_streams: bool, told: Any) -> None:
    got = {"stream_kb": 0.0, "texts": 0}
    wrong: list[str] = []  # answers that were none: status and path
    took_ms: dict[str, list[float]] = {}  # by the path that was asked for
    begun = [asyncio.Event() for _ in range(pages)]
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, is_over.set)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300.0, limits=limits) as client:

        async def follow(index: int) -> None:
            async with client.stream("GET", "/api/v1/overview", params={"follow": "true"}) as stream:
                async for piece in stream.aiter_raw():
                    got["stream_kb"] += len(piece) / 1000
                    got["texts"] += 1  # about: one that is long comes in several pieces
                    begun[index].set()

        async def ask(path: str, every_s: float) -> None:
            while True:
                began = time.perf_counter()
                answer = await client.get(path)
                took_ms.setdefault(path.partition("?")[0], []).append(1e3 * (time.perf_counter() - began))
                if answer.status_code != 200:
                    wrong.append(f"{answer.status_code} {path}")
                await asyncio.sleep(max(every_s, PATIENT * (time.perf_counter() - began)))

        asking = []
        for index in range(pages):
            asking.append(asyncio.create_task(follow(index)))
            if not only_streams:
                asking += [asyncio.create_task(ask(*one)) for one in ASKS[KINDS[index % len(KINDS)]]]
        for each in begun:
            await each.wait()
        told.send("open")
        await is_over.wait()
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    everything = [each for those in took_ms.values() for each in those]
    told.send(
        got
        | {
            "wrong": wrong,
            "answers": shown(everything),
            "by_path": {one: shown(took_ms[one]) for one in took_ms},
        }
    )


def submitted(client: Client, seconds: float) -> dict[str, Any]:
    """Milliseconds of submissions for so long, and what the service used of a processor."""
    times_ms: list[float] = []
    end_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end_s:
        began = time.perf_counter()
        job = str(client.submit('{name: one-more, run: "true", expected_time: 1h}')["id"])
        times_ms.append(1e3 * (time.perf_counter() - began))
        number += 1
        if number % 2:
            client.change(job, "cancel")
        time.sleep(max(SUBMIT_EVERY_S - (time.perf_counter() - began), 0.0))
    return {"submissions": shown(times_ms)}


def shown(times_ms: list[float]) -> dict[str, float]:
    """How many requests there were, and their times in milliseconds."""
    ordered = sorted(times_ms) or [0.0]

    def at(part: float) -> float:
        return round(ordered[min(int(part * len(ordered)), len(ordered) - 1)], 1)

    return {
        "requests": len(times_ms),
        "p50_ms": round(statistics.median(ordered), 1),
        "p95_ms": at(0.95),
        "p99_ms": at(0.99),
        "most_ms": at(1.0),
    }


def used_s(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Without pages, with them, and once more without."""
    with tempfile.TemporaryDirectory() as name:
        cluster = Path(name, "cluster.yaml")
        types, nodes = {"a100": {"memory_gb": 80}}, [{"type": "a100", "gpus": GPUS, "count": NODES}]
        cluster.write_text(json.dumps({"name": "seen", "gpu_types": types, "nodes": nodes}), encoding="utf-8")
        options = ["--backend", "emulated", "--cluster", str(cluster), "--policy", given.policy]
        options += ["--pace", f"{given.pace:g}"]
        service = OwnService(Path(name), options, ("-m", "stretto.cli.app"))
        figures: dict[str, Any] = {}
        try:
            service.begin()
            assert service.process is not None
            fill(service, given.jobs)
            with service.client() as client:
                for pages in (0, given.pages, 0):
                    opened = Pages(service.url, pages, given.only_streams) if pages else None
                    before_s = used_s(service.process.pid)
                    row = submitted(client, given.seconds)
                    row["service_cpu_s"] = round(used_s(service.process.pid) - before_s, 2)
                    row["load"] = round(os.getloadavg()[0], 1)
                    if opened is not None:
                        row |= opened.end()
                    figures["beside pages" if pages else "after" if figures else "alone"] = row
        finally:
            service.end()
    return figures


def main() -> None:
    """Measure, print."""
    shape = argparse.RawDescriptionHelpFormatter
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    asked.add_argument("--pages", type=int, default=50)
    asked.add_argument("--jobs", type=int, default=1_000)
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--only-streams", action="store_true", help="pages ask for nothing but their stream")
    asked.add_argument("--policy", default="fifo")
    asked.add_argument("--pace", type=float, default=20.0, help="how much faster than real jobs run")
    given = asked.parse_args()
    json.dump({"given": vars(given), "cores": os.cpu_count(), **measured(given)}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
