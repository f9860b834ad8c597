"""The training group of this worker: coming in, switching, going, and what an error in it leads to."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stretto.sdk import process_group, state
from stretto.sdk.channel import Channel, Generation, fixed
from stretto.sdk.checkpoints import CheckpointManager
from stretto.sdk.process_group import Replica
from stretto.sdk.rendezvous import (
    Membership,
    Rendezvous,
    RendezvousRound,
    commit_switch,
    wait_at_join_barrier,
)
from stretto.sdk.settings import Environment
from stretto.sdk.shutdown import STATUS, Preemption
from stretto.sdk.step_consensus import ControlFlags, StepConsensus, propose
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


class TrainingGroup:
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
        # Without a service the first group is the only one: there is nothing to listen to.
        self._channel = channel
        self._rendezvous = Rendezvous(channel, preemption.ask) if channel else None
        self._looked_s = 0.0
        self._previous: Membership | None = None  # its store may be hosted here, and still be read
        self.membership = Membership(Generation(0), 0, None)
        self.consensus = StepConsensus(1)
        self.switches: list[Switch] = []
        self.is_newcomer = False  # came to others that had begun
        self.is_closed = False

    def join(self, checkpoints: CheckpointManager) -> None:
        """Come into the group: the first one of this attempt, or one that trains already."""
        if self._rendezvous is None or self._channel is None:
            self._join_fixed()
        else:
            self._channel.post("ready")
            first = wait_at_join_barrier(self._rendezvous, self._preemption)
            self._enter(first)
            self.is_newcomer = first.generation.source is not None
        source = self._source()
        if not self.is_newcomer and self.rank == source:
            checkpoints.restore(self.rank)
        if dist.is_initialized():
            self._training.send_from(source, self.rank != source)
            if not self.is_newcomer:
                checkpoints.share_random(self.rank, source)
        if self.is_newcomer:
            progress = self._training.progress
            state.seed_afresh(progress.seed, progress.step, self.rank, self.membership.generation.number)
        self._ready(None)

    def _join_fixed(self) -> None:
        generation = fixed(self._environment.world, self._environment.local_world)
        store = None
        if generation.world > 1:
            if dist.is_initialized():
                process_group.leave()
            store = next(iter(rendezvous("env://")))[0]
            process_group.form(store, self._environment.rank, generation.world, self._on_gpu, self._timeout)
        self.membership = Membership(generation, self._environment.rank, store)

    @property
    def rank(self) -> int:
        """Of this worker."""
        return self.membership.rank

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 without a service."""
        return self.membership.generation.number

    @property
    def _on_gpu(self) -> bool:
        return self._training.device.type == "cuda"

    def _source(self) -> int:
        generation = self.membership.generation
        return (generation.rank_of(generation.source) or 0) if generation.source else 0

    def _enter(self, ahead: RendezvousRound) -> None:
        generation = ahead.generation
        process_group.use_loopback(generation.members[ahead.rank].address)
        world, secret = generation.world, generation.secret
        process_group.form(ahead.store, ahead.rank, world, self._on_gpu, self._timeout, secret)
        self._previous, self.membership = self.membership, Membership(generation, ahead.rank, ahead.store)

    def _ready(self, last_step_s: float | None) -> None:
        """All have the same state: wrap the model, and say so."""
        self._replica.join_group()
        self.consensus = StepConsensus(self.membership.world)
        number, step = self.membership.generation.number, self._training.progress.step
        lost_s = time.perf_counter() - last_step_s if last_step_s is not None else None
        if self._rendezvous is not None and self._channel is not None:
            self._rendezvous.drop_up_to(number)
            self._channel.post("joined", generation=number, step=step, lost_s=lost_s)
        if lost_s is not None:
            self.switches.append(Switch(number, self.membership.world, step, lost_s))

    def own_flags(self) -> ControlFlags:
        """What this worker was told, to be agreed on."""
        proposed = 0
        if self._rendezvous is not None:
            present = self.membership.generation.number
            if self._rendezvous.unwanted:
                self._preemption.ask()
            proposed = self._rendezvous.proposal()
            proposed = proposed if proposed > present else 0
        return ControlFlags(leave=float(self._preemption.is_asked), proposal=propose(proposed, self.rank))

    def is_any_rank_leaving(self) -> bool:
        """Whether this worker was told to leave or, by the store, another one; looks now and then."""
        if self.own_flags().leave:
            self.announce_leaving()
            return True
        if self.membership.store is None or time.monotonic() < self._looked_s + LOOK_S:
            return False
        self._looked_s = time.monotonic()
        with suppress(RuntimeError):  # its host is gone; the next collective call will show
            return bool(self.membership.store.check(["leaving"]))
        return False

    def announce_leaving(self) -> None:
        """Tell ranks that are outside of steps that this worker was told to leave."""
        store = self.membership.store
        if store is not None:
            with suppress(RuntimeError):  # its host is gone, and with it the ranks that would look
                store.set("leaving", "")

    def switch(self, agreed: ControlFlags, last_step_s: float | None, checkpoints: CheckpointManager) -> bool:
        """Become the agreed generation; False where it cannot come about, and all stay as they are.

        Ends the process, with status 0, where it is not a member of the next generation.
        """
        assert self._rendezvous is not None
        # Consensus under way would be a call of a group that is about to go. Then the newcomers are called.
        self.consensus.drain()
        present = self.membership.generation
        following = commit_switch(agreed.generation, agreed.proposer, self.membership, self._rendezvous)
        if following is None:
            return False
        # Only the batch is another one: the group stays, and nothing is lost.
        if following.members == present.members:
            self.membership = Membership(following, self.rank, self.membership.store)
            self._ready(last_step_s)
            return True
        # Only rank 0 need have evaluated: if it goes, what it found goes to all, and so to newcomers.
        if all(member.id != present.members[0].id for member in following.members):
            progress = self._training.progress
            metrics = process_group.broadcast_json([progress.metrics, progress.metric, progress.found], 0)
            progress.metrics, progress.metric, progress.found = metrics
        self._training.await_device()
        # Those that go wait until all are through with the group: a process that ends may reset connections.
        if following.rank_of(self._environment.worker) is None:
            self.exit_barrier("switch", wait=True)
            checkpoints.wait()  # one that is being written here is the newest there is
            self.close()
            raise SystemExit(0)
        # Those that stay leave at once, and form the next group. Its store has been open for a while.
        ahead = self._rendezvous.round_of(following.number)
        assert ahead is not None  # all members were here when it was proposed
        self.exit_barrier("switch", wait=False)
        self._replica.leave_group()
        process_group.leave()
        self._enter(ahead)
        survivors = {member.id for member in present.members}
        if any(member.id not in survivors for member in following.members):
            self._training.send_from(self._source(), False)
        self._ready(last_step_s)
        return True

    def exit_barrier(self, occasion: str, wait: bool) -> bool:
        """Be through with the group; `wait` until all are; whether they were in time."""
        store, world = self.membership.store, self.membership.world
        if store is None or world == 1:
            return True
        return process_group.exit_barrier(store, f"{occasion}/{self.generation}", world, wait)

    def close(self, verdict: str = "") -> None:
        """Be in no group any more."""
        self.is_closed = True
        if self._rendezvous is not None:
            self._rendezvous.withdraw(verdict)
        self._replica.leave_group()
        process_group.leave()
        if self._channel is not None:
            self._channel.close(FLUSH_S)
        self._preemption.end()

    def leave(self, checkpoints: CheckpointManager) -> None:
        """All together: write a checkpoint and end, with status 143."""
        checkpoints.save_together(self.rank, wait=True)
        self.exit_barrier("leave", wait=True)
        self.close()
        raise SystemExit(STATUS)


class ErrorHandler:
    """Around collective calls: where a peer is gone, rank 0 saves the last step that ended.

    Parameters are the same on all ranks after each step, so that one survivor is enough. One that is alone
    may be about to take in a newcomer that dies. One object is entered again and again, since every step does
    so several times.
    """

    def __init__(self, group: TrainingGroup, checkpoints: CheckpointManager, preemption: Preemption) -> None:
        self._group, self._checkpoints, self._preemption = group, checkpoints, preemption

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save, if it was an error."""
        if not isinstance(error, Exception):
            return
        if self._group.rank == 0:
            with suppress(Exception):  # the first error is the one to show
                self._checkpoints.save_alone()
        if self._preemption.is_asked:
            raise SystemExit(STATUS) from None
