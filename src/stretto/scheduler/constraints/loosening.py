"""Jobs that were left out for others of their queue, which then had fewer GPUs than they had been granted."""

from copy import copy

import numpy as np

from stretto.model import IntArray, Placement
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.limits import ANY, Limit
from stretto.scheduler.constraints.shrinking import kept_of
from stretto.scheduler.constraints.trimming import rank


def loosened(draft: Draft, granted: IntArray, held: Placement, planned: Placement) -> Draft | None:
    """The draft in which jobs that were left out may have what a plan leaves of their limits, if any.

    Other jobs in the same limits get no more than in the plan. granted: (jobs,) what each was granted before
    any was left out; held: what they held then.
    """
    left_out = np.flatnonzero((draft.most == 0) & (granted > 0) & draft.kinds.any(axis=1)).tolist()
    if not left_out or not draft.constraints.quotas_kept:
        return None
    gpus = draft.holdings.columns(planned)[0]
    room = [limit.most - int(gpus[draft.holdings.holding(limit, planned)].sum()) for limit in draft.limits]
    idle = int(planned.free[draft.snapshot.usable].sum())
    again, shared = _copy_of(draft), set[int]()
    let_in = []
    for row in sorted(left_out, key=lambda row: rank(draft, row)):
        its = [number for number, limit in enumerate(draft.limits) if limit.rows[row]]
        if not its or any(draft.limits[number].kind != ANY for number in its):
            continue
        size = draft.allowed(row, min(int(granted[row]), *(room[number] for number in its)))
        before = held.get(draft.of[row].id)
        if not size or (before is None and size > idle):
            continue
        let_in.append(row)
        _let_in(again, row, size, held)
        for number in its:
            room[number] -= size
        shared |= set(its)
    for number in sorted(shared):
        _keep_others_to(again, draft.limits[number], gpus, let_in)
    return again if let_in else None


def _copy_of(draft: Draft) -> Draft:
    again = copy(draft)
    again.most, again.kinds, again.why = draft.most.copy(), draft.kinds.copy(), dict(draft.why)
    return again


def _let_in(draft: Draft, row: int, size: int, held: Placement) -> None:
    """A job may have so many GPUs, and holds what it held of them."""
    before = held.get(draft.of[row].id)
    draft.most[row] = size
    draft.why.pop(row, None)
    if before is not None:
        kept = kept_of(before, min(size, before.gpus), before)
        draft.placement = draft.placement.changed({draft.of[row].id: kept})


def _keep_others_to(draft: Draft, limit: Limit, gpus: IntArray, let_in: list[int]) -> None:
    """Other jobs of a limit get no more than so many GPUs."""
    others = limit.rows & (gpus < draft.most)
    others[let_in] = False
    for row in np.flatnonzero(others).tolist():
        if not gpus[row]:
            draft.cap(row, limit, 0)
        else:
            draft.most[row] = draft.allowed(row, int(gpus[row])) or draft.most[row]
