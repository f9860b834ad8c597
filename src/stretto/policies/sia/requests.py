"""What jobs ask for: exact numbers of GPUs where they insist on them, else a range, in whole replicas."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import BoolArray, Cluster, Configurations, IntArray, JobTable, Snapshot, Speeds, frozen
from stretto.policies.common.admission import most_gpus_of_one_job


@dataclass(frozen=True, eq=False)
class GpuRequests:
    """What some jobs ask for; columns are (jobs,) or (jobs, types)."""

    request: IntArray  # (jobs, types) GPUs asked for, reserved, or held by a job that may not be stopped
    reserved: IntArray  # (jobs,) type of the GPUs kept for a job, -1 none
    nodes: IntArray  # (jobs,) nodes on which these GPUs are kept, 0: whichever
    insists: BoolArray  # (jobs,) not preemptible or reserved: must be served once it is let in
    fixed: BoolArray  # (jobs,) rigid, not preemptible, reserved or without a choice: only what it asked for
    replica: IntArray  # (jobs, types) GPUs of one replica
    fewest: IntArray  # (jobs, types) GPUs of its range
    most: IntArray  # (jobs, types)

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds, rows: IntArray) -> "GpuRequests":
        """Those of some jobs, by their rows."""
        jobs, cluster = snapshot.jobs.of_rows(rows), snapshot.cluster
        request, reserved, nodes = _requests(jobs, cluster)
        insists = ~jobs.preemptible | (reserved >= 0)
        fewest, most = jobs.fewest_gpus * cluster.stand_ins, jobs.max_gpus[:, None] * cluster.stand_ins
        replica = _replicas(snapshot.jobs, speeds, rows)
        sizes = sizes_of(speeds.configurations, len(cluster.types))
        fixed = jobs.rigid | insists | ~_have_a_choice(jobs, sizes, fewest, most, replica)
        there_are = most_gpus_of_one_job(cluster)
        if (replica > 1).any() or (request > there_are).any():
            # Of a job that could have other sizes as well it is as many whole replicas as it asked for, or
            # as there are for one job.
            bound = jobs.rigid | (reserved >= 0) | (~jobs.preemptible & (jobs.held_gpus > 0))
            replicas = np.minimum(request, np.maximum(there_are, fewest)) // replica
            whole = np.maximum(replicas, -(-fewest // replica)) * replica
            request = np.where((fixed & ~bound)[:, None] & (whole <= most), whole, request)
        return cls(request, reserved, nodes, insists, fixed, replica, fewest, most)


@lru_cache(maxsize=16)
def sizes_of(offered: Configurations, types: int) -> tuple[IntArray, ...]:
    """GPUs of the configurations of each type, ascending."""
    return tuple(frozen(np.unique(offered.gpus[offered.kind == kind])) for kind in range(types))


def first_sizes(sizes: IntArray, fewest: IntArray, replica: IntArray) -> IntArray:
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


def _have_a_choice(
    jobs: JobTable, sizes: tuple[IntArray, ...], fewest: IntArray, most: IntArray, replica: IntArray
) -> BoolArray:
    """(jobs,) those of whose sizes some is a configuration: exactly three GPUs are none of section 3.3.

    Only whole replicas count: workers of three GPUs can be no size of a power of two. sizes: by type, GPUs.
    fewest, most: (jobs, types) GPUs of a job's range; replica: (jobs, types) GPUs.
    """
    first = [first_sizes(each, fewest[:, kind], replica[:, kind]) for kind, each in enumerate(sizes)]
    least = np.array(first).T
    return np.asarray(((least > 0) & (least <= most) & jobs.allowed_kinds).any(axis=1))


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
