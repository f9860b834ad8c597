"""Random situations in which any policy may be asked, as hypothesis strategies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    Durations,
    EndedJobs,
    Evidence,
    FloatArray,
    GpuType,
    Job,
    JobId,
    Learning,
    MeasuredSpeeds,
    Observations,
    Point,
    Policy,
    Reward,
    Snapshot,
    Speeds,
    TrainingLimits,
    Trigger,
    View,
    cluster_of,
    ints,
    lowest_gpus,
)
from stretto.testing.builders import a_snapshot, some_progress, speeds_of

TYPE_NAMES = ("red", "green", "blue")
MOST_MEASURED_GPUS = 16


@dataclass(frozen=True, eq=False)
class Situation:
    """A snapshot in which every view is filled, and what speeds jobs have there."""

    snapshot: Snapshot
    jobs: tuple[Job, ...] = field(repr=False)  # as drawn, in no order
    held: Mapping[str, Allocation]
    rate_per_s: FloatArray  # (rows, types) steps per second on one GPU; NaN: cannot run
    exponent: FloatArray  # (rows,) speed-up on g GPUs is g ** exponent

    def speeds_for(self, policy: Policy) -> Speeds:
        """What an estimator might say about the configurations that the policy asks for."""
        cluster, jobs = self.snapshot.cluster, self.snapshot.jobs
        columns = policy.configurations(cluster)
        spread = np.where(columns.nodes > 1, 0.9, 1.0)
        per_s = self.rate_per_s[:, columns.kind] * columns.gpus ** self.exponent[:, None] * spread
        requested_per_s = self.rate_per_s * (jobs.gpus**self.exponent)[:, None]
        room = jobs.gpus[:, None] <= cluster.capacity
        return speeds_of(
            columns,
            per_s,
            types=len(cluster.types),
            requested_per_s=np.where(room, requested_per_s, np.nan),
        )

    def in_another_order(self) -> "Situation":
        """The same, its jobs and allocations handed in the other way round."""
        views = {name: getattr(self.snapshot.jobs, name) for name in KNOWN.values()}
        snapshot = a_snapshot(
            *reversed(self.jobs),
            cluster=self.snapshot.cluster,
            allocations=dict(reversed(list(self.held.items()))),
            now_s=self.snapshot.now_s,
            due=self.snapshot.due,
            **views,
        )
        return replace(self, snapshot=replace(snapshot, usable=self.snapshot.usable, seed=self.snapshot.seed))

    def with_others_scrambled(self, views: frozenset[View]) -> "Situation":
        """The same to a policy with these views; all other columns hold something else."""
        jobs = self.snapshot.jobs
        other = known_columns(
            len(jobs), len(self.snapshot.cluster.types), np.random.default_rng(len(jobs) + 99)
        )
        hidden = {name: other[name] for view, name in KNOWN.items() if view not in views}
        if View.GOODPUT_MODEL in views:  # which may fall back on tables
            hidden.pop("known_tables", None)
        scrambled = replace(self.snapshot, jobs=replace(jobs, **hidden))
        if views & {View.GOODPUT_MODEL, View.THROUGHPUT_TABLE}:
            return replace(self, snapshot=scrambled)
        return replace(self, snapshot=scrambled, rate_per_s=self.rate_per_s[::-1] * 3.0)

    def later(self, seconds: float, memory: Any) -> "Situation":
        """The same when time has passed and the policy is handed what it remembers."""
        return replace(
            self, snapshot=replace(self.snapshot, now_s=self.snapshot.now_s + seconds, memory=memory)
        )


KNOWN = {
    View.PROGRESS: "known_progress",
    View.ORACLE_DURATION: "known_durations",
    View.ESTIMATED_DURATION: "known_estimates",
    View.REMAINING_WORK: "known_work",
    View.THROUGHPUT_TABLE: "known_tables",
    View.GOODPUT_MODEL: "known_evidence",
    View.LEARNING: "known_learning",
    View.CPU_DEMAND: "known_cpu_demand",
    View.ENDED_JOBS: "known_ended",
}


# Fields of a job that no promise to every policy depends on; all others are drawn.
LEFT_AT_DEFAULT = frozenset(
    {
        *("model", "kind", "purpose", "gpus_per_worker", "heterogeneous", "checkpoints", "goal", "reserved"),
        *("priority", "priority_class", "preempts", "user", "queue", "labels"),
        *("latency_s", "requests_per_s", "within"),
    }
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three GPU types of one to three equal nodes each."""
    groups = draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=3)
    )
    limits = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=len(groups), max_size=len(groups)))
    types = [GpuType(name, max_nodes_per_job=limit) for name, limit in zip(TYPE_NAMES, limits, strict=False)]
    return cluster_of("drawn", *((kind, *group) for kind, group in zip(types, groups, strict=True)))


