"""What makes up a scheduler (estimator, policy, placer, a rule for lent nodes), and the policy asked once."""

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

from stretto.model import (
    BatchChoice,
    Configurations,
    Loans,
    Placement,
    Plan,
    Policy,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Why,
    actions_between,
)
from stretto.model.timing import span
from stretto.scheduler.check import check_shares


class Estimator(Protocol):
    """How fast would each job run on each configuration?"""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """One row for each job of the snapshot, one column for each configuration."""


@runtime_checkable
class ChoosesBatches(Protocol):
    """Of an estimator: says which batch it counted with, so that workers can train with it."""

    def batches(
        self,
        snapshot: Snapshot,
        configurations: Configurations,
        held: Sequence[tuple[int, int, int, int]],
    ) -> list[BatchChoice]:
        """The batch of most goodput for each (row, GPU type, nodes, GPUs); all 0: nothing can be said."""


class Placer(Protocol):
    """Which GPUs, exactly?"""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """A placement of every share that can be placed; a job left out waits."""


class Lending(Protocol):
    """Which nodes of others may be used, and which jobs make room where their owners want them back?"""

    @property
    def period_s(self) -> float:
        """How often it wants to be asked, in s."""

    @property
    def foresight(self) -> bool:
        """Whether it must be shown what lenders will use next, which only a simulated world knows."""

    def settle(self, snapshot: Snapshot) -> Loans:
        """What is on loan from now on; asked every `period_s`, and when nodes of lenders fail or return."""


@dataclass(frozen=True)
class Scheduler:
    """The choices that make up a scheduler; the last only where there are lenders."""

    estimator: Estimator
    policy: Policy
    placer: Placer
    lending: Lending | None = None


# ── the policy asked once: estimate, allocate, check, place. Constraints act around it ──────────────────────


def propose(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """What the policy wants of everything that it is shown. Pure: equal snapshots give equal plans."""
    policy = scheduler.policy
    declared = snapshot.limited_to(policy.views)
    with span("estimate"):
        speeds = scheduler.estimator.estimate(declared, policy.configurations(snapshot.cluster))
    with span("allocate"):
        shares = policy.allocate(declared, speeds)
        check_shares(snapshot, shares)
        shares = _kept_on_closed(snapshot, shares)
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
    )


def _kept_on_closed(snapshot: Snapshot, shares: Shares) -> Shares:
    """The shares, but what must stay on nodes that are closed to it keeps exactly what it holds.

    To a policy that looks at nodes these are lost, so that it would move or stop such a job.
    """
    rows, jobs = sorted(snapshot.kept_on_closed), snapshot.jobs
    if not rows:
        return shares
    allocations = [snapshot.placement[jobs.ids[row]] for row in rows]
    columns = {name: getattr(shares, name).copy() for name in ("gpus", "kind", "nodes")}
    for name, column in columns.items():
        column[rows] = getattr(jobs, f"held_{name}")[rows]
    if shares.cpus is not None:
        columns["cpus"] = shares.cpus.copy()
        columns["cpus"][rows] = [allocation.cpus for allocation in allocations]
    if shares.profiling is not None:
        columns["profiling"] = shares.profiling.copy()
        columns["profiling"][rows] = [allocation.profiling for allocation in allocations]
    pinned = {row: pin for row, pin in shares.pinned.items() if row not in snapshot.kept_on_closed}
    return replace(shares, pinned=pinned, **columns)


def _with_fragmented(snapshot: Snapshot, shares: Shares, placement: Placement) -> Reasons:
    """The policy's reasons, and FRAGMENTED for each job that got a share but no place for it."""
    jobs = snapshot.jobs
    if shares.gpus is jobs.held_gpus:
        return shares.why
    starting = ((shares.gpus > 0) & (jobs.held_gpus == 0)).nonzero()[0].tolist()
    left_out = [row for row in starting if jobs[row].id not in placement]
    if not left_out:
        return shares.why
    code = shares.why.code.copy()
    code[left_out] = Why.FRAGMENTED
    bound = {row: jobs[row] for row in left_out if jobs[row].within}
    evidence = {
        row: f"no {job.within} has room for its {int(shares.gpus[row])} GPUs, within which it must be"
        for row, job in bound.items()
    }
    # A chain, not one new mapping: the policy makes its words when they are read.
    words = cast("MutableMapping[int, str]", shares.why.evidence)
    return replace(shares.why, code=code, evidence=ChainMap(evidence, words))
