"""Priorities: jobs are decided level by level, each level on what higher ones leave.

A level is shown its own GPUs, those that are free, and those that lower jobs can give up. For a start a lower
job may be stopped; for growth it is only made smaller in place, down to its least size. What a level does not
use stays with those who hold it. The policy decides within each level as ever, with a memory for each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Allocation,
    Constraints,
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
from stretto.scheduler.asking import Ask
from stretto.scheduler.constraints.guarantees import Lost, some_lose
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.level_view import Attempt, Masks, ask_level
from stretto.scheduler.constraints.offers import (
    Budget,
    Claim,
    Holder,
    Sizes,
    add_masks,
    by_kind,
    gpus_by_queue,
    offered_by,
    reduced,
    without,
)
from stretto.scheduler.constraints.outranked import reasons_by_level

FEW_LEVELS = 8  # chosen: beyond so many, a level whose jobs hold all that they may is not asked again


@dataclass(frozen=True)
class LevelMemories:
    """What the policy remembers of each level."""

    by_priority: Mapping[int, Memory]


def ask_by_priority(
    snapshot: Snapshot,
    ask: Ask,
    constraints: Constraints,
    outside: Sequence[Job] = (),
    claims: Sequence[Claim] = (),
) -> Plan:
    """What the policy wants, level by level; with a single level, exactly what it says.

    outside: jobs that are not shown, but whose GPUs count in their queues.
    """
    jobs, memory = snapshot.jobs, snapshot.memory
    levels = np.unique(jobs.priority)[::-1].tolist() if constraints.priorities_act else []
    if len(levels) < 2:
        if isinstance(memory, LevelMemories):
            memory = memory.by_priority.get(levels[0]) if levels else None
            snapshot = replace(snapshot, memory=memory)
        plan = ask(snapshot)
        guarded = levels and constraints.queues and some_lose(snapshot.placement, plan.placement)
        if not guarded or not Cascade(snapshot, ask, constraints, outside, claims).breaks(plan):
            return plan
    cascade = Cascade(snapshot, ask, constraints, outside, claims)
    for number, priority in enumerate(levels):
        if cascade.is_over(priority):
            break
        cascade.settle(priority, is_one_of_many=number >= FEW_LEVELS)
    return cascade.plan()


@dataclass
class Cascade:
    """A decision on its way down the levels."""

    snapshot: Snapshot
    ask: Ask
    constraints: Constraints
    outside: Sequence[Job]
    claims: Sequence[Claim]
    placement: Placement = field(init=False)  # as settled so far
    attempts: list[Attempt] = field(default_factory=list)  # that were carried out, by level
    memories: dict[int, Memory] = field(default_factory=dict)
    preemptions: dict[JobId, Preemption] = field(default_factory=dict)  # by the job that gives up GPUs

    def __post_init__(self) -> None:
        """Nothing is settled."""
        jobs, memory = self.snapshot.jobs, self.snapshot.memory
        self.placement = self.snapshot.placement
        self.of = [jobs[row] for row in range(len(jobs))]
        self.sizes, self.hierarchy = Sizes(self.constraints), Hierarchy(self.constraints)
        self.held = np.array(jobs.held_gpus)
        self.in_order = np.lexsort((-np.arange(len(jobs)), jobs.priority))  # who gives first: lowest, newest
        self.full = (np.int64(1) << self.snapshot.cluster.node_gpus) - 1
        for priority in np.unique(jobs.priority).tolist():
            is_ours = isinstance(memory, LevelMemories)
            self.memories[priority] = memory.by_priority.get(priority) if is_ours else memory

    def is_over(self, priority: int) -> bool:
        """Whether nothing is left for this level and those below, which hold nothing either."""
        if (self.held[self.snapshot.jobs.priority <= priority] > 0).any():
            return False
        return not (self.snapshot.usable & (self.placement.free > 0)).any()

    def breaks(self, plan: Plan) -> bool:
        """Whether the policy's plan for a single level takes what the quota of a queue guarantees."""
        rows = np.arange(len(self.of))
        level = Level(self, int(self.snapshot.jobs.priority[0]), rows, [])
        allocations = {job.id: plan.placement[job.id] for job in self.of if job.id in plan.placement}
        return bool(level.owed(Attempt(rows, level.nothing, level.nothing, plan, allocations, {})))

    def settle(self, priority: int, *, is_one_of_many: bool) -> None:
        """Decide one level, and take from lower ones what it uses."""
        jobs = self.snapshot.jobs
        rows = np.flatnonzero(jobs.priority == priority)
        if is_one_of_many and (self.held[rows] >= jobs.max_gpus[rows]).all():
            return
        below = self.in_order[jobs.priority[self.in_order] < priority]
        lower = [
            Holder(row, self.of[row], self.placement[self.of[row].id])
            for row in below[(self.held[below] > 0) & jobs.preemptible[below]].tolist()
        ]
        level = Level(self, priority, rows, lower)
        self._carry_out(level.decide(), priority, lower)

    def free(self, priority: int) -> Masks:
        """GPUs that nobody holds and that are not kept for a lower job."""
        free = np.where(self.snapshot.usable, self.full & ~self.placement.busy, 0)
        for claim in self.claims:
            if claim.priority < priority:
                for node, mask in claim.masks.items():
                    free[node] &= ~mask
        return free

    def budget(self, own: str | None) -> Budget:
        """What may be taken from each queue now."""
        held = gpus_by_queue([*self.of, *self.outside], self.placement, self.hierarchy)
        return Budget(self.hierarchy, held, own)

    def _carry_out(self, attempt: Attempt, priority: int, lower: list[Holder]) -> None:
        changes: dict[JobId, Allocation | None] = {}
        for holder in lower:
            if uses(attempt, holder):
                left = reduced(holder, attempt.used, self.snapshot.cluster, self.sizes)
                changes[holder.job.id] = left
                self.held[holder.row] = 0 if left is None else left.gpus
                by = _taker(attempt.allocations, holder.held)
                self.preemptions[holder.job.id] = Preemption(
                    holder.job.id, by, priority, int(self.held[holder.row])
                )
        for row in np.flatnonzero(self.snapshot.jobs.priority == priority).tolist():
            name = self.of[row].id
            after = attempt.allocations.get(name)
            if after != self.placement.get(name):
                changes[name] = after
                self.held[row] = 0 if after is None else after.gpus
        if changes:
            self.placement = self.placement.changed(changes)
        self.attempts.append(attempt)
        self.memories[priority] = attempt.plan.memory

    def plan(self) -> Plan:
        """All levels together."""
        plans = [attempt.plan for attempt in self.attempts]
        wakes = [plan.wake_s for plan in plans if plan.wake_s is not None]
        gaps = [plan.gap for plan in plans if plan.gap is not None]
        before = self.snapshot.placement
        names = dict.fromkeys([*before, *self.placement])
        touched = {name: now for name in names if (now := self.placement.get(name)) != before.get(name)}
        placement = before.changed(touched) if touched else before
        lost = {
            name: replace(one, gpus=_gpus(placement, name))
            for name, one in self.preemptions.items()
            if _gpus(placement, name) < _gpus(before, name)  # it may have found others since
        }
        return Plan(
            based_on=self.snapshot.version,
            actions=actions_between(before, placement),
            placement=placement,
            why=reasons_by_level(self.snapshot, self.attempts, placement, lost),
            jobs=self.snapshot.jobs,
            memory=LevelMemories(self.memories),
            wake_s=min(wakes, default=None),
            prices=plans[-1].prices if plans else None,
            gap=max(gaps, default=None),
            preemptions=tuple(lost.values()),
        )


