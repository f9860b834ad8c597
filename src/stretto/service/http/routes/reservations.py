"""GPUs that are kept for a user or a queue."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from stretto.model import InputError, Reservation, check_reservation
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, not_found
from stretto.service.service import Service
from stretto.service.state.admission import check_queue
from stretto.service.state.events import Reserved, Unreserved, body_of

router = APIRouter(prefix="/api/v1", tags=["cluster"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,63}$")]


@router.get("/reservations", response_model=schemas.Reservations)
async def reservations(service: Asked, caller: Who) -> Response:
    """Every reservation that has not ended: users of waiting jobs may know why."""
    return Json({"reservations": shown(service)})


def shown(service: Service) -> list[dict[str, Any]]:
    """Reservations by name."""
    now_s = service.clock.now_s()
    return [
        _shown(service, one) for _, one in sorted(service.state.reservations.items()) if one.until_s > now_s
    ]


def _shown(service: Service, reservation: Reservation) -> dict[str, Any]:
    unix_s = service.state.unix_s
    usual = (reservation.from_s + unix_s, reservation.until_s + unix_s)
    start, end = service.state.reserved_unix_s.get(reservation.name, usual)
    return {
        "name": reservation.name,
        "start": round(start, 3),
        "end": round(end, 3),
        "gpu_type": reservation.gpu_type,
        "gpus": reservation.gpus,
        "nodes": list(reservation.nodes),
        "user": reservation.user,
        "queue": reservation.queue,
    }


@router.put("/reservations/{name}", response_model=schemas.Reservation)
async def reserve(
    name: Name, asked: schemas.ReservationAsked, request: Request, service: Asked, caller: Who
) -> Response:
    """GPUs are kept from a time to a time; a job that cannot be moved in time does not start there before."""
    require(caller, Role.OPERATOR, "reserve GPUs")
    state, now_s = service.state, service.clock.now_s()
    if state.cluster is None:
        raise InputError("no node has shown itself yet: nothing can be reserved")
    until_s = asked.end - state.unix_s
    if until_s <= now_s:
        raise InputError("end: expected a time that has not passed")
    from_s = now_s if asked.start is None else max(asked.start - state.unix_s, now_s)
    reservation = Reservation(
        name, from_s, until_s, asked.gpu_type, asked.gpus, tuple(asked.nodes), asked.user, asked.queue
    )
    if asked.queue:
        check_queue(state, asked.queue)
    event = Reserved(**{key: getattr(reservation, key) for key in body_of(Reserved("", 0.0, 0.0))})
    async with request.app.state.one_bound:  # of two that want the same GPUs, one comes first
        there = {
            name_there: other for name_there, other in state.reservations.items() if other.until_s > now_s
        }
        check_reservation(reservation, state.cluster, there)
        await durably(request, service.record(event, did(caller, "reserve", f"reservation {name}")))
    return Json(_shown(service, reservation))  # it may have ended before it was durable


@router.delete("/reservations/{name}", status_code=HTTPStatus.NO_CONTENT)
async def unreserve(name: Name, request: Request, service: Asked, caller: Who) -> None:
    """Nothing is kept under this name any more."""
    require(caller, Role.OPERATOR, "give up a reservation")
    if name not in {one["name"] for one in shown(service)}:
        raise not_found("reservation", name)
    await durably(request, service.record(Unreserved(name), did(caller, "unreserve", f"reservation {name}")))
