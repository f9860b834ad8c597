"""The steps by which constraints act on a round, in their order.

Before the policy is asked: what it may see (`visible_part`), then what each job may have and what is taken
back (`reclaim`). After it has planned: what is cut off, and why jobs wait (`plan_of`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import IntArray, Plan, Snapshot, Why, actions_between, traits_of
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.fair_limits import FairLimits
from stretto.scheduler.constraints.job_rows import reorder_jobs
from stretto.scheduler.constraints.limits import enforce_limits, hold_jobs_of
from stretto.scheduler.constraints.memories import LevelMemories, PartMemories
from stretto.scheduler.constraints.quotas import (
    cap_jobs,
    limit_non_preemptible,
    limit_queues,
    preempt_borrowers,
    shed_excess,
)
from stretto.scheduler.constraints.reasons import in_original_order, reasons_of, seen_from_the_whole
from stretto.scheduler.constraints.reservations import reserve
from stretto.scheduler.constraints.shared_nodes import SharedNodeView, less_foreign_use
from stretto.scheduler.constraints.whole_workers import keep_whole_workers, show_one_size
from stretto.scheduler.fair_share import Accounts, in_fair_order


@dataclass(frozen=True, eq=False)
class VisiblePart:
    """What there is to decide about, and how a plan for it is read back."""

    snapshot: Snapshot  # jobs by fair share, nodes less what others use
    fair_limits: FairLimits | None  # None: shares limit nothing
    whole: Snapshot
    ordered: Snapshot  # the whole one, jobs by fair share
    order: IntArray | None  # (jobs,) rows of the whole snapshot; None: in its order
    nodes: SharedNodeView | None  # None: no node is used by others

    @property
    def is_unconstrained(self) -> bool:
        """Whether the policy's plan stands as it is, so that no other step has anything to do.

        No constraint, one level of priority, and no worker of several GPUs that would have to be kept whole.
        """
        snapshot = self.snapshot
        if self.fair_limits is not None or not snapshot.constraints.are_void:
            return False
        if isinstance(snapshot.memory, LevelMemories | PartMemories):
            return False
        requests = snapshot.jobs.requests
        if not requests.one_priority:
            priority = snapshot.jobs.priority
            if (priority != priority[:1]).any():
                return False
        return snapshot.large_workers is None

    def read_back(self, plan: Plan) -> Plan:
        """A plan for the visible part as one for the whole snapshot."""
        if self.nodes is not None:
            plan = self.nodes.read_back(plan, self.ordered)
            plan = replace(plan, why=seen_from_the_whole(plan.why, self.ordered))
        if self.order is not None:
            plan = replace(plan, jobs=self.whole.jobs, why=in_original_order(plan.why, self.order))
        return plan


def visible_part(snapshot: Snapshot, scheduler: Scheduler) -> VisiblePart:
    """Jobs by fair share, and nodes less what others use."""
    constraints, whole = snapshot.constraints, snapshot
    order, limits, nodes = None, None, None
    # Fair share: jobs that hold GPUs come first, as before, then those that wait. None is stopped only
    # because another one is further behind. Where one user is alone there is nothing to order.
    if (fair := constraints.fair_share) is not None:
        if not constraints.shows_usage:
            snapshot = replace(snapshot, constraints=replace(constraints, fair_share=None))
        accounts = Accounts.of(snapshot.jobs.requests.accounts[snapshot.jobs.rows].tolist())
        if fair.matters_to(accounts.names):
            if fair.limits:
                limits = FairLimits.of(snapshot, fair, accounts, scheduler)
            by_share = in_fair_order(snapshot.jobs, accounts, fair)
            if (by_share != np.arange(len(by_share))).any():
                order = by_share
                snapshot = replace(snapshot, jobs=reorder_jobs(snapshot.jobs, order))
    # Policies that count in one size see jobs so.
    if not traits_of(scheduler.policy).sizes_by_type:
        snapshot = show_one_size(snapshot)
    # Shared nodes are smaller by what others use.
    ordered = snapshot
    if constraints.others:
        nodes = less_foreign_use(snapshot.placement, constraints.others)
        snapshot = nodes.show(snapshot)
    return VisiblePart(snapshot, limits, whole, ordered, order, nodes)


def reclaim(visible: VisiblePart, on_hold: frozenset[str] = frozenset()) -> DecisionContext:
    """What each job may have, once what is not its own is taken back.

    on_hold: queues whose jobs only go on.
    """
    context = DecisionContext(visible.snapshot, visible.fair_limits)
    bound_sizes(context)  # permitted sizes
    bound_profiles(context)  # profiling runs
    bound_growth(context)  # budgets that are used up
    reserve(context)  # reservations
    limit_queues(context)  # quotas, and what may be borrowed
    limit_non_preemptible(context)
    shed_excess(context)  # what is held beyond a limit is taken
    preempt_borrowers(context)  # what was borrowed goes back to jobs that wait for it
    cap_jobs(context)  # no job is asked about with more than its limits
    context.reclaimed = context.placement
    hold_jobs_of(context, on_hold)
    context.granted = context.most.copy()
    return context


def bound_sizes(context: DecisionContext) -> None:
    """Let jobs have their permitted sizes only."""
    sizes_of = context.constraints.sizes
    for row, job in enumerate(context.jobs) if sizes_of else ():
        if job.id in sizes_of:
            context.most[row] = context.sizes.at_most(job, int(context.most[row]))
            if not context.most[row]:  # its owner has asked for sizes between which none of them lies
                sizes = ", ".join(map(str, sizes_of[job.id]))
                words = f"its sizes are {sizes}, none from {job.min_gpus} to {job.max_gpus}"
                context.why[row] = (Why.TOO_LARGE, words)


def bound_profiles(context: DecisionContext) -> None:
    """Let jobs that are to be profiled have one worker of one type; what they hold otherwise is taken."""
    profiles = context.constraints.profiles
    for row, job in enumerate(context.jobs) if profiles else ():
        if job.id in profiles:
            gpu_type, gpus = (
                profiles[job.id],
                context.constraints.permitted(
                    job.id, job.worker_gpus(context.snapshot.cluster.type_names[profiles[job.id]])
                ),
            )
            context.most[row] = gpus
            context.gpu_types[row] &= np.arange(len(context.gpu_types[row])) == gpu_type
            allocation = context.placement.get(job.id)
            if allocation is not None and (allocation.kind, allocation.gpus) != (gpu_type, gpus):
                context.release(job)


def bound_growth(context: DecisionContext) -> None:
    """Let jobs whose budget is used up keep what they hold, and get no more."""
    for row, job in enumerate(context.jobs) if context.constraints.going_on_until_s else ():
        held = context.placement.get(job.id)
        if job.id in context.constraints.going_on_until_s and held is not None:
            kept = max(held.gpus, job.min_gpus)  # its owner may want more by now than it holds
            context.most[row] = min(int(context.most[row]), kept)


def plan_of(context: DecisionContext, plans: Sequence[Plan]) -> Plan:
    """The plan without what exceeds a limit, from what is held now; due again when a constraint changes.

    plans: for parts of the cluster, each from the one before on.
    """
    # Where nothing is constrained the policy's plan stays as it is, object and all.
    plan = plans[-1]
    snapshot, rules = context.snapshot, context.constraints
    asks_for_whole = context.snapshot.large_workers is not None
    if rules.are_void and not asks_for_whole:
        return plan
    placement = plan.placement if rules.are_void else enforce_limits(context, plan.placement)
    if asks_for_whole:
        placement = keep_whole_workers(context, placement)
        if rules.are_void and placement is plan.placement:
            return plan
    # Actions lead from what is held, so GPUs that were reclaimed before the policy was asked are in them too.
    wake_s = min(plan.wake_s or np.inf, context.constraints.next_change_s(snapshot.now_s))
    return replace(
        plan,
        actions=actions_between(snapshot.placement, placement),
        placement=placement,
        why=reasons_of(context, plans, placement),
        wake_s=float(wake_s) if np.isfinite(wake_s) else None,
        jobs=snapshot.jobs,
        preemptions=tuple(preemption for plan in plans for preemption in plan.preemptions),
    )
