"""The application: every route, and what goes around each request."""

import asyncio

from fastapi import FastAPI

from stretto import __version__
from stretto.live import files
from stretto.live.api import (
    channel,
    cluster,
    foresight,
    health,
    jobs,
    kubeflow,
    logs,
    priority_classes,
    problems,
    reservations,
    shares,
    streams,
    tokens,
)
from stretto.live.api.answers import Json
from stretto.live.api.audit import Audit
from stretto.live.api.connections import Connections
from stretto.live.api.document import describe
from stretto.live.api.feed import Feed
from stretto.live.api.gate import Gate
from stretto.live.api.limits import Buckets, Limits, Together
from stretto.live.api.meters import Meters
from stretto.live.api.planned import Planned
from stretto.live.api.streams import Places
from stretto.live.service import Service


def app_of(service: Service, limits: Limits | None = None) -> FastAPI:
    """The application that serves a service."""
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
    app.state.submits = Buckets(limits.submits_per_s, limits.submit_burst)
    app.state.tasks = Buckets(limits.tasks_per_s, limits.task_burst)
    app.state.said = Buckets(limits.messages_per_s, limits.message_burst)
    app.state.places = Places(limits.streams)
    app.state.audit = Audit(service.ledger)
    app.state.feed = Feed(service.ledger)
    app.state.planned = Planned(service)
    app.state.connections = Connections(
        max(min(limits.connections, files.left_for_others()), 1), limits.connections_per_address
    )
    app.state.together = Together()
    app.state.meters = Meters(service, app.state.connections)
    app.state.one_token = asyncio.Lock()
    app.state.one_bound = asyncio.Lock()  # of queues and reservations: each is checked with the others
    app.state.under_way = set()
    app.state.requests = set()
    problems.install(app)
    for part in (
        *(foresight, jobs, logs, streams, cluster, reservations, priority_classes, shares, tokens),
        *(channel, kubeflow, health),
    ):
        app.include_router(part.router)
    describe(app)
    app.add_middleware(
        Gate,
        service=service,
        limits=limits,
        meters=app.state.meters,
        connections=app.state.connections,
        together=app.state.together,
        requests=app.state.requests,
        audit=app.state.audit,
    )
    return app
