"""How fast is each job on 1, 2, 3, … GPUs? Curves from measured tables, for policies that size jobs by them.

Such policies ignore GPU types. On a cluster of several, a running job stays on its type while there is room.
A waiting one goes to the type with most GPUs left on which its smallest count fits, ties by the cluster's
order.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    IntArray,
    JobTable,
    MeasuredSpeeds,
    Reasons,
    Snapshot,
    Why,
    configurations_from,
)
from stretto.policies.common.admission import most_gpus_of_one_job


@dataclass(frozen=True, slots=True)
class Curve:
    """The counts at which a job can run on one type, increasing, and its speed at each."""

    gpus: tuple[int, ...]
    per_s: tuple[float, ...]  # steps per second; all > 0

    def where(self, keep: list[bool]) -> "Curve":
        """The curve at some of its counts."""
        chosen = [at for at, kept in enumerate(keep) if kept]
        return Curve(tuple(self.gpus[at] for at in chosen), tuple(self.per_s[at] for at in chosen))


NO_CURVE = Curve((), ())


def one_gpu_of_each_type(cluster: Cluster) -> Configurations:
    """The columns of a policy that reads the measured tables itself: it has to ask for some."""
    return configurations_from((1, 1, kind) for kind in range(len(cluster.types)))


@dataclass(frozen=True, eq=False)
class Sizes:
    """The curves of a snapshot's jobs, made when they are looked at: most waiting jobs never are."""

    jobs: JobTable
    most: IntArray  # (types,) GPUs of each type that one job can hold at most
    stand_ins: IntArray  # (types,) of them that take the place of one asked for

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Sizes":
        """Curves within each job's range and the cluster."""
        return cls(snapshot.jobs, most_gpus_of_one_job(snapshot.cluster), snapshot.cluster.stand_ins)

    def curve(self, row: int, kind: int) -> Curve:
        """The counts within a job's range, and what one job can hold, at which it runs on one type."""
        jobs = self.jobs
        if not jobs.allowed_kinds[row, kind]:
            return NO_CURVE
        each = int(self.stand_ins[kind])
        most = min(int(jobs.max_gpus[row]) * each, int(self.most[kind]))
        step = int(jobs.gpus_per_worker[row]) * each
        return _curve(jobs.tables[row], kind, int(jobs.min_gpus[row]) * each, most, step)


@lru_cache(maxsize=65_536)
def _curve(table: MeasuredSpeeds, kind: int, least: int, most: int, step: int) -> Curve:
    per_s = table.per_s[kind]
    gpus = np.arange(least, min(most, len(per_s) - 1) + 1, step)
    gpus = gpus[per_s[gpus] > 0]  # NaN: cannot run so
    return Curve(tuple(gpus.tolist()), tuple(per_s[gpus].tolist()))


def kinds_by_room(left: list[int], own: int = -1) -> list[int]:
    """GPU types in the order in which a job tries them: its own, then by GPUs left, then as they stand."""
    return sorted(range(len(left)), key=lambda kind: (kind != own, -left[kind]))


def unstoppable(jobs: JobTable) -> BoolArray:
    """(jobs,) whether each runs and may not be preempted."""
    held: BoolArray = (jobs.held_gpus > 0) & ~jobs.preemptible
    return held


def room_beside(snapshot: Snapshot, kept: BoolArray) -> IntArray:
    """(types,) GPUs that are usable and not held by the rows that are kept."""
    jobs = snapshot.jobs
    held = np.bincount(jobs.held_kind[kept], jobs.held_gpus[kept], len(snapshot.capacity))
    return np.maximum(snapshot.capacity - held.astype(np.int64), 0)


def reasons_by_range(
    snapshot: Snapshot, gpus: IntArray, left: list[int], unknown: IntArray | None = None
) -> Reasons:
    """Why each job without GPUs waits, when `left` (types,) GPUs remain: judged by its smallest count.

    unknown: rows of which no speed is known on any type.
    """
    jobs, allowed, stand_ins = snapshot.jobs, snapshot.jobs.allowed_kinds, snapshot.cluster.stand_ins
    most = np.where(allowed, most_gpus_of_one_job(snapshot.cluster) // stand_ins, 0).max(axis=1)
    idle = np.where(allowed, np.array(left) // stand_ins, 0).max(axis=1)
    code = np.where(jobs.min_gpus <= idle, int(Why.BEHIND_IN_ORDER), int(Why.NO_FREE_GPUS))
    if unknown is not None:
        code[unknown] = int(Why.NOT_PROFILED)
    code[jobs.min_gpus > most] = int(Why.TOO_LARGE)
    code[~allowed.any(axis=1)] = int(Why.NO_SUCH_TYPE)
    code[gpus > 0] = int(Why.RUNS)
    return Reasons(code)
