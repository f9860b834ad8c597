"""The log decided again: what a policy remembers comes back, and every decision can be compared."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.live.decide.decision import answer_to, asked_of, decided
from stretto.live.decide.observe import Observer
from stretto.live.decide.scheduling import scheduler_of
from stretto.live.state.events import Configured, Decided, event_of
from stretto.live.state.folding import apply
from stretto.live.state.state import State
from stretto.live.store import Recorded, Store
from stretto.model import Trigger, digest
from stretto.scheduler.round import Scheduler

NOTHING = digest(None)  # of a policy that remembers nothing


@dataclass(frozen=True)
class Difference:
    """A decision that does not come out as it was written."""

    seq: int
    was: Decided
    again: Decided

    @property
    def words(self) -> str:
        """What was decided, and what is decided now."""
        told = [
            f"{name} was {json.dumps(was)}, is {json.dumps(again)}"
            for (name, was), again in zip(_said(self.was).items(), _said(self.again).values(), strict=True)
            if was != again
        ]
        return f"decision {self.seq} at {self.was.at_s:.3f} s: {'; '.join(told)}"


def _said(event: Decided) -> dict[str, Any]:
    """What must come out again of a decision."""
    batches = {job: list(batch) for job, batch in event.batches.items()}
    return {
        "actions": list(event.actions),
        "batches": batches,
        "wake_s": event.wake_s,
        "memory": event.memory,
    }


@dataclass
class Replay:
    """Folds a log, deciding again wherever it was decided.

    A decision saw the state after event `seen`, and is written some events later; so each state after which
    somebody looked is looked at, which takes a log of decisions to be read ahead.
    """

    state: State
    decide_again: bool = True
    for_memory: bool = False  # only as far as that is needed for what the policy remembers
    differences: list[Difference] = field(default_factory=list)
    decisions: int = 0
    _scheduler: Scheduler | None = None
    _observer: Observer | None = None
    _behind: deque[Recorded] = field(default_factory=deque)  # not folded yet: a decision may have seen before

    def __post_init__(self) -> None:
        """A log that is read on from a kept state has been configured before."""
        if self.state.seq:
            self._configure(self.state.configured)

    def next(self, recorded: Recorded) -> None:
        """Take the next event of the log."""
        event = event_of(recorded.kind, recorded.body)
        if isinstance(event, Decided) and self._is_to_be_decided(event):
            self._fold_up_to(event.seen)
            again, memory = self._decided_again(event)
            self._fold_up_to(recorded.seq)
            self._compare(recorded.seq, event, again)
            apply(self.state, event, recorded.seq, recorded.at_s)
            self.state.memory = memory
            return
        self._behind.append(recorded)

    def _is_to_be_decided(self, event: Decided) -> bool:
        return self.decide_again and not (self.for_memory and event.memory == NOTHING)

    def finish(self) -> State:
        """Fold what is left; the state at the end of the log."""
        self._fold_up_to(None)
        return self.state

    def _fold_up_to(self, seq: int | None) -> None:
        while self._behind and (seq is None or self._behind[0].seq <= seq):
            one = self._behind.popleft()
            event = event_of(one.kind, one.body)
            apply(self.state, event, one.seq, one.at_s)
            if isinstance(event, Configured):
                self._configure(event)
                self.state.memory = None
            elif isinstance(event, Decided):
                self.state.memory = None  # as it says, or nobody asks

    def _configure(self, event: Configured) -> None:
        self._scheduler = scheduler_of(event)
        self._observer = Observer(self._scheduler.policy.views)

    def _decided_again(self, event: Decided) -> tuple[Decided, object]:
        assert self._scheduler is not None
        assert self._observer is not None
        due = frozenset(Trigger(name) for name in event.due)
        asked = asked_of(self._observer, self.state, event.at_s, due, self._scheduler)
        answer = answer_to(asked, self._scheduler)
        self.decisions += 1
        return decided(asked, answer, event.seen, event.took_ms), answer.plan.memory

    def _compare(self, seq: int, was: Decided, again: Decided) -> None:
        if _said(was) != _said(again):
            self.differences.append(Difference(seq, was, again))


def decided_again(store: Store, progress: Callable[[int, int], None] | None = None) -> Replay:
    """All of a log decided again, as far as it goes now; a service may be writing to it.

    progress: is told how many events of how many have been read.
    """
    replay, last = Replay(State()), store.last()
    for recorded in store.read(limit=last):
        replay.next(recorded)
        if progress is not None:
            progress(recorded.seq, last)
    replay.finish()
    return replay
