"""Which jobs hold what of the servers on loan, as arrays: all that a reclaiming rule looks at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.model import Allocation, BoolArray, IntArray, JobId, Snapshot, ints


@dataclass(frozen=True, eq=False)
class Hosting:
    """Pairs of a job and a server on loan on which it holds GPUs, sparse.

    Servers are numbered 0..servers-1 in the order of their nodes, jobs 0..jobs-1; no pair occurs twice.
    """

    servers: int
    jobs: int
    job: IntArray  # (pairs,)
    server: IntArray  # (pairs,)
    base_gpus: IntArray  # (pairs,) GPUs of workers without which the job stops
    flexible_gpus: IntArray  # (pairs,) GPUs of workers without which it only gets smaller
    base_servers: IntArray  # (jobs,) servers with base workers of the job, those not on loan included
    elsewhere_gpus: IntArray  # (jobs,) GPUs that it holds on servers that are not on loan

    @property
    def gpus(self) -> IntArray:
        """(pairs,) GPUs held."""
        return self.base_gpus + self.flexible_gpus

    @property
    def job_gpus(self) -> IntArray:
        """(jobs,) GPUs held in all."""
        on_loan = np.bincount(self.job, self.gpus, self.jobs).astype(np.int64)
        return on_loan + self.elsewhere_gpus

    @property
    def server_gpus(self) -> IntArray:
        """(servers,) GPUs in use for training."""
        return np.bincount(self.server, self.gpus, self.servers).astype(np.int64)

    @property
    def server_jobs(self) -> IntArray:
        """(servers,) jobs that hold a GPU of it."""
        return np.bincount(self.server, minlength=self.servers).astype(np.int64)

    def stopped_by(self, chosen: IntArray, spare_flexible: bool) -> BoolArray:
        """(jobs,) which are stopped where the chosen servers go.

        spare_flexible: a job with nothing but flexible workers there goes on without them.
        """
        gone = np.zeros(self.servers, dtype=np.bool_)
        gone[chosen] = True
        hit = gone[self.server] & ((self.base_gpus > 0) if spare_flexible else True)
        stopped = np.zeros(self.jobs, dtype=np.bool_)
        stopped[self.job[hit]] = True
        return stopped

    def excess_gpus(self, chosen: IntArray, stopped: BoolArray) -> int:
        """GPUs taken from stopped jobs on servers that are not among the chosen: collateral damage."""
        gone = np.zeros(self.servers, dtype=np.bool_)
        gone[chosen] = True
        beside = stopped[self.job] & ~gone[self.server]
        return int(self.gpus[beside].sum() + self.elsewhere_gpus[stopped].sum())


def hosting_on(snapshot: Snapshot, nodes: IntArray) -> tuple[Hosting, Sequence[JobId]]:
    """Which jobs hold GPUs of these nodes (ascending), and the names of those jobs by number.

    A mask of flexible workers counts only where the job could go on without all of them. That is so where its
    base workers hold at least its `min_gpus`, in GPUs of the kind it asked for.
    """
    local = {node: position for position, node in enumerate(nodes.tolist())}
    lowest = int(nodes[0]) if len(nodes) else 0
    names: list[JobId] = []
    pairs: list[tuple[int, int, int, int]] = []
    base_servers: list[int] = []
    elsewhere: list[int] = []
    least = _least_units(snapshot)
    stand_ins = snapshot.cluster.stand_ins[snapshot.cluster.kind]
    for name, allocation in snapshot.placement.items():
        if allocation.nodes[-1] < lowest or not any(node in local for node in allocation.nodes):
            continue
        flexible = _flexible_gpus(allocation, stand_ins, least.get(name, 0))
        number, outside, base_on = len(names), 0, 0
        for node, mask, may_go in zip(allocation.nodes, allocation.masks, flexible, strict=True):
            gpus = mask.bit_count()
            base_on += gpus > may_go
            if node in local:
                pairs.append((number, local[node], gpus - may_go, may_go))
            else:
                outside += gpus
        names.append(name)
        base_servers.append(base_on)
        elsewhere.append(outside)
    job, server, base, may_go_gpus = ints(pairs).reshape(-1, 4).T
    hosting = Hosting(
        len(nodes), len(names), job, server, base, may_go_gpus, ints(base_servers), ints(elsewhere)
    )
    return hosting, names


def _least_units(snapshot: Snapshot) -> dict[JobId, int]:
    """The fewest GPUs, as asked for, of each job that may shrink."""
    jobs = snapshot.jobs
    rows = np.flatnonzero((jobs.min_gpus < jobs.max_gpus) & (jobs.held_gpus > 0))
    return dict(zip([jobs[row].id for row in rows.tolist()], jobs.min_gpus[rows].tolist(), strict=True))


def _flexible_gpus(allocation: Allocation, stand_ins: IntArray, least: int) -> Sequence[int]:
    """GPUs of flexible workers on each node of an allocation; `least`: 0 for a job of a single size."""
    none = (0,) * len(allocation.nodes)
    if not allocation.flexible or least == 0:
        return none
    flexible = [mask.bit_count() for mask in allocation.flexible]
    base = [mask.bit_count() - spare for mask, spare in zip(allocation.masks, flexible, strict=True)]
    units = sum(gpus / int(stand_ins[node]) for gpus, node in zip(base, allocation.nodes, strict=True))
    return flexible if units >= least else none
