"""What queues and users are entitled to, beside what they hold and have had."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json
from stretto.service.service import Service
from stretto.service.state.events import UserSharesSet
from stretto.service.state.shares import shares_of

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/shares", response_model=schemas.Shares)
async def shares(service: Asked, caller: Who) -> Response:
    """Queues and users as a tree; users see all queues, and of users themselves."""
    return shown(service, caller)


def shown(service: Service, caller: Caller) -> Json:
    """The tree as a list: each row is followed by those below it."""
    state = service.state
    orders = state.configured.fair_share_half_life_s > 0
    rows = shares_of(state, caller.sees, max(service.clock.now_s(), state.at_s))
    return Json({"orders_jobs": orders, "half_life_s": state.usage.half_life_s, "shares": rows})


@router.put("/shares/users/{user}", status_code=HTTPStatus.OK, response_model=schemas.Shares)
async def set_user(
    user: Annotated[str, Path(pattern=schemas.USER_NAME)],
    asked: schemas.UserShares,
    request: Request,
    service: Asked,
    caller: Who,
) -> Response:
    """A user has so many shares, beside the other users of each queue. Those of queues are set with them."""
    require(caller, Role.ADMIN, "set shares")
    event = UserSharesSet(user, asked.shares)
    await durably(request, service.record(event, did(caller, "set", f"shares of user {user}")))
    return shown(service, caller)
