"""Times that people name by the calendar: they move on the clock of the service when that is corrected."""

from dataclasses import replace

from stretto.jobfile.to_job import rewards_of
from stretto.model import Reservation
from stretto.service.state import events as happened
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State


def log_began(state: State, event: happened.Began, now_s: float) -> None:
    """The clock of the service begins to count."""
    state.unix_s = event.unix_s
    state.calendar.begin(event.unix_s)


def clock_set(state: State, event: happened.ClockSet, now_s: float) -> None:
    """The clocks were read: what people have named by the calendar follows where that is sure."""
    before = state.calendar.bound_unix_s
    state.calendar.set(event, now_s)
    state.unix_s = event.unix_s
    if event.bound_unix_s != before:
        _move_reservations(state)
        for record in state.open_jobs():
            _move_job(state, record)


def reserved(state: State, event: happened.Reserved, now_s: float) -> None:
    """GPUs are kept; those of reservations that have passed are not, but a clock may still be corrected."""
    passed = sorted((one.until_s, name) for name, one in state.reservations.items() if one.until_s <= now_s)
    for _, name in passed[: max(len(passed) - MOST_PASSED, 0)]:
        unreserved(state, happened.Unreserved(name), now_s)
    state.reservations[event.name] = Reservation(**happened.body_of(event))
    state.reserved_unix_s[event.name] = (event.from_s + state.unix_s, event.until_s + state.unix_s)


def unreserved(state: State, event: happened.Unreserved, now_s: float) -> None:
    """Nothing is kept under this name."""
    state.reservations.pop(event.name, None)
    state.reserved_unix_s.pop(event.name, None)


MOST_PASSED = 1_000  # reservations that are remembered after their end; chosen: some hundred kilobytes


def _move_reservations(state: State) -> None:
    offset_s = state.calendar.bound_unix_s
    for name, (from_unix_s, until_unix_s) in state.reserved_unix_s.items():
        state.reservations[name] = replace(
            state.reservations[name], from_s=from_unix_s - offset_s, until_s=until_unix_s - offset_s
        )


def _move_job(state: State, record: JobRecord) -> None:
    """Its deadlines; and its start, unless it has waited for something else since."""
    spec, offset_s = record.spec, state.calendar.bound_unix_s
    rewards = rewards_of(spec, record.job.submitted_s, offset_s)
    start = spec.start_after
    not_before_s = record.not_before_s
    if start is not None and start.at_unix_s is not None and not record.attempt and not_before_s > 0:
        not_before_s = start.at_unix_s - offset_s
    if (rewards, not_before_s) != (record.job.rewards, record.not_before_s):
        record.job, record.not_before_s = replace(record.job, rewards=rewards), not_before_s
        state.version += 1
        state.touch(record.id)
