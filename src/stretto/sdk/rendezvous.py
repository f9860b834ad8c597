"""Rendezvous: how the workers of the next generation find each other while the present one goes on training.

Two threads of each worker listen and prepare; the training notices nothing. Rank 0 of the next generation
opens a store and tells its address through the channel. Every other member, survivor or newcomer, connects
to it and says that it is here: a *rendezvous round*. Only when all are here does rank 0 propose the switch by
step consensus. So a newcomer or a service that dies before costs no step. At the agreed step rank 0 calls the
newcomers, which wait at the *join barrier*; the switch is *committed* once all have answered.

Keys of a generation's store:

- `here/ID` a member is connected
- `verdict` what rank 0 decided at the switch: `now`, `over` (the training has ended)
- `in/ID` a newcomer's answer to `now`
- `form` whether all answered
- `leaving` a rank was told to leave, for those that are not training at the moment.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from stretto.sdk import process_group
from stretto.sdk.channel import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Channel,
    Generation,
    NoLongerWanted,
    as_document,
    read_generation,
)
from stretto.sdk.shutdown import STATUS, Preemption

log = logging.getLogger("stretto.sdk")

LONG_POLL_S = 25.0
SILENCE_S, REMIND_S = 5.0, 60.0  # of the service, until it is reported and reported again; chosen
STORE_POLL_S = 2.0  # short, since a generation may be replaced while its store is waited for
ARRIVAL_LOOK_S = 0.01  # between looks at which members are here
PREPARER_END_S = 5.0
ANSWER_S = 10.0  # a newcomer that said it is here has so long to answer; chosen
BARRIER_LOOK_S = 0.003  # between looks at the join barrier: a training waits meanwhile


@dataclass(frozen=True, slots=True)
class Membership:
    """Where this worker trains."""

    generation: Generation
    rank: int
    store: Store | None  # None: alone without a service

    @property
    def world(self) -> int:
        """How many train together."""
        return self.generation.world


@dataclass(frozen=True, slots=True)
class RendezvousRound:
    """A generation whose store this worker is connected to."""

    generation: Generation
    rank: int
    store: Store


class Rendezvous:
    """What one worker knows of generations to come."""

    def __init__(self, channel: Channel, on_leave: Callable[[float | None], None]) -> None:
        """`on_leave` is called by a thread, with the seconds there are."""
        self._channel = channel
        self._on_leave = on_leave
        self._changed = threading.Condition()
        self._closing = False
        self._newest: Generation | None = None
        self._rounds: dict[int, RendezvousRound] = {}  # by generation
        self._complete: set[int] = set()  # generations of which this worker is rank 0 and all are here
        self.unwanted = False  # the service said 410
        self._preparer = threading.Thread(target=self._prepare, name="stretto-preparer", daemon=True)
        self._preparer.start()
        threading.Thread(target=self._listen, name="stretto-listener", daemon=True).start()

    @property
    def newest(self) -> Generation | None:
        """The newest generation that the service told."""
        return self._newest

    def proposal(self) -> int:
        """The generation that this worker, as its rank 0, proposes to switch to; 0 for none."""
        newest = self._newest
        return newest.number if newest is not None and newest.number in self._complete else 0

    def round_of(self, number: int) -> RendezvousRound | None:
        """Of that generation, if this worker is a member and connected."""
        with self._changed:
            return self._rounds.get(number)

    def rounds(self) -> list[RendezvousRound]:
        """All that may still come about, by number."""
        with self._changed:
            return [self._rounds[number] for number in sorted(self._rounds)]

    def abort(self, number: int) -> None:
        """That generation will not come about; the service will think of another."""
        with self._changed:
            self._complete.discard(number)

    def drop_up_to(self, number: int) -> None:
        """This worker trains in that generation now, or nothing will come of it: earlier ones are history."""
        with self._changed:
            self._rounds = {each: ahead for each, ahead in self._rounds.items() if each > number}
            self._complete = {each for each in self._complete if each > number}

    def withdraw(self, verdict: str = "") -> None:
        """This worker goes: others shall not wait for it. Rank 0 can leave a verdict for newcomers."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._preparer.join(PREPARER_END_S)  # an interpreter that ends while it is in a store's code aborts
        for ahead in self.rounds():
            try:
                if ahead.rank == 0 and verdict:
                    ahead.store.set("verdict", verdict)
                elif ahead.rank:
                    ahead.store.delete_key(f"here/{self._channel.worker}")
            except Exception as gone:  # torch raises its own kinds; with its store gone the round is, too
                log.debug("could not withdraw from generation %d: %s", ahead.generation.number, gone)

    def _listen(self) -> None:
        """In a thread: the newest generation that the service tells, for as long as this worker is wanted."""
        pause_s, remind_s = FIRST_PAUSE_S, time.monotonic() + SILENCE_S
        while not self._closing:
            try:
                newer = self._ask()
                pause_s, remind_s = FIRST_PAUSE_S, time.monotonic() + SILENCE_S
            except NoLongerWanted:
                self.unwanted = True
                return
            except OSError as failed:
                # The training goes on without a service; the job's own log, where people look first, says so.
                log.debug("the service does not answer: %s", failed)
                if time.monotonic() >= remind_s:
                    remind_s = time.monotonic() + REMIND_S
                    warning = f"stretto: no service answers at {self._channel.url} ({failed}); trying on"
                    print(warning, file=sys.stderr, flush=True)
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            if newer is not None:
                # The deadline first: it counts from now, whatever the main thread does with the rest.
                if newer.leave:
                    self._on_leave(newer.until_s)
                with self._changed:
                    self._newest = newer
                    self._changed.notify_all()

    def _ask(self) -> Generation | None:
        newest = self._newest
        number = newest.number if newest else 0
        if newest and not newest.store and newest.rank_of(self._channel.worker):
            # Not rank 0: the same generation again, once its store is open; or a newer one without any.
            with_store = self._channel.generation(number - 1, STORE_POLL_S, with_store=True)
            return with_store or self._channel.generation(number, 0.0, with_store=False)
        return self._channel.generation(number, LONG_POLL_S, with_store=False)

    def _prepare(self) -> None:
        """In a thread: join the round of each newest generation that this worker is a member of."""
        done: set[int] = set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._has_work(done))
                if self._closing:
                    return
                generation = self._newest
                assert generation is not None
            try:
                self._join_round(generation)
                done.add(generation.number)
            except Exception as failed:  # torch raises its own kinds; the next try may find the store
                log.warning("generation %d cannot meet yet: %s", generation.number, failed)
                time.sleep(FIRST_PAUSE_S)

    def _has_work(self, done: set[int]) -> bool:
        newest = self._newest
        if newest is None or newest.leave or newest.number in done:
            return False
        rank = newest.rank_of(self._channel.worker)
        return rank == 0 or (rank is not None and newest.store is not None)

    def _join_round(self, generation: Generation) -> None:
        rank = generation.rank_of(self._channel.worker)
        if rank == 0:
            self._host(generation)
        elif rank is not None and generation.store is not None:
            store = process_group.join_store(generation.store, generation.secret)
            store.set(f"here/{self._channel.worker}", "")
            self._remember(RendezvousRound(generation, rank, store))

    def _host(self, generation: Generation) -> None:
        address = process_group.own_address(generation.members[0].address)
        store, place = process_group.host_store(address, generation.secret)
        self._remember(RendezvousRound(generation, 0, store))
        self._channel.post("store", generation=generation.number, address=place)
        here = [f"here/{member.id}" for member in generation.members[1:]]
        while not self._closing and self._newest is not None and self._newest.number == generation.number:
            if not here or store.check(here):
                self._complete.add(generation.number)
                return
            time.sleep(ARRIVAL_LOOK_S)

    def _remember(self, joined: RendezvousRound) -> None:
        with self._changed:
            self._rounds[joined.generation.number] = joined
            self._changed.notify_all()


