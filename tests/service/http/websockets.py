"""Which WebSockets there are, and who may open them."""

from importlib import import_module
from pkgutil import iter_modules

from fastapi.routing import APIWebSocketRoute

from stretto.service.http import routes

# They are in no OpenAPI document; `test_exec_sessions.py` asks them as everybody.
WEBSOCKETS = {
    ("WEBSOCKET", f"/api/v1/jobs/{{job}}/{what}"): "owner" for what in ("exec", "attach", "forward")
}


def websockets() -> dict[tuple[str, str], str]:
    """What each WebSocket is for, as `operations_of` says it of requests."""
    modules = [import_module(f"{routes.__name__}.{each.name}") for each in iter_modules(routes.__path__)]
    return {
        ("WEBSOCKET", route.path): (route.endpoint.__doc__ or "").partition("\n")[0]
        for module in modules
        for route in (module.router.routes if hasattr(module, "router") else ())
        if isinstance(route, APIWebSocketRoute)
    }