@st.composite
def jobs_for(draw: st.DrawFn, cluster: Cluster, name: str) -> Job:
    """A job that may be rigid or elastic, picky, unstoppable, urgent, or larger than the cluster."""
    gpus = draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16, 64]))
    adaptivity = draw(st.sampled_from(Adaptivity))
    at_s = float(draw(st.integers(0, 3)))
    picky = draw(st.sampled_from([False, False, True]))
    types = draw(st.sets(st.sampled_from(cluster.type_names), min_size=1)) if picky else set()
    return Job(
        id=JobId(name),
        submitted_s=at_s,
        gpus=gpus,
        batch_size=64,
        min_gpus=draw(st.integers(1, gpus)),
        max_gpus=draw(st.integers(gpus, 2 * gpus)),
        adaptivity=adaptivity,
        preemptible=draw(st.sampled_from([True, True, False])),
        gpu_types=tuple(sorted(types)),
        rewards=(Reward(at_s + draw(st.integers(1, 500)), 100.0),) if draw(st.booleans()) else (),
        weight=draw(st.sampled_from([1.0, 1.0, 2.0])),
        **{
            entry.name: draw(st.sampled_from(entry.metadata["examples"]))
            for entry in fields(Job)
            if entry.metadata.get("examples")
        },
    )


@st.composite
def situations(draw: st.DrawFn, most_jobs: int = 8) -> Situation:
    """Some jobs wait and some run; some nodes are not usable, and no job is on those."""
    cluster = draw(clusters())
    usable = np.array(draw(st.lists(st.booleans(), min_size=len(cluster.nodes), max_size=len(cluster.nodes))))
    usable = usable | (not usable.any())
    names = draw(st.permutations([f"j{index}" for index in range(draw(st.integers(1, most_jobs)))]))
    jobs = tuple(draw(jobs_for(cluster, name)) for name in names)
    allocations = _run_some(draw, jobs, cluster, usable)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=allocations,
        now_s=float(draw(st.integers(10, 1_000))),
        due=frozenset({Trigger.ARRIVAL}),
        **known_columns(len(jobs), len(cluster.types), rng),
    )
    rate_per_s = rng.uniform(0.1, 10.0, (len(jobs), len(cluster.types)))
    rate_per_s[~snapshot.jobs.allowed_kinds | (rng.random(rate_per_s.shape) < 0.1)] = np.nan
    return Situation(
        snapshot=replace(snapshot, usable=usable, seed=draw(st.integers(0, 99))),
        jobs=jobs,
        held=allocations,
        rate_per_s=rate_per_s,
        exponent=rng.uniform(0.5, 1.0, len(jobs)),
    )


def _run_some(
    draw: st.DrawFn, jobs: Sequence[Job], cluster: Cluster, usable: np.ndarray[Any, np.dtype[np.bool_]]
) -> dict[str, Allocation]:
    """GPUs for some of the jobs, on the first nodes of a type that have any."""
    free = [(1 << gpus) - 1 if ok else 0 for gpus, ok in zip(cluster.node_gpus.tolist(), usable, strict=True)]
    allocations = {}
    for job in jobs:
        kind = draw(st.integers(-1, len(cluster.types) - 1))
        if kind < 0 or (job.gpu_types and cluster.type_names[kind] not in job.gpu_types):
            continue
        wanted = draw(st.integers(job.min_gpus, job.max_gpus))
        allocation = take_first_free(cluster, free, kind, wanted)
        if allocation is not None:
            allocations[str(job.id)] = allocation
    return allocations


def take_first_free(cluster: Cluster, free: list[int], kind: int, wanted: int) -> Allocation | None:
    """GPUs on the first nodes of a type that have any, which are no longer free; None where they are too few.

    free: by node, mask of the GPUs that no job has.
    """
    nodes, masks = [], []
    for node in np.flatnonzero(cluster.kind == kind).tolist():
        mask = lowest_gpus(free[node], min(wanted, free[node].bit_count()))
        if mask:
            nodes.append(node)
            masks.append(mask)
            wanted -= mask.bit_count()
    limit = cluster.types[kind].max_nodes_per_job or len(nodes)
    if wanted or len(nodes) > limit:
        return None
    for node, mask in zip(nodes, masks, strict=True):
        free[node] &= ~mask
    return Allocation(kind, tuple(nodes), tuple(masks))


