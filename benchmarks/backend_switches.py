"""How long do start, growth, shrinking and cancelling take on each backend?

A service over real agents, a real Ray and a real Slurm of this machine, three nodes each, and jobs of the
standard library alone, which are resized in place over the channel. So this is the time of service and
backend; what a training does beside (importing PyTorch, building groups) is measured in sdk_switches.py.
Times are those of the service's log:

    start    from the submission until the worker runs, and says that it is ready
    grow     from 1 to 2 GPUs: from the wish until both train together
    shrink   from 2 GPUs to 1: from the wish until the other worker is gone and its GPU is free
    cancel   from the wish until the job has ended and all its GPUs are free

    python benchmarks/backend_switches.py [--backends local,ray,slurm] [--times 7] [--json FILE]
"""

import argparse
import asyncio
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VERBS = ("start", "grow", "shrink", "cancel")
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", default="local,ray,slurm")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all times to this file")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))  # the clusters are those of the conformance suite
    found: dict[str, Any] = {"machine": f"{platform.platform()}, {os.cpu_count()} cores", "backends": {}}
    for name in asked.backends.split(","):
        with tempfile.TemporaryDirectory(prefix="stretto-switches-") as folder:
            found["backends"][name] = measured(name, Path(folder), asked.times)
    print(table(found["backends"], asked.times))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measured(name: str, folder: Path, times: int) -> dict[str, Any]:
    """Seconds of every verb on one backend, and the load meanwhile."""
    from tests.conformance.service import StruckService
    from tests.conformance.world import CannotRun

    (folder / "cluster").mkdir()
    try:
        world = importlib.import_module(f"tests.conformance.worlds.{name}").begin(folder / "cluster")
    except CannotRun as why:
        return {"why": str(why)}
    service = StruckService(world, folder / "service")
    loads = [os.getloadavg()[0]]
    try:
        service.running.begin()
        time.sleep(1.0)
        seconds: dict[str, list[float]] = {verb: [] for verb in VERBS}
        for _ in range(times):
            for verb, took_s in one_life(service).items():
                seconds[verb].append(round(took_s, 3))
            loads.append(os.getloadavg()[0])
    finally:
        service.running.end()
        asyncio.run(world.close())
    return {"seconds": seconds, "load": [round(min(loads), 1), round(max(loads), 1)]}


def one_life(service: Any) -> dict[str, float]:
    """A job that starts, grows, shrinks, and is cancelled."""
    job = service.submit("train", 10**6, elastic={"min": 1, "max": 1})
    _trains_on(service, job, 1)
    for gpus in (2, 1):
        service.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
        _trains_on(service, job, gpus)
        time.sleep(0.5)  # who leaves is gone, and nobody is recovering
    service.change(job, "cancel")
    service.until_state(job, "CANCELLED")
    log = [
        (kind, at_s, body) for _, at_s, kind, body in service.running.log_of_all() if body.get("job") == job
    ]
    submitted, grown, shrunk, cancelled = (
        at_s for kind, at_s, _ in log if kind in ("Submitted", "Scaled", "Cancelled")
    )
    two = next(body["number"] for kind, _, body in log if kind == "Generation" and len(body["workers"]) == 2)
    return {
        "start": next(at_s for kind, at_s, _ in log if kind in ("WorkerReady", "WorkersReady")) - submitted,
        "grow": max(at_s for kind, at_s, body in log if kind == "Joined" and body["number"] == two) - grown,
        "shrink": next(at_s for kind, at_s, _ in log if kind == "WorkersEnded" and at_s > shrunk) - shrunk,
        "cancel": next(at_s for kind, at_s, _ in log if kind == "Ended") - cancelled,
    }


def _trains_on(service: Any, job: str, gpus: int) -> None:
    def is_so() -> bool:
        shown = service.shown(job)
        return bool(shown["state"] == "RUNNING" and shown["training_gpus"] == gpus)

    service.until(is_so, f"{job} trains on {gpus} GPUs")


def table(backends: dict[str, Any], times: int) -> str:
    """Median, least and most of each verb and backend."""
    lines = [f"seconds: median of {times} (least to most)", ""]
    lines.append(" " * 8 + "".join(f"{name:>24}" for name in backends))
    for verb in VERBS:
        cells = []
        for one in backends.values():
            taken = one.get("seconds", {}).get(verb)
            cells.append(
                f"{statistics.median(taken):.2f} ({min(taken):.2f} to {max(taken):.2f})" if taken else "-"
            )
        lines.append(f"{verb:8}" + "".join(f"{cell:>24}" for cell in cells))
    loads = ["{} to {}".format(*one["load"]) if "load" in one else "-" for one in backends.values()]
    lines.append(f"{'load':8}" + "".join(f"{load:>24}" for load in loads))
    lines += [f"{name}: {one['why']}" for name, one in backends.items() if "why" in one]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
