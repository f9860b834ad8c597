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
from stretto.service.state.state import State

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
