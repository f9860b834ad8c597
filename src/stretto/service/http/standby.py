"""What the address of a standby answers: probes, and to everything else that another service leads."""

from http import HTTPStatus

from fastapi import FastAPI, Request, Response

from stretto import __version__
from stretto.service.http import problem_pages
from stretto.service.http.connections import Connections
from stretto.service.http.problems import RETRY_SOON, Json, answer
from stretto.service.http.rate_limits import Limits

STANDS_BY = "x-stretto-standby"  # a client with several addresses asks the next one at once


class StandbyApp(FastAPI):
    """`/healthz` and `/version` as of a service that leads; all else 503, with the leader's name."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        self.leader = ""  # as the store names it; "" before the first look
        self.state.limits = limits
        self.state.connections = Connections.within(limits)
        self.add_api_route("/healthz", self._is_alive)
        self.add_api_route("/version", self._version)
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        self.add_api_route("/{path:path}", self._stands_by, methods=methods)

    async def _is_alive(self) -> Json:
        return Json({"status": "ok"})

    async def _version(self) -> Json:
        return Json({"version": __version__})

    async def _stands_by(self, request: Request) -> Response:
        detail = f"this service stands by: {self.leader or 'another service'} leads"
        said = HTTPStatus.SERVICE_UNAVAILABLE, detail, {**RETRY_SOON, STANDS_BY: "yes"}
        if problem_pages.is_for_browser(request.scope):
            return problem_pages.answer(request.scope, *said)
        return answer(*said)
