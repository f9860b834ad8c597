"""Synergy: the order of another policy, and cores by what jobs can use of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import ClassVar

import numpy as np

from stretto.model import (
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    Pinned,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    every,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew, admit_waiting
from stretto.policies.synergy.tune import Where, tune
from stretto.settings import CheckedSettings, setting


class Base(StrEnum):
    """Whose order of jobs it is."""

    FIFO = "fifo"  # by submission, nobody is stopped, nobody passes who does not fit
    SRTF = "srtf"  # least time left first
    LAS = "las"  # least attained service first, in queues


@dataclass(frozen=True)
class Synergy(CheckedSettings, space="policy"):
    """Run jobs in the order of a simpler policy, and divide the cores of a node by what its jobs can use.

    Synergy (Mohan et al., OSDI 2022). Some jobs starve their GPUs without many cores for loading data, others
    hardly need any. Whoever runs is found in the base order, whole requests. Then TUNE (`tune`) looks
    for a node with the cores at which each reaches `enough` of its best speed, larger jobs first; where there
    is none it makes do with its share in proportion to GPUs, and those that have more give back. Nobody ever
    runs slower than with that share.

    The base is least attained service by default: Cornucopia, which compares with Synergy, lists it as
    needing no knowledge of durations. As in Tiresias, service is told apart by queues, and within a queue who
    started first goes first: else a thousand waiting jobs would take turns every round.

    Deviations: cores only; no world here says what memory does to a job. A running job is not moved to
    another node for more cores. Where no core count is known, or jobs do not mind, it is the base policy in
    rounds.

    Cost: a sort of all jobs, and for each running job a look at all nodes: O(running x nodes).
    Starvation: that of the base. With fifo none. With las no bound: new jobs pass all that have had their
    first queue's worth; with srtf no bound: shorter jobs pass longer ones.
    """

    base: Base = Base.LAS
    round_s: float = setting(300.0, above=0)  # seconds [Synergy]
    enough: float = setting(0.95, above=0, at_most=1)  # of the best speed; chosen
    # of las: GPU-seconds where a queue ends; as in Lucid
    queue_bounds_gpu_s: tuple[float, ...] = setting((18_000.0,), above=0, increasing=True)

    name: ClassVar[str] = "synergy"
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Synergy (OSDI 2022)",
        order="as its base policy: least left, least service or, under fifo, fair share",
        starvation=(
            "unbounded: with las and srtf new or short jobs pass; "
            "bounded by the order of submission with fifo"
        ),
    )

    @property
    def views(self) -> frozenset[View]:
        """What jobs make of cores, and what the base needs."""
        needs = {Base.FIFO: set(), Base.SRTF: {View.ORACLE_DURATION}, Base.LAS: {View.PROGRESS}}
        return frozenset({View.CPU_DEMAND} | needs[self.base])

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests in the base order, with cores."""
        shares = self._in_base_order(snapshot)
        demand = snapshot.jobs.cpu_demand
        if not (cores_of_nodes(snapshot.cluster) > 0).all() or not np.isfinite(demand).any():
            return shares
        return self._with_cores(snapshot, shares, demand)

    def _in_base_order(self, snapshot: Snapshot) -> Shares:
        jobs = snapshot.jobs
        match self.base:
            case Base.FIFO:
                return admit_waiting(snapshot, np.flatnonzero(jobs.held_gpus == 0), skip=False)
            case Base.SRTF:
                keys = [jobs.held_gpus == 0, jobs.durations.remaining_s]
            case Base.LAS:
                queue = np.searchsorted(
                    np.array(self.queue_bounds_gpu_s), jobs.progress.attained_gpu_s, side="right"
                )
                keys = [np.nan_to_num(jobs.progress.first_start_s, nan=inf), queue]
        return admit_anew(snapshot, np.lexsort(keys))

    def _with_cores(self, snapshot: Snapshot, shares: Shares, demand: FloatArray) -> Shares:
        """The same shares with cores, and with nodes for those that start."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        cpus = np.zeros(len(jobs))
        pinned: dict[int, Pinned] = {}
        for kind in range(len(cluster.types)):
            nodes = np.flatnonzero(cluster.kind == kind)
            rows = np.flatnonzero((shares.gpus > 0) & (shares.kind == kind))
            self._tune_type(snapshot, shares, demand, nodes, rows, cpus, pinned)
        return replace(shares, cpus=cpus, pinned=pinned, order=None, in_order=False)

    def _tune_type(
        self,
        snapshot: Snapshot,
        shares: Shares,
        demand: FloatArray,
        nodes: IntArray,
        rows: IntArray,
        cpus: FloatArray,
        pinned: dict[int, Pinned],
    ) -> None:
        """Tune the shares of one GPU type; writes `cpus` and `pinned`."""
        cluster = snapshot.cluster
        sizes = np.where(snapshot.usable[nodes], cluster.node_gpus[nodes], 0)
        fair = cores_of_nodes(cluster)[nodes] / cluster.node_gpus[nodes]
        want = rates_wanted(demand[rows], float(fair.min()), self.enough)
        stays = _staying(snapshot, shares, rows, nodes)
        free = sizes.copy()
        for where in stays.values():
            for node, count in where.items():
                free[node] -= count
        tuned = tune(shares.gpus[rows], want[:, None], fair[:, None], np.maximum(free, 0), sizes, stays)
        limit = cluster.types[int(cluster.kind[nodes[0]])].max_nodes_per_job or len(nodes)
        for share, row in enumerate(rows.tolist()):
            found = tuned.where[share]
            if not found or np.isnan(demand[row]):
                cpus[row] = 0.0  # in proportion
            else:
                cpus[row] = float(tuned.rate[share, 0]) * int(shares.gpus[row])
            if share not in stays and found and len(found) <= limit:
                at = sorted((int(nodes[node]), count) for node, count in found.items())
                pinned[row] = Pinned(tuple(node for node, _ in at), tuple(count for _, count in at))
            elif share not in stays:
                cpus[row] = 0.0  # the placer decides where, and nobody has counted cores there


def cores_of_nodes(cluster: Cluster) -> FloatArray:
    """(nodes,) cores, 0 where nothing is said."""
    return np.array([node.cpus for node in cluster.nodes], dtype=np.float64)


def rates_wanted(demand: FloatArray, fair: float, enough: float) -> FloatArray:
    """(jobs,) cores for each GPU to ask for, where speed grows in proportion up to `demand` and then no more.

    The least that gives `enough` of the best speed and no less speed than the proportional rate `fair`, which
    stands in where nothing is known.
    """
    wanted: FloatArray = np.where(
        np.isnan(demand), fair, np.minimum(demand, np.maximum(enough * demand, fair))
    )
    return wanted


def _staying(snapshot: Snapshot, shares: Shares, rows: IntArray, nodes: IntArray) -> Mapping[int, Where]:
    """Shares that are what a job holds, on nodes that are still usable: GPUs by position in `nodes`."""
    jobs = snapshot.jobs
    position = {int(node): at for at, node in enumerate(nodes.tolist())}
    same = (jobs.held_gpus[rows] == shares.gpus[rows]) & (jobs.held_kind[rows] == shares.kind[rows])
    stays: dict[int, Where] = {}
    for share in np.flatnonzero(same).tolist():
        held = snapshot.placement[jobs.ids[int(rows[share])]]
        if snapshot.usable[list(held.nodes)].all():
            stays[share] = {position[node]: count for node, count in zip(held.nodes, held.shape, strict=True)}
    return stays
