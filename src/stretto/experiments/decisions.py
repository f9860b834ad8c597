"""Where the time of a decision goes."""

import time
from contextlib import suppress

import numpy as np

from stretto.experiments.spec import RunSpec, set_up
from stretto.model import Plan, Snapshot
from stretto.model.timing import lapping
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import no_collection, scheduler_of, world_of

STEPS = ("estimate", "value", "solve", "place", "total")


class _EnoughMeasured(Exception):
    """So many decisions were asked for, no more."""


def decision_times(spec: RunSpec, most: int) -> tuple[dict[str, dict[str, float]], int]:
    """(milliseconds by step: p50, p95 and max; decisions measured), of the first decisions of a run.

    `value` is what the policy does around the solver, `place` includes the list of actions.
    """
    spent: dict[str, list[float]] = {step: [] for step in STEPS}

    def measured(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
        if len(spent["total"]) >= most:
            raise _EnoughMeasured
        with no_collection(), lapping(time.perf_counter) as laps:
            began = time.perf_counter()
            plan = decide(snapshot, scheduler)
            total = time.perf_counter() - began
        for step in ("estimate", "solve", "place"):
            spent[step].append(laps.get(step, 0.0) * 1e3)
        spent["value"].append((laps.get("allocate", 0.0) - laps.get("solve", 0.0)) * 1e3)
        spent["total"].append(total * 1e3)
        return plan

    workload, setup = set_up(spec)
    with suppress(_EnoughMeasured):
        run(world_of(workload, setup), scheduler_of(setup), lambda snapshot, plan: None, measured)
    steps = {
        step: {
            "p50_ms": float(np.percentile(times, 50)),
            "p95_ms": float(np.percentile(times, 95)),
            "max_ms": float(np.max(times)),
        }
        for step, times in spent.items()
    }
    return steps, len(spent["total"])
