"""What events of budgets change: which there are, and whose jobs wait."""

from stretto.model.queue import line_of, parents_of
from stretto.service.state import events as happened
from stretto.service.state.budgets import Budget, Level, Reached, Unit
from stretto.service.state.job_events import body_of
from stretto.service.state.state import State


def budget_set(state: State, event: happened.BudgetSet, now_s: float) -> None:
    """A budget is there, or is another one."""
    state.budgets.set(Budget(**(body_of(event) | {"unit": Unit(event.unit)})))


def budget_deleted(state: State, event: happened.BudgetDeleted, now_s: float) -> None:
    """It is not there any more."""
    state.budgets.delete(event.name)


def budget_reached(state: State, event: happened.BudgetReached, now_s: float) -> None:
    """It is at another level."""
    budget = state.budgets.by_name.get(event.name)
    if budget is None:  # it was deleted meanwhile
        return
    before, level = state.budgets.level(event.name, event.from_us), Level(event.level)
    state.budgets.reached[event.name] = Reached(level, event.from_us, event.until_us, event.used)
    if level and before is not Level.HOLD:  # from there it only falls back
        state.tell_of_budget(event, budget)
    if level is Level.HOLD and budget.stops:
        _stop_jobs(state, budget, now_s)


def _stop_jobs(state: State, budget: Budget, now_s: float) -> None:
    """Jobs of a budget give back what they hold, whether or not they can be preempted."""
    parents = parents_of(state.queues)
    for record in state.open_jobs():
        if record.accounting.held_gpus and budget.covers(record.user, line_of(record.queue, parents)):
            record.why = f"budget {budget.name} is used up"
            state.release(record, now_s)
