"""Limits after the policy has planned: tightened where the plan exceeds one, relaxed where it leaves some.

At last what still exceeds a limit is cut off the plan.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from stretto.model import IntArray, JobId, Placement
from stretto.scheduler.constraints.context import ANY_TYPE, DecisionContext, Limit
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.reservations import keep_clear_of_reservations

# ── between two attempts ──────────────────────────────────────────────────────────────────────────


def permits(context: DecisionContext, placement: Placement) -> bool:
    """Whether a plan exceeds no limit."""
    return not any(_planned(context, limit, placement) for limit in context.limits)


def tighten_limits(context: DecisionContext, placement: Placement) -> DecisionContext | None:
    """Where a plan exceeds a limit: the jobs of it limited to what they may keep of the plan.

    None where it exceeds none.
    """
    tightened = context.copy()
    exceeded = False
    for limit in context.limits:
        planned = _planned(tightened, limit, placement)
        if context.constraints.parents:
            planned = _still_planned(tightened, limit, planned)
        if not planned:
            continue
        exceeded = True
        for row, gpus in _distributed(tightened, limit, planned):
            tightened.cap(row, limit, gpus)
        # Jobs that the plan left out would come in for those that now have less.
        served = {row for row, _ in planned}
        for row in np.flatnonzero(limit.rows & (tightened.most > 0)).tolist():
            if row not in served:
                tightened.cap(row, limit, 0)
    return tightened if exceeded else None


def relax_limits(context: DecisionContext, planned: Placement) -> DecisionContext | None:
    """Where a plan leaves some of a limit: jobs that were left out may have that, if any.

    Other jobs in the same limits get no more than in the plan.
    """
    left_out = np.flatnonzero((context.most == 0) & (context.granted > 0) & context.gpu_types.any(axis=1))
    if not left_out.size or not context.constraints.quotas_kept:
        return None
    gpus = context.usage.by_type(planned)[ANY_TYPE]
    room = [limit.most - int(context.usage.counting(limit, planned).sum()) for limit in context.limits]
    idle = int(planned.free[context.snapshot.usable].sum())
    relaxed, shared = context.copy(), set[int]()
    let_in = []
    for row in sorted(left_out.tolist(), key=lambda row: precedence(context, row)):
        numbers = [number for number, limit in enumerate(context.limits) if limit.rows[row]]
        if not numbers or any(context.limits[number].gpu_type != ANY_TYPE for number in numbers):
            continue
        # As much as every limit around it leaves; a start needs idle GPUs, too.
        job = context.jobs[row]
        size = context.sizes.at_most(
            job, min(int(context.granted[row]), *(room[number] for number in numbers))
        )
        before = context.reclaimed.get(job.id)
        if not size or (before is None and size > idle):
            continue
        # It may have them, and goes on with what it held of them.
        relaxed.most[row] = size
        relaxed.why.pop(row, None)
        if before is not None:
            smaller = relaxed.shrunk(before, min(size, before.gpus), before)
            relaxed.placement = relaxed.placement.changed({job.id: smaller})
        let_in.append(row)
        for number in numbers:
            room[number] -= size
        shared |= set(numbers)
    for number in sorted(shared):
        _hold_others(relaxed, context.limits[number], gpus, let_in)
    return relaxed if let_in else None


def hold_jobs_of(context: DecisionContext, queues: frozenset[str]) -> None:
    """Let the jobs of some queues only go on: none has more than it holds, none starts."""
    for limit in context.limits:
        if limit.queue in queues:
            for row in np.flatnonzero(limit.rows & (context.most > 0)).tolist():
                allocation = context.reclaimed.get(context.jobs[row].id)
                context.cap(row, limit, 0 if allocation is None else allocation.gpus)


def _hold_others(context: DecisionContext, limit: Limit, gpus: IntArray, let_in: list[int]) -> None:
    """Other jobs of a limit get no more than so many GPUs. gpus: (jobs,)."""
    others = limit.rows & (gpus < context.most)
    others[let_in] = False
    for row in np.flatnonzero(others).tolist():
        if not gpus[row]:
            context.cap(row, limit, 0)
        else:
            size = context.sizes.at_most(context.jobs[row], int(gpus[row]))
            context.most[row] = size or context.most[row]


# ── at last ───────────────────────────────────────────────────────────────────────────────────────


def enforce_limits(context: DecisionContext, placement: Placement) -> Placement:
    """The placement with permitted sizes only, and within every limit.

    Says in the context why what is cut off has to wait.
    """
    # Permitted sizes.
    for name in context.constraints.sizes:
        row, allocation = context.row_of.get(JobId(name)), placement.get(JobId(name))
        if row is None or allocation is None or allocation.profiling:
            continue
        size = context.sizes.at_most(context.jobs[row], allocation.gpus)
        if size != allocation.gpus:
            placement = _cut(context, placement, row, size)
    # What still exceeds a limit, from those that come last.
    for limit in context.limits:
        planned = _planned(context, limit, placement)
        excess = sum(gpus for _, gpus in planned) - limit.most
        least = dict(_distributed(context, limit, planned)) if _has_guaranteed_parts(context, limit) else {}
        for row, gpus in reversed(planned):
            if excess <= 0:
                break
            whole = placement[context.jobs[row].id].gpus  # of other types, too, where it may mix them
            keeps = max(whole - excess, least.get(row, 0), _never_taken(context, row))
            size = context.sizes.at_most(context.jobs[row], keeps)
            if size == whole:
                continue
            placement = _cut(context, placement, row, size, limit.gpu_type)
            excess -= gpus - int(context.usage.by_type(placement)[limit.gpu_type, row])
            if not size:
                context.note(row, limit)
    # Starts that would be in the way of a reservation.
    return keep_clear_of_reservations(context, placement)


def _cut(
    context: DecisionContext, placement: Placement, row: int, gpus: int, gpu_type: int = ANY_TYPE
) -> Placement:
    """The placement in which a job has only so many of its GPUs; those of a type go first."""
    job = context.jobs[row].id
    before = context.snapshot.placement.get(job)
    return placement.changed({job: context.shrunk(placement[job], gpus, before, gpu_type) if gpus else None})


# ── which jobs come first ─────────────────────────────────────────────────────────────────────────


def precedence(context: DecisionContext, row: int) -> tuple[bool, int, bool, int]:
    """Which job comes first where a limit is exceeded: the lowest value."""
    job = context.jobs[row]
    waits = job.id not in context.snapshot.placement
    return (job.preemptible or waits, -job.priority, waits, row)


def _planned(context: DecisionContext, limit: Limit, placement: Placement) -> list[tuple[int, int]]:
    """(row, GPUs) of a limit's jobs, those first that come first; empty where they keep to it."""
    gpus = context.usage.counting(limit, placement)
    if int(gpus.sum()) <= limit.most:
        return []
    rows = np.flatnonzero(gpus)
    planned = zip(rows.tolist(), gpus[rows].tolist(), strict=True)
    return sorted(planned, key=lambda pair: precedence(context, pair[0]))


