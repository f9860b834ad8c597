"""Sia's configuration set C (section 3.3): what each job may have, cell by cell, and what a choice means."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from stretto.model import (
    ANY_NUMBER,
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
)
from stretto.policies.sia.cells import Cells
from stretto.policies.sia.columns import Pools
from stretto.solve import Assignment, SparseKnapsack

FEWER_IS_BETTER = 1e-9  # chosen: for each GPU; below what keeps ties where they are


@dataclass(frozen=True, eq=False)
class ConfigurationSet:
    """The configuration set C: the cells of the ILP, a job and a column each.

    Each configuration (n, r, t) of section 3.3 comes first, then each type with exactly the GPUs asked for,
    the columns of equation 5. A column stands there once for each pool that it could be taken from. A
    job has cells for sizes that its range and its speeds allow, and for what it holds now.

    Jobs with less freedom have names here. *Fixed* jobs choose among the columns of equation 5 only. Those
    that *insist* are never stopped once they are let in. A *reserved* job insists on GPUs of one type. Which
    of them the ILP must serve now, *forced*, the policy says.
    """

    configurations: Configurations
    pools: Pools
    cells: Cells
    pool: IntArray  # (cells,)
    kind: IntArray  # (cells,) GPU type
    configuration: IntArray  # (cells,) index, -1: exactly what was asked for
    gpus: IntArray  # (cells,)
    goodput: FloatArray  # (cells,) as estimated, NaN where a job cannot run
    valid: BoolArray  # (cells,) what each may have: whole replicas in its range, on types that it accepts
    current: BoolArray  # (cells,) what it holds now, in whichever pool
    columns: int  # there are, with those by request where a job needs them
    fixed: BoolArray  # (jobs,) rigid, not preemptible, reserved or without a choice: only what it asked for
    insists: BoolArray  # (jobs,) not preemptible or reserved: must be served once it is let in
    request: IntArray  # (jobs, types) GPUs asked for, reserved, or held by a job that may not be stopped
    stand_ins: IntArray  # (types,) GPUs that take the place of one asked for (Lyra, section 2.1)
    reserved: IntArray  # (jobs,) type of the GPUs kept for a job, -1 none
    nodes: IntArray  # (jobs,) nodes on which these GPUs are kept, 0: whichever
    replica: IntArray  # (jobs, types) GPUs of one replica
    keeps: BoolArray  # (jobs,) some size would keep the service level of a job that serves; all others do

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds, seen: IntArray, growth: int) -> "ConfigurationSet":
        """The cells for these jobs.

        seen: (jobs, types) most GPUs on which its speed was observed. It may have `growth` times the replicas
        of that (section 3.1), never beyond its reach. The smallest in its range is always allowed: it has to
        start somewhere. Workers that serve do not wait for each other, so that one says enough of all.
        """
        jobs, offered = snapshot.jobs, speeds.configurations
        pools = Pools.of(snapshot, offered)
        columns = pools.columns
        request, reserved, nodes = _requests(jobs, snapshot.cluster)
        insists = ~jobs.preemptible | (reserved >= 0)
        stand_ins = snapshot.cluster.stand_ins
        fewest, most = jobs.fewest_gpus * stand_ins, jobs.max_gpus[:, None] * stand_ins
        fixed = jobs.rigid | insists | ~_have_a_choice(jobs, pools, fewest, most)
        replica = _replicas(jobs, speeds)

        # What each may have by its range and growth, type by type, and what it holds though it may not.
        largest = _largest(speeds, seen, growth, replica)
        largest[jobs.serves & seen.any(axis=1)] = ANY_NUMBER
        begin, end = _within_range(jobs, pools, replica, fewest, most, largest)
        begin[fixed], end[fixed] = 0, 0
        at_present = offered.columns_of(jobs.held_nodes, jobs.held_gpus, jobs.held_kind)
        at_present[fixed | (jobs.held_gpus == 0)] = -1
        wide_begin, wide_end = _with_held(begin, end, pools, at_present)
        # Columns by request come after all others, and only where some job needs them.
        by_request = np.where(fixed, len(pools.kind), 0)[:, None]
        cells = Cells.between(
            np.concatenate([wide_begin, np.full_like(by_request, len(columns))], axis=1),
            np.concatenate([wide_end, len(columns) + by_request], axis=1),
        )

        # The cells as arrays: columns by request, which come last, are those of the pools.
        row, column = cells.row, cells.column
        number = np.arange(len(pools.kind))
        pool = np.concatenate([columns.pool, number])[column]
        kind = np.concatenate([columns.kind, pools.kind])[column]
        configuration = np.concatenate([columns.configuration, np.full_like(number, -1)])[column]
        gpus = np.concatenate([columns.gpus, number])[column]
        asks = cells.of_rows(np.flatnonzero(fixed))
        asks = asks[column[asks] >= len(columns)]
        is_request = np.zeros(row.size, dtype=np.bool_)
        is_request[asks] = True
        gpus[asks] = request[row[asks], kind[asks]]
        goodput = np.empty(row.size)
        usual = np.flatnonzero(~is_request) if asks.size else slice(None)
        goodput[usual] = speeds.at(row[usual], configuration[usual])
        # Of GPUs that stand in for others so many more are as fast as so many times one.
        goodput[asks] = speeds.on_request(row[asks], kind[asks]) * stand_ins[kind[asks]]
        valid = goodput > 0
        # Few rows have what is out of their range, or have replicas of several GPUs: only theirs are checked.
        wide = cells.of_rows(np.flatnonzero(((wide_begin != begin) | (wide_end != end)).any(axis=1)))
        first, behind = begin[row[wide], kind[wide]], end[row[wide], kind[wide]]
        valid[wide] &= is_request[wide] | ((column[wide] >= first) & (column[wide] < behind))
        several = cells.of_rows(np.flatnonzero((replica > 1).any(axis=1)))
        valid[several] &= gpus[several] % replica[row[several], kind[several]] == 0
        current = (configuration == at_present[row]) & (configuration >= 0)
        if asks.size:
            acceptable = _acceptable(pools, reserved, row[asks], pool[asks], gpus[asks])
            allowed = jobs.allowed_kinds[row[asks], kind[asks]]
            is_reserved = acceptable & (reserved[row[asks]] >= 0)
            # What is kept for a job it may have, whatever is known of its speed.
            valid[asks] = (valid[asks] & acceptable & allowed) | is_reserved
            holds = (gpus[asks] == jobs.held_gpus[row[asks]]) & (gpus[asks] > 0)
            current[asks] = holds & (kind[asks] == jobs.held_kind[row[asks]])
        return cls(
            configurations=offered,
            pools=pools,
            cells=cells,
            pool=pool,
            kind=kind,
            configuration=configuration,
            gpus=gpus,
            goodput=goodput,
            valid=valid,
            current=current,
            columns=len(columns) + (len(pools.kind) if fixed.any() else 0),
            fixed=fixed,
            insists=insists,
            request=request,
            stand_ins=stand_ins,
            reserved=reserved,
            nodes=nodes,
            replica=replica,
            keeps=_keeps(jobs, speeds, pools, fewest, fixed),
        )

    def knapsack(
        self, worth: FloatArray, valid: BoolArray, capacity: IntArray, forced: IntArray, prefer: FloatArray
    ) -> SparseKnapsack:
        """The ILP: at most one configuration for each job, within the GPUs of each pool.

        worth, prefer: (cells,); valid: (cells,) what may be chosen; capacity: (pools,); forced: (jobs,) a
        cell or -1. It is a multiple-choice knapsack, so no general solver of integer programs is needed.
        """
        # Jobs that ask for the same are alike; without columns by request all may be.
        sort = _sorts_of(self.request) if self.fixed.any() else None
        return SparseKnapsack(
            rows=self.cells.rows,
            cols=self.columns,
            row=self.cells.row,
            column=self.cells.column,
            value=worth,
            allowed=valid,
            units=self.gpus,
            kind=self.pool,
            capacity=capacity,
            forced=forced,
            prefer=prefer,
            sort=sort,
        )

    def fewest_first(self, jobs: JobTable) -> FloatArray:
        """(cells,) a trifle for fewer GPUs where a job serves: all that keep its latency are alike."""
        if not jobs.serves.any():
            return np.zeros(self.cells.row.size)
        return np.where(jobs.serves[self.cells.row], -FEWER_IS_BETTER * self.gpus, 0.0)

    @cached_property
    def runs(self) -> BoolArray:
        """(jobs,) whether it holds what is one of its cells."""
        return self.cells.any(self.current)

    def capacity(self, snapshot: Snapshot, stay: IntArray) -> IntArray:
        """(pools,) GPUs for this decision: usable ones, and those on other nodes that these rows stay on."""
        capacity = self.pools.capacity.copy()
        away = ~snapshot.usable & (snapshot.placement.busy != 0)
        if not away.any():
            return capacity
        for row in stay.tolist():
            allocation = snapshot.placement.get(snapshot.jobs.ids[row])
            if allocation is not None:
                gpus_away = sum(
                    gpus for node, gpus in zip(allocation.nodes, allocation.shape, strict=True) if away[node]
                )
                capacity[np.flatnonzero(self.pools.kind == allocation.kind)[0]] += gpus_away
        return capacity

    def forced(self, snapshot: Snapshot, valid: BoolArray, worth: FloatArray) -> tuple[IntArray, IntArray]:
        """(jobs,) the cell that a job must get or -1, and (pools,) what there is to choose from.

        Forced are jobs that are restarting, not preemptible, or reserved. Makes forced cells valid in place.
        A job that may not be stopped is let in only while what is forced fits (section 3.4, preemption and
        reservation).
        """
        jobs = snapshot.jobs
        forced = np.full(len(jobs), -1)
        # First jobs that run and must go on, even on GPUs that others may not use; then those that wait.
        runs = self.runs
        stays = np.flatnonzero((jobs.progress.recovering | ~jobs.preemptible) & runs)
        capacity = self.capacity(snapshot, stays)
        enters = np.flatnonzero(self.insists & ~runs)
        left = capacity.tolist()
        for rows, choices in ((stays, self.current), (enters, valid)):
            theirs = self.cells.of_rows(rows)
            cells = theirs[choices[theirs]]
            valid[theirs] = False
            arrays = (self.cells.row[cells], cells, self.pool[cells], self.gpus[cells], worth[cells])
            options = zip(*(array.tolist() for array in arrays), strict=True)
            for row, of_row in groupby(options, key=itemgetter(0)):
                fits = [option for option in of_row if option[3] <= left[option[2]]]
                if fits:
                    _, cell, pool, gpus, _ = max(fits, key=itemgetter(4))  # the first of equals
                    forced[row], valid[cell] = cell, True
                    left[pool] -= gpus
        return forced, capacity

    def lacks_room(self, suits: BoolArray, forced: IntArray, capacity: IntArray) -> BoolArray:
        """(jobs,) for which no cell that suits has enough GPUs beside those that others must get.

        suits: (cells,); forced: (jobs,) cell or -1; capacity: (pools,) GPUs.
        """
        taken = forced[forced >= 0]
        left = capacity.copy()
        np.subtract.at(left, self.pool[taken], self.gpus[taken])
        has_room = self.cells.any(suits & (self.gpus <= left[self.pool]))
        return self.cells.any(suits) & ~has_room

    def shares(self, snapshot: Snapshot, chosen: Assignment, lacks_room: BoolArray) -> Shares:
        """What the chosen cells mean."""
        served = chosen.cell >= 0
        # Cell 0 stands in for -1 in look-ups; what is read there is not used.
        cell = np.maximum(chosen.cell, 0) if self.cells.row.size else np.zeros(0, dtype=np.int64)
        gpus, kind = np.zeros(len(served), dtype=np.int64), np.full(len(served), -1)
        nodes = self.nodes.copy()
        if cell.size:
            gpus, kind = np.where(served, self.gpus[cell], 0), np.where(served, self.kind[cell], -1)
            configuration = np.where(served, self.configuration[cell], -1)
            by_configuration = configuration >= 0
            nodes = np.where(by_configuration, self.configurations.nodes[configuration], nodes)
        # Why the others wait: too large for the cluster, no room beside forced jobs, or worth less.
        waits = np.where(lacks_room, Why.NO_FREE_GPUS, Why.WORTH_LESS)
        waits = np.where(snapshot.jobs.serves & ~self.keeps, Why.TOO_SLOW, waits)
        waits = np.where(served | self._may_ever_run(snapshot), waits, Why.TOO_LARGE)
        # Pools of one type have prices of their own; the dearest says what one more GPU would be worth.
        by_type = np.zeros(len(snapshot.capacity))
        np.maximum.at(by_type, self.pools.kind, chosen.prices)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=nodes,
            why=Reasons(np.where(served, Why.RUNS, waits).astype(np.int64)),
            prices=by_type,
            gap=chosen.gap,
        )

    def _may_ever_run(self, snapshot: Snapshot) -> BoolArray:
        """(jobs,) whether some size that it could have is not larger than the whole cluster."""
        jobs, cluster, pools = snapshot.jobs, snapshot.cluster, self.pools
        allowed = jobs.allowed_kinds
        types = range(len(cluster.types))
        largest = np.array([pools.columns.sizes(kind)[-1:].max(initial=0) for kind in types])
        elastic = ((jobs.fewest_gpus * self.stand_ins <= largest) & allowed).any(axis=1)
        request = self.request[:, pools.kind]
        fits = request <= cluster.capacity[pools.kind]
        rows = np.arange(len(jobs))[:, None]
        acceptable = _acceptable(pools, self.reserved, rows, np.arange(len(pools.kind)), request)
        fixed = (fits & acceptable & allowed[:, pools.kind]).any(axis=1)
        return np.where(self.fixed, fixed, elastic)


def _sorts_of(request: IntArray) -> IntArray:
    """(jobs,) numbers of the distinct rows of (jobs, types), in their order; columns in turn are quicker."""
    sort = np.zeros(len(request), dtype=np.int64)
    for column in request.T:
        values, place = np.unique(column, return_inverse=True)
        sort = np.unique(sort * len(values) + place, return_inverse=True)[1]
    return sort


def _acceptable(pools: Pools, reserved: IntArray, row: IntArray, pool: IntArray, gpus: IntArray) -> BoolArray:
    """Whether exactly so many GPUs may be taken from a pool, on a reserved type if the row has one.

    A job within one node needs a virtual node as large; one on whole nodes takes the largest ones.
    """
    largest = np.array([pools.block[pools.kind == kind].max() for kind in pools.kind.tolist()])
    fits_a_block = (gpus <= pools.block[pool]) | (pools.block == largest)[pool]
    kept = (reserved[row] < 0) | (pools.kind[pool] == reserved[row])
    return np.asarray(fits_a_block & kept)


def _largest(speeds: Speeds, seen: IntArray, growth: int, replica: IntArray) -> IntArray:
    """(jobs,) most replicas by growth and reach."""
    largest = growth * (seen // replica).max(axis=1, initial=0)
    most: IntArray = np.minimum(largest, speeds.reach_gpus // replica.max(axis=1, initial=1))
    return most


def _within_range(
    jobs: JobTable, pools: Pools, replica: IntArray, fewest: IntArray, most: IntArray, largest: IntArray
) -> tuple[IntArray, IntArray]:
    """(jobs, types) the first column of the sizes that a job may have on a type, and one behind the last.

    fewest, most: (jobs, types) GPUs of its range; largest: (jobs,) replicas by growth.
    """
    columns = pools.columns
    begin, end = np.zeros((2, *replica.shape), dtype=np.int64)
    for kind, (first, _) in enumerate(pairwise(columns.begin.tolist())):
        sizes = columns.sizes(kind)
        least = _first_sizes(sizes, fewest[:, kind], replica[:, kind])
        least = np.where(least <= most[:, kind], least // replica[:, kind], 0)
        # The smallest in its range is always allowed: it has to start somewhere.
        replicas = np.minimum(np.maximum(largest, least), most[:, kind] // replica[:, kind])
        begin[:, kind] = first + np.searchsorted(sizes, fewest[:, kind])
        end[:, kind] = first + np.searchsorted(sizes, replicas * replica[:, kind], side="right")
    end = np.where(jobs.allowed_kinds, np.maximum(begin, end), begin)
    return begin, end


def _first_sizes(sizes: IntArray, fewest: IntArray, replica: IntArray) -> IntArray:
    """(jobs,) the smallest size of whole replicas that is not below a job's fewest GPUs, 0 where none is."""
    first = np.zeros_like(fewest)
    alike = replica[:1]
    if (replica == alike).all():  # as nearly always: there is nothing to sort out
        whole = sizes[sizes % alike == 0] if alike.size else sizes
        return np.append(whole, 0)[np.searchsorted(whole, fewest)]
    for each in np.unique(replica).tolist():
        whole = sizes[sizes % each == 0]
        rows = np.flatnonzero(replica == each)
        place = np.searchsorted(whole, fewest[rows])
        first[rows] = np.append(whole, 0)[place]
    return first


