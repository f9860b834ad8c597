"""One level of priority: what its jobs get of free GPUs and of what lower jobs can give up.

The policy is asked several times, each time on more GPUs of lower jobs; what it does not use they keep. It
sees the level's own jobs only, and nodes that are smaller by what the level may not have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Adaptivity,
    Allocation,
    IntArray,
    Job,
    JobId,
    Memory,
    Placement,
    Plan,
    Snapshot,
    no_placement,
)
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.fair_limits import propose_fairly
from stretto.scheduler.constraints.guarantees import Losses, some_lose
from stretto.scheduler.constraints.job_rows import select_jobs
from stretto.scheduler.constraints.preemption import (
    Budget,
    Victim,
    add_masks,
    gpus_by_type,
    offer,
    reduced,
    remove_masks,
    without,
)
from stretto.scheduler.constraints.shared_nodes import SharedNodeView, only_gpus
from stretto.scheduler.constraints.sizes import PermittedSizes

Masks = IntArray  # (nodes,) bit g set: GPU g
Sized = Callable[[int], int]  # GPUs that the job of a row needs to start


@dataclass(frozen=True)
class LevelPlan:
    """A plan of the policy for one level, on the GPUs that it was offered."""

    rows: IntArray  # of the snapshot, that the policy saw
    offered: Masks  # GPUs of lower jobs
    used: Masks  # those of them that it uses
    plan: Plan  # in terms of what the policy saw
    allocations: Mapping[JobId, Allocation]  # on the nodes as they are
    caps: Mapping[int, int]  # by row, how many GPUs a job was limited to

    @property
    def gpus(self) -> int:
        """GPUs that the level would hold."""
        return sum(allocation.gpus for allocation in self.allocations.values())

    def takes_from(self, victim: Victim) -> bool:
        """Whether it uses GPUs of a lower job."""
        masks = np.array(victim.held.masks, dtype=np.int64)
        return bool((self.used[list(victim.held.nodes)] & masks).any())

    def taker_of(self, allocation: Allocation) -> JobId:
        """The job that uses most GPUs of an allocation."""

        def overlap(other: Allocation) -> int:
            masks = dict(zip(other.nodes, other.masks, strict=True))
            pairs = zip(allocation.nodes, allocation.masks, strict=True)
            return sum((mask & masks.get(node, 0)).bit_count() for node, mask in pairs)

        return max(self.allocations, key=lambda job: overlap(self.allocations[job]))


@dataclass
class Level:
    """One level while it is decided. What it holds, and what is free, stays the same meanwhile."""

    context: DecisionContext
    snapshot: Snapshot  # of all levels
    scheduler: Scheduler
    placement: Placement  # as higher levels have left it
    jobs: list[Job]  # of all levels, by row
    usage: Mapping[str, int]  # GPUs of each queue with a quota, by that placement
    rows: IntArray  # of this level
    memory: Memory
    free: Masks  # GPUs that no job holds and that are not kept for a lower one
    lower: list[Victim]  # jobs that can be preempted, in the order in which they give
    own: dict[JobId, Allocation] = field(init=False)  # what its jobs hold
    nothing: Masks = field(init=False)

    def __post_init__(self) -> None:
        """Look up what its jobs hold."""
        held = ((self.jobs[row].id, self.placement.get(self.jobs[row].id)) for row in self.rows.tolist())
        self.own = {job: allocation for job, allocation in held if allocation is not None}
        self.nothing = np.zeros_like(self.free)

    def decide(self) -> LevelPlan:
        """The policy's plan: on free GPUs, on what lower jobs can spare, and on what they can give up."""
        if not self.lower or self._is_content_with_free():
            return self._ask(self.nothing, {})
        # 1. Jobs that take nothing from lower ones are held to what they get of free GPUs.
        caps: dict[int, int] = {}
        passive = [row for row in self.rows.tolist() if not self.jobs[row].preempts]
        best: LevelPlan | None = None
        if passive:
            best = self._ask(self.nothing, {})
            caps = {row: self._gpus(best, row) for row in passive}
            if len(passive) == len(self.rows):
                return best
        # 2. For all others, then for those of each queue from jobs of their own queue, whose quota does not
        #    protect these: grow on what lower jobs can spare, then start on what they can give up, for as
        #    little as is enough: least sizes, sizes that were asked for, everything.
        for own in (None, *self._own_queues()):
            members = [row for row in self.rows.tolist() if self._takes_part(row, own)]
            best = self._grow(best, members, caps, own)
            for sized in (self._least, self._requested, None):
                waiting = [row for row in members if not self._gpus(best, row)]
                if not waiting:
                    break
                best = self._start(best, waiting, caps, own, sized)
        assert best is not None
        return best

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def _grow(
        self, best: LevelPlan | None, members: list[int], caps: dict[int, int], own: str | None
    ) -> LevelPlan:
        """The level on free GPUs and on those that lower jobs hold beyond their least sizes."""
        offered = self._offer(own, stops=False)
        if not offered.any():
            return best or self._ask(self.nothing, caps)
        if best is not None and own is not None:
            caps = self._hold_others(best, members, caps)
        return self._better(best, self._without_excess(self._ask(offered, caps), own, stops=False))

    def _start(
        self, best: LevelPlan, waiting: list[int], caps: dict[int, int], own: str | None, sized: Sized | None
    ) -> LevelPlan:
        """The level with some that wait on GPUs of lower jobs, which may be stopped for that.

        Others go on with what they have. sized: GPUs that a job needs to start; None: offer all there is.
        """
        # What lower jobs offer: everything, or as much as these jobs need.
        caps = self._hold_others(best, waiting, caps)
        if sized is None:
            offered = self._offer(own, stops=True)
        else:
            needed = self._needed(best, waiting, sized)
            if needed is None:
                return best
            offered = self._offer(own, stops=True, needed=needed)
        # The policy is asked where there is something new, and takes no more than it uses.
        if not (offered & ~best.offered).any():
            return best
        proposal = self._ask(offered, caps)
        if sized is None:
            proposal = self._without_excess(proposal, own, stops=True)
        return self._better(best, proposal)

    def _without_excess(self, proposal: LevelPlan, own: str | None, *, stops: bool) -> LevelPlan:
        """The same with no more taken than is used beyond free GPUs, and from those that give first."""
        if not proposal.used.any():
            return proposal
        spare = self.free.copy()
        remove_masks(spare, proposal.allocations.values())
        needed = np.maximum(self._by_type(proposal.used) - self._by_type(spare), 0)
        offered = self._offer(own, stops=stops, needed=needed)
        if (offered == proposal.used).all():
            return proposal
        # Other GPUs may be worth less to the policy: then the first plan stands.
        again = self._ask(offered, proposal.caps)
        serves_them = proposal.allocations.keys() <= again.allocations.keys()
        return again if serves_them and again.gpus >= proposal.gpus else proposal

    def _better(self, best: LevelPlan | None, proposal: LevelPlan) -> LevelPlan:
        """The one that serves more jobs, then more of what they can use."""
        if best is None:
            return proposal
        to_beat = (len(best.allocations), best.gpus)
        return proposal if (len(proposal.allocations), proposal.gpus) > to_beat else best

    # ── what is needed, and of which jobs ─────────────────────────────────────────────────────────

    def _needed(self, best: LevelPlan, waiting: list[int], sized: Sized) -> IntArray | None:
        """(types,) GPUs that lower jobs have to give up for these to start; None where that cannot be."""
        # By type: what the plan leaves of free GPUs and the level's own, and with all of lower jobs.
        room = self._by_type(self.free)
        for allocation in self.own.values():
            room += gpus_by_type(allocation, self.snapshot.cluster)
        for allocation in best.allocations.values():
            room -= gpus_by_type(allocation, self.snapshot.cluster)
        most = room.copy()
        for victim in self.lower:
            most += gpus_by_type(victim.held, self.snapshot.cluster)
        # Each goes to the type where the least has to be given up for it.
        can_some = False
        for row in waiting:
            size = sized(row)
            gpu_types = np.flatnonzero(self.snapshot.jobs.allowed_kinds[row])
            fitting = [gpu_type for gpu_type in gpu_types.tolist() if most[gpu_type] >= size]
            if not fitting:
                continue
            chosen = max(fitting, key=lambda gpu_type: (min(room[gpu_type], size), most[gpu_type]))
            room[chosen] -= size
            most[chosen] -= size
            can_some = True
        return np.maximum(-room, 0) if can_some else None

    def _offer(self, own: str | None, *, stops: bool, needed: IntArray | None = None) -> Masks:
        budget = Budget(self.context.hierarchy, dict(self.usage), own)
        cluster, sizes = self.snapshot.cluster, self.context.sizes
        masks = offer(self.lower, cluster, sizes, budget, stops=stops, needed=needed)
        return np.where(self.snapshot.usable, masks, 0)

    # ── the policy is asked ───────────────────────────────────────────────────────────────────────

    def _ask(self, offered: Masks, caps: Mapping[int, int]) -> LevelPlan:
        """The policy's plan; asked again beside jobs that keep what their queues are guaranteed."""
        keeping: dict[JobId, Allocation] = {}
        while True:
            proposal = self._ask_beside(keeping, offered, caps)
            owed = self.owed(proposal)
            if not owed:
                return proposal
            keeping |= owed  # more of them, or larger: this ends at what the level holds

    def _ask_beside(
        self, keeping: Mapping[JobId, Allocation], offered: Masks, caps: Mapping[int, int]
    ) -> LevelPlan:
        """The policy's plan for the others, where some jobs are not shown and keep so much in place."""
        rows, own, free = self.rows, self.own, self.free
        if keeping:
            rows = np.array(
                [row for row in rows.tolist() if self.jobs[row].id not in keeping], dtype=np.int64
            )
            own = {job: allocation for job, allocation in own.items() if job not in keeping}
            free = free.copy()
            for job, left in keeping.items():
                add_masks(free, without(self.own[job], left))
            free = np.where(self.snapshot.usable, free, 0)
        proposal = self._propose(rows, own, free, offered, caps)
        return replace(proposal, allocations={**proposal.allocations, **keeping}) if keeping else proposal

    def _propose(
        self,
        rows: IntArray,
        own: Mapping[JobId, Allocation],
        free: Masks,
        offered: Masks,
        caps: Mapping[int, int],
    ) -> LevelPlan:
        """The policy's plan for some rows, on their own GPUs, free ones, and those that are offered.

        caps: by row, fewer GPUs than a job may have; 0: it is not shown.
        """
        snapshot, jobs = self.snapshot, self.snapshot.jobs
        if caps:
            rows = np.array([row for row in rows.tolist() if caps.get(row, 1)], dtype=np.int64)
        # Nodes are smaller by what the level may not have.
        view = only_gpus(no_placement(snapshot.cluster).changed(own), free | offered)
        # Jobs ask for less where they are capped, or run on less than they asked for.
        requests = _running_below_request(snapshot, rows, view, self.context.sizes)
        for row in rows.tolist():
            job = requests.get(row, jobs[row])
            most = max(caps.get(row, job.max_gpus), job.min_gpus)
            if most < job.max_gpus:
                requests[row] = replace(job, max_gpus=most, gpus=min(job.gpus, most))
        visible = replace(
            snapshot,
            jobs=select_jobs(jobs, rows, requests, view.placement),
            placement=view.placement,
            memory=self.memory,
            constraints=snapshot.constraints.of_users,
        )
        plan = propose_fairly(view.show(visible), self.scheduler, self.context.fair_limits)
        # The plan on the nodes as they are, and what it takes of lower jobs.
        allocations = _on_free_first(dict(view.from_shown(plan.placement)), own, free, offered)
        used = np.zeros_like(offered)
        for allocation in allocations.values():
            used[list(allocation.nodes)] |= np.array(allocation.masks, dtype=np.int64)
        return LevelPlan(rows, offered, used & offered, plan, allocations, caps)

    # ── guarantees ────────────────────────────────────────────────────────────────────────────────

    def owed(self, proposal: LevelPlan) -> dict[JobId, Allocation]:
        """What jobs have to keep that a plan gives to jobs of other queues, against a guarantee."""
        after, tree = proposal.allocations, self.context.hierarchy
        if not self.context.constraints.queues or not some_lose(self.own, after):
            return {}
        # What each queue would hold then.
        left, by_id = dict(self.usage), {self.jobs[row].id: self.jobs[row] for row in self.rows.tolist()}
        for sign, allocations in ((-1, self.own), (1, after)):
            for job, allocation in allocations.items():
                tree.add(left, by_id[job].queue, sign * allocation.gpus)
        for victim in self.lower:
            if proposal.takes_from(victim):
                rest = reduced(victim, proposal.used, self.snapshot.cluster, self.context.sizes)
                given_up = victim.held.gpus - (0 if rest is None else rest.gpus)
                tree.add(left, victim.job.queue, -given_up)
        losses = Losses(self._may_stay(), after, self.usage, left, self._idle(after), self.snapshot.cluster)
        return losses.owed(by_id.values(), tree, self.context.sizes)

    def _may_stay(self) -> dict[JobId, Allocation]:
        """What its jobs hold where they still may be."""
        allowed, usable = self.snapshot.jobs.allowed_kinds, self.snapshot.usable
        kinds = self.snapshot.cluster.kind
        row_of = {self.jobs[row].id: row for row in self.rows.tolist()}
        return {
            job: allocation
            for job, allocation in self.own.items()
            if usable[list(allocation.nodes)].all()
            and allowed[row_of[job], kinds[list(allocation.nodes)]].all()
        }

    def _idle(self, after: Mapping[JobId, Allocation]) -> IntArray:
        """(types,) GPUs, free ones or its own, that no job of the level holds afterwards."""
        idle = self.free.copy()
        for allocation in self.own.values():
            add_masks(idle, without(allocation, None))
        remove_masks(idle, after.values())
        return self._by_type(np.where(self.snapshot.usable, idle, 0))

    # ── small questions ───────────────────────────────────────────────────────────────────────────

    def _is_content_with_free(self) -> bool:
        """Whether free GPUs are enough for all that its jobs may have."""
        jobs, cluster = self.snapshot.jobs, self.snapshot.cluster
        most = np.minimum(jobs.max_gpus[self.rows], int(cluster.node_gpus.sum()))
        held_gpus = [
            self.own[job].gpus if (job := self.jobs[row].id) in self.own else 0 for row in self.rows.tolist()
        ]
        wanted = int(np.maximum(most - np.array(held_gpus, dtype=np.int64), 0).sum())
        return wanted == 0 or (len(cluster.types) == 1 and wanted <= int(self._by_type(self.free)[0]))

    def _own_queues(self) -> list[str]:
        """Queues with a quota in which both this level and lower ones have jobs."""
        own = {self.jobs[row].queue for row in self.rows.tolist()}
        lower = {victim.job.queue for victim in self.lower}
        return sorted(own & lower & self.context.constraints.queues.keys())

    def _takes_part(self, row: int, own: str | None) -> bool:
        job = self.jobs[row]
        return job.preempts and own in (None, job.queue)

    def _hold_others(self, best: LevelPlan, free_rows: list[int], caps: Mapping[int, int]) -> dict[int, int]:
        """Caps by which all but some rows get what they would get anyway."""
        others = set(self.rows.tolist()) - set(free_rows)
        return {**caps, **{row: self._gpus(best, row) for row in sorted(others)}}

    def _gpus(self, proposal: LevelPlan, row: int) -> int:
        allocation = proposal.allocations.get(self.jobs[row].id)
        return 0 if allocation is None else allocation.gpus

    def _least(self, row: int) -> int:
        return self.context.sizes.at_least(self.jobs[row], 0)

    def _requested(self, row: int) -> int:
        return self.jobs[row].gpus

    def _by_type(self, masks: Masks) -> IntArray:
        cluster = self.snapshot.cluster
        counts = np.bitwise_count(masks).astype(np.int64)
        return np.bincount(cluster.kind, counts, len(cluster.types)).astype(np.int64)


