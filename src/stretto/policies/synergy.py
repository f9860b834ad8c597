"""Synergy: the order of another policy, and cores by what jobs can use of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import ClassVar

import numpy as np
from scipy import sparse

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
from stretto.settings import CheckedSettings, setting
from stretto.solve import maximise

SLACK = 1e-9  # of a node's resources; rounding
Where = Mapping[int, int]  # GPUs by node


class Base(StrEnum):
    """Whose order of jobs it is."""

    FIFO = "fifo"  # by submission, no job is stopped, none passes one that does not fit
    SRTF = "srtf"  # least time left first
    LAS = "las"  # least attained service first, in queues


@dataclass(frozen=True)
class Synergy(CheckedSettings, space="policy"):
    """Run jobs in the order of a simpler policy, and divide the cores of a node by what its jobs can use.

    Synergy (Mohan et al., OSDI 2022). Some jobs starve their GPUs without many cores for loading data, others
    hardly need any. The jobs that run are found in the base order, whole requests. Then TUNE (`tune`) looks
    for a node with the cores at which each reaches `enough` of its best speed, larger jobs first. Where there
    is none the job makes do with its share in proportion to GPUs, and those that have more give back. No job
    ever runs slower than with that share.

    The base is least attained service by default: Cornucopia, which compares with Synergy, lists it as
    needing no knowledge of durations. As in Tiresias, service is told apart by queues, and in a queue what
    started first goes first. Else a thousand waiting jobs would take turns every round.

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
        # Rates of cores for each GPU: what is fair, what each job wants, and which jobs stay where they are.
        sizes = np.where(snapshot.usable[nodes], cluster.node_gpus[nodes], 0)
        fair = cores_of_nodes(cluster)[nodes] / cluster.node_gpus[nodes]
        want = rates_wanted(demand[rows], float(fair.min()), self.enough)
        stays = _staying(snapshot, shares, rows, nodes)
        free = sizes.copy()
        for where in stays.values():
            for node, count in where.items():
                free[node] -= count
        tuned = tune(shares.gpus[rows], want[:, None], fair[:, None], np.maximum(free, 0), sizes, stays)
        # What was tuned becomes cores of each job, and nodes of those that are placed anew.
        limit = cluster.types[int(cluster.kind[nodes[0]])].max_nodes_per_job or len(nodes)
        for share, row in enumerate(rows.tolist()):
            count_on = tuned.where[share]
            if not count_on or np.isnan(demand[row]):
                cpus[row] = 0.0  # in proportion
            else:
                cpus[row] = float(tuned.rate[share, 0]) * int(shares.gpus[row])
            if share not in stays and count_on and len(count_on) <= limit:
                placed = sorted((int(nodes[node]), count) for node, count in count_on.items())
                pinned[row] = Pinned(tuple(node for node, _ in placed), tuple(count for _, count in placed))
            elif share not in stays:
                cpus[row] = 0.0  # the placer decides where, and cores are not counted there


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
    position = {int(node): index for index, node in enumerate(nodes.tolist())}
    same = (jobs.held_gpus[rows] == shares.gpus[rows]) & (jobs.held_kind[rows] == shares.kind[rows])
    stays: dict[int, Where] = {}
    for share in np.flatnonzero(same).tolist():
        allocation = snapshot.placement[jobs.ids[int(rows[share])]]
        if snapshot.usable[list(allocation.nodes)].all():
            stays[share] = {
                position[node]: count for node, count in zip(allocation.nodes, allocation.shape, strict=True)
            }
    return stays


# Synergy's TUNE: cores and memory by what jobs can use, never less than in proportion to their GPUs.
#
# Synergy (Mohan et al., OSDI 2022), section 4. Nothing here knows what a job is. Resources beside GPUs are
# columns (…, resources), such as cores and gigabytes, and are counted for each GPU: a share of 4 GPUs at a
# rate of 5 cores has 20. `fair` (nodes, resources) is a node's proportional rate, what it has over its GPUs.


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """Where the shares are and what they get."""

    where: Sequence[Where]  # by share; empty: no room
    rate: FloatArray  # (shares, resources) for each GPU


