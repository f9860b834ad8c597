"""An emulated cluster whose clock the test sets, with a log that is only in memory."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from stretto.backends.protocol import WorkerStart, WorkerState
from stretto.jobfile.submission import read_submission
from stretto.model import GpuType, cluster_of
from stretto.service.emulated.backend import EmulatedBackend
from stretto.service.eventlog.clock import Clock
from stretto.service.state import events as happened
from stretto.service.state.events import Event
from stretto.service.state.reducer import apply
from stretto.service.state.state import State
from stretto.sim.settings import SimSettings

CLUSTER = cluster_of("stage", (GpuType("v100"), 2, 4))


class Done:
    """It may be awaited or not, as what the real writer returns."""

    def __await__(self) -> Generator[Any, None, int]:
        return 0
        yield


@dataclass
class MemoryWriter:
    """What is recorded is folded at once."""

    state: State
    clock: Clock
    listeners: list[Callable[[Sequence[tuple[int, Event]]], None]] = field(default_factory=list)
    log: list[tuple[float, Event]] = field(default_factory=list)
    store: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(ended=None))  # nobody leaves here

    def record(self, *events: Event) -> Awaitable[int]:
        told = []
        for event in events:
            self.log.append((self.clock.now_s(), event))
            apply(self.state, event, self.state.seq + 1, self.clock.now_s())
            told.append((self.state.seq, event))
        for listener in self.listeners:
            listener(told)
        return Done()


class Stage:
    """Two nodes of four GPUs. Use within a running event loop."""

    def __init__(self, settings: SimSettings, log: Sequence[tuple[float, Event]] = ()) -> None:
        self.now_s = 0.0
        clock = Clock(monotonic=lambda: self.now_s)
        self.log_writer = MemoryWriter(State(), clock)
        if log:
            for at_s, event in log:
                self.now_s = at_s
                apply(self.log_writer.state, event, self.log_writer.state.seq + 1, at_s)
        else:
            self.log_writer.record(happened.Began(1e9), happened.Configured("fifo", priorities="preempt"))
        self.backend = EmulatedBackend(CLUSTER, self.log_writer, settings)  # type: ignore[arg-type]
        self.backend.open()
        if not log:
            self.log_writer.record(*(happened.NodeSeen(f"{node.id}", "v100", 4) for node in CLUSTER.nodes))

    def submit(self, job: str, text: str) -> None:
        spec, _ = read_submission(text)
        self.log_writer.record(happened.Submitted(job, spec.to_json(), "ada"))

    async def start(
        self, job: str, attempt: int, masks: Sequence[tuple[int, int]], first: int = 0, seen: bool = True
    ) -> list[str]:
        """Start one worker for each (node, mask of one GPU); seen: the log says at once that they run."""
        state = self.log_writer.state
        names = [f"{job}.{attempt}.{first + index}" for index in range(len(masks))]
        said = tuple(
            {"id": name, "node": state.nodes[node].name, "mask": mask}
            for name, (node, mask) in zip(names, masks, strict=True)
        )
        self.log_writer.record(happened.WorkersWanted(job, attempt, said))
        for name, (node, mask) in zip(names, masks, strict=True):
            env = {"WORLD_SIZE": str(len(masks))}
            gpus = (mask.bit_length() - 1,)
            start = WorkerStart(name, job, state.nodes[node].name, gpus, "true", env)
            shown = await self.backend.start(start)
            assert await self.backend.start(start) == shown  # a repeated start is the same start
        if seen:
            self.log_writer.record(happened.WorkersRan(job, tuple(names)))
        return names

    def go_to(self, now_s: float) -> None:
        """Let time pass, in steps that stop wherever something is due."""
        while self.now_s < now_s:
            due_s = min(self.backend.due_s, now_s)
            self.now_s = min(max(due_s, self.now_s), now_s)
            self.backend.catch_up()
        self.now_s = now_s
        self.backend.catch_up()

    async def shown(self, name: str) -> WorkerState:
        return next(one for one in await self.backend.workers() if one.id == name)

    def reports(self, job: str) -> list[dict[str, object]]:
        return [
            dict(event.report)
            for _, event in self.log_writer.log
            if isinstance(event, happened.Reported) and event.job == job
        ]
