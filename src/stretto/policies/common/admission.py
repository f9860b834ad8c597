"""Which jobs start, given an order? Whole requests, each on GPUs of a single type.

Shared by the policies that decide by an order of jobs alone. On a cluster of several types a job goes to the
type with most free GPUs on which it fits, ties by the cluster's order. It stays there while it runs. On a
type whose GPUs stand in for others it gets as many more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    IntArray,
    Reasons,
    Shares,
    Snapshot,
    Why,
    configurations_from,
    frozen,
)

NO_CONFIGURATIONS = configurations_from([])  # for policies that look at no speeds


def admit_waiting(snapshot: Snapshot, order: IntArray, *, skip: bool) -> Shares:
    """A running job keeps what it holds; waiting jobs start in `order` while they fit.

    order: rows of waiting jobs. With `skip`, a job that fits may pass one that does not. Without it, nothing
    starts after the first that does not fit, and nothing is placed after the first that cannot be placed. A
    job that could never fit holds no other job up.
    """
    running = snapshot.jobs.held_gpus.nonzero()[0]
    if not len(order) and len(running) == len(snapshot.jobs):
        return _all_go_on(snapshot, skip)
    return _admit(snapshot, order, kept_rows=running, skip=skip)


def admit_anew(snapshot: Snapshot, order: IntArray) -> Shares:
    """Every job gets what it asks for in `order`, skipping what does not fit; the others are stopped.

    order: rows of all jobs. A running job keeps its type while there is room for it. One that may not be
    preempted keeps all that it holds, whatever its place in the order.
    """
    jobs = snapshot.jobs
    unstoppable = ~jobs.preemptible & (jobs.held_gpus > 0)
    if unstoppable.any():
        order = order[~unstoppable[order]]
    return _admit(snapshot, order, kept_rows=np.flatnonzero(unstoppable), skip=True)


@lru_cache(maxsize=64)
def most_gpus_of_one_job(cluster: Cluster) -> IntArray:
    """(types,) GPUs of each type that a single job can ever hold."""
    nodes = np.array([gpu_type.max_nodes_per_job or len(cluster.nodes) for gpu_type in cluster.types])
    return frozen(np.minimum(cluster.capacity, nodes * cluster.gpus_per_node))


@lru_cache(maxsize=64)
def _largest_requests(cluster: Cluster) -> IntArray:
    """(types,) the most that one job can ever be given of what it asks for."""
    return frozen(most_gpus_of_one_job(cluster) // cluster.stand_ins)


def reasons_after(snapshot: Snapshot, gpus: IntArray, left: IntArray) -> Reasons:
    """Why each job without GPUs waits, when `left` (types,) GPUs remain after all jobs in `gpus`."""
    most, allowed = _largest_requests(snapshot.cluster), _restrictions(snapshot)
    never = _never(snapshot, most, allowed)
    return _reasons(snapshot, gpus, left // snapshot.cluster.stand_ins, most, allowed, never)


@dataclass(frozen=True, eq=False)
class AskedAndFree(Mapping[int, str]):
    """The evidence for the reasons of waiting jobs, by row, put in words when it is read."""

    code: IntArray  # (jobs,) values of Why
    asked: IntArray  # (jobs,) GPUs
    left: IntArray  # (types,) GPUs that remain free
    most: IntArray  # (types,) GPUs that one job can ever hold
    type_names: tuple[str, ...]

    def __getitem__(self, row: int) -> str:
        """What one waiting job asks for, beside what there is."""
        if not 0 <= row < len(self.code) or self.code[row] == Why.RUNS:
            raise KeyError(row)
        there_is, limit = ("", self.most) if self.code[row] < 0 else (" free", self.left)
        asked = int(self.asked[row])
        gpus = f"{asked} GPU{'s' * (asked != 1)}"
        if len(self.type_names) == 1:
            return f"asks {gpus}, {limit[0]}{there_is or ' there are for one job'}"
        counts = ", ".join(f"{count} {name}" for count, name in zip(limit, self.type_names, strict=True))
        return f"asks {gpus} of one type, {counts}{there_is or ' there are for one job'}"

    def __iter__(self) -> Iterator[int]:
        """Rows of waiting jobs."""
        return iter(np.flatnonzero(self.code).tolist())

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return int(np.count_nonzero(self.code))


def _all_go_on(snapshot: Snapshot, skip: bool) -> Shares:
    """All jobs run, and stay as they are: the very columns that say what they hold."""
    jobs = snapshot.jobs
    return Shares(
        gpus=jobs.held_gpus,
        kind=jobs.held_kind,
        nodes=np.zeros(len(jobs), dtype=np.int64),
        why=_all_run(snapshot),
        order=np.arange(len(jobs)),
        in_order=not skip,
    )


def _all_run(snapshot: Snapshot) -> Reasons:
    """No job waits."""
    return Reasons(np.zeros(len(snapshot.jobs), dtype=np.int64))  # Why.RUNS


def _admit(snapshot: Snapshot, order: IntArray, kept_rows: IntArray, skip: bool) -> Shares:
    jobs, types = snapshot.jobs, len(snapshot.cluster.types)
    # Jobs that are kept hold what they hold; the rest of the capacity is for the order.
    gpus_asked = jobs.gpus
    gpus = np.zeros(len(jobs), dtype=np.int64)
    kind = gpus - 1
    kept_gpus, kept_kind = jobs.held_gpus[kept_rows], jobs.held_kind[kept_rows]
    gpus[kept_rows], kind[kept_rows] = kept_gpus, kept_kind
    left = np.maximum(snapshot.capacity - _by_type(kept_kind, kept_gpus, types), 0)

    stand_ins = snapshot.cluster.stand_ins  # what follows counts GPUs as they are asked for
    left = left // stand_ins
    most, allowed = _largest_requests(snapshot.cluster), _restrictions(snapshot)
    never = _never(snapshot, most, allowed)
    if never is not None:  # a job that can never run holds up no other: it is not in the walk
        order = order[~never[order]]
    if types == 1:
        started = order[_walk_one_type(gpus_asked[order], int(left[0]), skip)]
        chosen_kind = np.zeros(len(started), dtype=np.int64)
    else:
        served, chosen_kind = _walk_types(snapshot, order, most, left, allowed, skip)
        started = order[served]
    # What was walked in requests becomes GPUs of the type again.
    started_gpus = gpus_asked[started]
    gpus[started], kind[started] = started_gpus * stand_ins[chosen_kind], chosen_kind
    if np.count_nonzero(gpus) == len(gpus):
        why = _all_run(snapshot)
    else:
        left = left - _by_type(chosen_kind, started_gpus, types)
        why = _reasons(snapshot, gpus, left, most, allowed, never)
    changes = np.count_nonzero(gpus) != np.count_nonzero(jobs.held_gpus)
    if not changes and (gpus == jobs.held_gpus).all() and (kind == jobs.held_kind).all():
        gpus, kind = jobs.held_gpus, jobs.held_kind  # which says that nothing changes
    return Shares(
        gpus=gpus,
        kind=kind,
        nodes=np.zeros(len(jobs), dtype=np.int64),
        why=why,
        order=np.concatenate((kept_rows, started)),
        in_order=not skip,
    )


def _by_type(kind: IntArray, gpus: IntArray, types: int) -> IntArray:
    """(types,) the sum of GPUs by their type."""
    return np.bincount(kind, gpus, types).astype(np.int64)


def _walk_one_type(need: IntArray, left: int, skip: bool) -> IntArray:
    """Positions in `need` that are served, in order, of `left` GPUs.

    All jobs up to the first that does not fit are served at once. With `skip` the walk goes on behind it
    among those that still fit. Each round leaves fewer GPUs than the one skipped asked for: few rounds.
    """
    if not skip:
        return np.arange(need.cumsum().searchsorted(left, side="right"))
    served = [np.zeros(0, dtype=np.int64)]
    fitting = np.flatnonzero(need <= left)
    while fitting.size:
        total = need[fitting].cumsum()
        count = int(np.searchsorted(total, left, side="right"))  # at least the first of them
        served.append(fitting[:count])
        left -= int(total[count - 1])
        behind = fitting[count + 1 :]
        fitting = behind[need[behind] <= left]
    return np.concatenate(served)


def _walk_types(
    snapshot: Snapshot, order: IntArray, most: IntArray, left: IntArray, allowed: BoolArray | None, skip: bool
) -> tuple[IntArray, IntArray]:
    """Positions in `order` that are served, and the type of each.

    A job that waits prefers GPUs that are idle now over those that running jobs later in the order hold. It
    takes the latter only where it fits on no type otherwise. A running job whose own type has been taken by
    earlier ones is treated like one that waits: it has to be stopped anyway.
    """
    # Requests and holdings in the unit of `left`: GPUs as they are asked for.
    jobs = snapshot.jobs
    need, own_kind = jobs.gpus[order], jobs.held_kind[order]
    held_gpus = jobs.held_gpus[order] // np.where(own_kind >= 0, snapshot.cluster.stand_ins[own_kind], 1)
    if skip:
        considered = np.flatnonzero(need <= np.minimum(most, left).max())
    else:  # no job beyond these can be reached before the GPUs are used up
        considered = np.arange(min(len(order), np.searchsorted(need.cumsum(), left.sum(), side="right") + 1))
    if considered.size == 0:
        return considered, considered
    need, own_kind, held_gpus = need[considered], own_kind[considered], held_gpus[considered]
    accepts = None if allowed is None else allowed[order[considered]].tolist()

    # `remaining` counts what earlier jobs left; `idle` leaves out what running jobs later in the order hold.
    limit, remaining = most.tolist(), left.tolist()
    running = own_kind >= 0
    idle = (left - np.bincount(own_kind[running], held_gpus[running], len(left)).astype(np.int64)).tolist()
    smallest = int(need.min())
    kinds = range(len(remaining))
    served, kind = [], []
    for position, (asks, own, holds) in enumerate(
        zip(need.tolist(), own_kind.tolist(), held_gpus.tolist(), strict=True)
    ):
        # Its turn has come: what it holds is no longer for a job later in the order.
        if own >= 0:
            idle[own] += holds
        ok = [t for t in kinds if asks <= remaining[t] and asks <= limit[t]]
        if accepts is not None:
            ok = [t for t in ok if accepts[position][t]]
        if ok:
            free = [t for t in ok if asks <= idle[t]]
            chosen = own if own in ok else max(free or ok, key=(idle if free else remaining).__getitem__)
            remaining[chosen] -= asks
            idle[chosen] -= asks
            served.append(position)
            kind.append(chosen)
            if max(remaining) < smallest:
                break
        elif not skip:
            break
    return considered[served], np.array(kind, dtype=np.int64)


def _restrictions(snapshot: Snapshot) -> BoolArray | None:
    """(jobs, types) the types that each job accepts; None where every job accepts all."""
    if snapshot.jobs.requests.accept_all:
        return None
    allowed = snapshot.jobs.allowed_kinds
    return None if allowed.all() else allowed


def _most_among(per_type: IntArray, allowed: BoolArray | None) -> IntArray | np.int64:
    """(jobs,) the largest entry among the types that each job accepts; a number where all accept all."""
    if allowed is None:
        return np.int64(per_type.max())
    largest: IntArray = (allowed * per_type).max(axis=1)
    return largest


def _never(snapshot: Snapshot, most: IntArray, allowed: BoolArray | None) -> BoolArray | None:
    """(jobs,) which of them ask for more than there is; None where no job of this world does."""
    largest = _most_among(most, allowed)
    if allowed is None and snapshot.jobs.requests.largest_gpus <= largest:
        return None
    never: BoolArray = snapshot.jobs.gpus > largest
    return never


def _reasons(
    snapshot: Snapshot,
    gpus: IntArray,
    left: IntArray,
    most: IntArray,
    allowed: BoolArray | None,
    never: BoolArray | None,
) -> Reasons:
    asked = snapshot.jobs.gpus
    fits_now = asked <= _most_among(np.minimum(left, most), allowed)
    code = np.where(fits_now, int(Why.BEHIND_IN_ORDER), int(Why.NO_FREE_GPUS))
    if never is not None:
        code[never] = int(Why.TOO_LARGE)
    if allowed is not None:
        code[~allowed.any(axis=1)] = int(Why.NO_SUCH_TYPE)
    code[gpus > 0] = int(Why.RUNS)
    return Reasons(code, AskedAndFree(code, asked, left, most, snapshot.cluster.type_names))
