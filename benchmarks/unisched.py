"""Milliseconds that UniSched takes to plan its leases, and how often the plan is proved best.

    python benchmarks/unisched.py [--jobs 250 500 1000 2000] [--load 0.8 1.2 2.0] [--repeats 5] [--seed 0]
    python benchmarks/unisched.py --trace chronus-mix2 --cluster gpu8-960 [--window 0.5]
    python benchmarks/unisched.py --curves 20

The first form plans for made jobs: nine tenths ask one GPU, remaining times are log-normal, two thirds have
four deadlines and the others one. Load is what they need before their last deadlines over what a cluster of
as many GPUs as there are jobs has until then. The second runs a simulation and tells of every tick: of the
whole decision and of its solver, median, 95th percentile and most, and the share of ticks whose plan is
proved best. The third fits so many learning curves, side by side and one at a time. Set
OMP_NUM_THREADS=1 and leave the machine otherwise idle.
"""

import argparse
import platform
import time

import numpy as np

from stretto.estimate.learning_curves import forecast, forecasts
from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import FloatArray, Plan, Snapshot
from stretto.model.timing import lapping
from stretto.policies.unisched.ilp import Options, must_by
from stretto.policies.unisched.lease_plan import plan_leases, stretches

GPUS = np.array([1] * 90 + [2, 2, 2, 4, 4, 6, 8, 8, 16, 16])
STEPS = ((1.0, 10.0), (1.1, 8.0), (1.2, 5.0), (1.5, 2.0))  # later than the first deadline by, worth
PROVED = 1e-9


def made_options(jobs: int, rng: np.random.Generator) -> Options:
    """Options of jobs at work: some have just begun, some are nearly done."""
    rows = []
    for job in range(jobs):
        leases = int(np.ceil(rng.lognormal(2.0, 1.3) * rng.random()))
        slack, gpus = rng.uniform(1.0, 2.0), int(rng.choice(GPUS))
        steps = STEPS if rng.random() < 2 / 3 else STEPS[:1]
        rows += [(job, value, gpus, leases, int(leases * slack * later)) for later, value in steps]
    table = np.array(rows, dtype=np.float64).T
    job, gpus_of, leases_of, window = (table[column].astype(np.int64) for column in (0, 2, 3, 4))
    return Options(job, table[1], gpus_of, leases_of, window)


def capacity_at(options: Options, load: float) -> int:
    """GPUs with which what must happen is `load` times what can, where that is tightest."""
    first = options.of(np.diff(options.job, prepend=-1) != 0)
    ends = stretches(int(options.window.max()))[1:]
    return max(int((must_by(first, ends).sum(axis=1) / ends).max() / load), int(options.gpus.max()))


def plans(jobs: int, load: float, repeats: int, seed: int) -> str:
    """One line of the first table."""
    took_ms, gaps, left_out = [], [], []
    for repeat in range(repeats):
        options = made_options(jobs, np.random.default_rng((seed, jobs, repeat)))
        capacity = capacity_at(options, load)
        began = time.perf_counter()
        plan = plan_leases(options, capacity, most_nodes=20)
        took_ms.append((time.perf_counter() - began) * 1e3)
        gaps.append(plan.gap)
        left_out.append(1.0 - plan.taken.sum() / jobs)
    proved = np.mean(np.array(gaps) <= PROVED)
    return (
        f"{jobs:>6} {load:>5} {np.mean(left_out):>9.1%} {np.median(took_ms):>10.1f} {max(took_ms):>8.1f} "
        f"{proved:>9.0%} {max(gaps):>12.4%}"
    )


def ticks(spec: RunSpec) -> None:
    """The second table."""
    solved_ms: list[float] = []  # by the end of each tick
    gaps: list[float] = []
    with lapping(time.perf_counter) as laps:

        def record(snapshot: Snapshot, plan: Plan) -> None:
            solved_ms.append(laps.get("solve", 0.0) * 1e3)
            gaps.append(plan.gap if plan.gap is not None else 1.0)

        result = run_spec(spec, record=record)
    print(f"{'':>10} {'median ms':>10} {'p95':>8} {'most':>8} {'in all s':>9}")
    for what, ms in (("tick", result.decision_ms), ("solver", np.diff(solved_ms, prepend=0.0))):
        print(f"{what:>10} {_row(np.asarray(ms, dtype=np.float64))}")
    share = np.mean(np.array(gaps) <= PROVED)
    print(f"{len(gaps)} ticks, {share:.1%} with a plan proved best, largest gap {max(gaps):.4%}")


def _row(ms: FloatArray) -> str:
    middle, high = np.percentile(ms, [50, 95])
    return f"{middle:>10.1f} {high:>8.1f} {ms.max():>8.1f} {ms.sum() / 1e3:>9.1f}"


def curves(count: int, repeats: int, seed: int) -> None:
    """The third table."""
    rng, epochs = np.random.default_rng(seed), np.arange(1, 201, dtype=np.float64)
    metrics = []
    for length in rng.integers(6, 150, count).tolist():
        rising = 0.9 - 0.8 / (1 + (rng.uniform(0.01, 0.2) * epochs) ** rng.uniform(0.5, 2.0))
        metrics.append((rising + rng.normal(0, 0.003, epochs.size))[:length])
    most_epochs = [epochs.size] * count
    together_ms, alone_ms = [], []
    for _ in range(repeats):
        began = time.process_time()
        forecasts(metrics, most_epochs)
        between = time.process_time()
        for metric in metrics:
            forecast(metric, epochs.size)
        together_ms.append((between - began) / count * 1e3)
        alone_ms.append((time.process_time() - between) / count * 1e3)
    together, alone = min(together_ms), min(alone_ms)
    beside = f"{together:.2f} ms beside {count - 1} others"
    print(f"a curve: {beside}, {alone:.2f} ms alone, ratio {alone / together:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[250, 500, 1_000, 2_000])
    parser.add_argument("--load", type=float, nargs="+", default=[0.8, 1.2, 2.0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", default="")
    parser.add_argument("--cluster", default="gpu8-960")
    parser.add_argument("--window", type=float, default=1.0)
    parser.add_argument("--curves", type=int, default=0)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    if given.trace:
        ticks(RunSpec(given.cluster, given.trace, "unisched", seed=given.seed, window=given.window))
        return
    if given.curves:
        curves(given.curves, given.repeats, given.seed)
        return
    names = ("left out", 9), ("median ms", 10), ("most", 8), ("proved", 9), ("largest gap", 12)
    print(f"{'jobs':>6} {'load':>5} " + " ".join(f"{name:>{width}}" for name, width in names))
    for jobs in given.jobs:
        for load in given.load:
            print(plans(jobs, load, given.repeats, given.seed))


if __name__ == "__main__":
    main()