def _running_below_request(
    snapshot: Snapshot, rows: IntArray, view: SharedNodeView, sizes: PermittedSizes
) -> dict[int, Job]:
    """Jobs that run on less than they ask for, asking for as much as is left: none is stopped for the rest.

    A policy that gives jobs what they ask for, or nothing, would stop one that was made smaller.
    """
    requests: dict[int, Job] = {}
    free: IntArray | None = None
    for row in rows.tolist():
        # Only jobs that can run on less. Where GPUs stand in for better ones, counts cannot be compared.
        job = snapshot.jobs[row]
        allocation = view.placement.get(job.id)
        if allocation is None or allocation.gpus >= job.gpus or job.adaptivity is Adaptivity.RIGID:
            continue
        if allocation.gpus < job.min_gpus or snapshot.cluster.stand_ins[allocation.kind] > 1:
            continue
        if allocation.gpus % job.gpus_per_worker:  # a part of a worker, where the world lets a job hold one
            continue
        if free is None:  # counted once, where some job needs it
            free = _free_by_type(snapshot, view)
        # It asks for what it holds and what is left beside it; the next job finds less.
        more = sizes.at_most(job, min(job.gpus, allocation.gpus + int(free[allocation.kind])))
        request_gpus = max(more, allocation.gpus)
        free[allocation.kind] -= request_gpus - allocation.gpus
        requests[row] = replace(job, gpus=request_gpus)
    return requests


