"""Which jobs wait because a budget is used up, and until when."""

from collections.abc import Callable
from math import inf

from stretto.model.queue import line_of, parents_of
from stretto.service.state.budgets import Budget, Reached, longest_hold
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State
from stretto.service.state.usage import US_PER_S

Hold = tuple[Budget, Reached]


def holds_at(state: State, now_s: float) -> Callable[[JobRecord], Hold | None] | None:
    """A look-up of the budget for which a job waits at a time; None where no job waits for any.

    Periods end by the time of day that named times are kept by: a clock that has jumped frees no job.
    """
    holds = state.budgets.holding(unix_us(state, now_s)) if state.budgets.reached else []
    if not holds:
        return None
    parents, known = parents_of(state.queues), dict[tuple[str, str], Hold | None]()

    def hold_of(record: JobRecord) -> Hold | None:
        account = record.user, record.queue
        if account not in known:
            known[account] = longest_hold(holds, record.user, line_of(record.queue, parents))
        return known[account]

    return hold_of


def hold_of(state: State, record: JobRecord, now_s: float) -> Hold | None:
    """The budget that holds a job; None where none does."""
    look = holds_at(state, now_s)
    return None if look is None else look(record)


def next_end_s(state: State, now_s: float) -> float:
    """When the first of the holds ends, on the clock of the service; infinite where there is none."""
    holds = state.budgets.holding(unix_us(state, now_s)) if state.budgets.reached else []
    return min((until_s(state, reached) for _, reached in holds), default=inf)


def until_s(state: State, reached: Reached) -> float:
    """The end of a period on the clock of the service."""
    return reached.until_us / US_PER_S - state.calendar.bound_unix_s


def unix_us(state: State, now_s: float) -> int:
    """A time of the service by the time of day that named times are kept by."""
    return round((state.calendar.bound_unix_s + now_s) * US_PER_S)
