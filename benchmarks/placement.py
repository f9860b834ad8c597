"""Microseconds that each placer takes for one decision, by what the decision changes.

    python benchmarks/placement.py [--nodes 120 1000] [--repeats 200] [--seed 0] [--topology]

The cluster has nodes of 8 GPUs, 85 % of them held by jobs of 1 to 16 GPUs that came and went for a while,
and a queue of 200 jobs. With --topology, nodes are in racks of 8 and
leaves of 32. Each figure is the median over decisions of the processor time of the placer alone; set
OMP_NUM_THREADS=1 and leave the machine otherwise idle.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import Cluster, GpuType, IntArray, Shares, Snapshot, Why, cluster_of
from stretto.model.plan import waiting_for
from stretto.place import PLACERS, Consolidated, Placer, load_placer
from stretto.testing.builders import a_job, a_snapshot

SIZES = np.array([1, 1, 1, 2, 2, 4, 4, 8, 8, 16])
LOAD = 0.85  # of all GPUs
QUEUED = 200


@dataclass(frozen=True)
class Stage:
    """A cluster in use, and what to change about it."""

    snapshot: Snapshot
    held: IntArray  # (jobs,) GPUs held
    asked: IntArray  # (jobs,) GPUs asked for

    def shares(self, gpus: IntArray) -> Shares:
        """Shares with these counts, of the type and nodes that the placer likes."""
        blank = np.zeros_like(gpus)
        return Shares(gpus, np.where(gpus > 0, 0, -1), blank, waiting_for(Why.NO_FREE_GPUS, len(gpus)))


def a_cluster(nodes: int, has_topology: bool) -> Cluster:
    """Nodes of 8 GPUs, 8 nodes in a rack and 4 racks under a leaf."""
    cluster = cluster_of("bench", (GpuType("gpu"), nodes, 8))
    if not has_topology:
        return cluster
    placed = (
        replace(node, domains=(f"leaf-{at // 32}", f"rack-{at // 8}"))
        for at, node in enumerate(cluster.nodes)
    )
    return replace(cluster, nodes=tuple(placed), levels=("leaf", "rack"))


def a_stage(nodes: int, rng: np.random.Generator, has_topology: bool = False) -> Stage:
    """A cluster filled by a consolidating placer, in which a third of all jobs was replaced by others."""
    cluster = a_cluster(nodes, has_topology)
    jobs = int(nodes * 8 / SIZES.mean()) * 2 + QUEUED
    asked = rng.choice(SIZES, jobs)
    requests = [a_job(f"job-{row:05d}", gpus=int(asked[row]), at_s=row) for row in range(jobs)]
    snapshot = a_snapshot(*requests, cluster=cluster)
    held = np.zeros_like(asked)
    for _ in range(4):
        held[rng.random(jobs) < 1 / 3] = 0
        for row in rng.permutation(jobs).tolist():
            if held.sum() + asked[row] <= LOAD * nodes * 8:
                held[row] = asked[row]
        stage = Stage(snapshot, held, asked)
        placement = Consolidated().place(snapshot, stage.shares(held))
        now = {str(job): allocation for job, allocation in placement.items()}
        snapshot = a_snapshot(*requests, cluster=cluster, allocations=now)
        held = snapshot.jobs.held_gpus.copy()
    queue = np.flatnonzero(held == 0)[:QUEUED]
    kept = np.sort(np.concatenate([np.flatnonzero(held), queue]))  # the others have ended
    requests = [requests[row] for row in kept.tolist()]
    snapshot = a_snapshot(*requests, cluster=cluster, allocations=now)
    return Stage(snapshot, snapshot.jobs.held_gpus, asked[kept])


def nothing(stage: Stage, rng: np.random.Generator) -> IntArray:
    return stage.held.copy()


def one_starts(stage: Stage, rng: np.random.Generator, most: int = 4) -> IntArray:
    gpus = stage.held.copy()
    row = rng.choice(np.flatnonzero((gpus == 0) & (stage.asked <= most)))
    gpus[row] = stage.asked[row]
    return gpus


def sixteen_start(stage: Stage, rng: np.random.Generator) -> IntArray:
    gpus = stage.held.copy()
    gpus[rng.choice(np.flatnonzero((gpus == 0) & (stage.asked == 16)))] = 16
    return gpus


def one_ends(stage: Stage, rng: np.random.Generator) -> IntArray:
    gpus = stage.held.copy()
    gpus[rng.choice(np.flatnonzero(gpus))] = 0
    return gpus


def one_ends_one_starts(stage: Stage, rng: np.random.Generator) -> IntArray:
    gpus = one_starts(stage, rng)
    gpus[rng.choice(np.flatnonzero(stage.held))] = 0
    return gpus


def a_tenth_changes(stage: Stage, rng: np.random.Generator) -> IntArray:
    gpus = stage.held.copy()
    running = np.flatnonzero(gpus)
    rows = rng.permutation(running)[: len(running) // 10]
    gpus[rows] = np.where(
        rng.random(len(rows)) < 0.5, np.minimum(2 * gpus[rows], 16), np.maximum(gpus[rows] // 2, 1)
    )
    for row in rng.permutation(rows).tolist():
        if gpus.sum() <= stage.snapshot.cluster.total_gpus:
            break
        gpus[row] = stage.held[row]
    return gpus


def a_tenth_changes_until_full(stage: Stage, rng: np.random.Generator) -> IntArray:
    gpus = a_tenth_changes(stage, rng)
    for row in np.flatnonzero(stage.held == 0).tolist():
        if gpus.sum() + stage.asked[row] <= stage.snapshot.cluster.total_gpus:
            gpus[row] = stage.asked[row]
    return gpus


def five_hundred_change(stage: Stage, rng: np.random.Generator) -> IntArray:
    """The queue starts and 300 jobs end; on a small cluster a third of all."""
    gpus = np.where(stage.held > 0, stage.held, stage.asked)
    running = np.flatnonzero(stage.held)
    gpus[rng.permutation(running)[: min(300, len(running) // 3)]] = 0
    return gpus


CHANGES: dict[str, Callable[[Stage, np.random.Generator], IntArray]] = {
    "nothing": nothing,
    "one starts (1-4 GPUs)": one_starts,
    "one starts (16 GPUs)": sixteen_start,
    "one ends": one_ends,
    "one ends, one starts": one_ends_one_starts,
    "a tenth of all change": a_tenth_changes,
    "the same, until full": a_tenth_changes_until_full,
    "500 change": five_hundred_change,
}


def decisions_us(placer: Placer, stage: Stage, gpus: list[IntArray]) -> Iterator[float]:
    for counts in gpus:
        shares = stage.shares(counts)
        started = time.thread_time_ns()
        placer.place(stage.snapshot, shares)
        yield (time.thread_time_ns() - started) / 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[120, 1_000])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topology", action="store_true", help="nodes in racks and leaves")
    parser.add_argument("--placers", nargs="+", default=list(PLACERS), choices=list(PLACERS))
    options = parser.parse_args()
    machine = f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{machine}, seed {options.seed}")
    for nodes in options.nodes:
        stage = a_stage(nodes, np.random.default_rng(options.seed), options.topology)
        running = int((stage.held > 0).sum())
        waiting = len(stage.held) - running
        print(f"\n{nodes} nodes of 8 GPUs, {running} jobs running, {waiting} waiting; median us")
        print(f"{'changes':24}" + "".join(f"{name:>14}" for name in options.placers))
        for change, make in CHANGES.items():
            rng = np.random.default_rng(options.seed)
            few = make in (a_tenth_changes, a_tenth_changes_until_full, five_hundred_change)
            repeats = max(1, options.repeats // 20) if few else options.repeats
            gpus = [make(stage, rng) for _ in range(repeats)]
            medians = [
                statistics.median(decisions_us(load_placer(name), stage, gpus)) for name in options.placers
            ]
            print(f"{change:24}" + "".join(f"{median:14.1f}" for median in medians))


if __name__ == "__main__":
    main()
