"""How fast ONES breeds schedules, and how good they become.

    OMP_NUM_THREADS=1 python benchmarks/ones.py [--sizes 30x64 30x256 100x256] [--seconds 5] [--seed 0]

A size is jobs x GPUs, in nodes of 4. The population is as large as the cluster, as in the paper. Jobs scale
by Amdahl's law, slower on several nodes, with limits of 1 to 16 GPUs. The first columns are generations per
second of the clock and of the processor, which differ on a busy machine. The last are the score (predicted
GPU-seconds to go) after so many generations from random schedules, relative to that after the most.
"""

import argparse
import platform
import resource
import time

import numpy as np

from stretto.policies.ones.evolution import (
    ProblemInstance,
    ProgressPosterior,
    costs_of,
    next_generation,
    random_schedules,
    repair,
    scores,
    select,
)

PER_NODE = 4
MUTATION_RATE = 0.1  # the default of the policy
MARKS = (0, 10, 100, 400)  # generations


def a_field(jobs: int, gpus: int, rng: np.random.Generator) -> ProblemInstance:
    """Jobs that would use 1 to 16 GPUs and may hold twice as many."""
    counts = np.arange(gpus + 1)
    per_s = rng.uniform(100.0, 1_000.0, (jobs, 1))
    slower = rng.uniform(0.01, 0.3, (jobs, 1))
    cost = np.stack(
        [
            np.where(counts > 0, (1 + slower * more * (counts > 1) + 0.01 * counts) / per_s, 0.0)
            for more in (1, 2)
        ],
        axis=1,
    )
    useful = 2 ** rng.integers(0, 5, (jobs, 1))
    return ProblemInstance(
        segment=np.zeros(gpus, dtype=np.int64),
        node=np.arange(gpus) // PER_NODE,
        per_node=np.array([PER_NODE]),
        home=np.zeros(jobs, dtype=np.int64),
        cost=cost,
        fit=np.minimum(counts, np.minimum(2 * useful, gpus)),
        kept=np.tile(counts, (jobs, 1)),
        grown=np.maximum(counts, useful),
        least=np.ones(jobs, dtype=np.int64),
        executed_s=rng.uniform(0.0, 1_000.0, jobs),
    )


def measured(jobs: int, gpus: int, seconds: float, seed: int) -> tuple[float, float, list[float]]:
    """Generations per second of clock and processor, and the best expected score after each of MARKS."""
    rng = np.random.default_rng(seed)
    problem = a_field(jobs, gpus, rng)
    posterior = ProgressPosterior(
        rng.uniform(1e4, 1e5, jobs), rng.uniform(1.0, 20.0, jobs), rng.uniform(1.0, 20.0, jobs)
    )
    population = repair(problem, random_schedules(problem, gpus, rng), posterior.drawn(gpus, rng))
    population = select(problem, population, gpus, posterior, rng)
    reached, done, began, began_cpu = [], 0, time.perf_counter(), time.process_time()
    took_s = took_cpu_s = 0.0
    for mark in MARKS:
        while done < mark:
            population = next_generation(problem, population, gpus, posterior, MUTATION_RATE, rng)
            done += 1
        took_s, took_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        reached.append(float(scores(costs_of(problem, population[:1]), posterior.expected[None])[0, 0]))
        if took_s > seconds and mark > 0:
            break
    return done / took_s, done / took_cpu_s, reached


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", nargs="+", default=["30x64", "100x64", "30x256", "100x256"])
    parser.add_argument("--seconds", type=float, default=5.0, help="stop a size at the first mark after this")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    print(
        f"{'jobs x GPUs':<12} {'gen/s':>8} {'gen/cpu s':>10}  "
        + " ".join(f"{f'score@{mark}':>10}" for mark in MARKS)
    )
    for size in given.sizes:
        jobs, gpus = (int(part) for part in size.split("x"))
        per_s, per_cpu_s, reached = measured(jobs, gpus, given.seconds, given.seed)
        relative = " ".join(f"{one / reached[-1]:>10.3f}" for one in reached)
        print(f"{size:<12} {per_s:>8.1f} {per_cpu_s:>10.1f}  {relative}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
