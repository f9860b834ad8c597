"""Why each job waits, put together from what the policy and the constraints say.

What is said of a row is put in words when it is read: thousands of jobs may wait.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import (
    BoolArray,
    IntArray,
    JobId,
    Placement,
    Plan,
    Preemption,
    Reasons,
    Snapshot,
    Why,
)
from stretto.scheduler.constraints.context import DecisionContext

OF_WHAT_IS_LEFT = (Why.NO_FREE_GPUS, Why.TOO_LARGE)  # reasons of a policy that sees no more than that

Sources = dict[int, tuple[Mapping[int, str], int]]  # by row: evidence, and the row of it


@dataclass(frozen=True, eq=False)
class Evidence(Mapping[int, str]):
    """What is said of each row, by several sources."""

    sources: Mapping[int, tuple[Mapping[int, str], int]]  # by row: evidence, and the row of it

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        evidence, its_row = self.sources[row]
        return evidence[its_row]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.sources)

    def __len__(self) -> int:
        """How many these are."""
        return len(self.sources)


def reasons_of(context: DecisionContext, plans: Sequence[Plan], placement: Placement) -> Reasons:
    """What the constraints say, else what the policy says of those that it has seen."""
    code = np.zeros(len(context.snapshot.jobs), dtype=np.int64)
    sources: Sources = {}
    # The policy, in plans for some of the jobs each.
    for plan in plans:
        rows: IntArray = np.array([context.row_of[job] for job in plan.jobs.ids], dtype=np.int64)
        code[rows] = plan.why.code
        sources |= {int(rows[row]): (plan.why.evidence, row) for row in plan.why.evidence}
    # Constraints say more of those that they leave out.
    words = {row: text for row, (_, text) in context.why.items()}
    for row, (why, _) in context.why.items():
        code[row], sources[row] = int(why), (words, row)
    # A job that holds GPUs does not wait.
    for job in placement:
        row = context.row_of.get(job, -1)
        if row >= 0:
            code[row] = 0
            sources.pop(row, None)
    return Reasons(code, Evidence(sources))


# ── nodes that others use, too ────────────────────────────────────────────────────────────────────


def too_large_for_a_part(code: IntArray, snapshot: Snapshot) -> BoolArray:
    """(jobs,) that a policy calls too large although the whole cluster has as many GPUs: it saw a part of it.

    code: values of Why, by row of the snapshot.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    requested = jobs.gpus[:, None] * cluster.stand_ins
    fits = (jobs.allowed_kinds & (requested <= cluster.capacity)).any(axis=1)
    is_wrong: BoolArray = (code == int(Why.TOO_LARGE)) & fits
    return is_wrong


def seen_from_the_whole(why: Reasons, snapshot: Snapshot) -> Reasons:
    """The reasons of a policy that saw a part of the cluster: what others hold of it may come free."""
    waits = too_large_for_a_part(why.code, snapshot)
    if not waits.any():
        return why
    code = np.where(waits, int(Why.NO_FREE_GPUS), why.code)
    return Reasons(code, Evidence({row: (why.evidence, row) for row in why.evidence if not waits[row]}))


# ── jobs in another order ─────────────────────────────────────────────────────────────────────────


def in_original_order(why: Reasons, order: IntArray) -> Reasons:
    """The reasons by row as it was before jobs were put in order. order: (jobs,) rows by row as shown."""
    code, shown_row = np.empty_like(why.code), np.empty_like(order)
    code[order], shown_row[order] = why.code, np.arange(len(order))
    return Reasons(code, ReorderedEvidence(why.evidence, order, shown_row))


@dataclass(frozen=True, eq=False)
class ReorderedEvidence(Mapping[int, str]):
    """What is said of each row, looked up where it was shown."""

    evidence: Mapping[int, str]  # by row as shown
    order: IntArray  # (jobs,) rows by row as shown
    shown_row: IntArray  # (jobs,) rows as shown by row

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        return self.evidence[int(self.shown_row[row])]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.order[list(self.evidence)].tolist())

    def __len__(self) -> int:
        """How many these are."""
        return len(self.evidence)


