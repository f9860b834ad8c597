"""Cells of the last round, from which the next one takes those of jobs of which nothing has changed.

It only saves time. The cells of a job follow from what it asked for, what it holds, the most that it held,
its speeds, and the cluster. Where all of that is the same they are. Nothing else is taken over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stretto.model import Cluster, FloatArray, IntArray, Requests, Snapshot, Speeds, frozen
from stretto.policies.sia.cells import Cells
from stretto.policies.sia.columns import Sizes
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.policies.sia.ranges import Ranges

MOST_NEW = 0.25  # of the jobs: of more all cells are made anew; chosen
BY_CELL = ("pool", "kind", "configuration", "gpus", "goodput", "valid", "current")

MakeCells = Callable[[IntArray], ConfigurationSet]
Normalise = Callable[[ConfigurationSet], FloatArray]
Column = npt.NDArray[Any]  # of numbers or of truths


@dataclass(frozen=True, eq=False)
class Facts:
    """All that cells follow from, beside settings of the policy."""

    cluster: Cluster
    configurations: object  # that were offered
    origin: object  # in which speeds are remembered; None: they are not
    unsplit: Sizes  # nodes that are not split, by which pools and so columns differ
    requests: Requests  # kept, so that nothing else takes over the identity of what a job asked for
    of_jobs: IntArray  # (parts, jobs): what it asked for, its speeds, most that it held, what it holds

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds, unsplit: Sizes = ()) -> "Facts":
        """Those of a decision. unsplit: by type, GPUs of nodes that are not split."""
        jobs = snapshot.jobs
        origin, number = speeds.origin or (None, jobs.rows)
        asked = _identities(jobs.requests)[jobs.rows]
        held = (jobs.held_gpus, jobs.held_nodes, jobs.held_kind)
        of_jobs = np.stack([asked, number, jobs.progress.largest_held_gpus, *held])
        return cls(snapshot.cluster, speeds.configurations, origin, unsplit, jobs.requests, of_jobs)

    def rows_in(self, before: "Facts") -> IntArray:
        """(jobs,) the row of each job in an earlier decision, if there nothing was different; else -1."""
        if self.origin is None or self.origin is not before.origin or not before.of_jobs.size:
            return np.full(self.of_jobs.shape[1], -1)
        if self.cluster is not before.cluster or self.configurations is not before.configurations:
            return np.full(self.of_jobs.shape[1], -1)
        if self.unsplit != before.unsplit:
            return np.full(self.of_jobs.shape[1], -1)
        order = np.argsort(before.of_jobs[0], kind="stable")
        place = np.searchsorted(before.of_jobs[0], self.of_jobs[0], sorter=order)
        rows = order[np.minimum(place, order.size - 1)]
        return np.where((self.of_jobs == before.of_jobs[:, rows]).all(axis=0), rows, -1)


@lru_cache(maxsize=4)
def _identities(requests: Requests) -> IntArray:
    """(all jobs,) what tells the requests of a world apart, as long as they are there."""
    return frozen(np.fromiter(map(id, requests.jobs), np.int64, len(requests.jobs)))


@dataclass(frozen=True, eq=False)
class Round:
    """The cells of a decision, and what they follow from."""

    facts: Facts
    configs: ConfigurationSet
    normal: FloatArray  # (cells,) goodput as jobs compare, without restart factors

    @classmethod
    def of(cls, facts: Facts, make: MakeCells, normalise: Normalise) -> "Round":
        """All cells made anew. make: makes those of some rows; normalise: their goodputs."""
        configs = make(np.arange(facts.of_jobs.shape[1]))
        return cls(facts, configs, normalise(configs))

    def next(self, facts: Facts, make: MakeCells, normalise: Normalise) -> "Round":
        """The same for a later decision, which takes cells over from this one."""
        rows = facts.rows_in(self.facts)
        new = np.flatnonzero(rows < 0)
        if new.size > MOST_NEW * rows.size:
            return Round.of(facts, make, normalise)
        before, fresh = self.configs, make(new)
        joined = _Joined.of(rows, before.cells, fresh.cells)
        by_job: dict[str, Any] = {
            column.name: joined.jobs(getattr(before.ranges, column.name), getattr(fresh.ranges, column.name))
            for column in fields(Ranges)
        }
        by_cell: dict[str, Any] = {
            name: joined.cells(getattr(before, name), getattr(fresh, name)) for name in BY_CELL
        }
        columns = joined.cells(before.cells.column, fresh.cells.column)
        cells = Cells.by_count(joined.jobs(before.cells.count, fresh.cells.count), columns)
        configs = replace(fresh, ranges=Ranges(**by_job), cells=cells, **by_cell)
        return Round(facts, configs, joined.cells(self.normal, normalise(fresh)))


@dataclass
class Last:
    """Holds the last round; a copy in another process begins without one."""

    round: Round | None = None

    def __reduce__(self) -> tuple[type["Last"], tuple[()]]:
        """Nothing is handed over."""
        return Last, ()


@dataclass(frozen=True)
class _Joined:
    """Stretches of two sets, one after the other: those of the first that stay, and new ones."""

    stretches: Sequence[tuple[bool, slice, slice]]  # (of the second set, its rows, its cells)

    @classmethod
    def of(cls, rows: IntArray, before: Cells, fresh: Cells) -> "_Joined":
        """For each job its row of the first set, or, where that is -1, the next row of the second."""
        is_fresh = rows < 0
        place = np.where(is_fresh, np.cumsum(is_fresh) - 1, rows)
        # A stretch goes on as long as rows of one set follow each other.
        breaks = np.flatnonzero((np.diff(place) != 1) | (is_fresh[1:] != is_fresh[:-1])) + 1
        stretches = []
        for first, end in pairwise([0, *breaks.tolist(), len(rows)]):
            begin, last = int(place[first]), int(place[end - 1])
            bounds = fresh.bounds if is_fresh[first] else before.bounds
            cells = slice(int(bounds[begin]), int(bounds[last + 1]))
            stretches.append((bool(is_fresh[first]), slice(begin, last + 1), cells))
        return cls(stretches)

    def jobs(self, before: Column, fresh: Column) -> Column:
        """(jobs, …) the values of these jobs."""
        return np.concatenate([(fresh if is_new else before)[rows] for is_new, rows, _ in self.stretches])

    def cells(self, before: Column, fresh: Column) -> Column:
        """(cells,) the values of these cells."""
        return np.concatenate([(fresh if is_new else before)[cells] for is_new, _, cells in self.stretches])
