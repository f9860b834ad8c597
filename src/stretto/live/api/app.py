"""The application: every route, and what goes around each request."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from fastapi import FastAPI, Request, Response

from stretto import __version__
from stretto.live.api import channel, cluster, foresight, jobs, problems
from stretto.live.service import Service

MOST_BYTES = 2 << 20  # of a request's body; chosen: twice the largest job file


def app_of(service: Service) -> FastAPI:
    """The application that serves a service."""
    app = FastAPI(title="Stretto", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    problems.install(app)
    for router in (foresight.router, jobs.router, cluster.router, channel.router):
        app.include_router(router)

    @app.middleware("http")
    async def bounded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse a body that is too large before it is read."""
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return problems.answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a request may have {MOST_BYTES} bytes, got {length[:20]}",
            )
        if "chunked" in request.headers.get("transfer-encoding", ""):
            return problems.answer(HTTPStatus.LENGTH_REQUIRED, "a request must state its content-length")
        return await call(request)

    return app
