"""Sia's configuration set C (section 3.3): columns, the pools they take GPUs from, what a choice means."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobTable,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Why,
    frozen,
    ints,
    virtual_nodes,
)

FEWER_IS_BETTER = 1e-9  # chosen: for each GPU; below what keeps ties where they are


@dataclass(frozen=True, eq=False)
class Pools:
    """GPUs that can stand in for each other: of one type, in virtual nodes of one size.

    A node whose size is no power of two counts as virtual nodes of its binary powers (section 3.3). A job on
    one node fits a virtual node at least as large; a job on whole nodes takes them from the largest. With
    one capacity for each pool, whatever the program chooses can be placed. Where all nodes of a type have
    the same power of two of GPUs, as in the paper, the type is one pool.
    """

    kind: IntArray  # (pools,) GPU type
    block: IntArray  # (pools,) GPUs of a virtual node
    capacity: IntArray  # (pools,) GPUs on usable nodes

    @cached_property
    def largest_of_kind(self) -> IntArray:
        """(types,) GPUs of the largest virtual node of each type."""
        largest = np.zeros(int(self.kind.max()) + 1, dtype=np.int64)
        np.maximum.at(largest, self.kind, self.block)
        return largest

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Pools":
        """The pools of a cluster, by type, largest blocks first."""
        counted: dict[tuple[int, int], int] = {}
        cluster = snapshot.cluster
        sorts = np.stack([cluster.kind, cluster.node_gpus], axis=1)
        kinds_and_sizes, which = np.unique(sorts, axis=0, return_inverse=True)
        usable = np.bincount(which.ravel(), snapshot.usable, len(kinds_and_sizes)).astype(np.int64)
        for (kind, size), nodes in zip(kinds_and_sizes.tolist(), usable.tolist(), strict=True):
            for block in virtual_nodes(size):
                counted[kind, -block] = counted.get((kind, -block), 0) + block * nodes
        blocks = sorted(counted)
        return cls(
            kind=np.array([kind for kind, _ in blocks], dtype=np.int64),
            block=np.array([-negative for _, negative in blocks], dtype=np.int64),
            capacity=np.array([counted[block] for block in blocks], dtype=np.int64),
        )


@dataclass(frozen=True, eq=False)
class ConfigurationSet:
    """The configuration set C: the columns of the ILP.

    Each configuration (n, r, t) of section 3.3 comes first, then each type with exactly the GPUs asked for,
    the columns of equation 5. A column stands there once for each pool that it could be taken from.

    Jobs with less freedom have names here. *Fixed* jobs choose among the columns of equation 5 only. Those
    that *insist* are never stopped once they are let in. A *reserved* job insists on GPUs of one type. Which
    of them the ILP must serve now, *forced*, the policy says.
    """

    configurations: Configurations
    pools: Pools
    pool: IntArray  # (columns,)
    kind: IntArray  # (columns,) GPU type
    configuration: IntArray  # (columns,) index, -1: exactly what was asked for
    gpus: IntArray  # (jobs, columns)
    goodput: FloatArray  # (jobs, columns) as estimated, NaN where a job cannot run
    fixed: BoolArray  # (jobs,) rigid, not preemptible, reserved or without a choice: only what it asked for
    insists: BoolArray  # (jobs,) not preemptible or reserved: must be served once it is let in
    request: IntArray  # (jobs, types) GPUs asked for, reserved, or held by a job that may not be stopped
    stand_ins: IntArray  # (types,) GPUs that take the place of one asked for (Lyra, section 2.1)
    reserved: IntArray  # (jobs,) type of the GPUs kept for a job, -1 none
    nodes: IntArray  # (jobs,) nodes on which these GPUs are kept, 0: whichever
    replica: IntArray  # (jobs, columns) GPUs of one replica there

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds) -> "ConfigurationSet":
        """The columns for these jobs; those by request only where a job needs them."""
        jobs, pools, offered = snapshot.jobs, Pools.of(snapshot), speeds.configurations
        request, reserved, nodes = _requests(jobs, snapshot.cluster)
        insists = ~jobs.preemptible | (reserved >= 0)
        stand_ins = snapshot.cluster.stand_ins
        fixed = jobs.rigid | insists | ~_have_a_choice(jobs, offered, stand_ins)
        # Either sort of column only where some job needs it: they make the ILP larger.
        configuration, pool = _columns(
            offered,
            tuple(pools.kind.tolist()),
            tuple(pools.block.tolist()),
            with_configurations=not (fixed.any() and fixed.all()),
            with_requests=bool(fixed.any()),
        )
        kind, by_request = pools.kind[pool], configuration < 0
        types = len(snapshot.capacity)
        # Hybrid-parallel jobs span several GPUs with one replica (3.5); all others one.
        alone = np.ones(types, dtype=np.int64)
        replicas = [alone if evidence is None else evidence.limits.replica_gpus for evidence in jobs.evidence]
        replica = np.array(replicas, dtype=np.int64).reshape(len(jobs), types)
        # A job that says how many on each type holds no less, whatever it has shown.
        varies = jobs.varies_by_type
        replica[varies] = np.lcm(replica[varies], jobs.worker_gpus[varies])
        return cls(
            configurations=offered,
            pools=pools,
            pool=pool,
            kind=kind,
            configuration=configuration,
            gpus=np.where(by_request, request[:, kind], offered.gpus[configuration]),
            # Of GPUs that stand in for others so many more are as fast as so many times one.
            goodput=np.where(
                by_request,
                speeds.requested_per_s[:, kind] * stand_ins[kind],
                speeds.per_s[:, configuration],
            ),
            fixed=fixed,
            insists=insists,
            request=request,
            stand_ins=stand_ins,
            reserved=reserved,
            nodes=nodes,
            replica=replica[:, kind],
        )

    @cached_property
    def acceptable(self) -> BoolArray:
        """(jobs, columns) the sort of column that a job may have, on a reserved type if it has one."""
        by_request = self.configuration < 0
        # A job within one node needs a virtual node as large; one on whole nodes takes the largest ones.
        blocks = self.pools.block[self.pool]
        fits_a_block = (self.gpus <= blocks) | (blocks == self.pools.largest_of_kind[self.kind])
        sort = np.where(by_request, self.fixed[:, None] & fits_a_block, ~self.fixed[:, None])
        kept = (self.reserved < 0)[:, None] | (self.kind == self.reserved[:, None])
        return np.asarray(sort & kept)

    @property
    def is_reserved(self) -> BoolArray:
        """(jobs, columns) the columns that give a job what is reserved for it."""
        return self.acceptable & (self.reserved >= 0)[:, None]

    def fewest_first(self, jobs: JobTable) -> FloatArray:
        """(jobs, columns) a trifle for fewer GPUs where a job serves: all that keep its latency are alike."""
        return np.where(jobs.serves[:, None], -FEWER_IS_BETTER * self.gpus, 0.0)

    def held(self, jobs: JobTable) -> BoolArray:
        """(jobs, columns) the columns that mean what a job holds now; none where it waits."""
        configuration = self.configurations.columns_of(jobs.held_nodes, jobs.held_gpus, jobs.held_kind)
        same = (self.configuration == configuration[:, None]) & (configuration >= 0)[:, None]
        asked = (self.kind == jobs.held_kind[:, None]) & (
            jobs.held_gpus[:, None] == self.request[:, self.kind]
        )
        current = np.where(self.configuration < 0, asked & self.fixed[:, None], same & ~self.fixed[:, None])
        return np.asarray(current & (jobs.held_gpus > 0)[:, None])

    def capacity(self, snapshot: Snapshot, stay: IntArray) -> IntArray:
        """(pools,) GPUs for this decision: usable ones, and those on other nodes that these rows stay on."""
        capacity = self.pools.capacity.copy()
        if snapshot.usable.all():
            return capacity
        for row in stay.tolist():
            allocation = snapshot.placement.get(snapshot.jobs.ids[row])
            if allocation is not None:
                away = sum(
                    gpus
                    for node, gpus in zip(allocation.nodes, allocation.shape, strict=True)
                    if not snapshot.usable[node]
                )
                capacity[np.flatnonzero(self.pools.kind == allocation.kind)[0]] += away
        return capacity

    def allowed(self, jobs: JobTable, speeds: Speeds, seen: IntArray, growth: int) -> BoolArray:
        """(jobs, columns) what each may have: whole replicas in its range, on types that it accepts.

        seen: (jobs, types) most GPUs on which its speed was observed. It may have `growth` times the replicas
        of that (section 3.1), never beyond its reach. The smallest in its range is always allowed: it has to
        start somewhere. Workers that serve do not wait for each other, so that one says enough of all.
        """
        replicas, part = np.divmod(self.gpus, self.replica)
        whole = (self.goodput > 0) & (part == 0)
        largest = growth * (seen[:, self.kind] // self.replica).max(axis=1, initial=0)
        largest = np.minimum(largest, speeds.reach_gpus // self.replica.max(axis=1, initial=1))
        elastic = _within_range(jobs, self.gpus, self.kind, self.stand_ins)
        least = _fewest(replicas, elastic & (part == 0), self.kind)
        is_known = (jobs.serves & seen.any(axis=1))[:, None]
        elastic &= (replicas <= np.maximum(largest[:, None], least)) | is_known
        suits = whole & self.acceptable & jobs.allowed_kinds[:, self.kind] & (elastic | self.fixed[:, None])
        return np.asarray(suits | self.is_reserved)  # kept for it, whatever is known of its speed

    def forced(
        self, snapshot: Snapshot, current: BoolArray, valid: BoolArray, worth: FloatArray
    ) -> tuple[IntArray, IntArray]:
        """(jobs,) the column that a job must get or -1, and (pools,) what there is to choose from.

        Forced are jobs that are restarting, not preemptible, or reserved. Makes forced columns valid in
        place. A job that may not be stopped is let in only while what is forced fits (section 3.4,
        preemption and reservation).
        """
        jobs = snapshot.jobs
        forced = np.full(len(jobs), -1)
        # First jobs that run and must go on, even on GPUs that others may not use; then those that wait.
        stays = np.flatnonzero((jobs.progress.recovering | ~jobs.preemptible) & current.any(axis=1))
        capacity = self.capacity(snapshot, stays)
        left = capacity.copy()
        enters = np.flatnonzero(self.insists & ~current.any(axis=1))
        for row in [*stays.tolist(), *enters.tolist()]:
            choice = current[row] if current[row].any() else valid[row]
            fits = choice & (self.gpus[row] <= left[self.pool])
            valid[row] &= fits
            if fits.any():
                forced[row] = np.where(fits, worth[row], -np.inf).argmax()
                valid[row, forced[row]] = True
                left[self.pool[forced[row]]] -= self.gpus[row, forced[row]]
        return forced, capacity

    def lacks_room(self, suits: BoolArray, forced: IntArray, capacity: IntArray) -> BoolArray:
        """(jobs,) for which no column that suits has enough GPUs beside those that others must get.

        suits: (jobs, columns); forced: (jobs,) column or -1; capacity: (pools,) GPUs.
        """
        rows = np.flatnonzero(forced >= 0)
        left = capacity.copy()
        np.subtract.at(left, self.pool[forced[rows]], self.gpus[rows, forced[rows]])
        has_room = (suits & (self.gpus <= left[self.pool])).any(axis=1)
        return np.asarray(suits.any(axis=1) & ~has_room)

    def shares(
        self, snapshot: Snapshot, column: IntArray, lacks_room: BoolArray, prices: FloatArray, gap: float
    ) -> Shares:
        """What the chosen columns mean."""
        served = column >= 0
        # Column 0 stands in for -1 in look-ups; what is read there is not used.
        chosen = np.maximum(column, 0)
        rows = np.arange(len(column))
        by_configuration = served & (self.configuration[chosen] >= 0)
        fewest = (snapshot.jobs.fewest_gpus * self.stand_ins)[:, self.kind]
        enough = self.gpus >= np.where(self.fixed[:, None], self.request[:, self.kind], fewest)
        fits = enough & (self.gpus <= snapshot.cluster.capacity[self.kind])
        suits = fits & self.acceptable & snapshot.jobs.allowed_kinds[:, self.kind]
        possible, kept = suits.any(axis=1), (suits & (self.goodput > 0)).any(axis=1)
        # Why the others wait: too large for the cluster, no room beside forced jobs, or worth less.
        waits = np.where(lacks_room, Why.NO_FREE_GPUS, Why.WORTH_LESS)
        waits = np.where(snapshot.jobs.serves & ~kept, Why.TOO_SLOW, waits)
        waits = np.where(possible, waits, Why.TOO_LARGE)
        # Pools of one type have prices of their own; the dearest says what one more GPU would be worth.
        by_type = np.zeros(len(snapshot.capacity))
        np.maximum.at(by_type, self.pools.kind, prices)
        return Shares(
            gpus=np.where(served, self.gpus[rows, chosen], 0),
            kind=np.where(served, self.kind[chosen], -1),
            nodes=np.where(
                by_configuration, self.configurations.nodes[self.configuration[chosen]], self.nodes
            ),
            why=Reasons(np.where(served, Why.RUNS, waits).astype(np.int64)),
            prices=by_type,
            gap=gap,
        )


def _fewest(replicas: IntArray, suits: BoolArray, kind: IntArray) -> IntArray:
    """(jobs, columns) replicas of the smallest column of the same type that suits a job, 0 where none does.

    A job starts there: on its minimum, or the next configuration where that is none.
    """
    none = np.iinfo(np.int64).max
    sizes = np.where(suits, replicas, none)
    fewest = np.empty_like(sizes)
    for each in np.unique(kind):
        columns = kind == each
        fewest[:, columns] = sizes[:, columns].min(axis=1, keepdims=True)
    return np.where(fewest == none, 0, fewest)


@lru_cache(maxsize=64)
def _columns(
    offered: Configurations,
    kinds: tuple[int, ...],
    blocks: tuple[int, ...],
    with_configurations: bool,
    with_requests: bool,
) -> tuple[IntArray, IntArray]:
    """(columns,) configuration and pool: every configuration in every pool that has room for it.

    kinds, blocks: (pools,) GPU type and GPUs of a virtual node.
    """
    configuration, pool = [], []
    largest = {kind: max(b for k, b in zip(kinds, blocks, strict=True) if k == kind) for kind in set(kinds)}
    triples = zip(offered.nodes.tolist(), offered.gpus.tolist(), offered.kind.tolist(), strict=True)
    for index, (nodes, gpus, kind) in enumerate(triples if with_configurations else ()):
        least = largest[kind] if nodes > 1 else gpus
        for number, (of_kind, block) in enumerate(zip(kinds, blocks, strict=True)):
            if of_kind == kind and block >= least:
                configuration.append(index)
                pool.append(number)
    if with_requests:
        configuration += [-1] * len(kinds)
        pool += range(len(kinds))
    return frozen(ints(configuration)), frozen(ints(pool))


def _within_range(jobs: JobTable, gpus: IntArray, kind: IntArray, stand_ins: IntArray) -> BoolArray:
    """(jobs, columns) whether so many GPUs of a type are in a job's range."""
    fewest, most = jobs.fewest_gpus * stand_ins, jobs.max_gpus[:, None] * stand_ins
    return np.asarray((gpus >= fewest[:, kind]) & (gpus <= most[:, kind]))


def _have_a_choice(jobs: JobTable, offered: Configurations, stand_ins: IntArray) -> BoolArray:
    """(jobs,) those of whose sizes some is a configuration: exactly three GPUs are none of section 3.3."""
    sizes = _within_range(jobs, offered.gpus, offered.kind, stand_ins)
    return np.asarray((sizes & jobs.allowed_kinds[:, offered.kind]).any(axis=1))


def _requests(jobs: JobTable, cluster: Cluster) -> tuple[IntArray, IntArray, IntArray]:
    """GPUs that a job insists on where it does, by type; type (or -1) and nodes of a reservation.

    (jobs, types), (jobs,) and (jobs,).
    """
    request = jobs.gpus[:, None] * cluster.stand_ins
    reserved, nodes = np.full(len(jobs), -1), np.zeros(len(jobs), dtype=np.int64)
    for row in range(len(jobs)):
        reservation = jobs[row].reserved
        if reservation is not None:
            nodes[row], request[row], name = reservation
            reserved[row] = cluster.type_index(name)
    # What may not be stopped keeps what it has, whatever it asked for.
    stays = ~jobs.preemptible & (jobs.held_gpus > 0)
    return np.where(stays[:, None], jobs.held_gpus[:, None], request), reserved, nodes
