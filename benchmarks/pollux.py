"""How long Pollux takes for a decision, and how good what it finds is.

    OMP_NUM_THREADS=1 python benchmarks/pollux.py [--sizes 20x16 50x16 100x64] [--rounds 6] [--seed 0]

A size is jobs x nodes, of 4 GPUs each. Jobs scale by Amdahl's law, slower on several nodes. The first table
times whole decisions: the first round from nothing, then rounds in which a tenth of the jobs is replaced by
new ones. The second is about the search alone, started as a first round is: the harmonic mean of speed-ups
that it reaches, over a bound that forgets nodes (only the number of GPUs is limited), at the usual budget, at
ten times that, and at the usual budget with the mutation of the paper, one change in every row.
"""

import argparse
import platform
import resource
import statistics
import time
from dataclasses import replace

import numpy as np

from stretto.model import Allocation, Cluster, FloatArray, GpuType, Snapshot, Speeds, cluster_of
from stretto.place import AsPinned
from stretto.policies.pollux.policy import Pollux
from stretto.solve.genetic import AllocationProblem, evolve, filled
from stretto.testing.builders import a_job, a_snapshot, some_progress, speeds_of

GPUS = 4
LARGEST = np.array([2, 4, 8, 16, 32, 64])


def speeds_for(policy: Pollux, cluster: Cluster, serial: FloatArray, slow: FloatArray) -> Speeds:
    """Jobs by Amdahl's law; `slow` is added to the time of a step on several nodes."""
    columns = policy.configurations(cluster)
    step_s = serial[:, None] + 1 / columns.gpus + np.where(columns.nodes > 1, slow[:, None], 0.0)
    return speeds_of(columns, 1 / step_s)


def decisions_ms(
    policy: Pollux, jobs: int, nodes: int, rounds: int, seed: int
) -> tuple[list[float], Snapshot]:
    """Milliseconds of each round, and the last snapshot."""
    rng = np.random.default_rng(seed)
    cluster = cluster_of("bench", (GpuType("gpu"), nodes, GPUS))
    now = [a_job(f"job-{row:05d}", max_gpus=int(rng.choice(LARGEST))) for row in range(jobs)]
    curves = {job.id: (rng.uniform(0.0, 0.05), rng.uniform(0.01, 0.1)) for job in now}
    held: dict[str, Allocation] = {}
    took: list[float] = []
    memory, snapshot = None, None
    for turn in range(rounds):
        if turn:
            for row in rng.permutation(jobs)[: jobs // 10].tolist():
                held.pop(str(now[row].id), None)
                now[row] = a_job(f"job-{turn}{row:05d}", at_s=turn * 60.0, max_gpus=int(rng.choice(LARGEST)))
                curves[now[row].id] = (rng.uniform(0.0, 0.05), rng.uniform(0.01, 0.1))
        progress = some_progress(jobs, largest_held_gpus=np.full(jobs, 32))
        snapshot = a_snapshot(
            *now, cluster=cluster, allocations=held, now_s=3_600.0 + 60 * turn, known_progress=progress
        )
        snapshot = replace(snapshot, memory=memory, seed=seed)
        serial, slow = np.array([curves[job] for job in snapshot.jobs.ids]).T
        speeds = speeds_for(policy, cluster, serial, slow)
        began = time.perf_counter()
        shares = policy.allocate(snapshot, speeds)
        took.append((time.perf_counter() - began) * 1e3)
        memory = shares.memory
        held = {str(job): where for job, where in AsPinned().place(snapshot, shares).items()}
    assert snapshot is not None
    return took, snapshot


def a_problem(jobs: int, nodes: int, rng: np.random.Generator) -> AllocationProblem:
    """The same kind of jobs as arrays, all of them waiting."""
    units = min(64, GPUS * nodes)
    count = np.maximum(np.arange(units + 1), 1)
    serial, slow = rng.uniform(0.0, 0.05, (jobs, 1)), rng.uniform(0.01, 0.1, (jobs, 1))
    speedup = 1 / np.stack([serial + 1 / count, serial + slow + 1 / count], axis=1)
    fair = min(units, max(1, GPUS * nodes // jobs))
    speedup /= speedup[:, int(fair > GPUS), fair][:, None, None]
    speedup[:, :, 0] = 1e-3
    return AllocationProblem(
        worth=-1 / speedup,
        kept_worth=-1 / speedup[:, 0, 0],
        current=np.zeros((jobs, nodes), dtype=np.int64),
        limit=np.full((jobs, nodes), GPUS),
        capacity=np.full(nodes, GPUS),
        least=np.ones(jobs, dtype=np.int64),
        most=np.minimum(rng.choice(LARGEST, jobs), units),
        spread_room=np.ones(nodes, dtype=np.int64),
    )


def bound(problem: AllocationProblem) -> float:
    """The best worth if only the GPUs together were limited: row by row, the best for each number of GPUs."""
    total = int(problem.capacity.sum())
    best = np.zeros(total + 1)
    for row in range(problem.rows):
        grown = best + problem.worth[row, 0, 0]
        for gpus in range(1, int(problem.most[row]) + 1):
            worth = problem.worth[row, 1 if gpus > GPUS else 0, gpus]
            grown[gpus:] = np.maximum(grown[gpus:], best[: total + 1 - gpus] + worth)
        best = grown
    return float(best.max())


def reached(problem: AllocationProblem, generations: int, rate: float, seed: int) -> float:
    """The harmonic mean of speed-ups found, as a share of the bound."""
    rng = np.random.default_rng(seed)
    start = filled(problem, np.zeros((100, *problem.limit.shape), dtype=np.int8), rng)
    return bound(problem) / float(evolve(problem, start, generations, rng, rate).worth[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["20x16", "50x16", "100x64"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-quality", action="store_true", help="only the times")
    options = parser.parse_args()
    machine = f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
    policy = Pollux(generations=options.generations)
    print(
        f"{machine}, seed {options.seed}, population {policy.population}, generations {policy.generations}\n"
    )
    sizes = [tuple(int(part) for part in size.split("x")) for size in options.sizes]

    print(f"{'jobs':>6}{'nodes':>6}{'first ms':>10}{'later ms, median':>18}{'worst':>8}{'memory MiB':>12}")
    for jobs, nodes in sizes:
        took, snapshot = decisions_ms(policy, jobs, nodes, options.rounds, options.seed)
        kept_mib = snapshot.memory.population.nbytes / 2**20
        later = statistics.median(took[1:])
        print(f"{jobs:6}{nodes:6}{took[0]:10.0f}{later:18.0f}{max(took):8.0f}{kept_mib:12.2f}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of the process: {peak_mib:.0f} MiB")
    if options.no_quality:
        return

    print("\nshare of the bound; median of 5")
    print(f"{'jobs':>6}{'nodes':>6}{'usual':>10}{'ten times':>12}{'paper':>10}")
    for jobs, nodes in sizes:
        shares = []
        for generations, rate in (
            (100, policy.mutation_rate),
            (1_000, policy.mutation_rate),
            (100, jobs / 2),
        ):
            problems = [
                a_problem(jobs, nodes, np.random.default_rng(options.seed + draw)) for draw in range(5)
            ]
            shares.append(
                statistics.median(reached(one, generations, rate, options.seed) for one in problems)
            )
        print(f"{jobs:6}{nodes:6}{shares[0]:10.3f}{shares[1]:12.3f}{shares[2]:10.3f}")


if __name__ == "__main__":
    main()
