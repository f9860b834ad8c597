"""Jobs that cannot be stopped again begin only where each promised deadline can still be kept beside them."""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, JobTable
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.policies.stretto.promises import Deadlines


@dataclass(eq=False)
class PromiseGate:
    """How many GPUs of a type may be held beyond a time, for each promise that only this type can keep.

    A promise binds where one type alone has the GPUs for it, beside the jobs there that cannot be stopped.
    It can wait until its fastest configuration must begin. A job that still runs then may hold no more than
    what the smallest configuration that is in time leaves.
    """

    free: BoolArray  # (cells,) of jobs that no promise holds up
    kind: IntArray  # (cells,)
    gpus: IntArray  # (cells,)
    ends_s: FloatArray  # (cells,) from now, infinite where that is not known
    of_kind: IntArray  # (promises,) the type
    latest_s: FloatArray  # (promises,) from now, by which it must begin
    room: IntArray  # (promises,) GPUs that may be held then

    def admits(self, cell: int) -> bool:
        """Whether every promise has its GPUs in time if a job begins here."""
        return bool(self.free[cell]) or bool((self.room[self._beyond(cell)] >= self.gpus[cell]).all())

    def let_in(self, cell: int) -> None:
        """A job begins here, and leaves less room."""
        self.room[self._beyond(cell)] -= self.gpus[cell]

    def _beyond(self, cell: int) -> BoolArray:
        beyond: BoolArray = (self.of_kind == self.kind[cell]) & (self.latest_s < self.ends_s[cell])
        return beyond


def gate_of(
    jobs: JobTable,
    now_s: float,
    configs: ConfigurationSet,
    due: Deadlines,
    takes_s: FloatArray,
    ends_s: FloatArray,
    capacity: IntArray,
) -> PromiseGate | None:
    """The gate for jobs that would begin now; None where no promise could be broken by one.

    takes_s: (cells,) seconds until a job ends at the latest. ends_s: (cells,) likewise as expected. capacity:
    (types,) GPUs.
    """
    runs, cannot_stop = jobs.held_gpus > 0, ~jobs.preemptible
    waits = cannot_stop & ~runs & ~jobs.interactive & ~jobs.has_reserved & ~due.promised
    kept = np.flatnonzero(due.promised & ~(cannot_stop & runs))
    if not waits.any() or not kept.size:
        return None
    cells = configs.cells
    smallest, latest_s = _needs(configs, kept, due.due_s[kept] - now_s, takes_s, len(capacity))
    stays = np.flatnonzero(configs.current & cannot_stop[cells.row])
    room = capacity - _held_beyond(configs, stays, ends_s[stays], latest_s) - smallest
    can = np.isfinite(latest_s) & (room >= 0)
    only = np.flatnonzero(can.sum(axis=1) == 1)
    if not only.size:
        return None
    kind = can[only].argmax(axis=1)
    return PromiseGate(
        free=~waits[cells.row],
        kind=configs.kind,
        gpus=configs.gpus,
        ends_s=ends_s,
        of_kind=kind,
        latest_s=latest_s[only, kind],
        room=room[only, kind].astype(np.int64),
    )


def _needs(
    configs: ConfigurationSet, kept: IntArray, left_s: FloatArray, takes_s: FloatArray, types: int
) -> tuple[IntArray, FloatArray]:
    """(promises, types) the fewest GPUs that are in time, and by when the fastest must begin; -inf: none."""
    place = np.full(configs.cells.rows, -1)
    place[kept] = np.arange(kept.size)
    mine = configs.cells.of_rows(kept)
    slack_s = left_s[place[configs.cells.row[mine]]] - takes_s[mine]
    mine, slack_s = mine[slack_s >= 0], slack_s[slack_s >= 0]
    of, kind = place[configs.cells.row[mine]], configs.kind[mine]
    smallest = np.full((kept.size, types), np.iinfo(np.int32).max, dtype=np.int64)
    latest_s = np.full((kept.size, types), -np.inf)
    np.minimum.at(smallest, (of, kind), configs.gpus[mine])
    np.maximum.at(latest_s, (of, kind), slack_s)
    return smallest, latest_s


def _held_beyond(
    configs: ConfigurationSet, stays: IntArray, ends_s: FloatArray, latest_s: FloatArray
) -> IntArray:
    """(promises, types) GPUs of jobs that cannot be stopped and still run at each time."""
    held_gpus = np.zeros(latest_s.shape, dtype=np.int64)
    for kind in np.unique(configs.kind[stays]).tolist():
        of_kind = configs.kind[stays] == kind
        order = np.argsort(ends_s[of_kind])
        from_there = np.cumsum(configs.gpus[stays][of_kind][order][::-1])[::-1]
        first = np.searchsorted(ends_s[of_kind][order], latest_s[:, kind], side="right")
        held_gpus[:, kind] = np.append(from_there, 0)[first]
    return held_gpus
