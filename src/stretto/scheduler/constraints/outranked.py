"""Why jobs wait where priorities act: who has taken their GPUs, and who holds what they would need."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import IntArray, JobId, Placement, Preemption, Reasons, Snapshot, Why
from stretto.scheduler.constraints.evidence import too_large_for_a_part
from stretto.scheduler.constraints.level_view import Attempt

OF_WHAT_IS_LEFT = (Why.NO_FREE_GPUS, Why.TOO_LARGE)  # reasons of a policy that sees no more than that


def reasons_by_level(
    snapshot: Snapshot,
    attempts: Sequence[Attempt],
    placement: Placement,
    preemptions: Mapping[JobId, Preemption],
) -> Reasons:
    """What the policy says of those that it was asked about, and else which higher jobs are in the way."""
    jobs = snapshot.jobs
    code = np.full(len(jobs), int(Why.OUTRANKED), dtype=np.int64)
    where: dict[int, tuple[Mapping[int, str], int]] = {}
    for attempt in attempts:
        code[attempt.rows] = attempt.plan.why.code
        evidence = attempt.plan.why.evidence
        where |= {int(attempt.rows[at]): (evidence, at) for at in evidence}
    waits = np.array([name not in placement for name in jobs.ids], dtype=np.bool_)
    code[~waits] = int(Why.RUNS)
    outranked = Outranked(snapshot, placement)
    left = np.isin(code, [int(why) for why in OF_WHAT_IS_LEFT])
    fits = (jobs.allowed_kinds & (jobs.gpus[:, None] <= snapshot.capacity)).any(axis=1)
    code[waits & left & fits & (jobs.priority < outranked.highest)] = int(Why.OUTRANKED)
    for name in preemptions:
        row = jobs.ids.index(name)
        if waits[row]:
            code[row] = int(Why.PREEMPTED)
    for row in np.flatnonzero(too_large_for_a_part(code, snapshot)).tolist():  # of lower jobs that stay
        code[row] = int(Why.NO_FREE_GPUS)
        where.pop(row, None)
    return Reasons(code, LevelEvidence(code, where, outranked, preemptions))


@dataclass(frozen=True, eq=False)
class Outranked:
    """Who holds GPUs, by priority."""

    snapshot: Snapshot
    placement: Placement

    @cached_property
    def holders(self) -> tuple[tuple[int, JobId, int], ...]:
        """Priority, name and GPUs of those that hold any, the highest first, then by submission."""
        jobs = self.snapshot.jobs
        rows = [row for row, name in enumerate(jobs.ids) if name in self.placement]
        rows.sort(key=lambda row: (-int(jobs.priority[row]), row))
        return tuple(
            (int(jobs.priority[row]), jobs.ids[row], self.placement[jobs.ids[row]].gpus) for row in rows
        )

    @property
    def highest(self) -> float:
        """The highest priority that holds GPUs."""
        return self.holders[0][0] if self.holders else -np.inf

    def words(self, row: int) -> str:
        """Which higher jobs a job waits behind."""
        mine = int(self.snapshot.jobs.priority[row])
        higher = [one for one in self.holders if one[0] > mine]
        if not higher:
            return "jobs of higher priority come first"
        priority, name, _ = higher[0]
        gpus = sum(count for _, _, count in higher)
        more = f" and {len(higher) - 1} more" if len(higher) > 1 else ""
        verb = "hold" if len(higher) > 1 else "holds"
        return f"behind {name} (priority {priority}){more}, which {verb} {gpus} GPUs"


@dataclass(frozen=True, eq=False)
class LevelEvidence(Mapping[int, str]):
    """What is said of each row, put in words when somebody reads it: thousands may wait."""

    code: IntArray  # (jobs,) values of Why
    where: Mapping[int, tuple[Mapping[int, str], int]]  # by row: what the policy says, and under which row
    outranked: Outranked
    preemptions: Mapping[JobId, Preemption]

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        if self.code[row] == Why.OUTRANKED:
            return self.outranked.words(row)
        if self.code[row] == Why.PREEMPTED:
            one = self.preemptions[self.outranked.snapshot.jobs.ids[row]]
            return f"preempted by {one.by} (priority {one.priority})"
        evidence, at = self.where[row]
        return evidence[at]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        own = np.isin(self.code, [int(Why.OUTRANKED), int(Why.PREEMPTED)])
        rows = {*np.flatnonzero(own).tolist(), *(row for row in self.where if self.code[row])}
        return iter(sorted(rows))

    def __len__(self) -> int:
        """How many these are."""
        return sum(1 for _ in self)
