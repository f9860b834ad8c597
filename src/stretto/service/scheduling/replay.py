"""The log decided again: what a policy remembers comes back, and every decision can be compared."""

import json
from collections import Counter as Count
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.model import InputError, Memory, Plan, Snapshot, Trigger, digest
from stretto.scheduler.round import Scheduler, decide
from stretto.service.eventlog import Recorded, Store
from stretto.service.eventlog.writer import fold, understood
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.events import Configured, Decided, check_known
from stretto.service.state.reducer import apply_or_skip
from stretto.service.state.state import State

Load = Callable[[Configured], Scheduler]
Watch = Callable[[int, Snapshot, Plan], None]  # of a decision's number, what it saw, and its plan

NOTHING = digest(None)  # of a policy that remembers nothing


@dataclass(frozen=True)
class Difference:
    """A decision that does not come out as it was written."""

    seq: int
    was: Decided
    again: Decided | None  # None: it cannot be made any more
    why: str = ""  # it cannot

    @property
    def words(self) -> str:
        """What was decided, and what is decided now."""
        if self.again is None:
            return f"decision {self.seq} at {self.was.at_s:.3f} s: cannot be made again: {self.why}"
        changes = [
            f"{name} was {json.dumps(was)}, is {json.dumps(again)}"
            for (name, was), again in zip(_said(self.was).items(), _said(self.again).values(), strict=True)
            if was != again
        ]
        return f"decision {self.seq} at {self.was.at_s:.3f} s: {'; '.join(changes)}"


def _said(event: Decided) -> dict[str, Any]:
    """What must come out again of a decision."""
    batches = {job: list(batch) for job, batch in event.batches.items()}
    return {
        "actions": list(event.actions),
        "batches": batches,
        "wake_s": event.wake_s,
        "memory": event.memory,
        "preempted": {job: list(by_whom) for job, by_whom in event.preempted.items()},
        "loans": dict(event.loans),
    }


@dataclass
class Replay:
    """Folds a log, deciding again wherever it was decided.

    A decision saw the state after event `seen`, and is written some events later. So each state after which a
    scheduler looked is looked at, which takes a log of decisions to be read ahead. To fold a decision no
    policy is needed, only to repeat it. A policy that cannot be loaded any more keeps no reader from the
    state.
    """

    state: State
    load: Load = scheduler_of  # raises InputError for what cannot, or must not, be loaded
    for_memory: bool = False  # only as far as that is needed for what the policy remembers
    decide_from: float = 0  # decisions with lower numbers are only folded
    always: int = 0  # the number of a decision that is made again whatever it is needed for; 0: of none
    watch: Watch | None = None  # told of every decision that is made again
    differences: list[Difference] = field(default_factory=list)
    decisions: int = 0
    memory: Memory = None  # the policy's, after the last decision: no event holds it, so it is decided again
    not_repeated: Count[str] = field(default_factory=Count)  # decisions, by why they cannot be
    _loaded: "tuple[Scheduler, SnapshotBuilder] | None" = None
    _unloadable: str = ""  # why the policy that decides cannot be loaded
    _behind: deque[Recorded] = field(default_factory=deque)  # not folded yet: a decision may have seen before

    def next(self, recorded: Recorded) -> None:
        """Take the next event of the log. Raises UnknownEvent for one that a newer version wrote."""
        check_known(recorded.kind)  # what else is wrong with an event is found out when it is folded
        event = understood(recorded) if recorded.kind == Decided.__name__ else None
        if not isinstance(event, Decided):
            self._behind.append(recorded)
            return
        if not self._is_to_be_decided(recorded.seq, event):
            self._fold_up_to(event.seen)  # later decisions saw later states: nothing asks for this one again
            self._behind.append(recorded)
            return
        self._fold_up_to(event.seen)
        memory = self._compare(recorded.seq, event)
        self._fold_up_to(recorded.seq)
        apply_or_skip(self.state, event, recorded.seq, recorded.at_s)
        self.memory = memory

    def finish(self) -> State:
        """Fold what is left; the state at the end of the log."""
        self._fold_up_to(None)
        return self.state

    def _is_to_be_decided(self, seq: int, event: Decided) -> bool:
        is_needed = seq >= self.decide_from and not (self.for_memory and event.memory == NOTHING)
        return is_needed or seq == self.always

    def _fold_up_to(self, seq: int | None) -> None:
        while self._behind and (seq is None or self._behind[0].seq <= seq):
            event = fold(self.state, self._behind.popleft())
            if isinstance(event, Configured):
                self._loaded, self._unloadable, self.memory = None, "", None
            elif isinstance(event, Decided):
                self.memory = None  # as it says, or nobody asks

    def _compare(self, seq: int, event: Decided) -> Memory:
        """Decide again, note what differs; what the policy remembers of it, None where unknown."""
        try:
            scheduler, observer = self._scheduler()
        except InputError as wrong:
            self.not_repeated[str(wrong)] += 1
            return None
        self.decisions += 1
        try:
            due = frozenset(Trigger(name) for name in event.due)
            snapshot = snapshot_for(scheduler, observer, self.state, event.at_s, due, self.memory)
            plan = decide(snapshot, scheduler)
        except Exception as wrong:  # policies change, and a start must not depend on what they once bore
            why = str(wrong) or type(wrong).__name__
            self.differences.append(Difference(seq, event, None, why))
            return None
        if self.watch is not None:
            self.watch(seq, snapshot, plan)
        again = decided(snapshot, plan, event.seen, event.took_ms)
        if _said(event) != _said(again):
            self.differences.append(Difference(seq, event, again))
        return plan.memory

    def _scheduler(self) -> tuple[Scheduler, SnapshotBuilder]:
        """The scheduler that decides now, loaded once it is needed. Raises InputError."""
        if self._unloadable:
            raise InputError(self._unloadable)
        if self._loaded is None:
            try:
                scheduler = self.load(self.state.configured)
            except InputError as wrong:
                self._unloadable = str(wrong)
                raise
            self._loaded = scheduler, SnapshotBuilder(scheduler.policy.views)
        return self._loaded


def decided_again(
    store: Store, progress: Callable[[int, int], None] | None = None, load: Load = scheduler_of
) -> Replay:
    """All of a log decided again, as far as it goes now; a service may be writing to it.

    progress: is told how many events of how many have been read. load: as that of `Replay`.
    """
    replay, last = Replay(State(), load), store.last()
    for recorded in store.read(up_to=last):
        replay.next(recorded)
        if progress is not None:
            progress(recorded.seq, last)
    replay.finish()
    return replay