def wait_at_join_barrier(rendezvous: Rendezvous, preemption: Preemption) -> RendezvousRound:
    """The round of the first generation that this newcomer is part of, once all its members answer.

    Ends the process where it is told to go, or where the training ended meanwhile.
    """
    while True:
        newest = rendezvous.newest
        if preemption.is_asked or (newest is not None and newest.leave):
            rendezvous.withdraw()
            raise SystemExit(STATUS)
        if rendezvous.unwanted:
            rendezvous.withdraw()
            raise SystemExit(0)
        for ahead in rendezvous.rounds():
            if open_barrier(ahead, rendezvous) if ahead.rank == 0 else pass_barrier(ahead, rendezvous):
                return ahead
        time.sleep(BARRIER_LOOK_S)


def open_barrier(ahead: RendezvousRound, rendezvous: Rendezvous) -> bool:
    """As rank 0 of a generation without survivors: whether all answer."""
    if rendezvous.proposal() != ahead.generation.number:
        return False
    newcomers = [member.id for member in ahead.generation.members[1:]]
    return call_newcomers(newcomers, ahead, rendezvous)


def call_newcomers(newcomers: list[str], ahead: RendezvousRound, rendezvous: Rendezvous) -> bool:
    """As rank 0: call the newcomers to the switch; whether all of them answered in time."""
    store = ahead.store
    here = [f"here/{worker}" for worker in newcomers]
    answers = [f"in/{worker}" for worker in newcomers]
    is_formed = not here or store.check(here)  # one that withdrew has taken its key away
    if is_formed and newcomers:
        store.set("verdict", "now")
        until_s = time.monotonic() + ANSWER_S
        while not store.check(answers) and time.monotonic() < until_s:
            time.sleep(BARRIER_LOOK_S)
        is_formed = store.check(answers)
    store.set("form", "yes" if is_formed else "no")
    if not is_formed:
        rendezvous.abort(ahead.generation.number)
    return is_formed


def pass_barrier(ahead: RendezvousRound, rendezvous: Rendezvous) -> bool:
    """As a newcomer: whether rank 0 called, and all answered."""
    store, number = ahead.store, ahead.generation.number
    try:
        if not store.check(["verdict"]):
            return False
        if store.get("verdict") == b"over":
            rendezvous.withdraw()
            raise SystemExit(0)
        store.set(f"in/{ahead.generation.members[ahead.rank].id}", "")
        if store.get("form") == b"yes":  # waits
            return True
    except RuntimeError:  # rank 0 is gone, and its store with it; DistError is a RuntimeError
        pass
    rendezvous.drop_up_to(number)  # nothing will come of that one
    return False


def commit_switch(
    proposed: int, proposer: int, present: Membership, rendezvous: Rendezvous
) -> Generation | None:
    """Whether the newcomers of a switch are there: the proposer finds out, all present members learn it.

    The generation to switch to; None where a newcomer has died or gone, and all stay as they are.
    """
    committed: Generation | None = None
    if present.rank == proposer:
        ahead = rendezvous.round_of(proposed)
        assert ahead is not None  # it hosts the store
        survivors = {member.id for member in present.generation.members}
        newcomers = [member.id for member in ahead.generation.members if member.id not in survivors]
        committed = ahead.generation if call_newcomers(newcomers, ahead, rendezvous) else None
    document = process_group.broadcast_json(as_document(committed) if committed else None, proposer)
    return read_generation(document) if document else None
