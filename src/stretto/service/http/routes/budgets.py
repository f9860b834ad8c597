"""Budgets: so much GPU time, or cost, for some jobs in each day, week or month."""

from collections.abc import Iterable
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Path, Request, Response

from stretto.errors import InputError
from stretto.model.queue import line_of, may_use, parents_of
from stretto.service.budgets import Standing
from stretto.service.http import usage_schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.http.routes.usage import zone_of
from stretto.service.service import Service
from stretto.service.state.budgets import MOST_BUDGETS, Budget, Level, Unit
from stretto.service.state.events import BudgetDeleted, BudgetSet
from stretto.service.state.records import JobRecord
from stretto.service.state.usage import US_PER_S

router = APIRouter(prefix="/api/v1", tags=["cluster"])
BudgetName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,63}$")]


@router.get("/budgets", response_model=usage_schemas.Budgets)
async def budgets(service: Asked, caller: Who) -> Response:
    """Every budget with what is used of it; for users, those that count jobs of theirs."""
    standings = await service.budgets.standings()
    shown = [standing for standing in standings if _may_see(service, caller, standing.budget)]
    return Json({"budgets": _rows(service, shown)})


@router.put(
    "/budgets/{budget}",
    response_model=usage_schemas.Budget,
    responses={409: {"description": "There are as many budgets as there may be"}},
)
async def set_budget(
    budget: BudgetName, asked: usage_schemas.BudgetAsked, request: Request, service: Asked, caller: Who
) -> Response:
    """Some jobs have a budget from now on; what was used in its period before counts."""
    require(caller, Role.ADMIN, "set a budget")
    wanted = _budget_of(budget, asked, service, caller)
    await service.targets.check(wanted.notify)
    async with request.app.state.one_bound:
        others = set(service.state.budgets.by_name) - {budget}
        if len(others) >= MOST_BUDGETS:
            raise Problem(HTTPStatus.CONFLICT, f"there may be {MOST_BUDGETS} budgets, and there are so many")
        now = (await service.budgets.standings([wanted]))[-1]
        events = [
            _set_event(wanted),
            *([now.as_event()] if now.level else []),
        ]  # at once: no job slips through
        await durably(request, service.record(*events, did(caller, "set", f"budget {budget}")))
    return Json(_rows(service, [now])[0])


@router.delete("/budgets/{budget}", status_code=HTTPStatus.NO_CONTENT)
async def delete_budget(budget: BudgetName, request: Request, service: Asked, caller: Who) -> None:
    """There is no such budget any more, and no job waits for it."""
    require(caller, Role.ADMIN, "delete a budget")
    if budget not in service.state.budgets.by_name:
        raise not_found("budget", budget)
    await durably(request, service.record(BudgetDeleted(budget), did(caller, "delete", f"budget {budget}")))


def budgets_in_words(service: Service, record: JobRecord) -> list[str]:
    """Budgets that count a job and warn, or hold, as they stood some seconds ago at most."""
    line = line_of(record.queue, parents_of(service.state.queues))
    return [
        f"{one.budget.words(one.used)}; until {one.budget.until_in_words(one.until_us)}"
        for _, one in sorted(service.budgets.latest.items())
        if one.level and one.budget.covers(record.user, line)
    ]


def _budget_of(name: str, asked: usage_schemas.BudgetAsked, service: Service, caller: Caller) -> Budget:
    """What was asked for. Raises InputError."""
    amounts = [
        (unit, amount)
        for unit, amount in ((Unit.GPU_HOURS, asked.gpu_hours), (Unit.COST, asked.cost))
        if amount is not None
    ]
    if len(amounts) != 1:
        raise InputError(f"expected one of gpu_hours and cost, got {'both' if amounts else 'neither'}")
    if asked.warn is None and asked.hold is None:
        raise InputError("expected warn, hold or both, got neither: the budget would do nothing")
    if asked.warn is not None and asked.hold is not None and asked.hold < asked.warn:
        raise InputError(f"hold: expected at least warn, which is {asked.warn:g}, got {asked.hold:g}")
    queues = service.state.queues
    if asked.queue and queues and asked.queue not in queues:
        raise InputError(f"queue: expected one of {', '.join(sorted(queues))}, got {asked.queue!r}")
    return Budget(
        name,
        *amounts[0],
        asked.period,
        zone_of(asked.zone).key,
        user=asked.user,
        queue=asked.queue,
        warn=asked.warn or 0.0,
        hold=asked.hold or 0.0,
        stops=asked.running == "stop",
        notify=tuple(dict.fromkeys(asked.notify)),
        set_by=caller.user,
    )


def _set_event(budget: Budget) -> BudgetSet:
    return BudgetSet(
        budget.name,
        budget.unit.value,
        budget.amount,
        budget.period,
        budget.zone,
        budget.user,
        budget.queue,
        budget.warn,
        budget.hold,
        budget.stops,
        budget.notify,
        budget.set_by,
    )


def _may_see(service: Service, caller: Caller, budget: Budget) -> bool:
    """Whether a budget counts jobs that a caller may have."""
    if caller.is_operator:
        return True
    queues = service.state.queues
    is_theirs = not budget.queue or budget.queue not in queues or may_use(queues, budget.queue, caller.user)
    return budget.user in ("", caller.user) and is_theirs


def _rows(service: Service, standings: Iterable[Standing]) -> list[dict[str, Any]]:
    return [
        {
            "name": standing.budget.name,
            "user": standing.budget.user,
            "queue": standing.budget.queue,
            "unit": standing.budget.unit.value,
            "amount": standing.budget.amount,
            "period": standing.budget.period,
            "zone": standing.budget.zone,
            "warn": standing.budget.warn or None,
            "hold": standing.budget.hold or None,
            "running": "stop" if standing.budget.stops else "go-on",
            "used": round(standing.used, 6),
            "share": round(standing.share, 6),
            "level": standing.level.value,
            "from": _iso(standing.from_us, standing.budget.zone),
            "until": _iso(standing.until_us, standing.budget.zone),
            "waiting": _waiting(service, standing.budget) if standing.level is Level.HOLD else 0,
        }
        for standing in standings
    ]


def _waiting(service: Service, budget: Budget) -> int:
    """Jobs of a budget without GPUs."""
    parents = parents_of(service.state.queues)
    lines = {record.queue: line_of(record.queue, parents) for record in service.state.open_jobs()}
    return sum(
        not record.accounting.held_gpus and budget.covers(record.user, lines[record.queue])
        for record in service.state.open_jobs()
    )


def _iso(at_us: int, zone: str) -> str:
    return datetime.fromtimestamp(at_us / US_PER_S, ZoneInfo(zone)).isoformat()
