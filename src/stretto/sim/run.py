"""One simulation from start to end: a workload, a cluster, a policy, and what came of it."""

import gc
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stretto.estimate.beliefs import Fit
from stretto.estimate.estimators import Share, share_of
from stretto.estimate.registry import MODEL, estimator_for
from stretto.estimate.throughput import Choice, Mode
from stretto.model import (
    NO_CONSTRAINTS,
    Cluster,
    Constraints,
    FairShare,
    Job,
    Plan,
    Policy,
    Snapshot,
    UsageLedger,
    View,
)
from stretto.place.registry import load_placer
from stretto.scheduler.loop import run
from stretto.scheduler.round import Estimator, Lending, Scheduler, decide
from stretto.settings import resolved_settings
from stretto.sim.accounting import Charging
from stretto.sim.lenders import SETTLE_S, SimulatedLender
from stretto.sim.result import Result
from stretto.sim.settings import Batches, Fidelity, Learning, Profiling, SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.truth.profiles import ProfileLibrary
from stretto.sim.world import CapacityEvent, SimulatedWorld
from stretto.traces.workload import Outcome, Workload

TELL_EVERY = 64  # decisions between two reports of progress

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
    lending: Lending | None = None  # the rule by which lent nodes come and go; None: they are out of reach
    lenders: Sequence[SimulatedLender] = ()
    shares: FairShare | None = None  # that were set; None: usage orders no job
    constraints: Constraints = NO_CONSTRAINTS  # that every decision keeps to

    def parts(self) -> dict[str, Any]:
        """What has settings, by its space."""
        lend = {} if self.lending is None else {"lend": self.lending}
        return {
            "sim": self.sim_in_use(),
            "policy": self.policy,
            "place": self.make_placer(),
            "estimate": self.make_estimator(),
            **lend,
        }

    def resolved_texts(self) -> dict[str, str]:
        """What makes this setup again, by SPACE.KEY, also when a later version has other defaults."""
        return {"place.rule": self.placer or self.policy.placer, **resolved_settings(self.parts())}

    def resolved(self) -> dict[str, Any]:
        """Every setting by SPACE.KEY, as it was used."""
        settings = {
            f"{space}.{entry.name}": _plain(getattr(component, entry.name))
            for space, component in self.parts().items()
            for entry in fields(component)
            if not entry.name.startswith("_")
        }
        if name := (self.estimate_settings or {}).get(MODEL):
            settings[f"estimate.{MODEL}"] = name
        if self.lending is not None:
            settings["lend.demand"] = ", ".join(dict.fromkeys(lender.source for lender in self.lenders))
        return settings

    def sim_in_use(self) -> SimSettings:
        """The settings of the world, where the policy and the estimator have a say in them.

        Under a policy that does not look at goodput no batches are chosen. An estimator in the oracle's mode
        needs a world that shows it the truth.
        """
        sim = self.sim
        if (self.estimate_settings or {}).get("mode") == Mode.ORACLE:
            sim = replace(sim, profiling=Profiling.ORACLE)
        if self._share is Share.MODEL:
            sim = replace(sim, learning=Learning.MODEL)
        if View.GOODPUT_MODEL not in self.policy.views:
            sim = replace(sim, batches=Batches.TUNED)
        return sim

    def make_estimator(self) -> Estimator:
        """The estimator that serves the policy's views.

        In the world of Sia's published simulator it fits as that did. It lets the first type that a job ran
        on stand in for others, unless told otherwise.
        """
        published = {"fit": Fit.PUBLISHED, "reference": Choice.FIRST_MODEL}
        settings = self.estimate_settings or {}
        if settings.get(MODEL):
            return estimator_for(self.policy, settings)
        usual = published if self.sim.fidelity is Fidelity.ARTIFACT else {}
        return estimator_for(self.policy, {**usual, "share": self._share, **settings})

    @property
    def _share(self) -> Share:
        """Whose evidence counts for a job, where the settings leave it to the policy."""
        return share_of(self.policy, self.estimate_settings or {})

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
    decision_ms: list[float] = []
    jobs = len(workload.jobs)

    def timed(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        with no_collection():
            start = time.perf_counter()
            plan = decide(snapshot, scheduler)
            decision_ms.append((time.perf_counter() - start) * 1e3)
        if progress is not None and len(decision_ms) % TELL_EVERY == 0:
            progress(int(np.isfinite(world.accounting.completed_s).sum()), jobs)
        return plan

    world = world_of(workload, setup)
    run(world, scheduler_of(setup), record or _ignore, timed)
    return Result(
        policy=setup.policy.name,
        trace=workload.name,
        cluster=setup.cluster,
        seed=setup.seed,
        synthetic=workload.synthetic,
        settings=setup.resolved(),
        requests=world.requests,
        completed_s=world.accounting.completed_s,
        first_start_s=world.accounting.first_start_s,
        executed_s=world.accounting.executed_s,
        attained_gpu_s=world.accounting.attained_gpu_s,
        profiled_gpu_s=world.accounting.profiled_gpu_s,
        restarts=np.maximum(world.accounting.starts - 1, 0),
        history=world.history,
        decision_ms=np.array(decision_ms),
        wall_s=time.perf_counter() - began,
        peak_rss_mb=peak_rss_mb(),
        skipped=workload.skipped,
        recorded_s=world.physics.recorded.work_s,
        lenders=world.lenders,
        kept_s=world.physics.kept_s(),
    )


def world_of(workload: Workload, setup: Setup) -> SimulatedWorld:
    """The workload on its cluster at time 0, ready to be asked about by the setup's policy."""
    policy = setup.policy
    physics = physics_of(workload, setup.cluster, setup.sim_in_use(), setup.profiles, setup.seed)
    return SimulatedWorld(
        setup.cluster,
        physics,
        policy.triggers,
        policy.views,
        setup.sim_in_use(),
        setup.seed,
        setup.capacity_events,
        setup.lenders if setup.lending is not None else (),
        setup.lending is not None and setup.lending.foresight,
        setup.lending.period_s if setup.lending is not None else SETTLE_S,
        _charging(physics.requests.jobs, setup),
        setup.constraints,
        fails=np.array([truth.outcome is Outcome.FAILED for truth in workload.truths], dtype=np.bool_),
    )


def _charging(jobs: Sequence[Job], setup: Setup) -> Charging | None:
    shares = setup.shares or setup.constraints.fair_share
    return None if shares is None else Charging(jobs, setup.cluster, shares, UsageLedger(shares.half_life_s))


def scheduler_of(setup: Setup) -> Scheduler:
    """The policy with the estimator that serves its views, and its placement rule."""
    return Scheduler(setup.make_estimator(), setup.policy, setup.make_placer(), setup.lending)


class no_collection:  # noqa: N801  (reads like a function, and is entered at each decision)
    """Put off the collection of garbage cycles until the `with` block is left.

    A full collection takes a fifth of a second once a long run has made a million objects. It belongs between
    two decisions and not into the middle of one.
    """

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        """Note whether it was on, and stop it."""
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *raised: object) -> None:
        """Let it go on as before."""
        if self._was_on:
            gc.enable()


def peak_rss_mb() -> float:
    """The most memory that this process has held, in megabytes."""
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _ignore(snapshot: Snapshot, plan: Plan) -> None:
    """No log is kept."""


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None.__class__) else str(value)
