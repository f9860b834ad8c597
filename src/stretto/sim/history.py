"""What happened in a simulated world, as columns."""

from dataclasses import dataclass, field

import numpy as np

from stretto.model import FloatArray, IntArray, JobId


@dataclass(frozen=True, slots=True)
class Held:
    """One stretch of time over which a job's GPUs did not change."""

    row: int
    start_s: float
    end_s: float
    kind: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of asking lenders once."""

    at_s: float
    on_loan: int  # nodes after it
    running: int  # jobs that ran before it
    preempted: int  # of these, those that were stopped
    scaled_in: int  # of these, those that lost flexible workers only
    vacated_gpus: int
    demanded_gpus: int
    spared_gpus: int = 0  # of those demanded, on nodes that hosted flexible workers or nothing


@dataclass
class History:
    """Grows while the world runs; rows are those of the workload."""

    jobs: int
    held: list[Held] = field(default_factory=list)
    sample_s: list[float] = field(default_factory=list)  # at every decision
    active: list[int] = field(default_factory=list)  # unfinished submitted jobs then
    waiting: list[int] = field(default_factory=list)  # of these, those that hold no GPU after it
    busy: list[IntArray] = field(default_factory=list)  # GPUs held by type after it
    usable: list[IntArray] = field(default_factory=list)  # GPUs on usable nodes by type then
    capacity: list[tuple[float, IntArray]] = field(default_factory=list)  # the same, from each change on
    prices: list[tuple[float, FloatArray]] = field(default_factory=list)
    dropped: list[tuple[float, JobId, str]] = field(default_factory=list)  # actions that no longer applied
    preemptions: int = 0  # stops of running jobs by the scheduler
    settled: list[Settled] = field(default_factory=list)  # where anything changed
    resizes: int = 0  # changes of a running job's GPUs within a type, restarts or not

    def columns(self) -> tuple[IntArray, FloatArray, FloatArray, IntArray, IntArray]:
        """(row, start_s, end_s, kind, gpus) of every stretch."""
        if not self.held:
            empty = np.zeros(0)
            whole = np.zeros(0, dtype=np.int64)
            return whole, empty, empty, whole, whole
        row, start_s, end_s, kind, gpus = zip(
            *(
                (stretch.row, stretch.start_s, stretch.end_s, stretch.kind, stretch.gpus)
                for stretch in self.held
            ),
            strict=True,
        )
        return (
            np.array(row, dtype=np.int64),
            np.array(start_s),
            np.array(end_s),
            np.array(kind, dtype=np.int64),
            np.array(gpus, dtype=np.int64),
        )