def _with_held(
    begin: IntArray, end: IntArray, pools: Pools, configuration: IntArray
) -> tuple[IntArray, IntArray]:
    """The same, wide enough for the configuration (jobs,) that each job holds, -1 for none."""
    rows = np.flatnonzero(configuration >= 0)
    columns = pools.columns
    first, last = columns.first[configuration[rows]], columns.first[configuration[rows] + 1]
    kind = columns.kind[first]
    is_empty = begin[rows, kind] >= end[rows, kind]
    outside = (first < begin[rows, kind]) | (last > end[rows, kind]) | is_empty
    if not outside.any():
        return begin, end
    rows, kind, first, last = rows[outside], kind[outside], first[outside], last[outside]
    begin, end = begin.copy(), end.copy()
    is_empty = is_empty[outside]
    begin[rows, kind] = np.where(is_empty, first, np.minimum(begin[rows, kind], first))
    end[rows, kind] = np.where(is_empty, last, np.maximum(end[rows, kind], last))
    return begin, end


def _have_a_choice(jobs: JobTable, pools: Pools, fewest: IntArray, most: IntArray) -> BoolArray:
    """(jobs,) those of whose sizes some is a configuration: exactly three GPUs are none of section 3.3.

    fewest, most: (jobs, types) GPUs of a job's range.
    """
    types = range(jobs.allowed_kinds.shape[1])
    within = [
        np.searchsorted(pools.columns.sizes(kind), fewest[:, kind])
        < np.searchsorted(pools.columns.sizes(kind), most[:, kind], side="right")
        for kind in types
    ]
    return np.asarray((np.array(within).T & jobs.allowed_kinds).any(axis=1))


