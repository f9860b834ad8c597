"""How many GPU-hours each user has used, for what, and what they cost."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import APIRouter, Path, Query, Request, Response

from stretto.errors import InputError
from stretto.service.eventlog.archive import spell_of
from stretto.service.http import usage_schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json
from stretto.service.state.events import GpuPriceSet
from stretto.service.state.usage import QUARTER_US, US_PER_S
from stretto.service.state.usage_report import Holding, Question, Report, first_us_of, holdings_of

router = APIRouter(prefix="/api/v1", tags=["cluster"])
By = Annotated[list[str] | None, Query(max_length=5)]
Text = Annotated[str, Query(max_length=64)]


@router.get("/usage", response_model=usage_schemas.Usage, response_model_exclude_unset=True)
async def usage(
    service: Asked,
    caller: Who,
    by: By = None,
    from_: Annotated[str, Query(alias="from", max_length=64)] = "",
    to: Text = "",
    zone: Text = "UTC",
) -> Response:
    """GPU-hours, what they were for and what they cost; one's own only, for users.

    by: user, queue, type or job, and day, week or month. from, to: dates, or times, in the zone.
    """
    place = zone_of(zone)
    question = Question(tuple(by or ["user"]), time_us("from", from_, place), time_us("to", to, place), place)
    state, table = service.state, service.log_writer.store.ended
    now_s = max(service.clock.now_s(), state.at_s)
    now_us = round((state.unix_s + now_s) * US_PER_S)
    holdings, numbers = holdings_of(state, now_s), {record.number for record in state.jobs.values()}
    prices = state.gpu_prices
    report = Report(question, now_us, caller.sees, prices.at if prices else None, prices.changes_us())

    def sum_up() -> list[dict[str, Any]]:
        first_us = first_us_of(holdings, now_us)
        if has_left:
            first_us = min(first_us, table.used_first_us() or now_us)
        report.begin(first_us)
        for holding in holdings:
            report.add(holding)
        for number, job, owner, row in table.used(question.from_us, question.until_us) if has_left else ():
            if number not in numbers:  # else it has left since, and is counted
                report.add(Holding(job, owner, spell_of(row)))
        return report.as_json()

    has_left = bool(state.past.spells)
    rows = await asyncio.to_thread(sum_up)
    return Json(
        {"by": list(question.by), "zone": zone, "from": from_ or None, "to": to or None, "usage": rows}
    )


@router.get("/usage/idle", response_model=usage_schemas.IdleHolders)
async def idle_holders(service: Asked, caller: Who) -> Response:
    """Jobs whose GPUs have hardly done anything for a while; one's own only, for users."""
    watch = service.gpu_watch
    rows = [
        {
            "job": record.id,
            "name": record.spec.name,
            "user": record.user,
            "queue": record.queue,
            "gpus": record.accounting.held_gpus,
            "gpu_type": service.status_of(record).gpu_type,
            "busy": round(use.busy or 0.0, 3),
            "memory_gb": round(use.used_bytes / 1e9, 2),
            "idle_s": round(use.idle_s, 1),
            "idle_gpu_seconds": round(use.idle_s * record.accounting.held_gpus, 1),
        }
        for record, use in watch.idle_holders()
        if caller.owns(record)
    ]
    rule = watch.rule
    return Json(
        {"below": rule.below, "after_s": rule.after_s, "is_measured": bool(watch.nodes), "idle": rows}
    )


def zone_of(name: str) -> ZoneInfo:
    """A time zone. Raises InputError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"zone: expected a time zone like Europe/Berlin, got {name!r}") from None


def time_us(name: str, text: str, zone: ZoneInfo) -> int | None:
    """A date or a time in a zone, unless it says its own, as Unix microseconds. Raises InputError."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text.strip())
        at_us = round((parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).timestamp() * US_PER_S)
    except (ValueError, OverflowError):
        raise InputError(f"{name}: expected a date or a time like 2026-11-01, got {text!r}") from None
    return at_us


@router.get("/gpu-prices", response_model=usage_schemas.GpuPrices)
async def gpu_prices(service: Asked, caller: Who) -> Response:
    """What an hour of a GPU costs, by type, from when on."""
    return Json({"gpu_prices": _prices(service.state.gpu_prices.rows())})


@router.put("/gpu-prices/{gpu_type}", response_model=usage_schemas.GpuPrices)
async def set_gpu_price(
    gpu_type: Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")],
    asked: usage_schemas.GpuPriceAsked,
    request: Request,
    service: Asked,
    caller: Who,
) -> Response:
    """An hour of a GPU of this type costs so much from a time on."""
    require(caller, Role.ADMIN, "set prices")
    now_us = round((service.state.unix_s + service.clock.now_s()) * US_PER_S)
    from_us = (
        time_us("from", asked.start, zone_of(asked.zone))
        if asked.start
        else now_us // QUARTER_US * QUARTER_US
    )
    assert from_us is not None
    if from_us % QUARTER_US:
        raise InputError(f"from: expected a time at a quarter of an hour, got {asked.start!r}")
    event = GpuPriceSet(gpu_type, asked.price, from_us)
    await durably(request, service.record(event, did(caller, "set", f"price of {gpu_type}")))
    return Json({"gpu_prices": _prices(service.state.gpu_prices.rows())})


def _prices(rows: list[tuple[str, int, float]]) -> list[dict[str, Any]]:
    return [
        {
            "gpu_type": gpu_type,
            "price": price,
            "from": datetime.fromtimestamp(from_us / US_PER_S, UTC).isoformat(),
        }
        for gpu_type, from_us, price in rows
    ]
