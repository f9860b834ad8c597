"""The application: every route, and what goes around each request."""

import asyncio
from typing import TYPE_CHECKING

from fastapi import FastAPI

from stretto import __version__
from stretto.service.http import problems, sse
from stretto.service.http.audit import Audit
from stretto.service.http.connections import Connections
from stretto.service.http.exec_sessions import ExecSessions
from stretto.service.http.metrics import Metrics
from stretto.service.http.middleware import Middleware
from stretto.service.http.node_rows import NodeRows
from stretto.service.http.openapi import describe
from stretto.service.http.overview_streams import OverviewStreams
from stretto.service.http.price_history import PriceHistory
from stretto.service.http.problems import Json
from stretto.service.http.rate_limits import Limits, RateLimiter, Together
from stretto.service.http.routes import (
    batches,
    budgets,
    dashboard,
    decisions,
    exec_and_forward,
    forecast,
    health,
    job_schema,
    jobs,
    kubeflow,
    lenders,
    line,
    logs,
    nodes,
    oidc,
    priority_classes,
    queues,
    reservations,
    secrets,
    shares,
    timeline,
    tokens,
    training,
    uploads,
    usage,
    webhooks,
    workers,
)
from stretto.service.http.sse import Feed, StreamSlots
from stretto.service.service import Service

if TYPE_CHECKING:
    from stretto.service.http.oidc.provider import Provider

PARTS = (
    *(
        jobs,  # first, since most requests are about them: routes are tried in this order
        batches,
        forecast,
        timeline,
        line,
        training,
        job_schema,
        logs,
        sse,
        nodes,
        queues,
        decisions,
        reservations,
        secrets,
        uploads,
    ),
    *(
        priority_classes,
        lenders,
        shares,
        usage,
        budgets,
        webhooks,
        tokens,
        workers,
        kubeflow,
        health,
        dashboard,
    ),
)
ROUTERS = tuple(part.router for part in PARTS)  # of what programs ask; pages come beside


def app_of(service: Service, limits: Limits | None = None, provider: "Provider | None" = None) -> FastAPI:
    """The application that serves a service. provider: of identities; None: tokens of the service alone."""
    limits = limits or Limits()
    app = FastAPI(
        title="Stretto",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
        default_response_class=Json,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}",
    )
    app.state.service = service
    app.state.limits = limits
    app.state.submits = RateLimiter(limits.submits_per_s, limits.submit_burst)
    app.state.tasks = RateLimiter(limits.tasks_per_s, limits.task_burst)
    app.state.said = RateLimiter(limits.messages_per_s, limits.message_burst)
    app.state.places = StreamSlots(limits.streams)
    app.state.audit = Audit(service.log_writer)
    app.state.feed = Feed(service.log_writer)
    app.state.node_rows = NodeRows(service)
    app.state.overview_streams = OverviewStreams(service, app.state.feed, app.state.node_rows)
    app.state.planned = decisions.DecisionHistory(service)
    app.state.beliefs = training.Beliefs(service)
    app.state.shared_forecast = line.SharedForecast(service)
    app.state.prices = PriceHistory(service)
    app.state.connections = Connections.within(limits)
    app.state.together = Together()
    app.state.exec_sessions = ExecSessions(service, limits)
    app.state.meters = Metrics(service, app.state.connections)
    app.state.one_token = asyncio.Lock()
    app.state.one_bound = asyncio.Lock()  # of queues and reservations: each is checked with the others
    app.state.under_way = set()
    app.state.requests = set()
    app.state.provider = provider
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(exec_and_forward.router)
    app.include_router(oidc.pages)
    app.include_router(dashboard.pages)
    describe(app)
    app.add_middleware(
        Middleware,
        service=service,
        limits=limits,
        meters=app.state.meters,
        connections=app.state.connections,
        together=app.state.together,
        requests=app.state.requests,
        audit=app.state.audit,
        provider=provider,
    )
    return app
