"""What a job may have, of sizes and types: from its range, its replicas, its growth and its speeds."""

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from stretto.model import ANY_NUMBER, BoolArray, Cluster, IntArray, JobTable, Snapshot, Speeds
from stretto.policies.sia.columns import Pools


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
        request, reserved, nodes = _requests(jobs, snapshot.cluster)
        insists = ~jobs.preemptible | (reserved >= 0)
        stand_ins = snapshot.cluster.stand_ins
        fewest, most = jobs.fewest_gpus * stand_ins, jobs.max_gpus[:, None] * stand_ins
        fixed = jobs.rigid | insists | ~_have_a_choice(jobs, pools, fewest, most)
        replica = _replicas(snapshot.jobs, speeds, rows)
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
            insists=insists,
            request=request,
            reserved=reserved,
            nodes=nodes,
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


def _replicas(jobs: JobTable, speeds: Speeds, rows: IntArray) -> IntArray:
    """(rows, types) GPUs of one replica: hybrid-parallel jobs span several (3.5), all others one."""
    if speeds.replica_gpus is not None:
        replica = speeds.replica_gpus[rows]
    else:
        alone = np.ones(jobs.allowed_kinds.shape[1], dtype=np.int64)
        shown = [jobs.evidence[row] for row in rows.tolist()]
        sizes = [alone if each is None else each.limits.replica_gpus for each in shown]
        replica = np.array(sizes, dtype=np.int64).reshape(len(rows), len(alone))
    jobs = jobs.of_rows(rows)
    # A job that says how many on each type holds no less, whatever it has shown.
    varies = jobs.varies_by_type
    if varies.any():
        replica = replica.copy()
        replica[varies] = np.lcm(replica[varies], jobs.worker_gpus[varies])
    return replica
