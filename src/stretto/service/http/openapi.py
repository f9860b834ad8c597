"""The OpenAPI document: what FastAPI knows, and what goes around every route."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from stretto.service.http.auth import CHANNEL, OPEN
from stretto.service.http.problems import MEDIA_TYPE
from stretto.service.http.schemas import ProblemShown

SCHEMA = "#/components/schemas/Problem"
ROLES = (
    "A user sees and changes what is theirs; an operator everybody's jobs, and nodes; an admin makes tokens "
    "and queues."
)
SOMETIMES = {  # that any request may be answered with
    "400": "The request cannot be read",
    "408": "The body did not come in time",
    "413": "The body is too large",
    "500": "A fault of the service",
    "503": "The store or a node does not answer; Retry-After says when to ask again",
}
WITH_TOKEN = {"401": "No token, or one that opens nothing", "403": "The caller's role does not allow it"}


def describe(app: FastAPI) -> None:
    """Let the application give the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version="3.1.0",
        description=f"An elastic scheduler for deep-learning training. {ROLES}",
        routes=app.routes,
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": f"Made by an admin. {ROLES}"},
        "worker": {"type": "http", "scheme": "bearer", "description": "STRETTO_TOKEN of a job's workers."},
    }
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = ProblemShown.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return document


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add which roles may ask, and every problem that may come of it."""
    responses = operation["responses"]
    may_be = dict(SOMETIMES)
    if path in OPEN:
        operation["security"] = []
    else:
        operation["security"] = [{"worker": []} if path.startswith(CHANNEL) else {"token": []}]
        may_be |= WITH_TOKEN
    if "{" in path:
        may_be["404"] = "There is no such thing, or it is somebody else's"
    if operation.get("parameters") or "requestBody" in operation:
        may_be["422"] = "A value is wrong; the detail names it"
    if any("text/event-stream" in response.get("content", {}) for response in responses.values()):
        may_be["429"] = "Too many streams of one user"
    responses.pop("422", None)
    problem = {MEDIA_TYPE: {"schema": {"$ref": SCHEMA}}}
    for status, description in may_be.items():
        responses.setdefault(status, {"description": description})
    for status, response in responses.items():
        if int(status) >= 400:
            response["content"] = problem
