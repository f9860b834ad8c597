"""What a job may have, of sizes and types: from its range, its replicas, its growth and its speeds."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from stretto.model import ANY_NUMBER, BoolArray, IntArray, JobTable, Snapshot, Speeds
from stretto.policies.sia.columns import Pools
from stretto.policies.sia.requests import GpuRequests, first_sizes


@dataclass(frozen=True, eq=False)
class Ranges:
    """All that the cells of each job follow from, beside its speeds and the columns that there are.

    So a row that is equal in every field has the same cells, whatever jobs stand beside it.
    """

    begin: IntArray  # (jobs, types) the first column of the sizes that it may have on a type
    end: IntArray  # (jobs, types) one behind the last
    wide_begin: IntArray  # (jobs, types) the same, wide enough for what it holds
    wide_end: IntArray  # (jobs, types)
    at_present: IntArray  # (jobs,) the configuration that it holds, -1 none
    fixed: BoolArray  # (jobs,) rigid, not preemptible, reserved or without a choice: only what it asked for
    insists: BoolArray  # (jobs,) not preemptible or reserved: must be served once it is let in
    request: IntArray  # (jobs, types) GPUs asked for, reserved, or held by a job that may not be stopped
    reserved: IntArray  # (jobs,) type of the GPUs kept for a job, -1 none
    nodes: IntArray  # (jobs,) nodes on which these GPUs are kept, 0: whichever
    replica: IntArray  # (jobs, types) GPUs of one replica
    fewest: IntArray  # (jobs, types) GPUs
    allowed: BoolArray  # (jobs, types) the types that it accepts
    held_gpus: IntArray  # (jobs,)
    held_kind: IntArray  # (jobs,)
    serves: BoolArray  # (jobs,)
    keeps: BoolArray  # (jobs,) some size would keep the service level of a job that serves; all others do
    modelled: BoolArray  # (jobs,) something about its speed was learned

    @classmethod
    def of(
        cls, snapshot: Snapshot, speeds: Speeds, rows: IntArray, pools: Pools, seen: IntArray, growth: int
    ) -> "Ranges":
        """Those of some jobs, by their rows; seen and growth: as `ConfigurationSet.of` has them."""
        jobs, offered = snapshot.jobs.of_rows(rows), speeds.configurations
        asks = GpuRequests.of(snapshot, speeds, rows)
        fixed, replica, fewest, most = asks.fixed, asks.replica, asks.fewest, asks.most
        # What each may have by its range and growth, type by type, and what it holds though it may not.
        seen = seen[rows]
        largest = _largest(speeds.reach_gpus[rows], seen, growth, replica)
        largest[jobs.serves & seen.any(axis=1)] = ANY_NUMBER
        begin, end = _within_range(jobs, pools, replica, fewest, most, largest)
        begin[fixed], end[fixed] = 0, 0
        at_present = offered.columns_of(jobs.held_nodes, jobs.held_gpus, jobs.held_kind)
        at_present[fixed | (jobs.held_gpus == 0)] = -1
        wide_begin, wide_end = _with_held(begin, end, pools, at_present)
        return cls(
            begin=begin,
            end=end,
            wide_begin=wide_begin,
            wide_end=wide_end,
            at_present=at_present,
            fixed=fixed,
            insists=asks.insists,
            request=asks.request,
            reserved=asks.reserved,
            nodes=asks.nodes,
            replica=replica,
            fewest=jobs.fewest_gpus,
            allowed=jobs.allowed_kinds,
            held_gpus=jobs.held_gpus,
            held_kind=jobs.held_kind,
            serves=jobs.serves,
            keeps=_keeps(jobs, speeds, rows, pools, fewest, fixed),
            modelled=speeds.modelled[rows],
        )

    def __len__(self) -> int:
        """The number of jobs."""
        return len(self.fixed)

    def of_rows(self, rows: IntArray) -> "Ranges":
        """Those of some jobs."""
        return Ranges(**{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})


def _keeps(
    jobs: JobTable, speeds: Speeds, rows: IntArray, pools: Pools, fewest: IntArray, fixed: BoolArray
) -> BoolArray:
    """(jobs,) whether a job that serves keeps its service level on some size, however large."""
    keeps = np.ones(len(jobs), dtype=np.bool_)
    for row in np.flatnonzero(jobs.serves).tolist():
        kinds = np.flatnonzero(jobs.allowed_kinds[row])
        if fixed[row]:
            per_s = speeds.on_request(np.full(kinds.size, rows[row]), kinds)
        else:
            columns = pools.columns
            suits = jobs.allowed_kinds[row][columns.kind] & (columns.gpus >= fewest[row][columns.kind])
            per_s = speeds.at(np.full(int(suits.sum()), rows[row]), columns.configuration[suits])
        keeps[row] = (per_s > 0).any()
    return keeps


def _largest(reach_gpus: IntArray, seen: IntArray, growth: int, replica: IntArray) -> IntArray:
    """(jobs,) most replicas by growth and reach."""
    largest = growth * (seen // replica).max(axis=1, initial=0)
    most: IntArray = np.minimum(largest, reach_gpus // replica.max(axis=1, initial=1))
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
        least = first_sizes(sizes, fewest[:, kind], replica[:, kind])
        least = np.where(least <= most[:, kind], least // replica[:, kind], 0)
        # The smallest in its range is always allowed: it has to start somewhere.
        replicas = np.minimum(np.maximum(largest, least), most[:, kind] // replica[:, kind])
        begin[:, kind] = first + np.searchsorted(sizes, fewest[:, kind])
        end[:, kind] = first + np.searchsorted(sizes, replicas * replica[:, kind], side="right")
    end = np.where(jobs.allowed_kinds, np.maximum(begin, end), begin)
    return begin, end


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
