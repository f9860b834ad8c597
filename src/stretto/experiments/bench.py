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
from stretto.solve.arrays import BoolArray, IntArray
from stretto.solve.mckp import assign, assign_exactly
from stretto.solve.program import MultipleChoiceKnapsack

# ── a seeded family of multiple-choice knapsacks like those of a scheduler ───────────────────────────────


NODE_GPUS = 8  # chosen: the usual server
MOST_NODES_PER_JOB = 64  # chosen, as the sizes below: about 60 columns at 100,000 GPUs of four types
EVERY_COUNT_UP_TO_NODES = 8  # above it only powers of two


def instance(
    jobs: int,
    gpus: int,
    types: int,
    seed: int,
    large_minimum_share: float = 0.4,
    forced_share: float = 0.05,
) -> MultipleChoiceKnapsack:
    """Draw a problem in which `jobs` rows compete for about `gpus` GPUs of `types` types.

    A job is worth its weight times a concave speed-up, times how well each type suits it. Sizes are powers
    of two within a node, then whole nodes. A large minimum (4 GPUs up to 2 nodes) makes a job lumpy: it is
    what separates the best choice from its relaxation. Forced choices take at most half of each type.
    """
    rng = np.random.default_rng(seed)
    capacity = _nodes_per_type(gpus, types) * NODE_GPUS
    kind, size = _configurations(capacity)

    # Worth: weight, how well the type suits, and a concave speed-up.
    weight = rng.lognormal(0.0, 0.5, jobs)
    speed_exponent = rng.uniform(0.5, 0.95, jobs)  # speed-up on g GPUs is g ** exponent
    suits = rng.uniform(0.3, 1.0, (jobs, types))
    value = weight[:, None] * suits[:, kind] * size ** speed_exponent[:, None]

    # Range of sizes, and what is forced.
    is_large = rng.random(jobs) < large_minimum_share
    least = np.where(is_large, rng.choice([4, 8, 16], jobs), 1)
    most = least * 2 ** rng.integers(0, 5, jobs)
    allowed = (size >= least[:, None]) & (size <= most[:, None])
    wants_forced = rng.random(jobs) < forced_share
    forced = _forced_within_half(wants_forced, allowed, size, kind, capacity, rng)
    return MultipleChoiceKnapsack(np.where(allowed, value, -np.inf), allowed, size, kind, capacity, forced)


def _nodes_per_type(gpus: int, types: int) -> IntArray:
    nodes = max(gpus // NODE_GPUS, types)
    return np.array([nodes // types + (t < nodes % types) for t in range(types)], dtype=np.int64)


def _configurations(capacity: IntArray) -> tuple[IntArray, IntArray]:
    """Type and GPUs of each column: by type, then by GPUs."""
    within_node = [2**a for a in range(NODE_GPUS.bit_length())]
    columns: list[tuple[int, int]] = []
    for kind, limit in enumerate(capacity.tolist()):
        most_nodes = min(limit // NODE_GPUS, MOST_NODES_PER_JOB)
        nodes = [n for n in range(2, most_nodes + 1) if n <= EVERY_COUNT_UP_TO_NODES or n & (n - 1) == 0]
        columns += [(kind, count) for count in within_node + [n * NODE_GPUS for n in nodes]]
    kinds, sizes = zip(*columns, strict=True)
    return np.array(kinds, dtype=np.int64), np.array(sizes, dtype=np.int64)


def _forced_within_half(
    wants: BoolArray,
    allowed: BoolArray,
    size: IntArray,
    kind: IntArray,
    capacity: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    forced = np.full(wants.size, -1, dtype=np.int64)
    left = capacity // 2
    for row in np.flatnonzero(wants).tolist():
        fitting = np.flatnonzero(allowed[row] & (size <= left[kind]))
        if fitting.size:
            forced[row] = rng.choice(fitting)
            left[kind[forced[row]]] -= size[forced[row]]
    return forced


# ── where the time of a decision goes ───────────────────────────────────────────────────────────────────────


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
        on_demand_s = laps.get("speeds", 0.0)  # that a policy asked for while it valued
        spent["estimate"].append((laps.get("estimate", 0.0) + on_demand_s) * 1e3)
        spent["value"].append((laps.get("allocate", 0.0) - laps.get("solve", 0.0) - on_demand_s) * 1e3)
        for step in ("solve", "place"):
            spent[step].append(laps.get(step, 0.0) * 1e3)
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
