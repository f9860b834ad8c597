"""Waiting until what was asked for is durable, and no longer than a user would wait for an answer."""

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request

from stretto.service.http.problems import RETRY_SOON, Problem
from stretto.service.http.rate_limits import Limits

Done = TypeVar("Done")


async def durably(request: Request, doing: Awaitable[Done]) -> Done:
    """What comes of it; it is finished even where the caller hangs up or stops waiting.

    Raises 503 where the store does not take it in time. It may still do so: then asking again is harmless
    with an idempotency key, and changes nothing for the other requests.
    """
    limits: Limits = request.app.state.limits
    task = asyncio.ensure_future(doing)
    under_way: set[asyncio.Future[Done]] = request.app.state.under_way
    under_way.add(task)
    task.add_done_callback(under_way.discard)
    try:
        async with asyncio.timeout(limits.durable_s):
            return await asyncio.shield(task)
    except TimeoutError:
        task.add_done_callback(_looked_at)
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "the store does not answer: what was asked for may or may not be done; ask again",
            RETRY_SOON,
        ) from None
    except asyncio.CancelledError:
        task.add_done_callback(_looked_at)
        raise


def _looked_at(task: "asyncio.Future[Done]") -> None:
    """No caller is left to hear of an error."""
    if not task.cancelled():
        task.exception()
