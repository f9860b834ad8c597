"""How long do start, growth, shrinking, moving and cancelling take on each backend?

A service over real agents, a real Ray, a real Slurm and two real Kubernetes of this machine. `kubernetes` has
real servers and nodes of the tests' own, on which pods are processes; `kubelets` has two real kubelets with
containerd, on which they are containers. Times are those of the service's log:

    start    from the submission until the worker runs, and says that it is ready
    grow     from 1 to 2 GPUs: from the wish until both train together
    shrink   from 2 GPUs to 1: from the wish until the other worker is gone and its GPU is free
    move     off a node that is drained: from the wish until the job trains elsewhere and that node is free
    cancel   from the wish until the job has ended and all its GPUs are free

Jobs are of the standard library alone (`--job actor`) and are resized in place over the channel: so this is
the time of service and backend. With `--job training` they are real trainings with the SDK, which import
PyTorch and form groups. What such a training loses of its own time is measured in sdk_switches.py.

    python benchmarks/backend_switches.py [--backends local,ray,…] [--job actor] [--times 7] [--json FILE]
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

JOBS = ("actor", "training")
VERBS = ("start", "grow", "shrink", "move", "cancel")
LONG = 10**6  # beats, or epochs
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", default="local,ray,slurm,kubernetes,kubelets")
    parser.add_argument("--job", choices=JOBS, default=JOBS[0])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all times to this file")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))  # the clusters are those of the conformance suite
    found: dict[str, Any] = {"machine": f"{platform.platform()}, {os.cpu_count()} cores", "backends": {}}
    for name in asked.backends.split(","):
        with tempfile.TemporaryDirectory(prefix="stretto-switches-") as folder:
            found["backends"][name] = measured(name, Path(folder), asked.times, asked.job)
        print(table(found["backends"], asked.times), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measured(name: str, folder: Path, times: int, job: str) -> dict[str, Any]:
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
            for verb, took_s in one_life(service, job).items():
                seconds[verb].append(round(took_s, 3))
            loads.append(os.getloadavg()[0])
        service.until(lambda: not service.left(), "nothing is left of any worker")
    finally:
        service.running.end()
        asyncio.run(world.close())
    return {"seconds": seconds, "load": [round(min(loads), 1), round(max(loads), 1)]}


def submit(service: Any, job: str) -> str:
    """The id of a job on one GPU, which lasts longer than it is looked at."""
    from tests.conformance.test_trainings import a_training

    elastic = {"elastic": {"min": 1, "max": 1}}
    if job == "actor":
        return str(service.submit("train", LONG, **elastic))
    with service.client() as client:
        training = a_training(service.folder / "seen", LONG) | elastic
        return str(client.submit(json.dumps(training))["id"])


def one_life(service: Any, kind: str) -> dict[str, float]:
    """A job that starts, grows, shrinks, moves, and is cancelled."""
    job = submit(service, kind)
    _trains_on(service, job, 1)
    for gpus in (2, 1):
        service.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
        _trains_on(service, job, gpus)
        time.sleep(0.5)  # who leaves is gone, and nobody is recovering
    _drain_its_node(service, job)
    service.change(job, "cancel")
    service.until_state(job, "CANCELLED")
    whole = [(kind, at_s, body) for _, at_s, kind, body in service.running.log_of_all()]
    drained = max(at_s for kind, at_s, body in whole if kind == "NodeCordoned" and body["drain"])
    log = [(kind, at_s, body) for kind, at_s, body in whole if body.get("job") == job]
    (trained,) = [body for kind, at_s, body in log if kind == "Generation" and at_s < drained][-1]["workers"]
    submitted, grown, shrunk, cancelled = (
        at_s for kind, at_s, _ in log if kind in ("Submitted", "Scaled", "Cancelled")
    )
    two = next(body["number"] for kind, _, body in log if kind == "Generation" and len(body["workers"]) == 2)
    return {
        "start": _ready_s(log, submitted) - submitted,
        "grow": max(at_s for kind, at_s, body in log if kind == "Joined" and body["number"] == two) - grown,
        "shrink": next(at_s for kind, at_s, _ in log if kind == "WorkersEnded" and at_s > shrunk) - shrunk,
        "move": max(_ended_s(log, trained), _ready_s(log, drained)) - drained,
        "cancel": next(at_s for kind, at_s, _ in log if kind == "Ended") - cancelled,
    }


def _ready_s(log: Any, after_s: float) -> float:
    """When a worker next said that it was ready."""
    return float(
        next(at_s for kind, at_s, _ in log if kind in ("WorkerReady", "WorkersReady") and at_s > after_s)
    )


def _ended_s(log: Any, worker: str) -> float:
    """When a worker ended; others of its job may have ended before."""
    ends = [(at_s, body["workers"]) for kind, at_s, body in log if kind == "WorkersEnded"]
    return float(next(at_s for at_s, workers in ends if worker in [one["id"] for one in workers]))


def _drain_its_node(service: Any, job: str) -> None:
    """Have a job that is on one node go on elsewhere."""
    (node,) = service.shown(job)["nodes"]
    with service.client() as client:
        client.close_node(node, closed=True, drain=True)
        service.until(lambda: node not in service.shown(job)["nodes"], f"{job} leaves {node}")
        _trains_on(service, job, 1)
        time.sleep(0.5)
        client.close_node(node, closed=False)


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