def _gpus(placement: Placement, job: JobId) -> int:
    held = placement.get(job)
    return 0 if held is None else held.gpus


def uses(attempt: Attempt, holder: Holder) -> bool:
    """Whether an answer uses GPUs of a lower job."""
    masks = np.array(holder.held.masks, dtype=np.int64)
    return bool((attempt.used[list(holder.held.nodes)] & masks).any())


def _taker(allocations: Mapping[JobId, Allocation], held: Allocation) -> JobId:
    """Who uses GPUs of this allocation: the one that uses most of them."""

    def overlap(other: Allocation) -> int:
        masks = dict(zip(other.nodes, other.masks, strict=True))
        pairs = zip(held.nodes, held.masks, strict=True)
        return sum((mask & masks.get(node, 0)).bit_count() for node, mask in pairs)

    return max(allocations, key=lambda name: overlap(allocations[name]))


Sized = Callable[[int], int]  # GPUs that the job of a row needs to start


@dataclass
class Level:
    """One level while it is decided."""

    cascade: Cascade
    priority: int
    rows: IntArray
    lower: list[Holder]  # who can be preempted, in the order in which they give

    def __post_init__(self) -> None:
        """What it holds and what is free stays the same while it is decided."""
        cascade = self.cascade
        self.snapshot = cascade.snapshot
        self.free = cascade.free(self.priority)
        self.own = {
            name: cascade.placement[name]
            for row in self.rows.tolist()
            if (name := cascade.of[row].id) in cascade.placement
        }
        self.of = {cascade.of[row].id: cascade.of[row] for row in self.rows.tolist()}
        self.nothing = np.zeros_like(self.free)

    def decide(self) -> Attempt:
        """The policy's answer: on free GPUs, on what lower jobs can spare, and on what they can give up."""
        if not self.lower or self._is_content_with_free():
            return self._ask(self.nothing, {})
        caps: dict[int, int] = {}
        passive = [row for row in self.rows.tolist() if not self.cascade.of[row].preempts]
        best: Attempt | None = None
        if passive:
            best = self._ask(self.nothing, {})
            caps = {row: self._gpus(best, row) for row in passive}
            if len(passive) == len(self.rows):
                return best
        for own in (None, *self._own_queues()):
            members = [row for row in self.rows.tolist() if self._takes_part(row, own)]
            best = self._grown(best, members, caps, own)
            for sized in (self._least, self._asked, None):
                waiting = [row for row in members if not self._gpus(best, row)]
                if not waiting:
                    break
                best = self._started(best, waiting, caps, own, sized)
        assert best is not None
        return best

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def _grown(
        self, best: Attempt | None, members: list[int], caps: dict[int, int], own: str | None
    ) -> Attempt:
        """The level on free GPUs and on those that lower jobs hold beyond their least sizes."""
        offered = self._offer(own, stops=False)
        if not offered.any():
            return best or self._ask(self.nothing, caps)
        if best is not None and own is not None:
            caps = self._held_to(best, members, caps)
        attempt = self._exactly(self._ask(offered, caps), own, stops=False)
        return self._better(best, attempt)

    def _started(
        self, best: Attempt, waiting: list[int], caps: dict[int, int], own: str | None, sized: Sized | None
    ) -> Attempt:
        """The level with some that wait on GPUs of lower jobs, which may be stopped for that.

        Others go on with what they have. sized: GPUs that a job needs to start; None: offer all there is.
        """
        caps = self._held_to(best, waiting, caps)
        if sized is None:
            offered = self._offer(own, stops=True)
        else:
            needed = self._needed(best, waiting, sized)
            if needed is None:
                return best
            offered = self._offer(own, stops=True, needed=needed)
        if not (offered & ~best.offered).any():
            return best
        attempt = self._ask(offered, caps)
        if sized is None:
            attempt = self._exactly(attempt, own, stops=True)
        return self._better(best, attempt)

    def _exactly(self, attempt: Attempt, own: str | None, *, stops: bool) -> Attempt:
        """The same with no more taken than is used beyond free GPUs, and from those who give first."""
        if not attempt.used.any():
            return attempt
        taken = self._by_kind(attempt.used)
        spare = self.free.copy()
        for held in attempt.allocations.values():
            spare[list(held.nodes)] &= ~np.array(held.masks, dtype=np.int64)
        needed = np.maximum(taken - self._by_kind(spare), 0)
        offered = self._offer(own, stops=stops, needed=needed)
        if (offered == attempt.used).all():
            return attempt
        again = self._ask(offered, attempt.caps)
        same = attempt.allocations.keys() <= again.allocations.keys()
        return again if same and again.gpus >= attempt.gpus else attempt

    def _better(self, best: Attempt | None, attempt: Attempt) -> Attempt:
        """Whichever serves more jobs, then more of what they can use."""
        if best is None:
            return attempt
        known = (len(best.allocations), best.gpus)
        return attempt if (len(attempt.allocations), attempt.gpus) > known else best

    # ── what is needed, and from whom ─────────────────────────────────────────────────────────────

    def _needed(self, best: Attempt, waiting: list[int], sized: Sized) -> IntArray | None:
        """(types,) GPUs that lower jobs have to give up for these to start; None where that cannot be."""
        room = self._by_kind(self.free)
        for held in self.own.values():
            room += by_kind(held, self.snapshot.cluster)
        for held in best.allocations.values():
            room -= by_kind(held, self.snapshot.cluster)
        most = room.copy()
        for holder in self.lower:
            most += by_kind(holder.held, self.snapshot.cluster)
        some = False
        for row in waiting:
            size = sized(row)
            kinds = np.flatnonzero(self.snapshot.jobs.allowed_kinds[row])
            fitting = [kind for kind in kinds.tolist() if most[kind] >= size]
            if not fitting:
                continue
            kind = max(fitting, key=lambda kind: (min(room[kind], size), most[kind]))
            room[kind] -= size
            most[kind] -= size
            some = True
        return np.maximum(-room, 0) if some else None

    def _offer(self, own: str | None, *, stops: bool, needed: IntArray | None = None) -> Masks:
        masks = offered_by(
            self.lower,
            self.snapshot.cluster,
            self.cascade.sizes,
            self.cascade.budget(own),
            stops=stops,
            needed=needed,
        )
        return np.where(self.snapshot.usable, masks, 0)

    def _ask(self, offered: Masks, caps: Mapping[int, int]) -> Attempt:
        """The policy's answer; asked again beside jobs that keep what their queues are guaranteed."""
        kept: dict[JobId, Allocation] = {}
        while True:
            attempt = self._ask_beside(kept, offered, caps)
            more = self.owed(attempt)
            if not more:
                return attempt
            kept |= more  # more of them, or larger: this ends at what the level holds

    def _ask_beside(
        self, kept: Mapping[JobId, Allocation], offered: Masks, caps: Mapping[int, int]
    ) -> Attempt:
        """The policy's answer for the others, where some jobs are not shown and keep so much in place."""
        cascade = self.cascade
        rows, own, free = self.rows, self.own, self.free
        if kept:
            rows = np.array([row for row in rows.tolist() if cascade.of[row].id not in kept], dtype=np.int64)
            own = {name: held for name, held in own.items() if name not in kept}
            free = free.copy()
            for name, left in kept.items():
                add_masks(free, without(self.own[name], left))
            free = np.where(self.snapshot.usable, free, 0)
        attempt = ask_level(
            self.snapshot,
            cascade.ask,
            rows,
            cascade.memories[self.priority],
            own,
            free,
            offered,
            caps,
            cascade.sizes,
        )
        return replace(attempt, allocations={**attempt.allocations, **kept}) if kept else attempt

    def owed(self, attempt: Attempt) -> dict[JobId, Allocation]:
        """What jobs have to keep that the answer gives to jobs of other queues, against a guarantee."""
        cascade, after = self.cascade, attempt.allocations
        if not cascade.constraints.queues or not some_lose(self.own, after):
            return {}
        held = cascade.budget(None).held
        left = dict(held)
        for sign, allocations in ((-1, self.own), (1, after)):
            for name, one in allocations.items():
                cascade.hierarchy.add(left, self.of[name].queue, sign * one.gpus)
        for holder in self.lower:
            if uses(attempt, holder):
                rest = reduced(holder, attempt.used, self.snapshot.cluster, cascade.sizes)
                given = holder.held.gpus - (0 if rest is None else rest.gpus)
                cascade.hierarchy.add(left, holder.job.queue, -given)
        lost = Lost(self._that_may_stay(), after, held, left, self._idle(after))
        return lost.owed(self.of.values(), cascade.hierarchy, cascade.sizes)

    def _that_may_stay(self) -> dict[JobId, Allocation]:
        """What its jobs hold where they still may be."""
        jobs, usable = self.snapshot.jobs, self.snapshot.usable
        held = [(row, self.own.get(self.cascade.of[row].id)) for row in self.rows.tolist()]
        return {
            self.cascade.of[row].id: one
            for row, one in held
            if one is not None and usable[list(one.nodes)].all() and jobs.allowed_kinds[row, one.kind]
        }

    def _idle(self, after: Mapping[JobId, Allocation]) -> IntArray:
        """(types,) GPUs, free ones or its own, that nobody of the level holds afterwards."""
        idle = self.free.copy()
        for one in self.own.values():
            add_masks(idle, without(one, None))
        for one in after.values():
            idle[list(one.nodes)] &= ~np.array(one.masks, dtype=np.int64)
        return self._by_kind(np.where(self.snapshot.usable, idle, 0))

    def _is_content_with_free(self) -> bool:
        """Whether free GPUs are enough for all that its jobs may have."""
        jobs, cluster = self.snapshot.jobs, self.snapshot.cluster
        missing = (
            np.minimum(jobs.max_gpus[self.rows], int(cluster.node_gpus.sum())) - self.cascade.held[self.rows]
        )
        wanted = int(np.maximum(missing, 0).sum())
        return wanted == 0 or (len(cluster.types) == 1 and wanted <= int(self._by_kind(self.free)[0]))

    def _own_queues(self) -> list[str]:
        """Queues with a quota in which both this level and lower ones have jobs."""
        queues = self.cascade.constraints.queues
        mine = {self.cascade.of[row].queue for row in self.rows.tolist()}
        return sorted(mine & {holder.job.queue for holder in self.lower} & queues.keys())

    def _takes_part(self, row: int, own: str | None) -> bool:
        job = self.cascade.of[row]
        return job.preempts and own in (None, job.queue)

    def _held_to(self, best: Attempt, free_rows: list[int], caps: Mapping[int, int]) -> dict[int, int]:
        """Caps by which all but some rows get what they would get anyway."""
        others = set(self.rows.tolist()) - set(free_rows)
        return {**caps, **{row: self._gpus(best, row) for row in sorted(others)}}

    def _gpus(self, attempt: Attempt, row: int) -> int:
        held = attempt.allocations.get(self.cascade.of[row].id)
        return 0 if held is None else held.gpus

    def _least(self, row: int) -> int:
        return self.cascade.sizes.at_least(self.cascade.of[row], 0)

    def _asked(self, row: int) -> int:
        return self.cascade.of[row].gpus

    def _by_kind(self, masks: Masks) -> IntArray:
        cluster = self.snapshot.cluster
        counts = np.bitwise_count(masks).astype(np.int64)
        return np.bincount(cluster.kind, counts, len(cluster.types)).astype(np.int64)
