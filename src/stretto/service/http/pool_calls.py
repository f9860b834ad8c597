"""Work that a request asks of a pool: in the caller's turn, within limits, as long as the caller listens."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from stretto.jobfile import JobSpec
from stretto.jobfile.submission import read_submission
from stretto.service.http.auth import Caller
from stretto.service.http.problems import RETRY_SOON, Problem
from stretto.service.pool import Closed, OutOfMemory, OutOfTime, Pool, TooManyWaiting
from stretto.service.pool.pool import Work

LONG_TEXT = 1 << 14  # characters; reading more takes up to half a second, too long for the event loop


class LimitExceeded(Problem):
    """Work that needs more time or memory than a pool gives."""


async def worked(pool: Pool, caller: Caller, what: str, prepare: Callable[[], Awaitable[Work]]) -> Any:
    """What the work gives. what: it is called so. Raises Problem (429, 503) or LimitExceeded."""
    try:
        return await pool.call(caller.user, prepare)
    except TooManyWaiting:
        detail = f"at most {pool.turns.most_waiting} requests of one user wait: {what} has to wait for those"
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, RETRY_SOON) from None
    except OutOfTime:
        detail = f"{what} took longer than {pool.most_s:g} s: ask for less"
        raise LimitExceeded(HTTPStatus.UNPROCESSABLE_ENTITY, detail) from None
    except OutOfMemory:
        detail = f"{what} needs more than {pool.most_bytes >> 20} MiB of memory: ask for less"
        raise LimitExceeded(HTTPStatus.UNPROCESSABLE_ENTITY, detail) from None
    except Closed:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the service is ending", RETRY_SOON) from None


async def while_listening(request: Request, work: Awaitable[Any]) -> Any:
    """What the work gives; it is stopped as soon as the caller hangs up, and ClientDisconnect is raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def read_job_file(
    request: Request,
    caller: Caller,
    text: str,
    name: str = "job file",
    workdir: str = "",
    job_name: str = "",
) -> tuple[JobSpec, tuple[str, ...]]:
    """What a job file asks for, with warnings. Raises InputError, and what `worked` raises."""
    if len(text) <= LONG_TEXT:
        return read_submission(text, name, workdir, job_name)

    async def prepare() -> Work:
        return read_submission, (text, name, workdir, job_name)

    pool: Pool = request.app.state.service.short_work
    read: tuple[JobSpec, tuple[str, ...]] = await worked(pool, caller, "reading the job file", prepare)
    return read


async def _left(request: Request) -> None:
    """Until the caller has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
