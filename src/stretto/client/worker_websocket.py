"""WebSockets of a client: to programs and ports beside workers."""

from typing import TYPE_CHECKING, Any

import httpx

from stretto.client.errors import ServiceError
from stretto.client.messages import as_part, error_of
from stretto.client.target import unanswered
from stretto.errors import InputError

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from stretto.client.client import Client

LARGEST_MESSAGE = 2 << 20
OPEN_S = 60.0


def line_to(client: "Client", job: str, what: str, **query: Any) -> "ClientConnection":
    """A WebSocket to `what` of a job: exec, attach or forward. Raises InputError, ServiceError."""
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect
    except ModuleNotFoundError:
        raise InputError("this needs websockets: install stretto[serve]") from None
    given = {name: value for name, value in query.items() if value is not None}
    failure: Exception = ServiceError(f"no service answers at {client.url}")
    for address in client.addresses:
        path = f"{address.path.rstrip('/')}/api/v1/jobs/{as_part(job)}/{what}"
        scheme = "wss" if address.scheme == "https" else "ws"
        url = address.copy_with(scheme=scheme, path=path, params=given)
        try:
            return connect(
                str(url),
                ssl=client.verify if address.scheme == "https" else None,  # type: ignore[arg-type]
                additional_headers=dict(client.target.headers),
                compression=None,
                max_size=LARGEST_MESSAGE,
                open_timeout=OPEN_S,
                ping_interval=None,  # a reader that pauses must not be cut off
                proxy=None,
            )
        except InvalidStatus as refused:
            answer = httpx.Response(refused.response.status_code, content=bytes(refused.response.body or b""))
            failure = error_of(answer)
            if answer.status_code not in (403, 503) or answer.content:
                raise failure from None
        except (OSError, InvalidHandshake) as wrong:
            error = httpx.ConnectError(str(wrong))
            error.__cause__ = wrong
            failure = unanswered(client.target, error)
    raise failure from None