def _replicas(jobs: JobTable, speeds: Speeds) -> IntArray:
    """(jobs, types) GPUs of one replica: hybrid-parallel jobs span several (3.5), all others one."""
    if speeds.replica_gpus is not None:
        replica = speeds.replica_gpus
    else:
        alone = np.ones(jobs.allowed_kinds.shape[1], dtype=np.int64)
        sizes = [alone if shown is None else shown.limits.replica_gpus for shown in jobs.evidence]
        replica = np.array(sizes, dtype=np.int64).reshape(jobs.allowed_kinds.shape)
    # A job that says how many on each type holds no less, whatever it has shown.
    varies = jobs.varies_by_type
    if varies.any():
        replica = replica.copy()
        replica[varies] = np.lcm(replica[varies], jobs.worker_gpus[varies])
    return replica


def restart_costs_s(jobs: JobTable, speeds: Speeds, usual_s: float) -> FloatArray:
    """(jobs,) seconds that a restart takes; the usual ones where a job names none."""
    if speeds.restart_s is not None:
        return np.where(np.isnan(speeds.restart_s), usual_s, speeds.restart_s)
    return np.array(
        [usual_s if shown is None else shown.limits.restart_s for shown in jobs.evidence], dtype=np.float64
    )


def _requests(jobs: JobTable, cluster: Cluster) -> tuple[IntArray, IntArray, IntArray]:
    """GPUs that a job insists on where it does, by type; type (or -1) and nodes of a reservation.

    (jobs, types), (jobs,) and (jobs,).
    """
    request = jobs.gpus[:, None] * cluster.stand_ins
    reserved, nodes = np.full(len(jobs), -1), np.zeros(len(jobs), dtype=np.int64)
    for row in np.flatnonzero(jobs.has_reserved).tolist():
        reservation = jobs[row].reserved
        assert reservation is not None, "the column says that it has one"
        nodes[row], request[row], name = reservation
        reserved[row] = cluster.type_index(name)
    # What may not be stopped keeps what it has, whatever it asked for.
    stays = ~jobs.preemptible & (jobs.held_gpus > 0)
    return np.where(stays[:, None], jobs.held_gpus[:, None], request), reserved, nodes


def _keeps(jobs: JobTable, speeds: Speeds, pools: Pools, fewest: IntArray, fixed: BoolArray) -> BoolArray:
    """(jobs,) whether a job that serves keeps its service level on some size, however large."""
    keeps = np.ones(len(jobs), dtype=np.bool_)
    for row in np.flatnonzero(jobs.serves).tolist():
        kinds = np.flatnonzero(jobs.allowed_kinds[row])
        if fixed[row]:
            per_s = speeds.on_request(np.full(kinds.size, row), kinds)
        else:
            columns = pools.columns
            suits = jobs.allowed_kinds[row][columns.kind] & (columns.gpus >= fewest[row][columns.kind])
            per_s = speeds.at(np.full(int(suits.sum()), row), columns.configuration[suits])
        keeps[row] = (per_s > 0).any()
    return keeps
