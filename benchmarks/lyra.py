"""Milliseconds that Lyra's knapsack and whole decisions of Lyra, AFS and Gandiva take.

    python benchmarks/lyra.py [--repeats 9] [--seed 0] [--decisions 300]

The first table puts the knapsack beside Lyra's longest (0.02 s at 354 items and 245 GPUs; EuroSys 2023,
section 5.2): `all` is dynamic programming over every item and the whole capacity, as in the paper, `solve`
the multiple-choice knapsack of `stretto.solve`, as the policy does it. The second follows 57 hours of the
made workload `lyra` on its 443 nodes of 8 GPUs, nothing lent, and gives the CPU time of one decision of each
policy without its placement, once with one elastic job in twenty and once with all of them. Set
OMP_NUM_THREADS=1.
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from stretto.experiments.spec import RunSpec, set_up
from stretto.model import FloatArray, IntArray, Policy, Shares, Snapshot, Speeds
from stretto.policies import load_policy
from stretto.policies.lyra.phases import most_saved, reductions_s
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import scheduler_of, world_of
from stretto.sim.world import SimulatedWorld

PAPER_S = 0.02
CASES = ((59, 6, 245), (59, 6, 3_544), (300, 8, 3_544), (1_000, 8, 800), (1_000, 16, 3_544))
JOBS, HOURS = 8_000, 57.0  # the rate of 50,390 jobs in 15 days
SETTINGS = {"sim.resize_s": "0", "sim.restart_s": "63"}
POLICIES: dict[str, dict[str, str]] = {
    "lyra": {},
    "afs": {"variant": "lyra", "round_s": "60"},
    "gandiva": {"round_s": "60"},
}


def a_knapsack(groups: int, items: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Values and GPUs of a worker of elastic jobs with log-normal work."""
    least, each = rng.choice([1, 2, 4, 8], groups), rng.choice([1, 2, 4, 8], groups)
    return reductions_s(rng.lognormal(10, 1.5, groups) * least, least, least + items), each


def best_value(value: FloatArray, each: IntArray, capacity: int) -> float:
    """The best value by dynamic programming, group by group over the whole capacity."""
    best = np.zeros(capacity + 1)
    for row in range(len(value)):
        before = best.copy()
        for count in range(1, value.shape[1] + 1):
            gpus = count * int(each[row])
            if gpus <= capacity:
                best[gpus:] = np.maximum(best[gpus:], before[: capacity + 1 - gpus] + value[row, count - 1])
    return float(best[-1])


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Of CPU time."""
    took = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return float(np.median(took)) * 1e3


def knapsacks(repeats: int, seed: int) -> None:
    """The first table."""
    print(f"paper: {PAPER_S * 1e3:g} ms at 354 items and 245 GPUs")
    print(f"{'jobs':>6}{'items':>7}{'GPUs':>7}{'all, ms':>10}{'solve, ms':>10}")
    for groups, items, capacity in CASES:
        value, each = a_knapsack(groups, items, np.random.default_rng(seed))
        workers = most_saved(value, each, capacity)
        saved_s = np.where(workers > 0, value[np.arange(groups), workers - 1], 0.0).sum()
        assert np.isclose(saved_s, best_value(value, each, capacity))
        both = [median_ms(partial(way, value, each, capacity), repeats) for way in (best_value, most_saved)]
        print(f"{groups:>6}{groups * items:>7}{capacity:>7}{both[0]:>10.2f}{both[1]:>10.2f}")


class Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: Policy) -> None:
        """Nothing is timed yet."""
        self.policy, self.took_ms, self.jobs = policy, list[float](), list[tuple[int, int]]()

    def __getattr__(self, name: str) -> object:
        """What the policy has."""
        return getattr(self.policy, name)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """What the policy decides."""
        start = time.process_time()
        shares = self.policy.allocate(snapshot, speeds)
        self.took_ms.append((time.process_time() - start) * 1e3)
        self.jobs.append((len(snapshot.jobs), int((snapshot.jobs.held_gpus > 0).sum())))
        return shares


def decisions(count: int, seed: int) -> None:
    """The second table."""
    print(f"\n{'policy':<10}{'elastic':>8}{'jobs':>6}{'running':>9}{'median, ms':>12}{'p95, ms':>9}")
    for elastic in (0.05, 1.0):
        trace = f"lyra:jobs={JOBS},hours={HOURS:g}@lyra:elastic={elastic:g}"
        for name, fields in POLICIES.items():
            workload, setup = set_up(RunSpec("lyra", trace, name, settings=SETTINGS, seed=seed))
            timed = Timed(load_policy(name, **fields))
            setup = replace(setup, policy=timed)  # type: ignore[arg-type]
            follow(world_of(workload, setup), scheduler_of(setup), count)
            took = np.array(timed.took_ms[-count:])
            jobs, running = np.array(timed.jobs[-count:]).mean(axis=0)
            print(
                f"{name:<10}{elastic:>8g}{jobs:>6.0f}{running:>9.0f}"
                f"{np.median(took):>12.2f}{np.percentile(took, 95):>9.2f}"
            )


def follow(world: SimulatedWorld, scheduler: Scheduler, count: int) -> None:
    """Half of the workload's hours, then so many decisions."""
    after = 0
    while after < count and world.wait():
        snapshot = world.observe()
        world.act(decide(snapshot, scheduler))
        after += snapshot.now_s > HOURS * 1_800


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decisions", type=int, default=300)
    given = parser.parse_args()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, seed {given.seed}"
    )
    knapsacks(given.repeats, given.seed)
    decisions(given.decisions, given.seed)


if __name__ == "__main__":
    main()
