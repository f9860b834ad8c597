"""Priorities: jobs are decided level by level, each level on what higher ones leave.

A level is shown its own GPUs, those that are free, and those that lower jobs can give up. For a start a lower
job may be stopped; for growth it is only made smaller in place, down to its least size. What a level does not
use stays with the jobs that hold it. The policy decides within each level as ever, with a memory for each.

One question for all levels cannot do it: what a level may have is known only once the policy has planned the
levels above. So this is a loop over levels, from the highest down.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Allocation,
    IntArray,
    Job,
    JobId,
    Memory,
    Placement,
    Plan,
    Preemption,
    Snapshot,
    actions_between,
)
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.fair_limits import propose_fairly
from stretto.scheduler.constraints.guarantees import some_lose
from stretto.scheduler.constraints.levels import Level, LevelPlan, Masks
from stretto.scheduler.constraints.memories import LevelMemories, of_level
from stretto.scheduler.constraints.preemption import Victim, gpus_by_queue, reduced
from stretto.scheduler.constraints.reasons import reasons_by_level

FEW_LEVELS = 8  # chosen: beyond so many, a level whose jobs hold all that they may is not asked again


def propose_by_priority(context: DecisionContext, snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """The policy's plan, level by level; with a single level, exactly what it says.

    snapshot: what the policy may see; other jobs of the context go on, and count in their queues.
    """
    jobs, memory, constraints = snapshot.jobs, snapshot.memory, context.constraints
    levels = np.unique(jobs.priority)[::-1].tolist() if constraints.priorities_act else []
    if len(levels) < 2:
        if isinstance(memory, LevelMemories):
            snapshot = replace(snapshot, memory=of_level(memory, levels[0]) if levels else None)
        plan = propose_fairly(snapshot, scheduler, context.fair_limits)
        # The plan stands, unless it takes what a quota guarantees.
        may_break = levels and constraints.queues and some_lose(snapshot.placement, plan.placement)
        if not may_break or not PriorityLevels(context, snapshot, scheduler).breaks_guarantee(plan):
            return plan
    by_level = PriorityLevels(context, snapshot, scheduler)
    for number, priority in enumerate(levels):
        if by_level.is_over(priority):
            break
        if number < FEW_LEVELS or not by_level.has_everything(priority):
            by_level.decide(priority)
    return by_level.plan()


@dataclass
class PriorityLevels:
    """A plan on its way down the levels. Rows are those of the snapshot."""

    context: DecisionContext
    snapshot: Snapshot
    scheduler: Scheduler
    placement: Placement = field(init=False)  # as decided so far
    proposals: list[LevelPlan] = field(default_factory=list)  # that were carried out, by level
    memories: dict[int, Memory] = field(default_factory=dict)
    preemptions: dict[JobId, Preemption] = field(default_factory=dict)  # by the job that gives up GPUs

    def __post_init__(self) -> None:
        """Nothing is decided."""
        jobs, memory = self.snapshot.jobs, self.snapshot.memory
        self.placement = self.snapshot.placement
        self.jobs: list[Job] = [jobs[row] for row in range(len(jobs))]
        self.held = np.array(jobs.held_gpus)  # as decided so far
        # Which jobs give first: the lowest priority, then the one that came last.
        self.in_order = np.lexsort((-np.arange(len(jobs)), jobs.priority))
        self.outside = self._outside()
        for priority in np.unique(jobs.priority).tolist():
            self.memories[priority] = of_level(memory, priority)

    def is_over(self, priority: int) -> bool:
        """Whether nothing is left for this level and those below, which hold nothing either."""
        if (self.held[self.snapshot.jobs.priority <= priority] > 0).any():
            return False
        return not (self.snapshot.usable & (self.placement.free > 0)).any()

    def has_everything(self, priority: int) -> bool:
        """Whether the jobs of a level hold all that they may."""
        jobs = self.snapshot.jobs
        rows = np.flatnonzero(jobs.priority == priority)
        return bool((self.held[rows] >= jobs.max_gpus[rows]).all())

    def breaks_guarantee(self, plan: Plan) -> bool:
        """Whether the policy's plan for a single level takes what the quota of a queue guarantees."""
        level = self._level(int(self.snapshot.jobs.priority[0]), [])
        allocations = {job.id: plan.placement[job.id] for job in self.jobs if job.id in plan.placement}
        return bool(level.owed(LevelPlan(level.rows, level.nothing, level.nothing, plan, allocations, {})))

    def decide(self, priority: int) -> None:
        """Decide one level, and take from lower ones what it uses."""
        jobs = self.snapshot.jobs
        below = self.in_order[jobs.priority[self.in_order] < priority]
        lower = [
            Victim(row, self.jobs[row], self.placement[self.jobs[row].id])
            for row in below[(self.held[below] > 0) & jobs.preemptible[below]].tolist()
        ]
        self._carry_out(self._level(priority, lower).decide(), priority, lower)

    def _level(self, priority: int, lower: list[Victim]) -> Level:
        """One level, on what those above have left."""
        hierarchy = self.context.hierarchy
        return Level(
            self.context,
            self.snapshot,
            self.scheduler,
            self.placement,
            self.jobs,
            gpus_by_queue([*self.jobs, *self.outside], self.placement, hierarchy),
            np.flatnonzero(self.snapshot.jobs.priority == priority),
            self.memories[priority],
            self._free(priority),
            lower,
        )

    def _outside(self) -> list[Job]:
        """Jobs that are not shown, but whose GPUs count in their queues."""
        if not self.context.constraints.queues:
            return []
        shown = set(self.snapshot.jobs.ids)
        hidden = [job for job in self.context.jobs if job.id not in shown]
        return hidden + [job for job, _ in self.context.staying()]

    def _free(self, priority: int) -> Masks:
        """(nodes,) GPUs that no job holds and that are not kept for a lower one."""
        full = (np.int64(1) << self.snapshot.cluster.node_gpus) - 1
        free: IntArray = np.where(self.snapshot.usable, full & ~self.placement.busy, 0)
        for claim in self.context.claimed:
            if claim.priority < priority:
                for node, mask in claim.masks.items():
                    free[node] &= ~mask
        return free

    def _carry_out(self, proposal: LevelPlan, priority: int, lower: list[Victim]) -> None:
        """Go on from a level's plan: its jobs hold what it says, lower ones what it leaves them."""
        changes: dict[JobId, Allocation | None] = {}
        for victim in lower:
            if proposal.takes_from(victim):
                job = victim.job.id
                left = reduced(victim, proposal.used, self.snapshot.cluster, self.context.sizes)
                changes[job] = left
                self.held[victim.row] = gpus = 0 if left is None else left.gpus
                self.preemptions[job] = Preemption(job, proposal.taker_of(victim.held), priority, gpus)
        for row in np.flatnonzero(self.snapshot.jobs.priority == priority).tolist():
            job = self.jobs[row].id
            after = proposal.allocations.get(job)
            if after != self.placement.get(job):
                changes[job] = after
                self.held[row] = 0 if after is None else after.gpus
        if changes:
            self.placement = self.placement.changed(changes)
        self.proposals.append(proposal)
        self.memories[priority] = proposal.plan.memory

    def plan(self) -> Plan:
        """All levels together."""
        plans = [proposal.plan for proposal in self.proposals]
        wakes = [plan.wake_s for plan in plans if plan.wake_s is not None]
        gaps = [plan.gap for plan in plans if plan.gap is not None]
        # One change away from what is held, so that actions are found fast.
        before = self.snapshot.placement
        jobs = dict.fromkeys([*before, *self.placement])
        changes = {job: now for job in jobs if (now := self.placement.get(job)) != before.get(job)}
        placement = before.changed(changes) if changes else before
        preemptions = {
            job: replace(preemption, gpus=_gpus(placement, job))
            for job, preemption in self.preemptions.items()
            if _gpus(placement, job) < _gpus(before, job)  # it may have found other GPUs since
        }
        reasons = [(proposal.rows, proposal.plan.why) for proposal in self.proposals]
        return Plan(
            based_on=self.snapshot.version,
            actions=actions_between(before, placement),
            placement=placement,
            why=reasons_by_level(self.snapshot, reasons, placement, preemptions),
            jobs=self.snapshot.jobs,
            memory=LevelMemories(self.memories),
            wake_s=min(wakes, default=None),
            prices=plans[-1].prices if plans else None,
            gap=max(gaps, default=None),
            preemptions=tuple(preemptions.values()),
        )


def _gpus(placement: Placement, job: JobId) -> int:
    allocation = placement.get(job)
    return 0 if allocation is None else allocation.gpus
