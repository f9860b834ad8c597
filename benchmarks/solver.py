"""Milliseconds and gaps of the multiple-choice knapsack solver, by size, lumpiness and likeness of the rows.

    python benchmarks/solver.py [--seeds 20] [--exact]

Problems are those of `stretto.experiments.bench`. *alike* draws all rows from a few distinct ones, as when
many users submit the same job. Milliseconds are processor time; set OMP_NUM_THREADS=1. `--exact` puts branch
and bound (HiGHS, gap 0, ended after two minutes) beside the four sizes of the first table, in elapsed
seconds.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from stretto.experiments.bench import bench_solver, instance
from stretto.solve import Assignment, MultipleChoiceKnapsack, assign

SIZES = [(64, 64, 3), (500, 512, 3), (2_000, 2_048, 3), (20_000, 100_000, 4)]  # jobs, GPUs, types
SMALL = [(5, 64), (10, 64), (20, 64), (40, 64)]  # jobs, GPUs: rounds of a small cluster
LUMPY = [(16, 64), (32, 64), (64, 64), (64, 128), (64, 256)]
ALIKE = [(150, 512), (300, 1_024), (600, 2_048)]
DISTINCT = [1, 3, 10, 30]
HEADER = f"{'problem':34}{'p50 ms':>9}{'p95 ms':>9}{'max ms':>9}{'p50 gap':>10}{'max gap':>10}{'proven':>9}"

Timed = tuple[float, Assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="problems of each kind (3 at the largest size)")
    parser.add_argument("--exact", action="store_true", help="also run branch and bound; takes minutes")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    print(HEADER)
    for name, draw, most in problems():
        print_row(name, [timed(draw(seed)) for seed in range(min(options.seeds, most))])
    if options.exact:
        print_exact()


def problems() -> Iterator[tuple[str, Callable[[int], MultipleChoiceKnapsack], int]]:
    """Name, problem by seed, and how many of them are worth measuring."""
    for jobs, gpus, types in SIZES:
        few = 3 if jobs > 10_000 else 10_000
        yield f"{jobs} jobs, {gpus} GPUs", partial(instance, jobs, gpus, types), few
    for jobs, gpus in SMALL:
        smooth = partial(instance, jobs, gpus, 3, large_minimum_share=0.0)
        yield f"smooth: {jobs} jobs, {gpus} GPUs", smooth, 10_000
    for jobs, gpus in LUMPY:
        yield f"lumpy: {jobs} jobs, {gpus} GPUs", partial(instance, jobs, gpus, 3), 10_000
    for jobs, gpus in ALIKE:
        for distinct in DISTINCT:
            yield (
                f"alike: {distinct} of {jobs} jobs, {gpus} GPUs",
                partial(alike, jobs, gpus, distinct),
                10_000,
            )


def alike(jobs: int, gpus: int, distinct: int, seed: int) -> MultipleChoiceKnapsack:
    """A problem whose rows are all drawn from `distinct` ones."""
    few = instance(distinct, gpus, 3, seed, forced_share=0.0)
    like = np.random.default_rng(seed).integers(0, distinct, jobs)
    return replace(few, value=few.value[like], allowed=few.allowed[like], forced=few.forced[like])


def timed(problem: MultipleChoiceKnapsack) -> Timed:
    began = time.process_time()  # one thread does it all, and others' work on the machine is left out
    found = assign(problem)
    return time.process_time() - began, found


def print_row(name: str, runs: list[Timed]) -> None:
    ms = np.array([seconds for seconds, _ in runs]) * 1e3
    gaps = [found.gap for _, found in runs]
    proven = sum(found.proof != "relaxed" for _, found in runs)
    print(
        f"{name:34}{np.median(ms):9.2f}{np.percentile(ms, 95):9.2f}{ms.max():9.2f}"
        f"{statistics.median(gaps):10.1e}{max(gaps):10.1e}{proven:6}/{len(runs)}",
        flush=True,
    )


def print_exact() -> None:
    print(f"\n{'problem':34}{'fast s':>9}{'exact s':>9}{'fast/exact value':>18}{'gap':>10}")
    for jobs, gpus, types in SIZES:
        row = bench_solver(jobs, gpus, types, seed=0)
        exact_s, exact_value = row["exact_s"], row["exact_value"]
        ratio = (
            "-" if exact_value is None else f"{float(str(row['fast_value'])) / float(str(exact_value)):.6f}"
        )
        seconds = "none" if exact_s is None else f"{float(str(exact_s)):.2f}"
        fast_s, gap = float(str(row["fast_s"])), float(str(row["gap"]))
        print(f"{f'{jobs} jobs, {gpus} GPUs':34}{fast_s:9.4f}{seconds:>9}{ratio:>18}{gap:10.1e}", flush=True)


if __name__ == "__main__":
    main()
