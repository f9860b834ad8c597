"""A decision within the rules of `sharing`, whatever the policy.

The policy is shown what it may use: jobs that would exceed a bound are left out or may have fewer GPUs, and
what was borrowed is given back before. Where its plan still exceeds a bound, it is asked again with what the
plan may keep, in order of priority, as the jobs' limits. What is then still too much is cut off.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stretto.live.bounds import Desk, cut, enclaves, make_room, on_nodes, open_nodes, shown, tighten
from stretto.live.bounds.lens import lens_of
from stretto.live.bounds.sharing import Rules
from stretto.model import IntArray, Placement, Plan, Reasons, Snapshot, actions_between
from stretto.scheduler.round import Scheduler, decide

MOST_TRIES = 3  # chosen: limits that follow from a plan are kept by the next one, but for types that stand in


def decide_within(snapshot: Snapshot, scheduler: Scheduler, rules: Rules) -> Plan:
    """One decision. Pure and deterministic, as `decide` is."""
    if rules.others:
        lens = lens_of(snapshot.placement, rules.others)
        plan = decide_within(lens.snapshot(snapshot), scheduler, replace(rules, others={}))
        return lens.plan(plan, snapshot)
    if rules.are_void:
        return decide(snapshot, scheduler)
    desk = Desk(snapshot, rules)
    make_room(desk)
    plans = _asked(desk, scheduler)
    for _ in range(MOST_TRIES - 1):
        if not tighten(desk, plans[-1].placement):
            break
        plans = _asked(desk, scheduler)
    return _finished(desk, plans)


def _asked(desk: Desk, scheduler: Scheduler) -> list[Plan]:
    """The policy's plans for what it is shown: reserved nodes with their users first, then everything else.

    Each goes on from the one before, so the last one's placement is that of all.
    """
    placement = desk.placement
    elsewhere = np.ones(len(desk.snapshot.jobs), dtype=np.bool_)
    there = []
    for nodes, rows in enclaves(desk):
        seen = shown(desk, placement, rows & elsewhere, nodes)
        if len(seen.jobs):
            plan = decide(replace(seen, memory=None), scheduler)
            placement = plan.placement
            there.append(plan)
            elsewhere &= ~on_nodes(desk, placement, nodes)
    return [*there, decide(shown(desk, placement, elsewhere, open_nodes(desk)), scheduler)]


@dataclass(frozen=True, eq=False)
class Told(Mapping[int, str]):
    """What is said of each row, put in words when somebody reads it: thousands may wait."""

    where: Mapping[int, tuple[Mapping[int, str], int]]  # by row: who says it, and the row under which

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        words, at = self.where[row]
        return words[at]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.where)

    def __len__(self) -> int:
        """How many these are."""
        return len(self.where)


def _reasons(desk: Desk, plans: list[Plan], placement: Placement) -> Reasons:
    """Why everybody waits: what the rules say, else what the policy says of those that it was shown."""
    code = np.zeros(len(desk.snapshot.jobs), dtype=np.int64)
    where: dict[int, tuple[Mapping[int, str], int]] = {}
    for plan in plans:
        rows: IntArray = np.array([desk.row_of[name] for name in plan.jobs.ids], dtype=np.int64)
        code[rows] = plan.why.code
        where |= {int(rows[at]): (plan.why.evidence, at) for at in plan.why.evidence}
    said = {row: words for row, (_, words) in desk.why.items()}
    for row, (why, _) in desk.why.items():
        code[row], where[row] = int(why), (said, row)
    for name in placement:
        row = desk.row_of.get(name, -1)
        if row >= 0:
            code[row] = 0
            where.pop(row, None)
    return Reasons(code, Told(where))


def _finished(desk: Desk, plans: list[Plan]) -> Plan:
    """The plan without what exceeds a bound, from what is held now; asked again when a rule changes."""
    plan = plans[-1]
    placement: Placement = cut(desk, plan.placement)
    wake_s = min(plan.wake_s or np.inf, desk.rules.next_change_s(desk.snapshot.now_s))
    return replace(
        plan,
        actions=actions_between(desk.snapshot.placement, placement),
        placement=placement,
        why=_reasons(desk, plans, placement),
        wake_s=float(wake_s) if np.isfinite(wake_s) else None,
        jobs=desk.snapshot.jobs,
    )
