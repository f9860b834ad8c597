"""How long decisions take in a steady state: by step, in processor time beside the clock on the wall."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from stretto.estimate.registry import estimator_for
from stretto.experiments.steady.world import Steady, SteadyWorld
from stretto.model import Plan, Snapshot
from stretto.model.timing import lapping
from stretto.place.registry import load_placer
from stretto.policies.registry import load_policy
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import no_collection, peak_rss_mb

STEPS = ("estimate", "value", "solve", "place", "total")
BEGINS, ENDS = "begins", "ends"  # what is told of a decision
WARM_UP = 5  # decisions until what jobs hold is what the policy wants; chosen


@dataclass
class Measured:
    """What decisions of one policy took, and what came of them. Times are in s, a value for each decision."""

    first_s: float = 0.0  # processor time of the first decision, in which nothing is remembered
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})
    wall_s: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)  # actions
    running: list[int] = field(default_factory=list)  # jobs, after it
    gap: list[float] = field(default_factory=list)  # certified; NaN where the policy says none
    peak_mb: float = 0.0

    def without_first(self, warm_up: int) -> "Measured":
        """All but the first decisions; the last one stays in any case."""
        first = min(warm_up, len(self.wall_s) - 1)
        return replace(
            self,
            cpu_s={step: spent[first:] for step, spent in self.cpu_s.items()},
            wall_s=self.wall_s[first:],
            changes=self.changes[first:],
            running=self.running[first:],
            gap=self.gap[first:],
        )


class _EnoughMeasured(Exception):
    """Decisions have taken as long together as they may."""


def steady_times(
    steady: Steady,
    policy_name: str,
    settings: Mapping[str, str] | None = None,
    warm_up: int = WARM_UP,
    enough_s: float = inf,
    tell: Callable[[str], None] = lambda event: None,
) -> Measured:
    """Decisions about a steady state, but for the first `warm_up`. settings: SPACE.KEY to value, as typed.

    enough_s: processor time of all decisions together, after which no other one is begun. `tell` hears
    `BEGINS` and `ENDS` of each.
    """
    scheduler = _scheduler(steady, policy_name, settings or {})
    policy = scheduler.policy
    measured = Measured()
    world = SteadyWorld(steady, policy.views)

    def timed(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        if sum(measured.cpu_s["total"]) >= enough_s:
            raise _EnoughMeasured
        tell(BEGINS)
        with no_collection(), lapping(time.process_time) as laps:
            wall_s, began_s = time.perf_counter(), time.process_time()
            plan = decide(snapshot, scheduler)
            total_s, wall_s = time.process_time() - began_s, time.perf_counter() - wall_s
        tell(ENDS)
        on_demand_s = laps.get("speeds", 0.0)  # that a policy asked for while it valued
        laps["value"] = laps.get("allocate", 0.0) - laps.get("solve", 0.0) - on_demand_s
        laps["estimate"] = laps.get("estimate", 0.0) + on_demand_s
        for step in STEPS[:-1]:
            measured.cpu_s[step].append(laps.get(step, 0.0))
        measured.cpu_s["total"].append(total_s)
        measured.wall_s.append(wall_s)
        measured.changes.append(len(plan.actions))
        measured.running.append(len(plan.placement))
        measured.gap.append(np.nan if plan.gap is None else plan.gap)
        return plan

    with suppress(_EnoughMeasured):
        run(world, scheduler, lambda snapshot, plan: None, timed)
    measured.first_s = measured.cpu_s["total"][0]
    measured.peak_mb = peak_rss_mb()
    return measured.without_first(warm_up)


def _scheduler(steady: Steady, policy_name: str, settings: Mapping[str, str]) -> Scheduler:
    def of(space: str) -> dict[str, str]:
        start = f"{space}."
        return {key.removeprefix(start): value for key, value in settings.items() if key.startswith(start)}

    policy, place = load_policy(policy_name, **of("policy")), of("place")
    estimator = estimator_for(policy, {"share": steady.share, **of("estimate")})
    return Scheduler(estimator, policy, load_placer(place.pop("rule", policy.placer), **place))


PLAIN = ("decisions", "first_ms", "changes", "running", "worst_gap", "peak_mb")  # figures that are one number


def figures_of(measured: Measured) -> dict[str, object]:
    """Milliseconds by step (p50, p95 and max of processor time; `wall` of the whole), and what came of it."""
    times: dict[str, list[float]] = {**measured.cpu_s, "wall": measured.wall_s}
    return {
        "decisions": len(measured.wall_s),
        "first_ms": measured.first_s * 1e3,
        **{
            step: {
                "p50_ms": float(np.percentile(spent, 50)) * 1e3,
                "p95_ms": float(np.percentile(spent, 95)) * 1e3,
                "max_ms": float(np.max(spent)) * 1e3,
            }
            for step, spent in times.items()
            if spent
        },
        "changes": float(np.median(measured.changes)) if measured.changes else 0.0,
        "running": measured.running[-1] if measured.running else 0,
        "worst_gap": max((gap for gap in measured.gap if not np.isnan(gap)), default=None),
        "peak_mb": measured.peak_mb,
    }
