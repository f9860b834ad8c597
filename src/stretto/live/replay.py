"""The log decided again: what a policy remembers comes back, and every decision can be compared."""

from dataclasses import dataclass, field

from stretto.live.deciding import decided
from stretto.live.events import Configured, Decided, event_of
from stretto.live.observe import Observer
from stretto.live.scheduling import scheduler_of
from stretto.live.state import State
from stretto.live.store import Recorded
from stretto.model import Snapshot, Trigger
from stretto.scheduler.round import Scheduler, decide


@dataclass(frozen=True)
class Difference:
    """A decision that does not come out as it was written."""

    seq: int
    was: Decided
    again: Decided


@dataclass
class Replay:
    """Folds a log, deciding again wherever it was decided.

    A decision saw the state after event `seen`, and is written some events later; so each state after which
    somebody looked is looked at, which takes a log of decisions to be read ahead.
    """

    state: State
    decide_again: bool = True
    differences: list[Difference] = field(default_factory=list)
    decisions: int = 0
    _scheduler: Scheduler | None = None
    _observer: Observer | None = None
    _behind: list[Recorded] = field(default_factory=list)  # not folded yet: a decision may have seen before

    def next(self, recorded: Recorded) -> None:
        """Take the next event of the log."""
        event = event_of(recorded.kind, recorded.body)
        if isinstance(event, Decided) and self.decide_again:
            self._fold_up_to(event.seen)
            again, memory = self._decided_again(event)
            self._fold_up_to(recorded.seq)
            self._compare(recorded.seq, event, again)
            self.state.apply(event, recorded.seq, recorded.at_s)
            self.state.memory = memory
            return
        self._behind.append(recorded)

    def finish(self) -> State:
        """Fold what is left; the state at the end of the log."""
        self._fold_up_to(None)
        return self.state

    def _fold_up_to(self, seq: int | None) -> None:
        while self._behind and (seq is None or self._behind[0].seq <= seq):
            one = self._behind.pop(0)
            event = event_of(one.kind, one.body)
            self.state.apply(event, one.seq, one.at_s)
            if isinstance(event, Configured):
                self._scheduler = scheduler_of(event)
                self._observer = Observer(self._scheduler.policy.views)
                self.state.memory = None

    def _decided_again(self, event: Decided) -> tuple[Decided, object]:
        assert self._scheduler is not None
        assert self._observer is not None
        due = frozenset(Trigger(name) for name in event.due)
        snapshot: Snapshot = self._observer.observe(self.state, event.at_s, due)
        plan = decide(snapshot, self._scheduler)
        self.decisions += 1
        return decided(snapshot, plan, event.seen, event.took_ms), plan.memory

    def _compare(self, seq: int, was: Decided, again: Decided) -> None:
        if (list(was.actions), was.wake_s, was.memory) != (list(again.actions), again.wake_s, again.memory):
            self.differences.append(Difference(seq, was, again))