def known_columns(jobs: int, types: int, rng: np.random.Generator) -> dict[str, Any]:
    """Columns for every view, plausible and random."""
    duration_s, estimate_s = rng.exponential(500.0, jobs), rng.exponential(500.0, jobs)
    never = rng.random(jobs) < 0.3
    progress = some_progress(
        jobs,
        executed_s=rng.exponential(100.0, jobs),
        attained_gpu_s=rng.exponential(20_000.0, jobs),
        first_start_s=np.where(never, np.nan, rng.uniform(3.0, 10.0, jobs)),
        last_stop_s=np.where(never, np.nan, rng.uniform(3.0, 10.0, jobs)),
        restarts=rng.integers(0, 4, jobs),
        largest_held_gpus=rng.integers(0, 9, jobs),
        epochs=rng.integers(0, 9, jobs),
        recovering=np.zeros(jobs, dtype=np.bool_),
        profiled_s=np.where(rng.random(jobs) < 0.5, 0.0, 300.0),
    )
    return {
        "known_progress": progress,
        "known_durations": Durations(duration_s, duration_s * rng.random(jobs)),
        "known_estimates": Durations(estimate_s, estimate_s * rng.random(jobs)),
        "known_work": rng.exponential(1_000.0, jobs),
        "known_tables": [_table(types, rng) for _ in range(jobs)],
        "known_evidence": [_evidence(types, rng) for _ in range(jobs)],
        "known_learning": _learning(jobs, rng),
        "known_cpu_demand": np.where(rng.random(jobs) < 0.3, np.nan, rng.uniform(1.0, 8.0, jobs)),
        # Drawn from what is drawn above: another draw would change all that follow.
        "known_ended": EndedJobs(
            interactive=20 * jobs,
            interactive_s=20.0 * float(duration_s.sum()),
            batch=30 * jobs,
            batch_s=30.0 * float(estimate_s.sum()),
            failed=10,
            failed_s=5.0 * float(duration_s.sum()),
        ),
    }


def _learning(jobs: int, rng: np.random.Generator) -> Learning:
    """Some have reported nothing yet, the others a metric that rises with every epoch."""
    epochs = rng.integers(0, 12, jobs)
    history = [0.9 - 0.8 / np.arange(1, count + 1) ** rng.uniform(0.3, 1.0) for count in epochs.tolist()]
    dataset_samples = rng.integers(1_000, 50_000, jobs).astype(np.float64)
    metric = np.array([float(curve[-1]) if len(curve) else np.nan for curve in history])
    return Learning(
        samples=dataset_samples * (epochs + rng.random(jobs)),
        dataset_samples=dataset_samples,
        initial_loss=np.where(epochs > 0, 2.3, np.nan),
        loss=2.3 * (1.0 - metric),
        metric=metric,
        history=history,
    )


def _table(types: int, rng: np.random.Generator) -> MeasuredSpeeds:
    gpus = np.arange(MOST_MEASURED_GPUS + 1)
    per_s = rng.uniform(0.1, 10.0, (types, 1)) * gpus**0.8
    per_s[:, 0] = np.nan
    return MeasuredSpeeds(per_s, per_s * 0.9)


def _evidence(types: int, rng: np.random.Generator) -> Evidence:
    limits = TrainingLimits(
        init_batch=64,
        max_batch=2_048,
        min_local=ints([8] * types),
        max_local=ints([128] * types),
        single_per_s=rng.uniform(10.0, 1_000.0, types),
        replica_gpus=ints([1] * types),
        restart_s=30.0,
        reach_gpus=256,
    )
    grad_s = float(rng.uniform(0.05, 0.5))
    points = (Point(1, 1, 64, grad_s, grad_s), Point(1, 2, 32, 0.6 * grad_s, 0.7 * grad_s))
    observed = tuple(Observations(points if rng.random() < 0.7 else ()) for _ in range(types))
    return Evidence(limits, observed, grad_sqr=1e-3, grad_var=float(rng.uniform(1e-3, 1e-1)))
