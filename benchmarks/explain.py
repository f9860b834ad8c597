"""How long `explain` takes over HTTP while 10,000 jobs wait, by policy; and what it costs those who submit.

    python benchmarks/explain.py --pending 10000 --policies fifo sia --asks 60

A service with an emulated cluster of 512 GPUs is started in a process of its own, and so many jobs are
submitted that this number waits. Once the service has looked ahead by itself, jobs at the head, in the middle
and at the end of the queue, and jobs that run, are asked about one after the other: first alone, then while a
job is submitted every tenth of a second. Where it has not looked ahead after five minutes, `foreseen` is 0.
Times are those of the client: with the way there and back, and all that the service does besides.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.client import Client
from stretto.demo.own_service import NotInTime, OwnService, until

NODES, GPUS = 64, 8
TASKS = 1_000  # of an array at most
SIZES, MINUTES = (1, 1, 2, 4, 8), (240, 5, 480, 600, 120)
SUBMIT_EVERY_S = 0.1
FORESEEN_S = 300.0  # patience for what a quiet machine does in half a minute


def fill(service: OwnService, pending: int) -> list[str]:
    """Submit so many jobs that these wait; their ids, by submission."""
    with service.client() as client:
        ids: list[str] = []
        number = 0
        while len(ids) < pending + NODES * GPUS // 3:
            said = {
                "name": f"train-{number}",
                "run": "true",
                "array": f"0-{TASKS - 1}",
                "resources": {"accelerators": str(SIZES[number % len(SIZES)])},
                "expected_time": f"{MINUTES[number % len(MINUTES)]}m",
            }
            ids += client.submit(json.dumps(said))["ids"]
            number += 1
        until(lambda: client.describe(ids[0])["gpus"] > 0, what="the first job has GPUs")
        return ids


def asked(service: OwnService, ids: list[str], asks: int) -> dict[str, Any]:
    """Milliseconds of questions and of submissions meanwhile."""
    submits_ms: list[float] = []
    is_over = threading.Event()

    def submit() -> None:
        with service.client() as client:
            while not is_over.wait(SUBMIT_EVERY_S):
                began = time.perf_counter()
                client.submit('{name: one-more, run: "true", expected_time: 1h}')
                submits_ms.append(1e3 * (time.perf_counter() - began))

    with service.client() as client:
        running = [job["id"] for job in client.jobs() if job["gpus"]]
        waiting = [name for name in ids if name not in set(running)]
        with suppress(NotInTime):
            until(lambda: client.explain(running[0])["end"], FORESEEN_S, "the service has looked ahead")
        draw = random.Random(1)
        names = [draw.choice(some) for some in (running, waiting[:100], waiting, waiting[-100:])] * asks
        names = names[:asks]
        alone_ms = [explained_ms(client, name) for name in names[: asks // 2]]
        somebody = threading.Thread(target=submit)
        somebody.start()
        try:
            beside_ms = [explained_ms(client, name) for name in names[asks // 2 :]]
        finally:
            is_over.set()
            somebody.join()
        pending = len(list(client.jobs())) - len(running)
        answers = [client.explain(name) for name in names]
        foreseen = sum(bool(answer.get("start") or answer.get("end")) for answer in answers)
        reaches_h = [(answer["foreseen"] - answer["now"]) / 3600 for answer in answers if answer["foreseen"]]
    return {
        "pending": pending,
        "explain_ms": spread(alone_ms),
        "explain_beside_submissions_ms": spread(beside_ms),
        "submit_ms": spread(submits_ms),
        "foreseen": round(foreseen / len(names), 2),  # of these jobs, with a start or an end
        "foreseen_to_h": round(min(reaches_h, default=0.0), 1),
    }


def explained_ms(client: Client, job: str) -> float:
    """How long an explanation takes."""
    began = time.perf_counter()
    client.explain(job)
    return 1e3 * (time.perf_counter() - began)


def spread(values: list[float]) -> dict[str, float]:
    """Middle, 95th and 99th percentile, and the most."""
    ordered = sorted(values)

    def at(part: float) -> float:
        return round(ordered[min(int(part * len(ordered)), len(ordered) - 1)], 1)

    return {"p50": round(statistics.median(ordered), 1), "p95": at(0.95), "p99": at(0.99), "most": at(1.0)}


def measured(policy: str, pending: int, asks: int) -> dict[str, Any]:
    """Figures of one policy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cluster.yaml").write_text(
            f"name: explained\ngpu_types: {{a100: {{memory_gb: 80}}}}\n"
            f"nodes: [{{type: a100, gpus: {GPUS}, count: {NODES}}}]\n"
        )
        options = ["--backend", "emulated", "--cluster", str(folder / "cluster.yaml"), "--policy", policy]
        options += ["--submit-rate", "1000", "--submit-burst", "100000"]
        service = OwnService(folder, options, ("-m", "stretto.cli.app"))
        try:
            service.begin()
            return {"policy": policy, **asked(service, fill(service, pending), asks)}
        finally:
            service.end()


def main() -> None:
    """Measure, and print one JSON object for each policy."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--policies", nargs="+", default=["fifo", "sia"])
    parser.add_argument("--asks", type=int, default=60)
    wanted = parser.parse_args()
    print(json.dumps({"cores": os.cpu_count(), "load": [round(each, 1) for each in os.getloadavg()]}))
    for policy in wanted.policies:
        print(json.dumps(measured(policy, wanted.pending, wanted.asks)), flush=True)


if __name__ == "__main__":
    main()
