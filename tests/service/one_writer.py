"""Who writes the state? A watch over a log writer that finds out whether anything but the fold has."""

from dataclasses import dataclass, field

import pytest

from stretto.service.eventlog import writer
from stretto.service.state import reducer
from stretto.service.state.events import Event
from stretto.service.state.state import Skipped, State


def contents_of(state: State) -> str:
    """Everything that a state holds, to the last field of the last record.

    What is worked out only once somebody asks is asked for first. Which tasks of an array may run is left
    out: the array remembers that until the next event.
    """
    assert state.cluster is None or state.placement is not None
    arrays = state.relations.arrays
    remembered = {name: vars(array).copy() for name, array in arrays.items()}
    for array in arrays.values():
        array.seen, array.from_s, array.until_s, array.admitted = -1, 0.0, 0.0, frozenset()
    try:
        return repr(state)
    finally:
        for name, array in arrays.items():
            vars(array).update(remembered[name])


@dataclass
class Watch:
    """Kinds of events: `folded` found the state as the event before had left it, `changed` did not."""

    folded: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    _left: dict[int, str] = field(default_factory=dict)

    def apply_or_skip(self, state: State, event: Event, seq: int, at_s: float) -> Skipped | None:
        """What a log writer calls; a state is followed from the first event on that it folds."""
        kind, now = type(event).__name__, contents_of(state)
        (self.folded if self._left.get(id(state), now) == now else self.changed).append(kind)
        skipped = reducer.apply_or_skip(state, event, seq, at_s)
        self._left[id(state)] = contents_of(state)
        return skipped


def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watch every log writer of this process from now on."""
    watch = Watch()
    monkeypatch.setattr(writer, "apply_or_skip", watch.apply_or_skip)
    return watch
