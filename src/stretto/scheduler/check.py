"""Is this feasible, and does it still apply? Checked before anything is placed or done, in every world."""

from collections.abc import Callable, Sequence

import numpy as np

from stretto.model import Action, BadPlan, IntArray, Placement, Shares, Snapshot


def check_shares(snapshot: Snapshot, shares: Shares) -> None:
    """Raise BadPlan where shares are none, or exceed the cluster or a job's range.

    A job may not have GPUs outside [min_gpus, max_gpus], unless it is only profiled. On a lesser type it may
    have as many more as stand in for these. It may not have a type that it does not accept. A rigid job gets
    what it asked for. What it holds it may keep: its owner may have asked for other sizes since, while it may
    not be resized. What no job may have: more GPUs of a type than are usable. GPUs that are given twice are
    caught when the placement is built.
    """
    jobs = snapshot.jobs
    if not isinstance(shares, Shares):  # of somebody's first policy, say, which forgot to return them
        raise BadPlan(f"the policy returns {shares!r:.80}, expected Shares")
    if not len(shares.gpus) == len(shares.kind) == len(jobs):
        raise BadPlan(f"shares have {len(shares.gpus)} rows, expected {len(jobs)}")
    served = shares.gpus > 0
    fewest, most = _range(snapshot, shares)
    outside = served & ((shares.gpus < fewest) | (shares.gpus > most)) & (shares.gpus != jobs.held_gpus)
    if outside.any():
        row = int(outside.argmax())
        expected = f"{fewest[row]} to {most[row]}" if fewest[row] < most[row] else f"{fewest[row]}"
        raise BadPlan(f"the policy gives job {jobs.ids[row]} {shares.gpus[row]} GPUs, expected {expected}")
    typed = served & (shares.kind >= 0)
    if not jobs.allowed_kinds[typed, shares.kind[typed]].all():
        wrong = np.flatnonzero(typed)[~jobs.allowed_kinds[typed, shares.kind[typed]]]
        name = snapshot.cluster.type_names[int(shares.kind[wrong[0]])]
        raise BadPlan(
            f"the policy gives job {jobs.ids[int(wrong[0])]} GPUs of type {name}, which it does not accept"
        )
    cluster = snapshot.cluster
    of_one_type = typed & ~jobs.heterogeneous  # a job that mixes types is caught in the placement
    used = np.bincount(shares.kind[of_one_type], shares.gpus[of_one_type], len(cluster.types)).astype(
        np.int64
    )
    busy = np.bitwise_count(snapshot.placement.busy)  # a job may stay on a node that takes no new ones
    there = np.bincount(
        cluster.kind, np.where(snapshot.usable, cluster.node_gpus, busy), len(cluster.types)
    ).astype(np.int64)
    if (used > there).any():
        kind = int((used > there).argmax())
        name = cluster.type_names[kind]
        raise BadPlan(f"the policy gives {used[kind]} GPUs of type {name}, expected at most {there[kind]}")
    if shares.gpus.sum() > there.sum():
        raise BadPlan(f"the policy gives {shares.gpus.sum()} GPUs, expected at most {there.sum()}")


def _range(snapshot: Snapshot, shares: Shares) -> tuple[IntArray, IntArray]:
    """(jobs,) fewest and most GPUs of the type of its share that each job may have."""
    jobs, stand_ins = snapshot.jobs, snapshot.cluster.stand_ins
    fewest, most = jobs.min_gpus, jobs.max_gpus
    if (stand_ins > 1).any():  # a share of no stated type may be of any
        most = most * np.where(shares.kind >= 0, stand_ins[shares.kind], stand_ins.max())
    if shares.profiling is not None:
        fewest = np.where(shares.profiling, 1, fewest)
    return fewest, most


# ── a plan meets a world that has moved on: what of it still applies? ───────────────────────────────────────


def still_apply(
    placement: Placement,
    actions: Sequence[Action],
    why_stale: Callable[[Action], str],
    drop: Callable[[Action, str], None],
) -> list[Action]:
    """The actions of which neither the job nor the GPUs have changed since the plan was made.

    `why_stale` is what the world has against an action by itself, "" nothing; whether its GPUs can still be
    had is found out here. Every action that is left out goes to `drop` with the reason.
    """

    def dropped(action: Action, reason: str) -> bool:
        if reason:
            drop(action, reason)
        return bool(reason)

    applicable = [action for action in actions if not dropped(action, why_stale(action))]
    while len(applicable) < len(actions):  # what was dropped may hold on to GPUs that others were to get
        actions = applicable
        released = placement.changed({action.job: None for action in actions})
        applicable = [action for action in actions if not dropped(action, _why_taken(action, released))]
    return applicable


def _why_taken(action: Action, released: Placement) -> str:
    """Whether a job still holds what a job was to get."""
    after = action.after
    if after is not None and any(
        int(released.busy[node]) & mask for node, mask in zip(after.nodes, after.masks, strict=True)
    ):
        return "others hold its GPUs"
    return ""
