"""What it is worth to know the network: one made workload, placed with a topology and without.

    python benchmarks/topology.py [--jobs 600] [--nodes 64] [--hours 10] [--loss 0.1] [--seeds 3]

Nodes of 8 GPUs are in racks of 4 and leaves of 4 racks. A job loses a share of its speed for each level on
which it is in several domains (`sim.crossing_loss`), whatever the placer knew. Jobs ask for 1 to 64 GPUs and
are rigid. Crossed levels are means over placements on several nodes.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import (
    Adaptivity,
    Cluster,
    GpuType,
    Job,
    JobId,
    Placement,
    Plan,
    Shares,
    Snapshot,
    cluster_of,
)
from stretto.place import Placer, load_placer
from stretto.policies import load_policy
from stretto.scheduler.loop import run
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload

SIZES = np.array([1, 1, 2, 4, 8, 8, 16, 16, 32, 64])


@dataclass(frozen=True)
class Blind:
    """A placer that is shown the cluster without its levels."""

    placer: Placer
    flat: Cluster

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """As the other one, without topology."""
        return self.placer.place(replace(snapshot, cluster=self.flat), shares)


def a_network(nodes: int) -> Cluster:
    flat = cluster_of("network", (GpuType("gpu"), nodes, 8))
    placed = (
        replace(node, domains=(f"leaf-{at // 16}", f"rack-{at // 4}")) for at, node in enumerate(flat.nodes)
    )
    return replace(flat, nodes=tuple(placed), levels=("leaf", "rack"))


def a_workload(jobs: int, hours: float, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    at_s = np.sort(rng.uniform(0, hours * 3_600, jobs)).tolist()
    gpus = rng.choice(SIZES, jobs).tolist()
    took_s = rng.lognormal(np.log(1_800), 1.0, jobs).tolist()
    asked = tuple(
        Job(JobId(f"j{row:04d}"), at_s[row], gpus[row], adaptivity=Adaptivity.RIGID) for row in range(jobs)
    )
    return Workload("made", asked, tuple(Truth(each) for each in took_s))


def one_run(
    workload: Workload, cluster: Cluster, policy: str, loss: float, is_blind: bool
) -> tuple[float, float]:
    """(mean JCT in hours, mean levels crossed by jobs of several nodes)."""
    setup = Setup(cluster, load_policy(policy), SimSettings(crossing_loss=loss))
    scheduler = scheduler_of(setup)
    if is_blind:
        flat = replace(cluster, levels=(), nodes=tuple(replace(node, domains=()) for node in cluster.nodes))
        scheduler = replace(scheduler, placer=Blind(load_placer(setup.policy.placer), flat))
    crossed: list[int] = []

    def note(snapshot: Snapshot, plan: Plan) -> None:
        places = [action.after.nodes for action in plan.actions if action.after is not None]
        crossed.extend(cluster.topology.crossed(nodes) for nodes in places if len(nodes) > 1)

    world = world_of(workload, setup)
    run(world, scheduler, note)
    submitted_s = np.array([job.submitted_s for job in workload.jobs])
    return float((world.accounting.completed_s - submitted_s).mean() / 3_600), float(np.mean(crossed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--loss", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", default="fifo")
    options = parser.parse_args()
    cluster = a_network(options.nodes)
    print(
        f"{options.policy}, {options.nodes} nodes, loss {options.loss} a level;"
        " mean JCT in h, mean levels crossed"
    )
    for seed in range(options.seeds):
        workload = a_workload(options.jobs, options.hours, seed)
        for name, is_blind in (("without topology", True), ("with topology", False)):
            jct_h, crossed = one_run(workload, cluster, options.policy, options.loss, is_blind)
            print(f"seed {seed}  {name:18}{jct_h:8.3f}{crossed:8.2f}", flush=True)


if __name__ == "__main__":
    main()
