"""One simulation from start to end: a workload, a cluster, a policy, and what came of it."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stretto.estimate.estimators import estimator_for
from stretto.model import Cluster, Plan, Policy, Snapshot, View
from stretto.place.registry import load_placer
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.profiles import ProfileLibrary
from stretto.sim.result import Result
from stretto.sim.settings import Batches, SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.world import CapacityEvent, SimulatedWorld
from stretto.traces.workload import Workload

Record = Callable[[Snapshot, Plan], None]


@dataclass(frozen=True)
class Setup:
    """Everything that a simulation needs besides its workload."""

    cluster: Cluster
    policy: Policy
    sim: SimSettings
    profiles: ProfileLibrary | None = None
    placer: str = ""  # "" = the one that the policy names
    placer_settings: Mapping[str, Any] | None = None
    estimate_settings: Mapping[str, Any] | None = None
    seed: int = 0
    capacity_events: Sequence[CapacityEvent] = ()

    def resolved(self) -> dict[str, Any]:
        """Every setting by SPACE.KEY, as it was used."""
        spaces = {"sim": self.sim, "policy": self.policy, "place": self.make_placer()}
        return {
            f"{space}.{entry.name}": _plain(getattr(component, entry.name))
            for space, component in spaces.items()
            for entry in fields(component)  # type: ignore[arg-type]
        } | {f"estimate.{key}": value for key, value in (self.estimate_settings or {}).items()}

    def make_placer(self) -> Any:
        """The placement rule."""
        return load_placer(self.placer or self.policy.placer, **(self.placer_settings or {}))


def simulate(
    workload: Workload,
    setup: Setup,
    progress: Callable[[int, int], None] | None = None,
    record: Record | None = None,
) -> Result:
    """Run a workload to its end. `progress` is told (jobs done, jobs) now and then."""
    began = time.perf_counter()
    policy = setup.policy
    sim = setup.sim
    if View.GOODPUT_MODEL not in policy.views and sim.batches is Batches.ADAPTIVE:
        sim = replace(sim, batches=Batches.TUNED)  # nobody chooses batch sizes: jobs keep what they came with
    physics = physics_of(workload, setup.cluster, sim, setup.profiles)
    world = SimulatedWorld(
        setup.cluster, physics, policy.triggers, policy.views, sim, setup.seed, setup.capacity_events
    )
    scheduler = Scheduler(estimator_for(policy, setup.estimate_settings or {}), policy, setup.make_placer())
    decision_ms: list[float] = []
    jobs = len(workload.jobs)

    def timed(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        start = time.perf_counter()
        plan = decide(snapshot, scheduler)
        decision_ms.append((time.perf_counter() - start) * 1e3)
        if progress is not None and len(decision_ms) % 64 == 0:
            progress(jobs - world.unfinished, jobs)
        return plan

    run(world, scheduler, record or _ignore, timed)
    return Result(
        policy=policy.name,
        trace=workload.name,
        cluster=setup.cluster,
        seed=setup.seed,
        synthetic=workload.synthetic,
        settings=replace(setup, sim=sim).resolved(),
        requests=physics.requests,
        completed_s=world.completed_s,
        first_start_s=world.first_start_s,
        executed_s=world.executed_s,
        attained_gpu_s=world.attained_gpu_s,
        restarts=np.maximum(world.starts - 1, 0),
        history=world.history,
        decision_ms=np.array(decision_ms),
        wall_s=time.perf_counter() - began,
        peak_rss_mb=peak_rss_mb(),
        skipped=workload.skipped,
    )


def peak_rss_mb() -> float:
    """The most memory that this process has held, in megabytes."""
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _ignore(snapshot: Snapshot, plan: Plan) -> None:
    """Nobody keeps a log."""


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None.__class__) else str(value)
