"""How the workers of the next generation find each other while the present one goes on training.

Two threads of each worker listen and prepare; the training notices nothing. Rank 0 of the next generation
opens a store (`meeting_place`) and tells its address through the channel. Every other member, survivor or
newcomer, connects to it and says that it is here. Only when all are here does rank 0 propose the switch
(`beats`), so that a newcomer or a service that dies before costs no step.

Keys of a generation's store: `here/ID` a member is connected · `verdict` what rank 0 decided at the switch:
`now`, `over` (the training has ended) · `in/ID` a newcomer's answer to `now` · `form` whether all answered ·
`leaving` somebody was told to leave, for those who are not training at the moment.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from stretto.sdk.channel import FIRST_PAUSE_S, LONGEST_PAUSE_S, Channel, NoLongerWanted
from stretto.sdk.generation import Generation
from stretto.sdk.meeting_place import host_store, join_store

log = logging.getLogger("stretto.sdk")

LONG_POLL_S = 25.0
SILENCE_S, SAY_AGAIN_S = 5.0, 60.0  # of the service, until it is said and said again; chosen
STORE_POLL_S = 2.0  # short, since a generation may be replaced while its store is waited for
LOOK_S = 0.01  # between looks at who is here
PREPARER_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """A generation whose store this worker is connected to."""

    generation: Generation
    rank: int
    store: Store


class Rendezvous:
    """What one worker knows of generations to come."""

    def __init__(self, channel: Channel, told_to_leave: Callable[[float | None], None]) -> None:
        """`told_to_leave` is called by a thread, with the seconds there are."""
        self._channel = channel
        self._told_to_leave = told_to_leave
        self._changed = threading.Condition()
        self._closing = False
        self._newest: Generation | None = None
        self._meetings: dict[int, Meeting] = {}  # by generation
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

    def meeting(self, number: int) -> Meeting | None:
        """Where that generation meets, if this worker is a member and connected."""
        with self._changed:
            return self._meetings.get(number)

    def meetings(self) -> list[Meeting]:
        """All that may still come about, by number."""
        with self._changed:
            return [self._meetings[number] for number in sorted(self._meetings)]

    def give_up(self, number: int) -> None:
        """That generation will not come about; the service will think of another."""
        with self._changed:
            self._complete.discard(number)

    def settle(self, number: int) -> None:
        """This worker trains in that generation now: earlier ones are history."""
        with self._changed:
            self._meetings = {each: kept for each, kept in self._meetings.items() if each > number}
            self._complete = {each for each in self._complete if each > number}

    def withdraw(self, verdict: str = "") -> None:
        """This worker goes: others shall not wait for it. Rank 0 can leave a verdict behind."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._preparer.join(PREPARER_END_S)  # an interpreter that ends while it is in a store's code aborts
        for meeting in self.meetings():
            try:
                if meeting.rank == 0 and verdict:
                    meeting.store.set("verdict", verdict)
                elif meeting.rank:
                    meeting.store.delete_key(f"here/{self._channel.worker}")
            except Exception as gone:  # torch raises its own kinds; nobody is left who would care
                log.debug("could not withdraw from generation %d: %s", meeting.generation.number, gone)

    def _listen(self) -> None:
        pause_s, say_s = FIRST_PAUSE_S, time.monotonic() + SILENCE_S
        while not self._closing:
            try:
                told = self._ask()
                pause_s, say_s = FIRST_PAUSE_S, time.monotonic() + SILENCE_S
            except NoLongerWanted:
                self.unwanted = True
                return
            except OSError as failed:
                log.debug("the service does not answer: %s", failed)
                if time.monotonic() >= say_s:  # where people look first: the job's own log
                    say_s = time.monotonic() + SAY_AGAIN_S
                    said = f"stretto: no service answers at {self._channel.url} ({failed}); trying on"
                    print(said, file=sys.stderr, flush=True)
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            if told is not None:
                if told.leave:
                    self._told_to_leave(told.until_s)
                with self._changed:
                    self._newest = told
                    self._changed.notify_all()

    def _ask(self) -> Generation | None:
        newest = self._newest
        known = newest.number if newest else 0
        if newest and not newest.store and newest.rank_of(self._channel.worker):
            told = self._channel.generation(known - 1, STORE_POLL_S, with_store=True)
            return told or self._channel.generation(known, 0.0, with_store=False)
        return self._channel.generation(known, LONG_POLL_S, with_store=False)

    def _prepare(self) -> None:
        done: set[int] = set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._has_work(done))
                if self._closing:
                    return
                generation = self._newest
                assert generation is not None
            try:
                self._meet(generation)
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

    def _meet(self, generation: Generation) -> None:
        rank = generation.rank_of(self._channel.worker)
        if rank == 0:
            self._host(generation)
        elif rank is not None and generation.store is not None:
            store = join_store(generation.store, generation.secret)
            store.set(f"here/{self._channel.worker}", "")
            self._remember(Meeting(generation, rank, store))

    def _host(self, generation: Generation) -> None:
        store, place = host_store(generation.members[0].address, generation.secret)
        self._remember(Meeting(generation, 0, store))
        self._channel.post("store", generation=generation.number, address=place)
        here = [f"here/{member.id}" for member in generation.members[1:]]
        while not self._closing and self._newest is not None and self._newest.number == generation.number:
            if not here or store.check(here):
                self._complete.add(generation.number)
                return
            time.sleep(LOOK_S)

    def _remember(self, meeting: Meeting) -> None:
        with self._changed:
            self._meetings[meeting.generation.number] = meeting
            self._changed.notify_all()