def _free_by_type(snapshot: Snapshot, view: SharedNodeView) -> IntArray:
    """(types,) GPUs that are shown, and that no job that is shown holds."""
    shown = view.to_shown(view.placement)
    free = np.where(view.usable(snapshot.usable), shown.free, 0)
    return np.bincount(view.shown.kind, free, len(view.shown.types)).astype(np.int64)


def _on_free_first(
    allocations: dict[JobId, Allocation], own: Mapping[JobId, Allocation], free: Masks, offered: Masks
) -> dict[JobId, Allocation]:
    """The same counts on every node, on free GPUs before those of lower jobs."""
    if not offered.any():
        return allocations
    left = free.copy()
    remove_masks(left, allocations.values())
    for job, allocation in allocations.items():
        if allocation is own.get(job) or allocation.flexible:
            continue
        # Each GPU of a lower job is exchanged for a free one of the same node, while there is one.
        masks = list(allocation.masks)
        for place, (node, mask) in enumerate(zip(allocation.nodes, allocation.masks, strict=True)):
            for gpu in range(mask.bit_length()):
                spare = int(left[node])
                if mask >> gpu & 1 and int(offered[node]) >> gpu & 1 and spare:
                    lowest = spare & -spare
                    left[node] ^= lowest
                    masks[place] ^= 1 << gpu | lowest
        if tuple(masks) != allocation.masks:
            allocations[job] = replace(allocation, masks=tuple(masks))
    return allocations
