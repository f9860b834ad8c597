"""The group that this worker trains in: coming in, agreeing, switching, going."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stretto.sdk import group, state
from stretto.sdk.beats import Beats, Signals, propose
from stretto.sdk.channel import Channel
from stretto.sdk.environment import Environment
from stretto.sdk.generation import Generation, fixed
from stretto.sdk.membership import Membership, verdict_on, wait_to_be_called
from stretto.sdk.preemption import STATUS, Preemption
from stretto.sdk.rendezvous import Meeting, Rendezvous
from stretto.sdk.replica import Replica
from stretto.sdk.saving import Checkpoints
from stretto.sdk.training import Training

FLUSH_S = 5.0  # at the end, for what the service has not been told yet; chosen
LOOK_S = 0.2  # between looks at what others were told, outside of steps


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of the group, as this worker saw it."""

    generation: int
    workers: int
    step: int
    lost_s: float  # from the end of the last step until the group was ready for the next


class World:
    """The present group, and how it becomes the next one."""

    def __init__(
        self,
        environment: Environment,
        training: Training,
        replica: Replica,
        preemption: Preemption,
        channel: Channel | None,
        timeout_s: float,
    ) -> None:
        self._training, self._replica, self._preemption = training, replica, preemption
        self._timeout = timedelta(seconds=timeout_s)
        self._environment = environment
        self._channel = channel
        self._rendezvous = Rendezvous(channel, preemption.ask) if channel else None
        self._looked_s = 0.0
        self._before: Membership | None = None  # its store may be hosted here, and still be read
        self.here = Membership(Generation(0), 0, None)
        self.beats = Beats(1)
        self.switches: list[Switch] = []
        self.is_newcomer = False  # came to others that had begun
        self.is_closed = False

    def join(self, checkpoints: Checkpoints) -> None:
        """Come into the group: the first one of this attempt, or one that trains already."""
        if self._rendezvous is None or self._channel is None:
            self._join_fixed()
        else:
            self._channel.post("ready")
            meeting = wait_to_be_called(self._rendezvous, self._preemption)
            self._enter(meeting)
            self.is_newcomer = meeting.generation.source is not None
        source = self._source()
        if not self.is_newcomer and self.here.rank == source:
            checkpoints.restore(self.here.rank)
        if dist.is_initialized():
            self._training.send_from(source, self.here.rank != source)
            if not self.is_newcomer:
                checkpoints.share_random(self.here.rank, source)
        if self.is_newcomer:
            progress = self._training.progress
            state.seed_afresh(progress.seed, progress.step, self.here.rank, self.here.generation.number)
        self._ready(None)

    def _join_fixed(self) -> None:
        here = fixed(self._environment.world, self._environment.local_world)
        store = None
        if here.world > 1:
            if dist.is_initialized():
                group.leave()
            store = next(iter(rendezvous("env://")))[0]
            group.form(store, self._environment.rank, here.world, self._on_gpu, self._timeout)
        self.here = Membership(here, self._environment.rank, store)

    @property
    def _on_gpu(self) -> bool:
        return self._training.device.type == "cuda"

    def _source(self) -> int:
        generation = self.here.generation
        return (generation.rank_of(generation.source) or 0) if generation.source else 0

    def _enter(self, meeting: Meeting) -> None:
        generation = meeting.generation
        group.use_loopback(generation.members[meeting.rank].address)
        world, secret = generation.world, generation.secret
        group.form(meeting.store, meeting.rank, world, self._on_gpu, self._timeout, secret)
        self._before, self.here = self.here, Membership(generation, meeting.rank, meeting.store)

    def _ready(self, last_step_s: float | None) -> None:
        """All have the same state: wrap the model, and say so."""
        self._replica.join_group()
        self.beats = Beats(self.here.world)
        number, step = self.here.generation.number, self._training.progress.step
        lost_s = time.perf_counter() - last_step_s if last_step_s is not None else None
        if self._rendezvous is not None and self._channel is not None:
            self._rendezvous.settle(number)
            self._channel.post("joined", generation=number, step=step, lost_s=lost_s)
        if lost_s is not None:
            self.switches.append(Switch(number, self.here.world, step, lost_s))

    def heard(self) -> Signals:
        """What this worker was told, to be agreed on."""
        proposed = 0
        if self._rendezvous is not None:
            present = self.here.generation.number
            if self._rendezvous.unwanted:
                self._preemption.ask()
            proposed = self._rendezvous.proposal()
            proposed = proposed if proposed > present else 0
        return Signals(leave=float(self._preemption.is_asked), proposal=propose(proposed, self.here.rank))

    def is_anyone_leaving(self) -> bool:
        """Whether this worker was told to leave or, by the store, another one; looks now and then."""
        if self.heard().leave:
            self.say_leaving()
            return True
        if self.here.store is None or time.monotonic() < self._looked_s + LOOK_S:
            return False
        self._looked_s = time.monotonic()
        with suppress(RuntimeError):  # its host is gone; the next meeting will show
            return bool(self.here.store.check(["leaving"]))
        return False

    def say_leaving(self) -> None:
        """Tell those who are outside of steps that this worker was told to leave."""
        store = self.here.store
        if store is not None:
            with suppress(RuntimeError):  # its host is gone, and with it those who would look
                store.set("leaving", "")

    def switch(self, agreed: Signals, last_step_s: float | None, checkpoints: Checkpoints) -> bool:
        """Become the agreed generation; False where it cannot come about, and all stay as they are.

        Ends the process, with status 0, where it is not a member of the next generation.
        """
        assert self._rendezvous is not None
        self.beats.drain()
        told = verdict_on(agreed.generation, agreed.proposer, self.here, self._rendezvous)
        if told is None:
            return False
        rank = told.rank_of(self._environment.worker)
        if told.members == self.here.generation.members:  # only the batch is another one
            self.here = Membership(told, self.here.rank, self.here.store)
            self._ready(last_step_s)
            return True
        if all(member.id != self.here.generation.members[0].id for member in told.members):
            progress = self._training.progress  # only rank 0 need have evaluated
            progress.metrics, progress.metric = group.tell_plain([progress.metrics, progress.metric], 0)
        present = {member.id for member in self.here.generation.members}
        self._training.await_device()
        if rank is None:
            self.part("switch", wait=True)
            checkpoints.wait()  # one that is being written here is the newest there is
            self.close()
            raise SystemExit(0)
        meeting = self._rendezvous.meeting(told.number)
        assert meeting is not None  # all members were here when it was proposed
        self.part("switch", wait=False)
        self._replica.leave_group()
        group.leave()
        self._enter(meeting)
        if any(member.id not in present for member in told.members):
            self._training.send_from(self._source(), False)
        self._ready(last_step_s)
        return True

    def part(self, occasion: str, wait: bool) -> bool:
        """Be through with the group; `wait` until all are; whether they were in time."""
        if self.here.store is None or self.here.world == 1:
            return True
        return group.part(self.here.store, f"{occasion}/{self.here.generation.number}", self.here.world, wait)

    def close(self, verdict: str = "") -> None:
        """Be in no group any more."""
        self.is_closed = True
        if self._rendezvous is not None:
            self._rendezvous.withdraw(verdict)
        self._replica.leave_group()
        group.leave()
        if self._channel is not None:
            self._channel.close(FLUSH_S)
        self._preemption.end()

    def leave(self, checkpoints: Checkpoints) -> None:
        """All together: write a checkpoint and end, with status 143."""
        checkpoints.save_together(self.here.rank, wait=True)
        self.part("leave", wait=True)
        self.close()
        raise SystemExit(STATUS)


class Rescue:
    """Where a peer is gone, the last step that ended is saved by rank 0 before the error goes on.

    Parameters are the same on all ranks after each step, so that one survivor is enough; one that is alone
    may be about to take in a newcomer that dies. One object is entered again and again, since every step
    does so several times.
    """

    def __init__(self, world: World, checkpoints: Checkpoints, preemption: Preemption) -> None:
        self._world, self._checkpoints, self._preemption = world, checkpoints, preemption

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save, if it was an error."""
        if not isinstance(error, Exception):
            return
        if self._world.here.rank == 0:
            with suppress(Exception):  # the first error is the one to show
                self._checkpoints.save_alone()
        if self._preemption.is_asked:
            raise SystemExit(STATUS) from None
