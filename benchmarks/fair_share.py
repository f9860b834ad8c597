"""What fair share adds to a decision, by waiting jobs and policy.

    python benchmarks/fair_share.py [--jobs 1000 10000] [--policies fifo sia] [--users 100] [--profile]

A simulation of jobs of many users that all wait from the start on 512 GPUs is stopped after a while. The
decision that is then due is made without fair share, by its order alone, and within its limits. A few GPUs
have just come free. Times are medians of processor
time, so that other work on the machine changes them less.
"""

import argparse
import cProfile
import platform
import pstats
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from stretto.model import Adaptivity, FairShare, GpuType, Job, JobId, Plan, Snapshot, cluster_of
from stretto.policies.registry import load_policy
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload

NODES, GPUS = 64, 8
DECISIONS = 6  # after which a simulation is stopped
ENDED = 16  # jobs whose GPUs have come free, chosen
SIZES = np.array([1, 1, 1, 2, 2, 4, 8])


class Enough(Exception):
    """The decision to be measured is due."""


def a_workload(jobs: int, users: int, rng: np.random.Generator) -> Workload:
    """Jobs of all sizes, half of them elastic, a few users with most of them."""
    owners = np.minimum(rng.zipf(1.3, jobs) - 1, users - 1)
    made = []
    for number, owner in enumerate(owners.tolist()):
        gpus, is_elastic = int(rng.choice(SIZES)), bool(rng.random() < 0.5)
        made.append(
            Job(
                JobId(f"{number:05d}"),
                0.0,
                gpus,
                min_gpus=1 if is_elastic else gpus,
                max_gpus=GPUS if is_elastic else gpus,
                adaptivity=Adaptivity.STRONG_SCALING if is_elastic else Adaptivity.RIGID,
                user=f"user{owner}",
            )
        )
    return Workload("many users", made, [Truth(float(rng.uniform(600, 86_400))) for _ in made])


def a_decision(policy: str, jobs: int, users: int) -> tuple[Snapshot, Scheduler]:
    """The snapshot of a decision that is due, with shares and usage, and who makes it."""
    cluster = cluster_of("bench", (GpuType("gpu"), NODES, GPUS))
    setup = Setup(cluster, load_policy(policy), SimSettings(), shares=FairShare(limits=True))
    world, seen = world_of(a_workload(jobs, users, np.random.default_rng(0)), setup), []

    def keep(snapshot: Snapshot, _: Plan) -> None:
        seen.append(snapshot)
        if len(seen) == DECISIONS:
            raise Enough

    scheduler = scheduler_of(setup)
    with suppress(Enough):
        run(world, scheduler, keep)
    last = seen[-1]
    ended = dict.fromkeys([*last.placement][:ENDED])
    placement = last.placement.changed(ended)
    return replace(last, placement=placement, jobs=last.jobs.with_placement(placement)), scheduler


def variants(snapshot: Snapshot) -> dict[str, Snapshot]:
    """The same decision without fair share, with its order, and with its limits."""
    constraints = snapshot.constraints
    fair = constraints.fair_share
    assert fair is not None
    by = {"off": None, "order": replace(fair, limits=False), "limits": fair}
    return {
        name: replace(snapshot, constraints=replace(constraints, fair_share=one)) for name, one in by.items()
    }


def median_ms(shown: Mapping[str, Snapshot], scheduler: Scheduler, repeats: int) -> dict[str, float]:
    """Milliseconds of processor time of each decision."""
    taken: dict[str, list[float]] = {name: [] for name in shown}
    for _ in range(repeats):
        for name, one in shown.items():
            began = time.process_time()
            decide(one, scheduler)
            taken[name].append((time.process_time() - began) * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """A line for each policy and number of jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--policies", nargs="+", default=["fifo", "sia"])
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="show where the time of the last one goes")
    asks = parser.parse_args()
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, {asks.users} users, {NODES * GPUS} GPUs")
    print("policy     jobs    off ms  order ms limits ms order/off limits/off")
    for policy in asks.policies:
        for jobs in asks.jobs:
            snapshot, scheduler = a_decision(policy, jobs, asks.users)
            shown = variants(snapshot)
            ms = median_ms(shown, scheduler, asks.repeats)
            print(
                f"{policy:<8}{jobs:>7}{ms['off']:>10.2f}{ms['order']:>10.2f}{ms['limits']:>10.2f}"
                f"{ms['order'] / ms['off']:>10.3f}{ms['limits'] / ms['off']:>11.3f}",
                flush=True,
            )
            if asks.profile:
                profile = cProfile.Profile(time.process_time)
                profile.runcall(decide, shown["limits"], scheduler)
                pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    main()
