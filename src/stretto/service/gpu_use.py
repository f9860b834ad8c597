"""How busy the GPUs of jobs are, as their nodes say, and which jobs hold GPUs that hardly do anything.

Nothing of this is in the log, and no decision looks at it. It begins anew with each service.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.backends.protocol import Backend, GpuUse, MeasuresGpus
from stretto.model import Allocation
from stretto.service.eventlog.clock import Clock
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State
from stretto.service.state.status import JobState, state_of

LOOK_EVERY_S = 5.0  # of wall time; chosen: what nodes say is a mean of half a minute
TRAINS = frozenset({JobState.RUNNING, JobState.RESIZING})  # in other states GPUs may well be idle


@dataclass(frozen=True)
class IdleRule:
    """When a job counts as an idle holder. Both are chosen."""

    below: float = 0.05  # its GPUs are busy for less than this share of the time, in the mean
    after_s: float = 600.0  # and have been for so long


@dataclass(frozen=True)
class JobUse:
    """What the GPUs of a job do. Of those that say nothing nothing is counted."""

    busy: float | None  # share of the time, the mean of its GPUs; None: none of them tells
    used_bytes: int
    bytes: int
    idle_s: float  # for how long it has been busy for less than the rule says; 0: it is not


@dataclass
class GpuWatch:
    """Follows what nodes say of their GPUs, from outside of the log."""

    state: State
    backend: Backend
    clock: Clock
    rule: IdleRule = field(default_factory=IdleRule)
    nodes: Mapping[str, Sequence[GpuUse | None]] = field(default_factory=dict)  # by name, as last said
    jobs: dict[str, JobUse] = field(default_factory=dict)  # that hold GPUs of which something is known
    _idle_since: dict[str, tuple[int, float]] = field(default_factory=dict)  # by job: (attempt, time)

    async def run(self) -> None:
        """Look every few seconds until cancelled; not at all where the backend knows nothing."""
        while isinstance(self.backend, MeasuresGpus):
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Take in what nodes say."""
        assert isinstance(self.backend, MeasuresGpus)
        self.nodes, now_s = self.backend.gpu_use(), self.clock.now_s()
        idle_before, self._idle_since, self.jobs = self._idle_since, {}, {}
        for name, allocation in (self.state.placement or {}).items() if self.nodes else ():
            uses = self._said_of(allocation)
            if uses:
                self.jobs[name] = self._use_of(self.state.jobs[name], uses, idle_before.get(name), now_s)

    def _said_of(self, allocation: Allocation) -> list[GpuUse]:
        """What is known of the GPUs of an allocation."""
        said: list[GpuUse] = []
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            uses = self.nodes.get(self.state.nodes[node].name, ())
            said += [use for gpu, use in enumerate(uses) if mask >> gpu & 1 and use is not None]
        return said

    def _use_of(
        self, record: JobRecord, uses: Sequence[GpuUse], since: tuple[int, float] | None, now_s: float
    ) -> JobUse:
        busy = mean_busy(uses)
        idle_s = 0.0
        if busy is not None and busy < self.rule.below and state_of(self.state, record) in TRAINS:
            if since is None or since[0] != record.attempt:
                since = record.attempt, now_s
            self._idle_since[record.id] = since
            idle_s = now_s - since[1]
        return JobUse(busy, sum(use.used_bytes for use in uses), sum(use.bytes for use in uses), idle_s)

    def idle_holders(self) -> list[tuple[JobRecord, JobUse]]:
        """Jobs that hold GPUs which have hardly done anything for long, those with most GPU time first."""
        holders = [
            (self.state.jobs[name], use)
            for name, use in self.jobs.items()
            if use.idle_s >= self.rule.after_s and self.state.wanted(name) is not None
        ]

        def wasted(holder: tuple[JobRecord, JobUse]) -> tuple[float, int]:
            record, use = holder
            return -use.idle_s * record.accounting.held_gpus, record.number

        return sorted(holders, key=wasted)


def mean_busy(said: Sequence[GpuUse]) -> float | None:
    """The mean of those GPUs that tell; None where none does."""
    told = [use.busy for use in said if use.busy is not None]
    return sum(told) / len(told) if told else None
