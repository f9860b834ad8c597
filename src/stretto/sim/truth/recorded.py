"""Jobs of which a trace tells only how long they ran: columns, no objects, since there are many."""

from dataclasses import dataclass, field
from math import ceil, isnan
from typing import Protocol

import numpy as np

from stretto.model import Allocation, Cluster, FloatArray, IntArray, MeasuredSpeeds, gpus_by_type


class Tables(Protocol):
    """Speeds by row of the workload."""

    def __getitem__(self, row: int, /) -> MeasuredSpeeds:
        """Those of one job."""


def reach_of(after: Allocation, cluster: Cluster, crossing_loss: float) -> float:
    """Speed on these GPUs over that on as many within one domain of each level."""
    return float((1.0 - crossing_loss) ** cluster.topology.crossed(after.nodes)) if crossing_loss else 1.0


@dataclass
class RecordedRuns:
    """Work left and speed of every recorded job, in seconds on the GPUs that it asked for."""

    work_s: FloatArray  # (all jobs,) at speed 1; NaN for a job that is no recorded one
    cluster: Cluster
    tables: Tables  # speed by GPU type and count, 1 on what was asked for
    mixing: float = 1.0  # speed on several types over the sum of the parts
    crossing_loss: float = 0.0  # share of its speed that a job lacks for each level that it crosses
    cpus_per_gpu: FloatArray | None = None  # (all jobs,) cores at which it is at its fastest, NaN: no matter
    first_left_s: FloatArray | None = None  # (all jobs,) what is left in the beginning; None: all work
    left_s: FloatArray = field(init=False)  # (all jobs,) as of `since_s`
    speed: FloatArray = field(init=False)  # (all jobs,) work per second; 0 while waiting
    kind: IntArray = field(init=False)  # (all jobs,) GPU type held, -1 none
    since_s: FloatArray = field(init=False)  # (all jobs,) from when on it runs at that speed

    def __post_init__(self) -> None:
        """All jobs wait."""
        self.left_s = (self.work_s if self.first_left_s is None else self.first_left_s).copy()
        self.speed = np.zeros_like(self.work_s)
        self.kind = np.full(len(self.work_s), -1)
        self.since_s = np.zeros_like(self.work_s)

    def give(self, row: int, after: Allocation | None, now_s: float, overhead_s: float) -> float:
        """Change the GPUs of one job (None: take them away); when it will end, infinite if ever."""
        self.settle(row, now_s)
        self.kind[row] = -1 if after is None else after.kind
        speed = 0.0 if after is None else self.speed_on(row, after)
        self.speed[row] = speed
        if speed == 0:
            return float("inf")
        self.since_s[row] = now_s + overhead_s
        return now_s + overhead_s + float(self.left_s[row]) / speed

    def speed_on(self, row: int, after: Allocation) -> float:
        """Work per second on these GPUs."""
        table = self.tables[row]
        per_node = after.shape
        parts = gpus_by_type(after, self.cluster)
        reach = reach_of(after, self.cluster, self.crossing_loss)
        if len(parts) > 1:
            return reach * self.mixing * sum(float(table.per_s[kind, gpus]) for kind, gpus in parts.items())
        ((kind, gpus),) = parts.items()
        spread = len(per_node) > ceil(gpus / int(self.cluster.gpus_per_node[kind]))
        speed = float((table.spread_per_s if spread else table.per_s)[kind, gpus])
        return reach * speed * self._by_cores(row, after, gpus)

    def _by_cores(self, row: int, after: Allocation, gpus: int) -> float:
        """Its speed with its cores over that with the proportional share, at which it was recorded."""
        if self.cpus_per_gpu is None or isnan(self.cpus_per_gpu[row]) or not after.cpus:
            return 1.0
        node = self.cluster.nodes[after.nodes[0]]
        needs, usual = float(self.cpus_per_gpu[row]), node.cpus / node.gpus
        return min(after.cpus / gpus, needs) / min(usual, needs) if usual else 1.0

    def settle(self, row: int, now_s: float) -> None:
        """Book what one job has done up to now."""
        ran_s = now_s - float(self.since_s[row])
        if ran_s > 0:
            self.left_s[row] = max(float(self.left_s[row]) - ran_s * float(self.speed[row]), 0.0)
            self.since_s[row] = now_s

    def lose_progress(self, row: int, now_s: float) -> None:
        """A stopped job without checkpoints starts again from nothing."""
        self.settle(row, now_s)  # what it has done since it was last looked at is lost, too
        self.left_s[row] = self.work_s[row]

    def left_now_s(self, rows: IntArray, now_s: float) -> FloatArray:
        """(rows,) work left at `now_s`."""
        ran_s = np.maximum(now_s - self.since_s[rows], 0.0)
        return np.maximum(self.left_s[rows] - ran_s * self.speed[rows], 0.0)
