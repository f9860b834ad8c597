"""Events, as `kubectl describe` shows them below the object that they are about."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stretto.backends.kubernetes.api import Api, Refusal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Involved:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    def to_json(self) -> Mapping[str, str]:
        """As the API writes it."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
        }


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def write_event(api: Api, about: Involved, reason: str, message: str, is_warning: bool) -> None:
    """Write an Event; without the right to write any, there is none."""
    stamp = now()
    event: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{time.time_ns():x}", "namespace": about.namespace},
        "involvedObject": about.to_json(),
        "reason": reason,
        "message": message,
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": "stretto"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    try:
        await api.call("POST", f"api/v1/namespaces/{about.namespace}/events", event)
    except Refusal as refusal:
        log.info("%s/%s: no event: %s", about.namespace, about.name, refusal)
