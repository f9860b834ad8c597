"""Coming into a group, changing it in place, and going: the steps of a switch."""

import time
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from stretto.sdk import group
from stretto.sdk.generation import Generation, as_document, read_generation
from stretto.sdk.preemption import STATUS, Preemption
from stretto.sdk.rendezvous import Meeting, Rendezvous

ANSWER_S = 10.0  # a newcomer that said it is here has so long to answer; chosen
LOOK_S = 0.003


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


def wait_to_be_called(rendezvous: Rendezvous, preemption: Preemption) -> Meeting:
    """The first generation that this newcomer is part of, once all its members answer.

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
        for meeting in rendezvous.meetings():
            if call_all(meeting, rendezvous) if meeting.rank == 0 else answer(meeting, rendezvous):
                return meeting
        time.sleep(LOOK_S)


def call_all(meeting: Meeting, rendezvous: Rendezvous) -> bool:
    """As rank 0 of a generation without survivors: whether all answer."""
    if rendezvous.proposal() != meeting.generation.number:
        return False
    newcomers = [member.id for member in meeting.generation.members[1:]]
    return settle_with(newcomers, meeting, rendezvous)


def settle_with(newcomers: list[str], meeting: Meeting, rendezvous: Rendezvous) -> bool:
    """As rank 0: call the newcomers to the switch; whether all of them answered in time."""
    store = meeting.store
    here = [f"here/{worker}" for worker in newcomers]
    answers = [f"in/{worker}" for worker in newcomers]
    is_formed = not here or store.check(here)  # one that withdrew has taken its key away
    if is_formed and newcomers:
        store.set("verdict", "now")
        until_s = time.monotonic() + ANSWER_S
        while not store.check(answers) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        is_formed = store.check(answers)
    store.set("form", "yes" if is_formed else "no")
    if not is_formed:
        rendezvous.give_up(meeting.generation.number)
    return is_formed


def answer(meeting: Meeting, rendezvous: Rendezvous) -> bool:
    """As a newcomer: whether rank 0 called, and all answered."""
    store, number = meeting.store, meeting.generation.number
    try:
        if not store.check(["verdict"]):
            return False
        if store.get("verdict") == b"over":
            rendezvous.withdraw()
            raise SystemExit(0)
        store.set(f"in/{meeting.generation.members[meeting.rank].id}", "")
        if store.get("form") == b"yes":  # waits
            return True
    except RuntimeError:  # rank 0 is gone, and its store with it; DistError is a RuntimeError
        pass
    rendezvous.settle(number)  # nothing will come of that one
    return False


def verdict_on(proposed: int, proposer: int, now: Membership, rendezvous: Rendezvous) -> Generation | None:
    """What the proposer of a switch finds, told to all members of the present group.

    The generation to switch to; None where a newcomer has died or gone, and all stay as they are.
    """
    found: Generation | None = None
    if now.rank == proposer:
        meeting = rendezvous.meeting(proposed)
        assert meeting is not None  # it hosts the store
        present = {member.id for member in now.generation.members}
        newcomers = [member.id for member in meeting.generation.members if member.id not in present]
        found = meeting.generation if settle_with(newcomers, meeting, rendezvous) else None
    told = group.tell_plain(as_document(found) if found else None, proposer)
    return read_generation(told) if told else None
