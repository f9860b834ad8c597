"""A user who does everything that a user may do, as often as that is allowed, and all of it at once."""

import contextlib
import itertools
import json
import threading
from collections import Counter
from typing import Any, Self

import httpx

from stretto.client import Client

AT_ONCE = 12
SUBMIT = "/api/v1/jobs"
HELD = {"text": json.dumps({"name": "greedy", "run": "true", "hold": True})}
MANY = {"text": json.dumps({"name": "greedy", "run": "true", "hold": True, "array": "0-99"})}
EVERYTHING: list[tuple[str, str, Any]] = [
    ("POST", SUBMIT, HELD),
    ("POST", SUBMIT, MANY),
    ("POST", "/api/v1/jobs/dry-run", HELD),
    ("POST", "/api/v1/whatif", {"policy": "fifo", "draws": 64}),
    ("GET", "/api/v1/jobs/greedy/explain", None),
    ("GET", "/api/v1/jobs?ended=true&limit=1000", None),
    ("GET", "/api/v1/jobs/{job}", None),
    ("GET", "/api/v1/jobs/{job}/explain", None),
    ("GET", "/api/v1/jobs/{job}/log", None),
    ("GET", "/api/v1/jobs/{job}/wait?wait_s=2", None),
    ("GET", "/api/v1/events", None),
    ("GET", "/api/v1/jobs/{job}/events", None),
    ("POST", "/api/v1/jobs/{job}/priority", {"priority": -1}),
    ("POST", "/api/v1/jobs/{job}/hold", None),
    ("POST", "/api/v1/jobs/{job}/cancel", None),
    ("GET", "/api/v1/nodes", None),
    ("GET", "/api/v1/queues", None),
    ("GET", "/api/v1/reservations", None),
    ("GET", "/api/v1/usage", None),
    ("GET", "/api/v1/decisions?limit=200", None),
    ("GET", "/api/v1/openapi.json", None),
    ("GET", "/metrics", None),
]


class Greedy:
    """A context manager: many requests at a time, each followed by the next. statuses: of all answers."""

    def __init__(self, admin: Client, submits: bool = True) -> None:
        """submits: also jobs, which are held."""
        self.asks = [one for one in EVERYTHING if submits or one[1] != SUBMIT]
        self.url = admin.url
        self.token = str(admin.make_token("greedy", "greedy", "user")["token"])
        self.statuses: Counter[int] = Counter()
        self.job = "1"
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(AT_ONCE)]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, first: int) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False) as client:
            for method, path, body in itertools.cycle(self.asks[first:] + self.asks[:first]):
                if self.stop.is_set():
                    return
                with contextlib.suppress(httpx.HTTPError):
                    answer = client.request(method, path.replace("{job}", self.job), json=body)
                    self.statuses[answer.status_code] += 1
                    if answer.status_code == httpx.codes.CREATED:
                        self.job = answer.json()["id"]
