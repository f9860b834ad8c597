"""How fast, and how near to the best, is the knapsack solver on one problem of its seeded family?"""

import json
import statistics
import subprocess
import sys
import time

from stretto.solve.family import instance
from stretto.solve.mckp import assign, assign_exactly

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
        found = assign(problem)
        runs_s.append(time.perf_counter() - began)
    exact_s, exact_value = _exact_elsewhere(jobs, gpus, types, seed)
    return {
        "rows": jobs,
        "columns": int(problem.units.size),
        "fast_s": statistics.median(runs_s),
        "exact_s": exact_s,
        "fast_value": found.value,
        "exact_value": exact_value,
        "bound": found.bound,
        "gap": found.gap,
        "proof": found.proof,
        "prices": found.prices.tolist(),
    }


def _exact_elsewhere(jobs: int, gpus: int, types: int, seed: int) -> tuple[float | None, float | None]:
    """Seconds and value of branch and bound, in a process because nothing else stops it reliably."""
    numbers = [str(number) for number in (jobs, gpus, types, seed)]
    command = [sys.executable, "-m", "stretto.experiments.solver_bench", *numbers]
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
