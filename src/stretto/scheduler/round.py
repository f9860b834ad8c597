"""One round: observe has happened, act will; here is everything between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import Loans, Placement, Plan, Snapshot, Trigger
from stretto.model.timing import span
from stretto.scheduler.batches import choose_batches
from stretto.scheduler.components import Estimator, Lending, Placer, Scheduler, propose
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.guarantees import queues_below_guarantee
from stretto.scheduler.constraints.limits import permits, relax_limits, tighten_limits
from stretto.scheduler.constraints.memories import PartMemories, PartMemory, of_part, of_rest, with_parts
from stretto.scheduler.constraints.priorities import propose_by_priority
from stretto.scheduler.constraints.reservations import (
    filter_snapshot,
    holds_some_of,
    open_nodes,
    reserved_partitions,
)
from stretto.scheduler.constraints.steps import VisiblePart, plan_of, reclaim, visible_part

__all__ = ["Estimator", "Lending", "Placer", "Scheduler", "decide"]

# Chosen: limits that follow from a plan are kept by the next one, but for types that stand in for others.
MAX_ATTEMPTS = 3
MAX_RELAXED_ATTEMPTS = 2  # chosen


def decide(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """One decision within the snapshot's constraints. Where nothing is constrained, what the policy says.

    Pure and deterministic: the same snapshot always gives the same plan.
    """
    snapshot, loans = settle_loans(snapshot, scheduler)  # lent nodes come and go
    visible = visible_part(snapshot, scheduler)  # nodes less what others use, jobs by fair share
    if visible.is_unconstrained:
        plan = propose(visible.snapshot, scheduler)  # estimate, allocate, check, place
    else:
        plan = plan_within_constraints(visible, scheduler)
    plan = visible.read_back(plan)
    batches = choose_batches(snapshot, plan, scheduler)
    return replace(plan, loans=loans, batches=batches) if loans is not None or batches else plan


def plan_within_constraints(visible: VisiblePart, scheduler: Scheduler) -> Plan:
    """The policy's plan, asked for and cut to what constraints allow."""
    proposal = propose_within_limits(reclaim(visible), scheduler)
    plan = plan_of(proposal.context, proposal.plans)  # what exceeds a limit is cut off
    below = queues_below_guarantee(proposal.context, plan.placement)
    if below:  # once more, where their jobs only go on
        proposal = propose_within_limits(reclaim(visible, on_hold=below), scheduler)
        plan = plan_of(proposal.context, proposal.plans)
    return plan


@dataclass(frozen=True)
class Proposal:
    """What the policy plans within a context."""

    context: DecisionContext
    plans: Sequence[Plan]  # for parts of the cluster, each from the one before on

    @property
    def placement(self) -> Placement:
        """What jobs would hold."""
        return self.plans[-1].placement


def propose_within_limits(context: DecisionContext, scheduler: Scheduler) -> Proposal:
    """The policy's plan; where it exceeds limits or leaves some of them, another one."""
    proposal = _tightened(context, scheduler, MAX_ATTEMPTS)
    relaxed = relax_limits(proposal.context, proposal.placement)  # jobs that were left out come in again
    if relaxed is not None:
        again = _tightened(relaxed, scheduler, MAX_RELAXED_ATTEMPTS)
        if permits(again.context, again.placement):
            return again
    return proposal


def _tightened(context: DecisionContext, scheduler: Scheduler, attempts: int) -> Proposal:
    """The policy's plan, asked again within what it may keep of the last one, as long as that is too much."""
    proposal = propose_by_partition(context, scheduler)
    for _ in range(attempts - 1):
        tightened = tighten_limits(proposal.context, proposal.placement)
        if tightened is None:
            break
        proposal = propose_by_partition(tightened, scheduler)
    return proposal


def propose_by_partition(context: DecisionContext, scheduler: Scheduler) -> Proposal:
    """The policy's plans: for reserved nodes with their users first, then for everything else.

    What it remembers of each part comes back when it is asked about that part again.
    """
    snapshot, memory = context.snapshot, context.snapshot.memory
    if context.constraints.are_void:
        if isinstance(memory, PartMemories):  # the last part has been given back
            snapshot = replace(snapshot, memory=of_rest(memory))
        return Proposal(context, [propose_by_priority(context, snapshot, scheduler)])
    remembers = context.constraints.parts_kept  # in decisions of old logs it did not
    placement, plans, parts = context.placement, list[Plan](), list[PartMemory]()
    elsewhere = np.ones(len(snapshot.jobs), dtype=np.bool_)
    for nodes, users in reserved_partitions(context):
        inside = filter_snapshot(context, placement, users & elsewhere, nodes)
        if len(inside.jobs):
            names = tuple(snapshot.cluster.nodes[node].id for node in np.flatnonzero(nodes).tolist())
            inside = replace(inside, memory=of_part(memory, names) if remembers else None)
            plan = propose_by_priority(context, inside, scheduler)
            placement = plan.placement
            plans.append(plan)
            parts.append(PartMemory(names, tuple(inside.jobs.ids), plan.memory))
            elsewhere &= ~holds_some_of(context, placement, nodes)
    rest = filter_snapshot(context, placement, elsewhere, open_nodes(context))
    plan = propose_by_priority(context, replace(rest, memory=of_rest(memory)), scheduler)
    if parts and remembers:
        plan = replace(plan, memory=with_parts(plan.memory, parts, plan.placement))
    return Proposal(context, [*plans, plan])


def settle_loans(snapshot: Snapshot, scheduler: Scheduler) -> tuple[Snapshot, Loans | None]:
    """The snapshot once all have made room for lenders: a job that was stopped waits again."""
    if scheduler.lending is None or Trigger.LENDERS not in snapshot.due:
        return snapshot, None
    with span("lend"):
        loans = scheduler.lending.settle(snapshot)
    if loans.placement is snapshot.placement:
        return replace(snapshot, usable=loans.usable), loans
    jobs = snapshot.jobs.with_placement(loans.placement)
    return replace(snapshot, usable=loans.usable, placement=loans.placement, jobs=jobs), loans
