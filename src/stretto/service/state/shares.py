"""Shares of queues and users: what they are entitled to, hold and have had.

What each has had is GPU time from being given GPUs to giving them up, as decisions say.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stretto.model import DEFAULT_QUEUE, Account, FairShare
from stretto.model.queue import parents_of
from stretto.scheduler.fair_share import Node, tree_of
from stretto.service.state.records import GPU_TICKS_PER_S, gpu_ticks
from stretto.service.state.remaining import attained_gpu_s
from stretto.service.state.state import State

TICKS_PER_HOUR = 3600 * GPU_TICKS_PER_S


def usage_of(state: State, shows: Callable[[str], bool], now_s: float, by: str) -> list[dict[str, Any]]:
    """Jobs, GPUs held now and GPU-hours up to now, by `user` or `queue`, in the order of their names.

    shows: whether what this user has used counts.
    """
    sums: dict[str, list[int]] = {}

    def add(user: str, queue: str, *amounts: int) -> None:
        if shows(user):
            row = sums.setdefault(user if by == "user" else queue, [0, 0, 0])
            row[:] = [had + more for had, more in zip(row, amounts, strict=True)]

    for (user, queue), used in state.past.used.items():
        add(user, queue, used.jobs, 0, used.gpu_ticks)
    for record in state.jobs.values():
        accounting = record.accounting
        ticks = gpu_ticks(attained_gpu_s(record, max(now_s, accounting.held_since_s)))
        add(record.user, record.queue, 1, accounting.held_gpus, ticks)
    return [
        {by: name, "jobs": jobs, "gpus": gpus, "gpu_hours": ticks / TICKS_PER_HOUR}
        for name, (jobs, gpus, ticks) in sorted(sums.items())
    ]


# ── what every account is entitled to, has and has had: shares as the log gives them ───────────────────────


LEAST_GPU_S = 1.0  # of decayed usage; an account with less, and no open job, is not shown; chosen


def fair_share_of(state: State, now_s: float) -> FairShare:
    """Shares, and usage as it stands at a time that is not before the last event."""
    queues = state.queues.values()
    return FairShare(
        usage_gpu_s=state.usage.at(now_s),
        held_gpus=state.usage.held_gpus(),
        queue_shares={queue.name: queue.shares for queue in queues},
        user_shares=dict(state.user_shares),
        parents=parents_of(state.queues),
        limits=state.configured.fair_share_limits,
    )


def shares_of(state: State, sees: Callable[[str], bool], now_s: float) -> list[dict[str, Any]]:
    """Queues and users as rows of a tree, each followed by those below it, in the order of their names.

    sees: whether a user is shown.
    """
    held_gpus: Counter[Account] = Counter()
    for record in state.open_jobs():
        held_gpus[record.account] += record.accounting.held_gpus
    fair = replace(fair_share_of(state, now_s), held_gpus=held_gpus)
    accounts = {account for account, usage in fair.usage_gpu_s.items() if usage >= LEAST_GPU_S}
    root = tree_of(fair, accounts | set(held_gpus), {DEFAULT_QUEUE, *state.queues})
    capacity = sum(node.gpus for node in state.nodes if node.up)
    return list(_rows(state, root, sees, capacity, ()))


def _rows(
    state: State, parent: Node, sees: Callable[[str], bool], capacity: int, queues: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    for (is_user, name), node in sorted(parent.children.items()):
        if is_user and not sees(name):
            continue
        entitled_gpus = node.entitled * capacity
        quota = None if is_user or name not in state.queues else state.queues[name].quota_gpus
        guaranteed = entitled_gpus if quota is None else quota
        yield {
            "name": name,
            "kind": "user" if is_user else "queue",
            "queues": list(queues),
            "shares": node.shares,
            "entitled": node.entitled,
            "entitled_gpus": entitled_gpus,
            "quota_gpus": quota,
            "held_gpus": int(node.held_gpus),
            "usage_gpu_hours": node.usage_gpu_s / 3600.0,
            "borrowed_gpus": max(node.held_gpus - guaranteed, 0.0),
            "factor": node.factor,
        }
        yield from _rows(state, node, sees, capacity, (*queues, name))
