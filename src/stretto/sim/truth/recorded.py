"""Jobs of which a trace tells only how long they ran: columns, no objects, since there are many."""

from dataclasses import dataclass, field

import numpy as np

from stretto.model import FloatArray, IntArray


@dataclass
class RecordedRuns:
    """Work left and speed of every recorded job, in seconds on the GPUs that it asked for.

    A job's speed is proportional to its GPUs within its range (Lyra, section 5) and no higher beyond what it
    asked for or, where it names one, its maximum; times the relative speed of the GPU type it holds.
    """

    work_s: FloatArray  # (all jobs,) at speed 1; NaN for a job that is no recorded one
    asked: IntArray  # (all jobs,) GPUs to which `work_s` refers
    type_speed: FloatArray  # (all jobs, types) relative to the type on which it was recorded
    useful: IntArray  # (all jobs,) GPUs beyond which it gets no faster
    left_s: FloatArray = field(init=False)  # (all jobs,) as of `since_s`
    speed: FloatArray = field(init=False)  # (all jobs,) work per second; 0 while waiting
    kind: IntArray = field(init=False)  # (all jobs,) GPU type held, -1 none
    since_s: FloatArray = field(init=False)  # (all jobs,) from when on it runs at that speed

    def __post_init__(self) -> None:
        """Everybody waits, with all work before them."""
        self.left_s = self.work_s.copy()
        self.speed = np.zeros_like(self.work_s)
        self.kind = np.full(len(self.work_s), -1)
        self.since_s = np.zeros_like(self.work_s)

    def give(self, row: int, kind: int, gpus: int, now_s: float, overhead_s: float) -> float:
        """Change the GPUs of one job (0: take them away); when it will end, infinite while it waits."""
        self.settle(row, now_s)
        self.kind[row] = kind
        if gpus == 0:
            self.speed[row] = 0.0
            return float("inf")
        speed = min(gpus, int(self.useful[row])) / float(self.asked[row]) * float(self.type_speed[row, kind])
        self.speed[row] = speed
        self.since_s[row] = now_s + overhead_s
        return now_s + overhead_s + float(self.left_s[row]) / speed

    def settle(self, row: int, now_s: float) -> None:
        """Book what one job has done up to now."""
        ran_s = now_s - float(self.since_s[row])
        if ran_s > 0:
            self.left_s[row] = max(float(self.left_s[row]) - ran_s * float(self.speed[row]), 0.0)
            self.since_s[row] = now_s

    def lose_progress(self, row: int) -> None:
        """A stopped job without checkpoints starts again from nothing."""
        self.left_s[row] = self.work_s[row]

    def left_now_s(self, rows: IntArray, now_s: float) -> FloatArray:
        """(rows,) work left at `now_s`."""
        ran_s = np.maximum(now_s - self.since_s[rows], 0.0)
        return np.maximum(self.left_s[rows] - ran_s * self.speed[rows], 0.0)