def _still_planned(
    context: DecisionContext, limit: Limit, planned: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The same without what limits of queues in this one leave out; empty where the rest keeps to it."""
    left = [(row, min(gpus, int(context.most[row]))) for row, gpus in planned if context.most[row] > 0]
    return left if sum(gpus for _, gpus in left) > limit.most else []


def _distributed(
    context: DecisionContext, limit: Limit, planned: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """(row, GPUs) that each may keep of what was planned, in the same order.

    What a part of the limit's queue is guaranteed goes to none of its other parts, whatever their priority.
    """
    room, parts = limit.most, None
    if _has_guaranteed_parts(context, limit):
        to_come = [(context.jobs[row].queue, gpus) for row, gpus in planned]
        parts = GuaranteedParts(context.hierarchy, limit.queue, to_come)
    for row, gpus in planned:
        job = context.jobs[row]
        left = room if parts is None else max(room - parts.kept_for_others(job.queue), 0)
        size = context.sizes.at_most(job, min(gpus, max(left, _never_taken(context, row))))
        room -= size
        if parts is not None:
            parts.give(job.queue, gpus, size)
        yield row, size


def _has_guaranteed_parts(context: DecisionContext, limit: Limit) -> bool:
    """Whether parts of a limit's queue have guarantees; in decisions of old logs they had none there."""
    return bool(limit.queue and context.constraints.parents and context.constraints.quotas_kept)


def _never_taken(context: DecisionContext, row: int) -> int:
    """GPUs that a job keeps whatever happens: what it holds, where it cannot be preempted."""
    job = context.jobs[row]
    allocation = context.snapshot.placement.get(job.id)
    return 0 if allocation is None or job.preemptible else allocation.gpus


class GuaranteedParts:
    """Parts of a queue while GPUs of it are given out, job by job, to those that come first.

    As long as jobs of a part are to come, what they can have within its quota is kept for them.
    """

    def __init__(self, tree: Hierarchy, around: str, planned: Iterable[tuple[str, int]]) -> None:
        """Nothing is given out. planned: queue and GPUs of each job that is to come."""
        self._tree, self._around = tree, around
        self._to_come: Counter[str] = Counter()  # GPUs planned for jobs of a part
        self._given: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()  # for a part
        self._kept_in: Counter[str] = Counter()  # for all parts of a queue
        for queue, gpus in planned:
            for part in self._line(queue):
                self._to_come[part] += gpus
        for part in sorted(self._to_come, key=lambda name: -len(tree.path(name))):
            self._keep(part)

    def kept_for_others(self, queue: str) -> int:
        """GPUs that a job of a queue has to leave to jobs of other parts."""
        line = self._line(queue)
        return sum(self._kept_in[name] for name in (self._around, *line)) - sum(
            self._kept[name] for name in line
        )

    def give(self, queue: str, planned: int, given: int) -> None:
        """A job of a queue was to have so many GPUs, and has been given so many."""
        for part in reversed(self._line(queue)):
            self._to_come[part] -= planned
            self._given[part] += given
            self._keep(part)

    def _line(self, queue: str) -> list[str]:
        """Parts that a queue is in, the outermost first."""
        return self._tree.guarded(queue, within=self._around)

    def _keep(self, part: str) -> None:
        around = self._tree.guarded_path(part)[-2]
        own = min(self._tree.quota(part) - self._given[part], self._to_come[part])
        kept = max(own, self._kept_in[part], 0)
        self._kept_in[around] += kept - self._kept[part]
        self._kept[part] = kept
