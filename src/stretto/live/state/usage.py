"""Who has had how much: GPU time from being given GPUs to giving them up, as decisions say."""

from collections.abc import Callable
from typing import Any

from stretto.live.state.past import GPU_TICKS_PER_S, gpu_ticks
from stretto.live.state.remaining import attained_gpu_s
from stretto.live.state.state import State

TICKS_PER_HOUR = 3600 * GPU_TICKS_PER_S


def usage_of(state: State, shows: Callable[[str], bool], now_s: float, by: str) -> list[dict[str, Any]]:
    """Jobs, GPUs held now and GPU-hours up to now, by `user` or `queue`, in the order of their names.

    shows: whether what this user has used counts.
    """
    found: dict[str, list[int]] = {}

    def add(user: str, queue: str, *amounts: int) -> None:
        if shows(user):
            row = found.setdefault(user if by == "user" else queue, [0, 0, 0])
            row[:] = [had + more for had, more in zip(row, amounts, strict=True)]

    for (user, queue), used in state.past.used.items():
        add(user, queue, used.jobs, 0, used.gpu_ticks)
    for record in state.jobs.values():
        books = record.books
        ticks = gpu_ticks(attained_gpu_s(record, max(now_s, books.held_since_s)))
        add(record.user, record.queue, 1, books.held_gpus, ticks)
    return [
        {by: name, "jobs": jobs, "gpus": gpus, "gpu_hours": ticks / TICKS_PER_HOUR}
        for name, (jobs, gpus, ticks) in sorted(found.items())
    ]
