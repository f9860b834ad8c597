"""What `stretto bench` measures: where the time of a decision goes, and how good the knapsack solver is."""

import json
import statistics
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np

from stretto.experiments.spec import RunSpec, set_up
from stretto.model import Plan, Snapshot
from stretto.model.timing import lapping
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import no_collection, scheduler_of, world_of
from stretto.solve.family import instance
from stretto.solve.mckp import assign, assign_exactly

STEPS = ("estimate", "value", "solve", "place", "total")


class _EnoughMeasured(Exception):
    """So many decisions were asked for, no more."""


def decision_times(spec: RunSpec, most: int) -> tuple[dict[str, dict[str, float]], int]:
    """(milliseconds by step: p50, p95 and max; decisions measured), of the first decisions of a run.

    `value` is what the policy does around the solver, `place` includes the list of actions.
    """
    spent: dict[str, list[float]] = {step: [] for step in STEPS}

    def measured(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        if len(spent["total"]) >= most:
            raise _EnoughMeasured
        with no_collection(), lapping(time.perf_counter) as laps:
            began = time.perf_counter()
            plan = decide(snapshot, scheduler)
            total = time.perf_counter() - began
        for step in ("estimate", "solve", "place"):
            spent[step].append(laps.get(step, 0.0) * 1e3)
        spent["value"].append((laps.get("allocate", 0.0) - laps.get("solve", 0.0)) * 1e3)
        spent["total"].append(total * 1e3)
        return plan

    workload, setup = set_up(spec)
    with suppress(_EnoughMeasured):
        run(world_of(workload, setup), scheduler_of(setup), lambda snapshot, plan: None, measured)
    steps = {
        step: {
            "p50_ms": float(np.percentile(times, 50)),
            "p95_ms": float(np.percentile(times, 95)),
            "max_ms": float(np.max(times)),
        }
        for step, times in spent.items()
    }
    return steps, len(spent["total"])


# ── how fast, and how near to the best, is the knapsack solver on one problem of its seeded family? ─────────


EXACT_LIMIT_S = 120.0  # branch and bound is ended after it: it may never end by itself
RUNS = 5


def bench_solver(jobs: int, gpus: int, types: int, seed: int = 0) -> dict[str, object]:
    """Solve one problem of the family with `assign` here, and by branch and bound in a process of its own.

    fast_s is the median of a few runs; exact_s and exact_value are None where `EXACT_LIMIT_S` was too short.
    Also: fast_value, bound and gap (certified), prices per type, rows, columns.
    """
    problem = instance(jobs, gpus, types, seed)
    runs_s = []
    for _ in range(RUNS):
        began = time.perf_counter()
        solution = assign(problem)
        runs_s.append(time.perf_counter() - began)
    exact_s, exact_value = _exact_elsewhere(jobs, gpus, types, seed)
    return {
        "rows": jobs,
        "columns": int(problem.units.size),
        "fast_s": statistics.median(runs_s),
        "exact_s": exact_s,
        "fast_value": solution.value,
        "exact_value": exact_value,
        "bound": solution.bound,
        "gap": solution.gap,
        "proof": solution.proof,
        "prices": solution.prices.tolist(),
    }


def _exact_elsewhere(jobs: int, gpus: int, types: int, seed: int) -> tuple[float | None, float | None]:
    """Seconds and value of branch and bound, in a process because nothing else stops it reliably."""
    numbers = [str(number) for number in (jobs, gpus, types, seed)]
    command = [sys.executable, "-m", "stretto.experiments.bench", *numbers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=EXACT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, None
    answer = json.loads(done.stdout)
    return answer["seconds"], answer["value"]


def _print_exact(jobs: int, gpus: int, types: int, seed: int) -> None:
    problem = instance(jobs, gpus, types, seed)
    began = time.perf_counter()
    found = assign_exactly(problem)
    print(json.dumps({"seconds": time.perf_counter() - began, "value": found.value}))


if __name__ == "__main__":
    _print_exact(*(int(number) for number in sys.argv[1:5]))
