"""One round: observe has happened, act will; here is everything between."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from stretto.model import (
    Configurations,
    Loans,
    Placement,
    Plan,
    Policy,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    Why,
    actions_between,
)
from stretto.model.laps import span
from stretto.scheduler.check import check_shares


class Estimator(Protocol):
    """How fast would each job run on each configuration?"""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """One row for each job of the snapshot, one column for each configuration."""


class Placer(Protocol):
    """Which GPUs, exactly?"""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """A placement of every share that can be placed; a job left out waits."""


class Lending(Protocol):
    """Which nodes of others may be used, and who makes room where they want them back?"""

    @property
    def period_s(self) -> float:
        """How often it wants to be asked, in s."""

    def settle(self, snapshot: Snapshot) -> Loans:
        """What is on loan from now on; asked every `period_s`, and when nodes of lenders fail or return."""


@dataclass(frozen=True)
class Scheduler:
    """The choices that make up a scheduler; the last only where there are lenders."""

    estimator: Estimator
    policy: Policy
    placer: Placer
    lending: Lending | None = None


def decide(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """One decision. Pure and deterministic: the same snapshot always gives the same plan."""
    policy = scheduler.policy
    loans = None
    if scheduler.lending is not None and Trigger.LENDERS in snapshot.due:
        with span("lend"):
            loans = scheduler.lending.settle(snapshot)
        snapshot = _after(snapshot, loans)
    seen = snapshot.limited_to(policy.views)
    with span("estimate"):
        speeds = scheduler.estimator.estimate(seen, policy.configurations(snapshot.cluster))
    with span("allocate"):
        shares = policy.allocate(seen, speeds)
        check_shares(snapshot, shares)
    with span("place"):
        placement = scheduler.placer.place(snapshot, shares)
        actions = actions_between(snapshot.placement, placement)
    return Plan(
        based_on=snapshot.version,
        actions=actions,
        placement=placement,
        why=_with_fragmented(snapshot, shares, placement),
        jobs=snapshot.jobs,
        memory=shares.memory,
        wake_s=shares.wake_s,
        prices=shares.prices,
        gap=shares.gap,
        loans=loans,
    )


def _after(snapshot: Snapshot, loans: Loans) -> Snapshot:
    """The snapshot once everybody has made room: whoever was stopped waits again."""
    if loans.placement is snapshot.placement:
        return replace(snapshot, usable=loans.usable)
    jobs = snapshot.jobs.holding(loans.placement)
    return replace(snapshot, usable=loans.usable, placement=loans.placement, jobs=jobs)


def _with_fragmented(snapshot: Snapshot, shares: Shares, placement: Placement) -> Reasons:
    """The policy's reasons, and FRAGMENTED for each job that got a share but no place for it."""
    jobs = snapshot.jobs
    starting = np.flatnonzero((shares.gpus > 0) & (jobs.held_gpus == 0)).tolist()
    left_out = [row for row in starting if jobs[row].id not in placement]
    if not left_out:
        return shares.why
    code = shares.why.code.copy()
    code[left_out] = Why.FRAGMENTED
    return replace(shares.why, code=code)
