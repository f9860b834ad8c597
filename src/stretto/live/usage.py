"""Who has had how much: GPU time from being given GPUs to giving them up, as decisions say."""

from collections.abc import Iterable
from typing import Any

from stretto.live.records import JobRecord
from stretto.live.remaining import attained_gpu_s

SECONDS_PER_HOUR = 3600.0


def usage_of(records: Iterable[JobRecord], now_s: float, by: str) -> list[dict[str, Any]]:
    """Jobs, GPUs held now and GPU-hours up to now, by `user` or `queue`, in the order of their names."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        name = record.user if by == "user" else record.spec.queue
        row = found.setdefault(name, {"jobs": 0, "gpus": 0, "gpu_hours": 0.0})
        row["jobs"] += 1
        row["gpus"] += record.books.held_gpus
        row["gpu_hours"] += attained_gpu_s(record, max(now_s, record.books.held_since_s)) / SECONDS_PER_HOUR
    return [{by: name, **row} for name, row in sorted(found.items())]
