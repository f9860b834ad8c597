"""One round: observe has happened, act will; here is everything between."""

from dataclasses import replace

from stretto.model import Loans, Plan, Snapshot, Trigger
from stretto.model.laps import span
from stretto.scheduler.components import Estimator, Lending, Placer, Scheduler
from stretto.scheduler.constraints import decide_within

__all__ = ["Estimator", "Lending", "Placer", "Scheduler", "decide"]


def decide(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """One decision within the snapshot's constraints.

    Pure and deterministic: the same snapshot always gives the same plan.
    """
    if scheduler.lending is None or Trigger.LENDERS not in snapshot.due:
        return decide_within(snapshot, scheduler)
    with span("lend"):
        loans = scheduler.lending.settle(snapshot)
    return replace(decide_within(_after(snapshot, loans), scheduler), loans=loans)


def _after(snapshot: Snapshot, loans: Loans) -> Snapshot:
    """The snapshot once everybody has made room: whoever was stopped waits again."""
    if loans.placement is snapshot.placement:
        return replace(snapshot, usable=loans.usable)
    jobs = snapshot.jobs.holding(loans.placement)
    return replace(snapshot, usable=loans.usable, placement=loans.placement, jobs=jobs)
