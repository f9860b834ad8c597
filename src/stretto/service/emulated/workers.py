"""Workers and jobs of the emulated cluster as values."""

from dataclasses import dataclass, field
from math import nan
from typing import Any

from stretto.backends.protocol import Phase, WorkerState
from stretto.service.emulated.truth import Run


@dataclass(slots=True)
class EmulatedWorker:
    """One worker: what a process would be."""

    id: str
    job: str
    attempt: int
    node: str
    node_index: int
    kind: int
    gpus: tuple[int, ...]
    peers: int  # workers of the attempt that it was started with, itself included
    grace_s: float
    phase: Phase = "starting"
    ready_s: float = nan  # when its start is over
    status: int | None = None
    stopped: bool = False
    started_s: float = nan
    ended_s: float = nan
    why: str = ""

    @property
    def lives(self) -> bool:
        """Whether it holds its GPUs."""
        return self.phase != "ended"

    def shown(self) -> WorkerState:
        """As a backend shows it."""
        ended = self.phase == "ended"
        return WorkerState(
            id=self.id,
            node=self.node,
            gpus=self.gpus,
            phase=self.phase,
            status=self.status,
            signal=self.status - 128 if self.status is not None and self.status > 128 else None,
            stopped=self.stopped,
            started_s=self.started_s,
            ended_s=self.ended_s if ended else None,
            lasted_s=self.ended_s - self.started_s if ended else None,
            job=self.job,
            why=self.why,
        )


@dataclass(slots=True)
class EmulatedJob:
    """One job: its true state, and those of its workers that the backend lists."""

    id: str
    run: Run
    in_place: bool  # changes its size without stopping
    saving_s: float = 0.0  # from being asked to stop to its end
    workers: dict[str, EmulatedWorker] = field(default_factory=dict)
    training: tuple[str, ...] = ()  # who trains together now, by rank
    generation: tuple[int, int] = (0, 0)  # attempt, number: numbers begin anew with every attempt
    has_run: bool = False
    finished: bool = False
    stamp: int = 0  # of the one look at it that is still to come
    reported_s: float = 0.0
    fresh: bool = False  # has not reported since it got these GPUs
    saved: dict[str, Any] = field(default_factory=dict)  # the report at its newest checkpoint

    def alive(self) -> list[EmulatedWorker]:
        """Workers that hold GPUs."""
        return [worker for worker in self.workers.values() if worker.lives]

    def shape_of(self, names: tuple[str, ...]) -> tuple[int, tuple[int, ...]]:
        """(GPU type, GPUs on each node in the order of nodes) of some of its workers."""
        gpus_on: dict[int, int] = {}
        kind = -1
        for name in names:
            worker = self.workers[name]
            gpus_on[worker.node_index] = gpus_on.get(worker.node_index, 0) + len(worker.gpus)
            kind = worker.kind
        return kind, tuple(gpus_on[node] for node in sorted(gpus_on))
