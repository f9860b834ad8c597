"""A decision within the rules of `sharing`, whatever the policy.

The policy is shown what it may use: jobs that would exceed a bound are left out or may have fewer GPUs, and
what was borrowed is given back before. Where its plan still exceeds a bound, it is asked again with what the
plan may keep, in order of priority, as the jobs' limits. What is then still too much is cut off.
"""

from dataclasses import replace

import numpy as np

from stretto.live.bounds import Desk
from stretto.live.sharing import Rules
from stretto.model import IntArray, Placement, Plan, Reasons, Snapshot, actions_between
from stretto.scheduler.round import Scheduler, decide

MOST_TRIES = 3  # chosen: limits that follow from a plan are kept by the next one, but for types that stand in


def decide_within(snapshot: Snapshot, scheduler: Scheduler, rules: Rules) -> Plan:
    """One decision. Pure and deterministic, as `decide` is."""
    if rules.are_void:
        return decide(snapshot, scheduler)
    desk = Desk(snapshot, rules)
    desk.make_room()
    plan = _asked(desk, scheduler)
    for _ in range(MOST_TRIES - 1):
        if not desk.tighten(plan.placement):
            break
        plan = _asked(desk, scheduler)
    return _finished(desk, plan)


def _asked(desk: Desk, scheduler: Scheduler) -> Plan:
    """The policy's plan for what it is shown: reserved nodes with their users first, then everything else."""
    placement = desk.placement
    elsewhere = np.ones(len(desk.snapshot.jobs), dtype=np.bool_)
    there = []
    for nodes, rows in desk.enclaves():
        shown = desk.shown(placement, rows & elsewhere, nodes)
        if len(shown.jobs):
            plan = decide(replace(shown, memory=None), scheduler)
            placement = plan.placement
            there.append(plan)
            elsewhere &= ~desk.on_nodes(placement, nodes)
    plan = decide(desk.shown(placement, elsewhere, desk.open_nodes), scheduler)
    return replace(plan, why=_reasons(desk, [*there, plan]), jobs=desk.snapshot.jobs)


def _reasons(desk: Desk, plans: list[Plan]) -> Reasons:
    """Why everybody waits: what the rules say, else what the policy says of those that it was shown."""
    jobs = desk.snapshot.jobs
    row_of = {name: row for row, name in enumerate(jobs.ids)}
    code = np.zeros(len(jobs), dtype=np.int64)
    evidence: dict[int, str] = {}
    for plan in plans:
        rows: IntArray = np.array([row_of[name] for name in plan.jobs.ids], dtype=np.int64)
        code[rows] = plan.why.code
        evidence |= {int(rows[row]): said for row, said in plan.why.evidence.items()}
    for row, (why, said) in desk.why.items():
        code[row], evidence[row] = int(why), said
    return Reasons(code, evidence)


def _finished(desk: Desk, plan: Plan) -> Plan:
    """The plan without what exceeds a bound, from what is held now; asked again when a rule changes."""
    placement: Placement = desk.cut(plan.placement)
    wake_s = min(plan.wake_s or np.inf, desk.rules.next_change_s(desk.snapshot.now_s))
    code, evidence = plan.why.code.copy(), dict(plan.why.evidence)
    for row, name in enumerate(desk.snapshot.jobs.ids):
        if name in placement:
            code[row] = 0
            evidence.pop(row, None)
        elif row in desk.why:
            code[row], evidence[row] = int(desk.why[row][0]), desk.why[row][1]
    return replace(
        plan,
        actions=actions_between(desk.snapshot.placement, placement),
        placement=placement,
        why=Reasons(code, evidence),
        wake_s=float(wake_s) if np.isfinite(wake_s) else None,
    )
