"""Tiny clusters, jobs, snapshots and shares for tests of policies and placers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.model import (
    NOTHING_OBSERVED,
    Allocation,
    Cluster,
    Configurations,
    Evidence,
    GpuType,
    IntArray,
    Job,
    JobId,
    JobTable,
    Node,
    NodeId,
    Pinned,
    Placement,
    Progress,
    Requests,
    Shares,
    Snapshot,
    Speeds,
    TrainingLimits,
    Trigger,
    Why,
    ints,
    no_placement,
)
from stretto.model.plan import waiting_for


def a_cluster(*nodes: int) -> Cluster:
    """A cluster of one GPU type, one node for each number of GPUs given."""
    named = tuple(Node(NodeId(f"gpu-{index}"), "gpu", gpus) for index, gpus in enumerate(nodes))
    return Cluster("tiny", (GpuType("gpu"),), named)


def a_job(name: str, gpus: int = 1, at_s: float = 0.0, **rest: Any) -> Job:
    """A job with a request and nothing else said."""
    return Job(id=JobId(name), submitted_s=at_s, gpus=gpus, **rest)


def a_snapshot(
    *jobs: Job,
    cluster: Cluster,
    allocations: Mapping[str, Allocation] | None = None,
    now_s: float = 0.0,
    due: frozenset[Trigger] = frozenset(),
    memory: Any = None,
    **views: Any,
) -> Snapshot:
    """A snapshot of these jobs; `views` fills the tables of views (`known_progress`, …)."""
    ordered = sorted(jobs, key=lambda job: (job.submitted_s, job.id))
    placement = no_placement(cluster).changed(
        {JobId(name): grant for name, grant in (allocations or {}).items()}
    )
    grants = [placement.get(job.id) for job in ordered]
    table = JobTable(
        requests=Requests(ordered, cluster),
        rows=np.arange(len(ordered)),
        held_gpus=np.array([grant.gpus if grant else 0 for grant in grants], dtype=np.int64),
        held_nodes=np.array([len(grant.nodes) if grant else 0 for grant in grants], dtype=np.int64),
        held_kind=np.array([grant.kind if grant else -1 for grant in grants], dtype=np.int64),
        **views,
    )
    usable = np.ones(len(cluster.nodes), dtype=np.bool_)
    return Snapshot(1, now_s, cluster, usable, table, placement, due=due, memory=memory)


def some_limits(types: int) -> TrainingLimits:
    """Batches of a training that may grow far, alike on so many GPU types, with replicas of one GPU."""
    return TrainingLimits(
        init_batch=32,
        max_batch=4096,
        min_local=np.full(types, 8),
        max_local=np.full(types, 256),
        single_per_s=np.full(types, 100.0),
        replica_gpus=np.ones(types, dtype=np.int64),
        restart_s=30.0,
        reach_gpus=512,
    )


def nothing_shown(jobs: int, types: int) -> list[Evidence]:
    """Evidence of trainings that have shown nothing so far."""
    return [Evidence(some_limits(types), (NOTHING_OBSERVED,) * types, np.nan, np.nan) for _ in range(jobs)]


def some_progress(jobs: int, **columns: Any) -> Progress:
    """Progress columns of zeros, with some of them given."""
    blank: dict[str, Any] = {
        "executed_s": np.zeros(jobs),
        "attained_gpu_s": np.zeros(jobs),
        "first_start_s": np.full(jobs, np.nan),
        "last_stop_s": np.full(jobs, np.nan),
        "restarts": np.zeros(jobs, dtype=np.int64),
        "largest_held_gpus": np.zeros(jobs, dtype=np.int64),
        "epochs": np.zeros(jobs, dtype=np.int64),
        "recovering": np.zeros(jobs, dtype=np.bool_),
        "profiled_s": np.zeros(jobs),
        "suspension_s": np.full(jobs, np.nan),
        "resize_s": np.full(jobs, np.nan),
    }
    return Progress(**(blank | {name: np.asarray(column) for name, column in columns.items()}))


def speeds_of(configurations: Configurations, per_s: Any, types: int = 1, **rest: Any) -> Speeds:
    """Speeds with a given matrix; everything is modelled and nothing limits the reach."""
    matrix = np.asarray(per_s, dtype=np.float64)
    jobs = len(matrix)
    blank: dict[str, Any] = {
        "requested_per_s": np.full((jobs, types), np.nan),
        "modelled": np.ones(jobs, dtype=np.bool_),
        "observed_gpus": np.full((jobs, types), 2**20, dtype=np.int64),
        "reach_gpus": np.full(jobs, 2**20, dtype=np.int64),
    }
    return Speeds(configurations=configurations, per_s=matrix, **(blank | rest))


def grant(kind: int, **nodes: int) -> Allocation:
    """An allocation of the first GPUs of nodes: `grant(0, n0=4, n2=2)`."""
    where = sorted((int(name[1:]), gpus) for name, gpus in nodes.items())
    return Allocation(kind, tuple(node for node, _ in where), tuple((1 << gpus) - 1 for _, gpus in where))


def shares_held(placement: Placement) -> dict[str, int]:
    """GPUs by job."""
    return {str(job): allocation.gpus for job, allocation in placement.items()}


# ── shares by name ────────────────────────────────────────────────────────────────────────────────


def shares_of(
    snapshot: Snapshot,
    gpus: Mapping[str, int],
    kind: Mapping[str, int] | None = None,
    nodes: Mapping[str, int] | None = None,
    pinned: Mapping[str, Pinned] | None = None,
    order: Sequence[str] | None = None,
    in_order: bool = False,
) -> Shares:
    """Shares of the jobs named; a job that is not named waits."""
    ids: list[str] = [str(job) for job in snapshot.jobs.ids]

    def column(values: Mapping[str, int] | None, absent: int) -> IntArray:
        return ints([(values or {}).get(job, absent) for job in ids])

    return Shares(
        gpus=column(gpus, 0),
        kind=column(kind, -1),
        nodes=column(nodes, 0),
        why=waiting_for(Why.NO_FREE_GPUS, len(ids)),
        pinned={ids.index(job): pin for job, pin in (pinned or {}).items()},
        order=None if order is None else np.array([ids.index(job) for job in order], dtype=np.int64),
        in_order=in_order,
    )
