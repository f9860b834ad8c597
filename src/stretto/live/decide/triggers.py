"""Which events are reasons to ask a policy."""

from collections.abc import Mapping

from stretto.live.state import events as happened
from stretto.live.state.events import Event
from stretto.model import Trigger

_TRIGGERS: Mapping[type[Event], Trigger] = {
    happened.Submitted: Trigger.ARRIVAL,
    happened.ArraySubmitted: Trigger.ARRIVAL,
    happened.Requeued: Trigger.ARRIVAL,
    happened.Scaled: Trigger.ARRIVAL,
    happened.Prioritised: Trigger.ARRIVAL,
    happened.Ended: Trigger.COMPLETION,
    happened.Cancelled: Trigger.COMPLETION,
    happened.AttemptClosed: Trigger.COMPLETION,
    happened.NodeSeen: Trigger.CAPACITY,
    happened.NodeLost: Trigger.CAPACITY,
    happened.NodeDead: Trigger.CAPACITY,
    happened.NodeCordoned: Trigger.CAPACITY,
    happened.TypesSeen: Trigger.CAPACITY,
    happened.QueueSet: Trigger.CAPACITY,
    happened.UserSharesSet: Trigger.CAPACITY,
    happened.Reserved: Trigger.CAPACITY,
    happened.Unreserved: Trigger.CAPACITY,
}


def trigger_of(event: Event) -> Trigger | None:
    """The trigger that an event pulls; None for one that changes nothing for a policy."""
    if isinstance(event, happened.Held):
        return Trigger.COMPLETION if event.held else Trigger.ARRIVAL
    if isinstance(event, happened.ClockSet):
        return Trigger.CAPACITY if event.unix_s == event.bound_unix_s else None  # reservations may have moved
    if isinstance(event, happened.Reported) and event.report.get("epoch_end"):
        return Trigger.EPOCH_END
    return _TRIGGERS.get(type(event))
