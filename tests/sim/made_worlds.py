"""Small workloads, policies that do as they are told, and what came of them, for tests of the world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, ClassVar

import numpy as np

from stretto.estimate.registry import estimator_for
from stretto.estimate.throughput import ThroughputModel
from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    Job,
    Pinned,
    Plan,
    Policy,
    Reasons,
    Requests,
    Shares,
    Snapshot,
    Speeds,
    TrainingLimits,
    Triggers,
    View,
    Why,
    configurations_from,
)
from stretto.place.as_pinned import AsPinned
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler
from stretto.sim.physics import Physics
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import SimSettings
from stretto.sim.truth.parametric import ParametricTruth
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.truth.training import TrainingRun
from stretto.sim.world import CapacityEvent, SimulatedWorld
from stretto.traces.workload import Truth, Workload

Line = Mapping[str, Mapping[int, int]]  # job -> node -> GPUs
NO_RESTARTS = SimSettings(restart_s=0.0)


@dataclass(frozen=True)
class Told:
    """Gives out what a script says for the time; asks to be woken for each of its lines."""

    script: Mapping[float, Line] = field(default_factory=dict)
    triggers: Triggers = ON_CHANGE
    views: frozenset[View] = frozenset()
    memory: Any = None

    name: ClassVar[str] = "told"
    placer: ClassVar[str] = "pinned"

    def configurations(self, cluster: Cluster) -> Configurations:
        """None."""
        return configurations_from([])

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """The script's line for now."""
        jobs, kinds = snapshot.jobs, snapshot.cluster.kind
        begun = [at_s for at_s in self.script if at_s <= snapshot.now_s]
        line = self.script[max(begun)] if begun else {}
        to_come = [at_s for at_s in self.script if at_s > snapshot.now_s]
        gpus, kind = np.zeros(len(jobs), dtype=np.int64), np.full(len(jobs), -1)
        pinned = {}
        for row, job in enumerate(jobs.ids):
            given = {node: count for node, count in line.get(job, {}).items() if snapshot.usable[node]}
            if given:
                gpus[row], kind[row] = sum(given.values()), kinds[min(given)]
                pinned[row] = Pinned(tuple(given), tuple(given.values()))
        code = np.where(gpus > 0, Why.RUNS, Why.NO_FREE_GPUS).astype(np.int64)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros_like(gpus),
            why=Reasons(code),
            pinned=pinned,
            memory=self.memory,
            wake_s=min(to_come, default=None),
        )


@dataclass(frozen=True)
class Seen:
    """One run: the world as it ended, and every decision."""

    world: SimulatedWorld
    snapshots: Sequence[Snapshot]
    plans: Sequence[Plan]

    @property
    def decided_s(self) -> list[float]:
        """When somebody was asked."""
        return [snapshot.now_s for snapshot in self.snapshots]

    def row(self, job: str) -> int:
        """The job's place in the columns of the world."""
        return [one.id for one in self.world.requests.jobs].index(job)  # type: ignore[arg-type]

    def completed_s(self, job: str) -> float:
        """When it ended."""
        return float(self.world.accounting.completed_s[self.row(job)])

    def at(self, now_s: float) -> Snapshot:
        """What was shown first at this time."""
        return next(snapshot for snapshot in self.snapshots if snapshot.now_s == now_s)


def a_workload(*timed: tuple[Job, float], **truth: Any) -> Workload:
    """Jobs with their durations."""
    ordered = sorted(timed, key=lambda pair: (pair[0].submitted_s, pair[0].id))
    truths = [Truth(duration_s=duration_s, **truth) for _, duration_s in ordered]
    return Workload("made", [job for job, _ in ordered], truths)


def seen(
    policy: Policy,
    workload: Workload,
    cluster: Cluster,
    sim: SimSettings = NO_RESTARTS,
    capacity_events: Sequence[CapacityEvent] = (),
    **setup: Any,
) -> Seen:
    """A workload of recorded jobs, run to its end."""
    given = Setup(cluster=cluster, policy=policy, sim=sim, capacity_events=capacity_events, **setup)
    return _watched(world_of(workload, given), scheduler_of(given))


def _watched(world: SimulatedWorld, scheduler: Scheduler) -> Seen:
    snapshots: list[Snapshot] = []
    plans: list[Plan] = []

    def record(snapshot: Snapshot, plan: Plan) -> None:
        snapshots.append(snapshot)
        plans.append(plan)

    run(world, scheduler, record)
    return Seen(world, snapshots, plans)


def a_truth(
    epoch_s: float = 100.0,
    epochs: int = 3,
    types: int = 1,
    restart_s: float = 10.0,
    params: ThroughputModel | None = None,
    noise: float = 1e9,
    **limits: Any,
) -> ParametricTruth:
    """A training that takes `epoch_s` for each epoch on one GPU, and half as long on two.

    A step costs 0.1 s for each sample on a GPU and nothing else; ten samples are the initial batch, so that
    it takes a second. Larger batches are worth their samples: the noise is huge.
    """
    model = params or ThroughputModel(1e-8, 0.1, 1e-8, 0.0, 1e-8, 0.0, 1.0)
    known: dict[str, Any] = {
        "init_batch": 10,
        "max_batch": 10,
        "min_local": np.ones(types, dtype=np.int64),
        "max_local": np.full(types, 10),
        "single_per_s": np.full(types, 10.0),
        "replica_gpus": np.ones(types, dtype=np.int64),
        "restart_s": restart_s,
        "reach_gpus": 10,
    }
    return ParametricTruth(
        models=(model,) * types,
        per_node=(8,) * types,
        noise=(noise,) * epochs,
        limits=TrainingLimits(**(known | limits)),
        epoch_ends=tuple(epoch_s * (epoch + 1) for epoch in range(epochs)),
        restart_s=restart_s,
    )


def seen_training(
    policy: Policy,
    jobs: Sequence[Job],
    cluster: Cluster,
    truth: ParametricTruth,
    sim: SimSettings = NO_RESTARTS,
    fixed_batch: int = 10,
    capacity_events: Sequence[CapacityEvent] = (),
) -> Seen:
    """Jobs that all train the same, run to their ends."""
    requests = Requests(sorted(jobs, key=lambda job: (job.submitted_s, job.id)), cluster)
    training = {row: TrainingRun(truth, truth.limits, fixed_batch, sim) for row in range(len(jobs))}
    tables = [truth.table(10, cluster.total_gpus)] * len(jobs)
    recorded = RecordedRuns(np.full(len(jobs), nan), cluster, tables)
    physics = Physics(requests, training, recorded, tables, sim)
    world = SimulatedWorld(cluster, physics, policy.triggers, policy.views, sim, 0, capacity_events)
    return _watched(world, Scheduler(estimator_for(policy, {}), policy, AsPinned()))


def on(triggers: Triggers, **script: Line) -> Told:
    """The script's lines named `at_0`, `at_100`, …"""
    return Told({float(name[3:]): line for name, line in script.items()}, triggers)


def with_views(policy: Told, *views: View) -> Told:
    """The same, shown these views."""
    return replace(policy, views=frozenset(views))
