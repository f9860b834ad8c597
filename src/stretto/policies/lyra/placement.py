"""Where Lyra puts workers: best-fit decreasing, base and flexible workers on servers apart (section 5.3).

A draft says how many GPUs of which node each job holds, as counts. At the end the GPUs of the jobs that
changed are named. A worker of d GPUs is on one node. Workers of one job are put one after the other on the
fullest node that still fits one. Where none does, they go on an empty node. That is to go through the nodes,
empty ones last, by increasing free GPUs, and to fill each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from stretto.model import Allocation, BoolArray, IntArray, Pinned, Snapshot, ints, lowest_gpus

Counts = dict[int, int]  # GPUs by node
LAST = np.iinfo(np.int64).max  # where an empty node comes in an order by free GPUs


@dataclass(frozen=True, eq=False)
class Flexible:
    """The GPUs of flexible workers that may be taken back, one entry for each job and node."""

    row: IntArray  # (entries,) of the snapshot
    node: IntArray  # (entries,)
    gpus: IntArray  # (entries,)

    def by_row_and_kind(self, kind: IntArray, rows: int, kinds: int) -> IntArray:
        """(rows, kinds) GPUs; kind: (nodes,)."""
        cell = self.row * kinds + kind[self.node]
        return np.bincount(cell, self.gpus, rows * kinds).astype(np.int64).reshape(rows, kinds)


class Draft:
    """Counts of GPUs by job and node while one decision is worked out. Rows are those of the snapshot."""

    def __init__(
        self, snapshot: Snapshot, rows: IntArray, base_gpus: IntArray, apart: BoolArray, gone: Sequence[int]
    ) -> None:
        """As the snapshot has it, without the jobs in rows `gone`.

        rows: running jobs whose flexible workers may be taken back. base_gpus: (jobs,) GPUs of their base
        workers, -1 where only the marks of an allocation tell. apart: (nodes,) servers of which one hosts
        either base or flexible workers.
        """
        self.snapshot = snapshot
        self.cluster = snapshot.cluster
        self.apart = apart
        self.each = snapshot.jobs.gpus_per_worker
        self.free: IntArray = np.where(snapshot.usable, snapshot.placement.free, 0)
        self.nodes_of = [np.flatnonzero(self.cluster.kind == kind) for kind in range(len(self.cluster.types))]
        self.base: dict[int, Counts] = {}  # of the jobs that may have changed
        self.extra: dict[int, Counts] = {}
        # Jobs that are gone let go of all they hold.
        for row in gone:
            allocation = snapshot.placement[snapshot.jobs.ids[row]]
            for node, gpus in zip(allocation.nodes, allocation.shape, strict=True):
                self.free[node] += gpus if snapshot.usable[node] else 0
            self.base[row], self.extra[row] = {}, {}
        self.masks: dict[int, tuple[Counts, Counts]] = {}  # what `_masks` has found
        self.before: dict[int, tuple[Counts, Counts]] = {}  # what `_before` has found
        self.marks: dict[int, tuple[int, ...]] = {}  # flexible masks of jobs whose allocation has none
        self.flexible = self._flexible(rows, base_gpus)
        count = len(self.cluster.nodes)
        self.flexible_on: IntArray = np.bincount(self.flexible.node, self.flexible.gpus, count).astype(
            np.int64
        )

    def _flexible(self, rows: IntArray, base_gpus: IntArray) -> Flexible:
        placement, jobs = self.snapshot.placement, self.snapshot.jobs
        base_of, held_gpus = base_gpus[rows], jobs.held_gpus[rows]
        has_some = (base_of < 0) | (
            held_gpus > base_of
        )  # one whose least was raised may hold less than its base
        rows, expected = rows[has_some], np.where(base_of < 0, -1, held_gpus - base_of)[has_some]
        row_of_place = rows.tolist()
        names = jobs.ids
        allocations = [placement[names[row]] for row in row_of_place]
        masks = [allocation.flexible or (0,) * len(allocation.nodes) for allocation in allocations]
        sizes = ints([len(mask) for mask in masks])
        gpus = _bits(masks)
        marked_gpus = np.add.reduceat(gpus, sizes.cumsum() - sizes) if row_of_place else sizes
        for place in np.flatnonzero((marked_gpus != expected) & (expected >= 0)).tolist():
            row = row_of_place[place]
            masks[place] = self.marks[row] = _marked(allocations[place], int(base_gpus[row]))
        if self.marks:
            gpus = _bits(masks)
        node = ints(list(chain.from_iterable(allocation.nodes for allocation in allocations)))
        some = gpus > 0
        return Flexible(rows.repeat(sizes)[some], node[some], gpus[some])

    def room(self, kind: int) -> int:
        """GPUs of a type for base workers: idle, or held by flexible workers."""
        nodes = self.nodes_of[kind]
        return int(self.free[nodes].sum() + self.flexible_on[nodes].sum())

    def slots(self, kind: int, each: int) -> int:
        """Base workers of so many GPUs that could be put on nodes of a type."""
        nodes = self.nodes_of[kind]
        return int(((self.free[nodes] + self.flexible_on[nodes]) // each).sum())

    def idle_for_flexible(self, kind: int) -> int:
        """Idle GPUs of a type on nodes that may host flexible workers."""
        nodes = self.nodes_of[kind]
        return int(self.free[nodes][self._may_host_flexible(nodes)].sum())

    def put_base(self, row: int, workers: Mapping[int, int]) -> bool:
        """Put base workers on nodes of each type; False, and nothing done, where there is no room.

        workers: by type. Where idle GPUs do not suffice, flexible workers make room: on servers that host
        either sort all of them, else as many as need be.
        """
        # Find room on every type before anything changes.
        each = int(self.each[row])
        workers_on: dict[int, int] = {}  # workers by node
        for kind, count in workers.items():
            some = self._for_base(kind, each, count)
            limit = self.cluster.types[kind].max_nodes_per_job
            if some is None or (limit and len(some) > limit):
                return False
            workers_on |= some
        # Then take it, from flexible workers where idle GPUs do not suffice.
        for node, count in workers_on.items():
            missing = count * each - int(self.free[node])
            if missing > 0 or (self.apart[node] and self.flexible_on[node]):
                self._evict(node, int(self.flexible_on[node]) if self.apart[node] else missing)
            self.free[node] -= count * each
        self.base[row] = {node: count * each for node, count in workers_on.items()}
        self.extra[row] = {}
        return True

    def _for_base(self, kind: int, each: int, workers: int) -> Counts | None:
        nodes = self.nodes_of[kind]
        free, flexible = self.free[nodes], self.flexible_on[nodes]
        idle = free // each
        idle[self.apart[nodes] & (flexible > 0)] = 0
        workers_on = _filled(nodes, idle, self._tightest_first(nodes, idle), workers)
        missing = workers - sum(workers_on.values())
        if missing:
            more = (free + flexible) // each - idle
            fewest = np.where(self.apart[nodes], flexible, free + flexible)
            by_preemption = _filled(nodes, more, fewest.argsort(kind="stable"), missing)
            if sum(by_preemption.values()) < missing:
                return None
            workers_on = {
                node: workers_on.get(node, 0) + by_preemption.get(node, 0)
                for node in [*workers_on, *by_preemption]
            }
        return workers_on

    def add_flexible(self, row: int, kind: int, gpus: int) -> int:
        """Give a job up to so many more GPUs for flexible workers of a type; how many there was room for."""
        # Idle GPUs of servers that may host flexible workers, the tightest first.
        each = int(self.each[row])
        nodes = self.nodes_of[kind]
        slots = self.free[nodes] // each
        slots[~self._may_host_flexible(nodes)] = 0
        workers_on = _filled(nodes, slots, self._tightest_first(nodes, slots), gpus // each)
        unit = each * int(self.cluster.stand_ins[kind])
        excess = sum(workers_on.values()) * each % unit // each  # workers that are no whole one as asked for
        for node in reversed(list(workers_on)):
            workers_on[node] -= (fewer := min(excess, workers_on[node]))
            excess -= fewer
        # A type may limit the nodes of a job, those of its base workers included.
        limit = self.cluster.types[kind].max_nodes_per_job
        self._touch(row)
        extra = self.extra[row]
        holds = {node for node in (*self.base[row], *extra) if self.cluster.kind[node] == kind}
        if limit and len(holds | {node for node, count in workers_on.items() if count}) > limit:
            return 0
        for node, count in workers_on.items():
            if count:
                self._change(row, node, count * each)
        return sum(workers_on.values()) * each

    def drop_flexible(self, row: int, kind: int, gpus: int) -> None:
        """Take back so many GPUs of a job's flexible workers of a type: where it has fewest first."""
        self._touch(row)
        own = [node for node in self.extra[row] if self.cluster.kind[node] == kind]
        for node in sorted(own, key=lambda node: (self.extra[row][node], -node)):
            fewer = min(gpus, self.extra[row][node])
            self._change(row, node, -fewer)
            gpus -= fewer

    def extra_gpus(self, row: int, kind: int) -> int:
        """GPUs of flexible workers of a type that a job has in the draft, once it has been touched."""
        return sum(gpus for node, gpus in self.extra[row].items() if self.cluster.kind[node] == kind)

    def pins(self) -> dict[int, Pinned]:
        """Exactly where each job is that runs and differs from the snapshot. GPUs that stay are the same.

        A job may have workers on many nodes of which few change, so only those are looked at.
        """
        touched = {row: nodes for row in self.base if (nodes := self._touched(row))}
        busy_masks = self.snapshot.placement.busy
        busy = {node: int(busy_masks[node]) for nodes in touched.values() for node in nodes}
        for row, nodes in touched.items():
            before, _ = self._masks(row)
            for node in nodes:
                busy[node] &= ~before.get(node, 0)
        kept_masks = {row: self._kept(row, nodes) for row, nodes in touched.items() if self.base[row]}
        for masks in kept_masks.values():
            for node, (base, extra) in masks.items():
                busy[node] |= base | extra
        return {row: self._named(row, masks, busy) for row, masks in kept_masks.items()}

    def _touched(self, row: int) -> list[int]:
        """The nodes where a job has other counts than in the snapshot, in order."""
        base, extra = self._before(row)
        if self.base[row] == base and self.extra[row] == extra:
            return []
        differs = (self.base[row].items() ^ base.items()) | (self.extra[row].items() ^ extra.items())
        return sorted({node for node, _ in differs})

    def _kept(self, row: int, nodes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """By node, the GPUs of base and of flexible workers that a job goes on to hold there."""
        masks_before, flexible = self._masks(row)
        kept_masks = {}
        for node in nodes:
            old, old_extra = masks_before.get(node, 0), flexible.get(node, 0)
            base, extra = self.base[row].get(node, 0), self.extra[row].get(node, 0)
            first = _up_to(old & ~old_extra, base)
            kept_masks[node] = first, _up_to(old_extra & ~first, extra)
        return kept_masks

    def _named(self, row: int, kept_masks: Mapping[int, tuple[int, int]], busy: Counts) -> Pinned:
        masks_before, marks = self._masks(row)
        where, flexible = dict(masks_before), dict(marks)
        for node, (base, extra) in kept_masks.items():
            full = (1 << int(self.cluster.node_gpus[node])) - 1
            if (missing := self.base[row].get(node, 0) - base.bit_count()) > 0:
                more = lowest_gpus(full & ~busy[node], missing)
                busy[node] |= more
                base |= more
            if (missing := self.extra[row].get(node, 0) - extra.bit_count()) > 0:
                more = lowest_gpus(full & ~busy[node], missing)
                busy[node] |= more
                extra |= more
            where[node], flexible[node] = base | extra, extra
        nodes = sorted(node for node, mask in where.items() if mask)
        masks = tuple([where[node] for node in nodes])
        extras = tuple([flexible.get(node, 0) for node in nodes])
        gpus = tuple([mask.bit_count() for mask in masks])
        return Pinned(tuple(nodes), gpus, masks, (), extras if any(extras) else ())

    def _tightest_first(self, nodes: IntArray, slots: IntArray) -> IntArray:
        """Places in `nodes` of those that have slots; mostly few have, and only they are sorted."""
        some = np.flatnonzero(slots)
        where = nodes[some]
        free = self.free[where]
        return some[np.where(free == self.cluster.node_gpus[where], LAST, free).argsort(kind="stable")]

    def _may_host_flexible(self, nodes: IntArray) -> BoolArray:
        base = self.cluster.node_gpus[nodes] - self.free[nodes] - self.flexible_on[nodes]
        allowed: BoolArray = ~self.apart[nodes] | (base == 0)
        return allowed

    def _evict(self, node: int, gpus: int) -> None:
        """Take back at least so many GPUs of flexible workers of a node, whole workers of the latest jobs."""
        rows = self.flexible.row[self.flexible.node == node].tolist()
        rows += [row for row, extra in self.extra.items() if extra.get(node, 0) and row not in rows]
        for row in sorted(rows, reverse=True):
            if gpus <= 0:
                return
            self._touch(row)
            each = int(self.each[row])
            fewer = min(-(-gpus // each) * each, self.extra[row].get(node, 0))
            self._change(row, node, -fewer)
            gpus -= fewer

    def _change(self, row: int, node: int, gpus: int) -> None:
        if gpus:
            left = self.extra[row].get(node, 0) + gpus
            self.extra[row][node] = left
            if not left:
                del self.extra[row][node]
            self.free[node] -= gpus
            self.flexible_on[node] += gpus

    def _touch(self, row: int) -> None:
        if row not in self.base:
            base, extra = self._before(row)
            self.base[row], self.extra[row] = base.copy(), extra.copy()

    def _before(self, row: int) -> tuple[Counts, Counts]:
        """GPUs of base and of flexible workers in the snapshot, by node."""
        counts = self.before.get(row)
        if counts is None:
            masks, flexible = self._masks(row)
            base = {
                node: count for node, mask in masks.items() if (count := _more(mask, flexible.get(node, 0)))
            }
            counts = base, {node: mask.bit_count() for node, mask in flexible.items() if mask}
            self.before[row] = counts
        return counts

    def _masks(self, row: int) -> tuple[Counts, Counts]:
        """GPUs that a job holds in the snapshot, and those of its flexible workers, as masks by node."""
        masks = self.masks.get(row)
        if masks is None:
            allocation = self.snapshot.placement.get(self.snapshot.jobs.ids[row])
            if allocation is None:
                masks = {}, {}
            else:
                flexible = self.marks.get(row, allocation.flexible)
                masks = (
                    dict(zip(allocation.nodes, allocation.masks, strict=True)),
                    dict(zip(allocation.nodes, flexible, strict=False)),
                )
            self.masks[row] = masks
        return masks


def _filled(nodes: IntArray, slots: IntArray, order: IntArray, workers: int) -> Counts:
    """Workers by node when so many, or as many as there are slots for, fill nodes in an order."""
    if workers <= 0:
        return {}
    reached = slots[order].cumsum()
    last = int(reached.searchsorted(workers))
    used = order[: last + 1]
    count = slots[used]
    if last < len(order):
        count[-1] -= int(reached[last]) - workers
    some = count > 0
    return dict(zip(nodes[used[some]].tolist(), count[some].tolist(), strict=True))


def _marked(allocation: Allocation, base: int) -> tuple[int, ...]:
    """Flexible masks for an allocation that has none of that size: the last GPUs of the last nodes."""
    extra = max(allocation.gpus - base, 0)
    flexible = []
    for mask in reversed(allocation.masks):
        count = min(mask.bit_count(), extra)
        flexible.append(mask & ~lowest_gpus(mask, mask.bit_count() - count))
        extra -= count
    return tuple(reversed(flexible))


def _bits(masks: Sequence[tuple[int, ...]]) -> IntArray:
    """(entries,) set bits of all masks, one after the other."""
    return np.bitwise_count(ints(list(chain.from_iterable(masks)))).astype(np.int64)


def _up_to(mask: int, gpus: int) -> int:
    return mask if gpus >= mask.bit_count() else lowest_gpus(mask, gpus)


def _more(mask: int, than: int) -> int:
    return (mask & ~than).bit_count()
