"""Sia's configuration set C (section 3.3): what each job may have, cell by cell, and what a choice means."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Protocol

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
)
from stretto.policies.sia.cells import Cells
from stretto.policies.sia.columns import Pools
from stretto.policies.sia.ranges import Ranges
from stretto.policies.sia.whole_nodes import needs_whole, odd_kinds
from stretto.solve import Assignment, SparseKnapsack

FEWER_IS_BETTER = 1e-9  # chosen: for each GPU; below what keeps ties where they are


class Gate(Protocol):
    """What decides which of the jobs that cannot be stopped again may begin."""

    def admits(self, cell: int) -> bool:
        """Whether a job may begin on a cell."""

    def let_in(self, cell: int) -> None:
        """It does."""


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
    stand_ins: IntArray  # (types,) GPUs that take the place of one asked for (Lyra, section 2.1)
    ranges: Ranges  # what the cells of each job follow from
    cells: Cells
    pool: IntArray  # (cells,)
    kind: IntArray  # (cells,) GPU type
    configuration: IntArray  # (cells,) index, -1: exactly what was asked for
    gpus: IntArray  # (cells,)
    goodput: FloatArray  # (cells,) as estimated, NaN where a job cannot run
    valid: BoolArray  # (cells,) what each may have: whole replicas in its range, on types that it accepts
    current: BoolArray  # (cells,) what it holds now, in whichever pool

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds, seen: IntArray, growth: int) -> "ConfigurationSet":
        """The cells for these jobs.

        seen: (jobs, types) most GPUs on which its speed was observed. It may have `growth` times the replicas
        of that (section 3.1), never beyond its reach. The smallest in its range is always allowed: it has to
        start somewhere. Workers that serve do not wait for each other, so that one says enough of all.
        """
        return cls.of_rows(snapshot, speeds, np.arange(len(snapshot.jobs)), seen, growth)

    @classmethod
    def of_rows(
        cls,
        snapshot: Snapshot,
        speeds: Speeds,
        rows: IntArray,
        seen: IntArray,
        growth: int,
        pools: Pools | None = None,
    ) -> "ConfigurationSet":
        """The same for some of the jobs alone. What a job has depends on the others by the pools only."""
        pools = pools or Pools.of(snapshot, speeds)
        ranges = Ranges.of(snapshot, speeds, rows, pools, seen, growth)
        # Columns by request come after all others, and only where some job needs them.
        columns, fixed = pools.columns, ranges.fixed
        by_request = np.where(fixed, len(pools.kind), 0)[:, None]
        cells = Cells.between(
            np.concatenate([ranges.wide_begin, np.full_like(by_request, len(columns))], axis=1),
            np.concatenate([ranges.wide_end, len(columns) + by_request], axis=1),
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
        gpus[asks] = ranges.request[row[asks], kind[asks]]
        goodput = np.empty(row.size)
        usual = np.flatnonzero(~is_request) if asks.size else slice(None)
        goodput[usual] = speeds.at(rows[row[usual]], configuration[usual])
        goodput[asks] = _speeds_on(snapshot, speeds, ranges, rows, row[asks], kind[asks], gpus[asks])
        valid = goodput > 0
        # Few rows have what is out of their range, or have replicas of several GPUs: only theirs are checked.
        begin, end, replica = ranges.begin, ranges.end, ranges.replica
        is_wide = ((ranges.wide_begin != begin) | (ranges.wide_end != end)).any(axis=1)
        wide = cells.of_rows(np.flatnonzero(is_wide))
        first, behind = begin[row[wide], kind[wide]], end[row[wide], kind[wide]]
        valid[wide] &= is_request[wide] | ((column[wide] >= first) & (column[wide] < behind))
        several = cells.of_rows(np.flatnonzero((replica > 1).any(axis=1)))
        valid[several] &= gpus[several] % replica[row[several], kind[several]] == 0
        current = (configuration == ranges.at_present[row]) & (configuration >= 0)
        if asks.size:
            acceptable = _acceptable(snapshot.cluster, pools, ranges, row[asks], pool[asks], gpus[asks])
            allowed = ranges.allowed[row[asks], kind[asks]]
            is_reserved = acceptable & (ranges.reserved[row[asks]] >= 0)
            # What is kept for a job it may have, whatever is known of its speed.
            valid[asks] = (valid[asks] & acceptable & allowed) | is_reserved
            holds = (gpus[asks] == ranges.held_gpus[row[asks]]) & (gpus[asks] > 0)
            current[asks] = holds & (kind[asks] == ranges.held_kind[row[asks]])
        return cls(
            configurations=speeds.configurations,
            pools=pools,
            stand_ins=snapshot.cluster.stand_ins,
            ranges=ranges,
            cells=cells,
            pool=pool,
            kind=kind,
            configuration=configuration,
            gpus=gpus,
            goodput=goodput,
            valid=valid,
            current=current,
        )

    @property
    def columns(self) -> int:
        """How many there are, with those by request where a job needs them."""
        return len(self.pools.columns) + (len(self.pools.kind) if self.ranges.fixed.any() else 0)

    def knapsack(
        self, worth: FloatArray, valid: BoolArray, capacity: IntArray, forced: IntArray, prefer: FloatArray
    ) -> SparseKnapsack:
        """The ILP: at most one configuration for each job, within the GPUs of each pool.

        worth, prefer: (cells,); valid: (cells,) what may be chosen; capacity: (pools,); forced: (jobs,) a
        cell or -1. It is a multiple-choice knapsack, so no general solver of integer programs is needed.
        """
        # Jobs that ask for the same are alike; without columns by request all may be.
        sort = self.ranges.request if self.ranges.fixed.any() else None
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
        runs = np.zeros(self.cells.rows, dtype=np.bool_)
        runs[self.cells.row[self.current_cells]] = True
        return runs

    @cached_property
    def current_cells(self) -> IntArray:
        """The cells that are held now."""
        return np.flatnonzero(self.current)

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

    def forced(
        self, snapshot: Snapshot, valid: BoolArray, worth: FloatArray, gate: Gate | None = None
    ) -> tuple[IntArray, IntArray]:
        """(jobs,) the cell that a job must get or -1, and (pools,) what there is to choose from.

        Forced are jobs that are restarting, not preemptible, or reserved. Makes forced cells valid in place.
        A job that may not be stopped is let in only while what is forced fits (section 3.4, preemption and
        reservation). The gate must admit it, too.
        """
        jobs = snapshot.jobs
        forced = np.full(len(jobs), -1)
        # First jobs that run and must go on, even on GPUs that others may not use; then those that wait.
        runs = self.runs
        stays = np.flatnonzero((jobs.progress.recovering | ~jobs.preemptible) & runs)
        capacity = self.capacity(snapshot, stays)
        enters = np.flatnonzero(self.ranges.insists & ~runs)
        left = capacity.tolist()
        self._force(stays, self.current, valid, worth, forced, left)
        self._force_where_they_are(snapshot, stays, valid, forced, capacity, left)
        self._force(enters, valid, valid, worth, forced, left, gate)
        return forced, capacity

    def _force(
        self,
        rows: IntArray,
        choices: BoolArray,
        valid: BoolArray,
        worth: FloatArray,
        forced: IntArray,
        left: list[int],
        gate: Gate | None = None,
    ) -> None:
        """Give each row in turn the best of its choices (cells,) that fits what is left of the pools."""
        theirs = self.cells.of_rows(rows)
        cells = theirs[choices[theirs]]
        valid[theirs] = False
        arrays = (self.cells.row[cells], cells, self.pool[cells], self.gpus[cells], worth[cells])
        options = zip(*(array.tolist() for array in arrays), strict=True)
        for row, of_row in groupby(options, key=itemgetter(0)):
            fits = [option for option in of_row if option[3] <= left[option[2]]]
            if gate is not None:
                fits = [option for option in fits if gate.admits(option[1])]
            if fits:
                _, cell, pool, gpus, _ = max(fits, key=itemgetter(4))  # the first of equals
                forced[row], valid[cell] = cell, True
                left[pool] -= gpus
                if gate is not None:
                    gate.let_in(cell)

    def _force_where_they_are(
        self,
        snapshot: Snapshot,
        stays: IntArray,
        valid: BoolArray,
        forced: IntArray,
        capacity: IntArray,
        left: list[int],
    ) -> None:
        """Count jobs that stay on the nodes where they are, wherever it makes a difference.

        Jobs may have come to hold across virtual nodes what no pool has room for. They keep it: what is left
        to the others is then what is left of each node. It is the same where nodes are not split. A job that
        may not be stopped might also be counted in larger blocks than those that it is on.
        """
        if not stays.size:
            return
        present = self.cells.first(self.current)[stays]
        types, split = len(snapshot.cluster.types), self.pools.split
        fits_none = np.bincount(self.kind[present[forced[stays] < 0]], minlength=types)
        bound = np.bincount(self.kind[present[~snapshot.jobs.preemptible[stays]]], minlength=types)
        several = np.bincount(self.pools.kind[:split], minlength=types) > 1
        by_node = (fits_none > 0) | ((bound > 0) & several)
        by_node[self.pools.kind[split:]] = True
        here = by_node[self.kind[present]]
        if not here.any():
            return
        of_kind = by_node[self.pools.kind]
        beside = self.pools.beside(snapshot, stays)
        capacity[of_kind] = beside[of_kind]
        for row, cell in zip(stays[here].tolist(), present[here].tolist(), strict=True):
            if forced[row] >= 0:
                valid[forced[row]] = False
            forced[row], valid[cell] = cell, True
            capacity[self.pool[cell]] += self.gpus[cell]
        left_of = np.where(of_kind, beside, left)
        left[:] = left_of.tolist()

    def shares(self, snapshot: Snapshot, chosen: Assignment, forced: IntArray, capacity: IntArray) -> Shares:
        """What the chosen cells mean. forced: (jobs,) cell or -1; capacity: (pools,) GPUs."""
        served = chosen.cell >= 0
        # Cell 0 stands in for -1 in look-ups; what is read there is not used.
        cell = np.maximum(chosen.cell, 0) if self.cells.row.size else np.zeros(0, dtype=np.int64)
        gpus, kind = np.zeros(len(served), dtype=np.int64), np.full(len(served), -1)
        nodes = self.ranges.nodes.copy()
        if cell.size:
            gpus, kind = np.where(served, self.gpus[cell], 0), np.where(served, self.kind[cell], -1)
            configuration = np.where(served, self.configuration[cell], -1)
            by_configuration = configuration >= 0
            nodes = np.where(by_configuration, self.configurations.nodes[configuration], nodes)
        why = np.full(len(served), int(Why.RUNS))
        waiting = np.flatnonzero(~served)
        why[waiting] = self._why_waiting(snapshot, waiting, forced, capacity)
        # Pools of one type have prices of their own; the dearest says what one more GPU would be worth.
        by_type = np.zeros(len(snapshot.capacity))
        np.maximum.at(by_type, self.pools.kind, chosen.prices)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=nodes,
            why=Reasons(why),
            prices=by_type,
            gap=chosen.gap,
        )

    def _why_waiting(
        self, snapshot: Snapshot, rows: IntArray, forced: IntArray, capacity: IntArray
    ) -> IntArray:
        """(rows,) too large for the cluster, too slow, no room beside forced jobs, or worth less."""
        lacks_room = self._lacks_room(rows, forced, capacity) | self._lacks_whole_nodes(snapshot, rows)
        waits = np.where(lacks_room, Why.NO_FREE_GPUS, Why.WORTH_LESS)
        waits = np.where(self.ranges.serves[rows] & ~self.ranges.keeps[rows], Why.TOO_SLOW, waits)
        return np.where(self._may_ever_run(snapshot, rows), waits, Why.TOO_LARGE).astype(np.int64)

    def _lacks_room(self, rows: IntArray, forced: IntArray, capacity: IntArray) -> BoolArray:
        """(rows,) whether no cell that a job may have has enough GPUs beside those that others must get."""
        taken = forced[forced >= 0]
        left = capacity.copy()
        np.subtract.at(left, self.pool[taken], self.gpus[taken])
        cells = self.cells.of_rows(rows)
        cells = cells[self.valid[cells]]
        row, has_room = self.cells.row[cells], self.gpus[cells] <= left[self.pool[cells]]
        suits, fits = np.zeros((2, self.cells.rows), dtype=np.bool_)
        suits[row], fits[row[has_room]] = True, True
        lacking: BoolArray = (suits & ~fits)[rows]
        return lacking

    def _may_ever_run(self, snapshot: Snapshot, rows: IntArray) -> BoolArray:
        """(rows,) whether some size that a job could have is not larger than the whole cluster."""
        cluster, pools, ranges = snapshot.cluster, self.pools, self.ranges.of_rows(rows)
        types = range(len(cluster.types))
        largest = np.array([pools.columns.sizes(kind)[-1:].max(initial=0) for kind in types])
        elastic = ((ranges.fewest * self.stand_ins <= largest) & ranges.allowed).any(axis=1)
        kept = (ranges.reserved[:, None] < 0) | (ranges.reserved[:, None] == np.arange(len(types)))
        fixed = ((ranges.request <= cluster.capacity) & kept & ranges.allowed).any(axis=1)
        return np.where(ranges.fixed, fixed, elastic)

    def _lacks_whole_nodes(self, snapshot: Snapshot, rows: IntArray) -> BoolArray:
        """(rows,) whether it asks for exactly so many GPUs as no nodes have now, beside what stays there."""
        cluster, pools, ranges = snapshot.cluster, self.pools, self.ranges.of_rows(rows)
        if not odd_kinds(cluster).any():
            return np.zeros(len(rows), dtype=np.bool_)
        row, pool = np.indices((len(rows), len(pools.kind)))
        request = ranges.request[:, pools.kind]
        acceptable = _acceptable(cluster, pools, ranges, row.ravel(), pool.ravel(), request.ravel())
        may = acceptable.reshape(request.shape) & ranges.allowed[:, pools.kind]
        return np.asarray(ranges.fixed & ~may.any(axis=1))


def _acceptable(
    cluster: Cluster, pools: Pools, ranges: Ranges, row: IntArray, pool: IntArray, gpus: IntArray
) -> BoolArray:
    """(cells,) whether exactly so many GPUs may be taken from a pool, on a reserved type if the row has one.

    A job within one node needs a virtual node as large; one on whole nodes takes the largest ones. What no
    virtual nodes have is taken from nodes that are not split. row, pool, gpus: (cells,).
    """
    split, kind = slice(pools.split), pools.kind[pool]
    largest = np.array(
        [pools.block[split][pools.kind[split] == each].max(initial=0) for each in pools.kind.tolist()]
    )
    fits_a_block: BoolArray = (gpus <= pools.block[pool]) | (pools.block == largest)[pool]
    for cell in np.flatnonzero(odd_kinds(cluster)[kind]).tolist():
        request = (int(kind[cell]), int(gpus[cell]), int(ranges.nodes[row[cell]]))
        if pool[cell] >= pools.split:
            # What it holds it may keep, whatever shape that has.
            present = (int(ranges.held_kind[row[cell]]), int(ranges.held_gpus[row[cell]]))
            fits_a_block[cell] = request[:2] == present or pools.unsplit.hold(cluster, *request)
        elif needs_whole(cluster, *request):
            fits_a_block[cell] = False
    kept = (ranges.reserved[row] < 0) | (kind == ranges.reserved[row])
    return np.asarray(fits_a_block & kept)


def _speeds_on(
    snapshot: Snapshot,
    speeds: Speeds,
    ranges: Ranges,
    rows: IntArray,
    row: IntArray,
    kind: IntArray,
    gpus: IntArray,
) -> FloatArray:
    """(cells,) goodput on exactly so many GPUs. rows: (jobs,) of the snapshot; row, kind, gpus: (cells,)."""
    of_cell, jobs = rows[row], snapshot.jobs
    # Of GPUs that stand in for others so many more are as fast as so many times one.
    stand_ins = snapshot.cluster.stand_ins[kind]
    per_s = speeds.on_request(of_cell, kind) * stand_ins
    asked = jobs.gpus[of_cell] * stand_ins
    # What is kept for a job, or what it may not be stopped on, need not be as much as it asked for.
    other = np.flatnonzero(gpus != asked)
    if other.size:
        of_cell, kind, gpus = of_cell[other], kind[other], gpus[other]
        holds = (jobs.held_gpus[of_cell] == gpus) & (jobs.held_kind[of_cell] == kind)
        nodes = np.where(holds, jobs.held_nodes[of_cell], ranges.nodes[row[other]])
        column = speeds.configurations.columns_of(nodes, gpus, kind)
        known = np.full(other.size, np.nan)
        known[column >= 0] = speeds.at(of_cell[column >= 0], column[column >= 0])
        per_s[other] = np.where(np.isfinite(known), known, per_s[other] * gpus / asked[other])
    return per_s


def restart_costs_s(jobs: JobTable, speeds: Speeds, usual_s: float) -> FloatArray:
    """(jobs,) seconds that a restart takes; the usual ones where a job names none."""
    if speeds.restart_s is not None:
        return np.where(np.isnan(speeds.restart_s), usual_s, speeds.restart_s)
    return np.array(
        [usual_s if shown is None else shown.limits.restart_s for shown in jobs.evidence], dtype=np.float64
    )