# ── priorities ────────────────────────────────────────────────────────────────────────────────────


def reasons_by_level(
    snapshot: Snapshot,
    proposals: Sequence[tuple[IntArray, Reasons]],
    placement: Placement,
    preemptions: Mapping[JobId, Preemption],
) -> Reasons:
    """What the policy says of jobs that it was asked about, and else which higher jobs are in the way.

    proposals: of each level, rows of the snapshot that the policy saw, and what it says of them.
    """
    jobs = snapshot.jobs
    code = np.full(len(jobs), int(Why.OUTRANKED), dtype=np.int64)
    sources: Sources = {}
    for rows, why in proposals:
        code[rows] = why.code
        sources |= {int(rows[row]): (why.evidence, row) for row in why.evidence}
    waits = np.array([job not in placement for job in jobs.ids], dtype=np.bool_)
    code[~waits] = int(Why.RUNS)
    # "Nothing is free" and "too large" mean what higher levels have left.
    higher = HigherJobs(snapshot, placement)
    of_the_rest = np.isin(code, [int(why) for why in OF_WHAT_IS_LEFT])
    fits = (jobs.allowed_kinds & (jobs.gpus[:, None] <= snapshot.capacity)).any(axis=1)
    code[waits & of_the_rest & fits & (jobs.priority < higher.highest)] = int(Why.OUTRANKED)
    for job in preemptions:
        row = jobs.ids.index(job)
        if waits[row]:
            code[row] = int(Why.PREEMPTED)
    for row in np.flatnonzero(too_large_for_a_part(code, snapshot)).tolist():  # of lower jobs that stay
        code[row] = int(Why.NO_FREE_GPUS)
        sources.pop(row, None)
    return Reasons(code, LevelEvidence(code, sources, higher, preemptions))


@dataclass(frozen=True, eq=False)
class HigherJobs:
    """Which jobs hold GPUs, by priority."""

    snapshot: Snapshot
    placement: Placement

    @cached_property
    def holders(self) -> tuple[tuple[int, JobId, int], ...]:
        """Priority, name and GPUs of those that hold any, the highest first, then by submission."""
        jobs = self.snapshot.jobs
        rows = [row for row, job in enumerate(jobs.ids) if job in self.placement]
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
        own = int(self.snapshot.jobs.priority[row])
        higher = [holder for holder in self.holders if holder[0] > own]
        if not higher:
            return "jobs of higher priority come first"
        priority, job, _ = higher[0]
        gpus = sum(count for _, _, count in higher)
        more = f" and {len(higher) - 1} more" if len(higher) > 1 else ""
        verb = "hold" if len(higher) > 1 else "holds"
        return f"behind {job} (priority {priority}){more}, which {verb} {gpus} GPUs"


@dataclass(frozen=True, eq=False)
class LevelEvidence(Mapping[int, str]):
    """What is said of each row."""

    code: IntArray  # (jobs,) values of Why
    sources: Mapping[int, tuple[Mapping[int, str], int]]  # by row: what the policy says, and the row of it
    higher: HigherJobs
    preemptions: Mapping[JobId, Preemption]

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        if self.code[row] == Why.OUTRANKED:
            return self.higher.words(row)
        if self.code[row] == Why.PREEMPTED:
            preemption = self.preemptions[self.higher.snapshot.jobs.ids[row]]
            return f"preempted by {preemption.by} (priority {preemption.priority})"
        evidence, its_row = self.sources[row]
        return evidence[its_row]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        own = np.isin(self.code, [int(Why.OUTRANKED), int(Why.PREEMPTED)])
        rows = {*np.flatnonzero(own).tolist(), *(row for row in self.sources if self.code[row])}
        return iter(sorted(rows))

    def __len__(self) -> int:
        """How many these are."""
        return sum(1 for _ in self)
