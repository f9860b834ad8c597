"""A decision within the constraints of its snapshot, whatever the policy.

The policy is shown what it may use: jobs that would exceed a limit are left out or may have fewer GPUs, and
what was borrowed is given back before. Where its plan still exceeds a limit, it is asked again with what the
plan may keep, in order of priority, as the jobs' limits. Where it then leaves some of that, jobs that were
left out are let in again. What is still too much is cut off.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from stretto.model import IntArray, Job, Placement, Plan, Reasons, Snapshot, actions_between
from stretto.scheduler.asking import Ask, ask_policy
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.evidence import Evidence, seen_from_the_whole
from stretto.scheduler.constraints.fair_order import decide_in_fair_order
from stretto.scheduler.constraints.guarantees import Lost, some_lose
from stretto.scheduler.constraints.loosening import loosened
from stretto.scheduler.constraints.offers import Sizes, gpus_by_queue
from stretto.scheduler.constraints.priorities import ask_by_priority
from stretto.scheduler.constraints.quotas import make_room
from stretto.scheduler.constraints.shared_nodes import lens_of
from stretto.scheduler.constraints.trimming import cut, is_within, tighten
from stretto.scheduler.constraints.views import enclaves, on_nodes, open_nodes, shown

MOST_TRIES = 3  # chosen: limits that follow from a plan are kept by the next one, but for types that stand in


def decide_within(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """One decision. Pure and deterministic; where nothing is constrained, what the policy says."""
    if snapshot.constraints.fair_share is not None:
        return decide_in_fair_order(snapshot, scheduler, _decided)
    return _decided(snapshot, partial(ask_policy, scheduler=scheduler))


def _decided(snapshot: Snapshot, ask: Ask) -> Plan:
    """The same for jobs in the order in which they are to be shown."""
    constraints = snapshot.constraints
    if constraints.others:
        lens = lens_of(snapshot.placement, constraints.others)
        plan = lens.plan(_decided(lens.snapshot(snapshot), ask), snapshot)
        return replace(plan, why=seen_from_the_whole(plan.why, snapshot))
    if constraints.are_void:
        return ask_by_priority(snapshot, ask, constraints)
    room, draft, plans = _settled(snapshot, ask)
    plan = _finished(draft, plans)
    if constraints.queues and constraints.priorities_act:
        steady = _losers(draft, room, plan.placement)
        if steady:  # they made way for jobs of their own, and others came in between
            _, draft, plans = _settled(snapshot, ask, steady)
            plan = _finished(draft, plans)
    return plan


def _settled(
    snapshot: Snapshot, ask: Ask, steady: frozenset[str] = frozenset()
) -> tuple[Placement, Draft, list[Plan]]:
    """What is held once there is room, and the policy's last plans. steady: queues whose jobs only go on."""
    draft = Draft(snapshot)
    make_room(draft)
    room = draft.placement
    for limit in draft.limits:
        if limit.queue in steady:
            for row in np.flatnonzero(limit.rows & (draft.most > 0)).tolist():
                held = room.get(draft.of[row].id)
                draft.cap(row, limit, 0 if held is None else held.gpus)
    granted = draft.most.copy()
    plans = _asked(draft, ask)
    for _ in range(MOST_TRIES - 1):
        if not tighten(draft, plans[-1].placement):
            break
        plans = _asked(draft, ask)
    more = loosened(draft, granted, room, plans[-1].placement)
    if more is not None:
        better = _asked(more, ask)
        if tighten(more, better[-1].placement):
            better = _asked(more, ask)
        if is_within(more, better[-1].placement):
            return room, more, better
    return room, draft, plans


def _losers(draft: Draft, before: Placement, after: Placement) -> frozenset[str]:
    """Queues of which others hold what their quotas guarantee, of what they held before."""
    if not some_lose(before, after):
        return frozenset()
    tree, snapshot = draft.hierarchy, draft.snapshot
    jobs = [*draft.of, *(job for job, _ in draft.staying())]
    held, left = (gpus_by_queue(jobs, one, tree) for one in (before, after))
    stay = {name: one for name, one in before.items() if snapshot.usable[list(one.nodes)].all()}
    free, cluster = np.where(snapshot.usable, after.free, 0), snapshot.cluster
    idle = np.bincount(cluster.kind, free, len(cluster.types)).astype(np.int64)
    owed = Lost(stay, after, held, left, idle).owed(draft.of, tree, Sizes(draft.constraints))
    lines = {one for name in owed for one in tree.guarded(draft.of[draft.row_of[name]].queue)}
    return frozenset(one for one in lines if left[one] < min(held[one], tree.quota(one)))


def _asked(draft: Draft, ask: Ask) -> list[Plan]:
    """The policy's plans for what it is shown: reserved nodes with their users first, then everything else.

    Each goes on from the one before, so the last one's placement is that of all.
    """
    placement = draft.placement
    elsewhere = np.ones(len(draft.snapshot.jobs), dtype=np.bool_)
    there = []
    for nodes, rows in enclaves(draft):
        seen = shown(draft, placement, rows & elsewhere, nodes)
        if len(seen.jobs):
            plan = _ask(draft, ask, replace(seen, memory=None))
            placement = plan.placement
            there.append(plan)
            elsewhere &= ~on_nodes(draft, placement, nodes)
    return [*there, _ask(draft, ask, shown(draft, placement, elsewhere, open_nodes(draft)))]


def _ask(draft: Draft, ask: Ask, seen: Snapshot) -> Plan:
    """The plan for some of the jobs; the others hold what they hold, and count in their queues."""
    outside: list[Job] = []
    if draft.constraints.queues:
        ids = set(seen.jobs.ids)
        outside = [job for job in draft.of if job.id not in ids] + [job for job, _ in draft.staying()]
    return ask_by_priority(seen, ask, draft.constraints, outside, draft.claimed)


def _reasons(draft: Draft, plans: list[Plan], placement: Placement) -> Reasons:
    """Why everybody waits: what the constraints say, else what the policy says of those that it was shown."""
    code = np.zeros(len(draft.snapshot.jobs), dtype=np.int64)
    where: dict[int, tuple[Mapping[int, str], int]] = {}
    for plan in plans:
        rows: IntArray = np.array([draft.row_of[name] for name in plan.jobs.ids], dtype=np.int64)
        code[rows] = plan.why.code
        where |= {int(rows[at]): (plan.why.evidence, at) for at in plan.why.evidence}
    said = {row: words for row, (_, words) in draft.why.items()}
    for row, (why, _) in draft.why.items():
        code[row], where[row] = int(why), (said, row)
    for name in placement:
        row = draft.row_of.get(name, -1)
        if row >= 0:
            code[row] = 0
            where.pop(row, None)
    return Reasons(code, Evidence(where))


def _finished(draft: Draft, plans: list[Plan]) -> Plan:
    """The plan without what exceeds a limit, from what is held now; asked again when a constraint changes."""
    plan = plans[-1]
    placement: Placement = cut(draft, plan.placement)
    wake_s = min(plan.wake_s or np.inf, draft.constraints.next_change_s(draft.snapshot.now_s))
    return replace(
        plan,
        actions=actions_between(draft.snapshot.placement, placement),
        placement=placement,
        why=_reasons(draft, plans, placement),
        wake_s=float(wake_s) if np.isfinite(wake_s) else None,
        jobs=draft.snapshot.jobs,
        preemptions=tuple(one for plan in plans for one in plan.preemptions),
    )