class _Desk:
    """A tuning while it is made."""

    def __init__(
        self,
        gpus: IntArray,
        want: FloatArray,
        fair: FloatArray,
        free_gpus: IntArray,
        node_gpus: IntArray,
        free: FloatArray,
    ) -> None:
        self.gpus, self.want, self.fair = gpus, want, fair
        self.free_gpus, self.node_gpus, self.free = free_gpus, node_gpus, free
        self.where: list[Where] = [{} for _ in gpus]
        self.rate = np.zeros_like(want)
        self.on: list[list[int]] = [[] for _ in node_gpus]  # shares by node

    def stay(self, share: int, where: Where) -> None:
        """Keep a share where it is, at the rate that it wants if there is that much."""
        nodes = list(where)
        counts = np.array([where[node] for node in nodes])
        enough = (self.free[nodes] + SLACK >= counts[:, None] * self.want[share]).all()
        self._put(share, where, self.want[share] if enough else self._modest(share, nodes))

    def enter(self, share: int) -> None:
        """Find a place for a share, if there is one."""
        asks = int(self.gpus[share])
        wishes = (self.want[share], np.minimum(self.want[share], self.fair.min(axis=0)))
        for rate in wishes:
            where = self._fewest_nodes(asks, rate)
            if where:
                self._take(share, where, rate)
                return
        where = self._fewest_nodes(asks, np.zeros_like(self.want[share])) or self._anywhere(asks)
        if where:
            self._take(share, where, self._modest(share, list(where)))

    def _modest(self, share: int, nodes: list[int]) -> FloatArray:
        """What a share wants, but no more than in proportion on any of these nodes."""
        modest: FloatArray = np.minimum(self.want[share], self.fair[nodes].min(axis=0))
        return modest

    def _take(self, share: int, where: Where, rate: FloatArray) -> None:
        for node, count in where.items():
            self.free_gpus[node] -= count
        self._put(share, where, rate)

    def _put(self, share: int, where: Where, rate: FloatArray) -> None:
        """Book a share; where that is more than a node has, others on it give back."""
        self.where[share], self.rate[share] = dict(where), rate
        for node, count in where.items():
            self.free[node] -= count * rate
            self.on[node].append(share)
        for node in where:
            if (self.free[node] < -SLACK).any():
                self._reclaim(node)

    def _reclaim(self, node: int) -> None:
        """Those on a node that have more than in proportion come down to that, most above it first."""
        above = {share: float((self.rate[share] / self._level(share)).max()) for share in self.on[node]}
        for share in sorted(above, key=lambda share: (-above[share], share)):
            if (self.free[node] >= -SLACK).all():
                return
            less = self.rate[share] - self._modest(share, list(self.where[share]))
            self.rate[share] = self.rate[share] - less
            for other, count in self.where[share].items():
                self.free[other] += count * less

    def _level(self, share: int) -> FloatArray:
        level: FloatArray = np.maximum(self.fair[list(self.where[share])].min(axis=0), 1e-12)
        return level

    def _fewest_nodes(self, asks: int, rate: FloatArray) -> Where:
        """The node with least to spare that fits; for more than a node has, whole free nodes and one more."""
        has = (self.free + SLACK >= rate * np.minimum(self.free_gpus, asks)[:, None]).all(axis=1)
        largest = int(self.node_gpus.max(initial=0))
        if largest == 0:
            return {}
        counts: dict[int, int] = {}
        # More than a node has: whole nodes that are free, and one more for the rest.
        if asks > largest:
            whole = np.flatnonzero(has & (self.free_gpus == self.node_gpus) & (self.node_gpus == largest))
            if len(whole) < asks // largest:
                return {}
            counts = dict.fromkeys(whole[: asks // largest].tolist(), largest)
            asks %= largest
        if asks:
            fits = (self.free_gpus >= asks) & (self.free + SLACK >= rate * asks).all(axis=1)
            fits[list(counts)] = False
            candidates = np.flatnonzero(fits)
            if not candidates.size:
                return {}
            spare = self.free[candidates].sum(axis=1)
            counts[int(candidates[np.lexsort((candidates, spare, self.free_gpus[candidates]))[0]])] = asks
        return counts

    def _anywhere(self, asks: int) -> Where:
        """Over the nodes with most GPUs free; empty where there are too few in all."""
        counts: dict[int, int] = {}
        for node in np.argsort(-self.free_gpus, kind="stable").tolist():
            taken = min(asks, int(self.free_gpus[node]))
            if taken:
                counts[node] = taken
                asks -= taken
            if not asks:
                return counts
        return {}


def least_enough(amount: FloatArray, per_s: FloatArray, usual: float, enough: float) -> float:
    """The smallest amount with `enough` of the best speed, and no less speed than with the usual amount.

    amount, per_s: (points,) a measured curve by increasing amount; between points it is linear, and flat
    outside.
    """
    wanted = max(enough * float(per_s.max()), float(np.interp(usual, amount, per_s)))
    return float(amount[int((per_s >= wanted * (1 - SLACK)).argmax())])


def tune(
    gpus: IntArray,
    want: FloatArray,
    fair: FloatArray,
    free_gpus: IntArray,
    node_gpus: IntArray,
    stays: Mapping[int, Where],
) -> Tuned:
    """A place and rates for every share: TUNE, the greedy algorithm of section 4.2.

    gpus (shares,), want (shares, resources): rates. free_gpus, node_gpus: (nodes,), the first beside all
    shares that stay. stays: where shares are that are not to be moved. Others come by decreasing GPUs, then
    decreasing rates. They go on the node (or the fewest nodes) with least to spare that has what they want,
    else a proportional rate. Else they go wherever their GPUs fit. There the others that have more than a
    proportional rate give back, those with most above it first.
    """
    # What stays is booked first; then the others enter, the hardest to place first.
    desk = _Desk(gpus, want.astype(np.float64), fair, free_gpus.copy(), node_gpus, fair * node_gpus[:, None])
    larger_first = np.lexsort((np.arange(len(gpus)), *(-want.T[::-1]), -gpus)).tolist()
    for share in larger_first:
        if share in stays:
            desk.stay(share, stays[share])
    for share in larger_first:
        if share not in stays:
            desk.enter(share)
    return Tuned(desk.where, desk.rate)


def best_total(
    points: Sequence[tuple[FloatArray, FloatArray]], usual: FloatArray, capacity: float
) -> tuple[float, FloatArray]:
    """The most speed in all that any division of one resource could give, and (shares,) amounts: OPT's bound.

    points: by share, amounts and speeds of its measured curve. The first of OPT's two linear programmes
    (section 4.1). All nodes are one, every share is a mixture of its points, none is slower than with its
    `usual` amount. NoSolution where that much is not there.
    """
    amount = np.concatenate([amounts for amounts, _ in points])
    per_s = np.concatenate([speed for _, speed in points])
    of = np.repeat(np.arange(len(points)), [len(amounts) for amounts, _ in points])
    mixes = sparse.csr_array((np.ones(len(of)), (of, np.arange(len(of)))), shape=(len(points), len(of)))
    least = np.array(
        [np.interp(least_amount, *point) for least_amount, point in zip(usual, points, strict=True)]
    )
    limits = sparse.vstack((sparse.csr_array(amount[None, :]), -mixes.multiply(per_s[None, :])))
    solution = maximise(per_s, limits, np.concatenate(([capacity], -least)), mixes, np.ones(len(points)))
    return solution.value, np.asarray(mixes @ (solution.x * amount))
