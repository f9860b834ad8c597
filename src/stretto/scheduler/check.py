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
    cluster, requests = snapshot.cluster, jobs.requests
    if requests.accept_all and shares.keep_all(jobs):
        return
    check_range(snapshot, shares)
    _check_types(snapshot, shares)
    # A job that mixes types is caught in the placement; one of no stated type counts in the sum alone.
    gpus = np.where(jobs.heterogeneous, 0, shares.gpus) if requests.any_mixes else shares.gpus
    untyped, *used = np.bincount(np.maximum(shares.kind, -1) + 1, gpus, len(cluster.types) + 1).tolist()
    there = holdable_gpus(snapshot).tolist()
    for kind, (count, most) in enumerate(zip(used, there, strict=True)):
        if count > most:
            name = cluster.type_names[kind]
            raise BadPlan(f"the policy gives {count:.0f} GPUs of type {name}, expected at most {most}")
    if (untyped or requests.any_mixes) and shares.gpus.sum() > sum(there):
        raise BadPlan(f"the policy gives {shares.gpus.sum()} GPUs, expected at most {sum(there)}")


def _check_types(snapshot: Snapshot, shares: Shares) -> None:
    """Raise BadPlan where a job is to have GPUs of a type that it does not accept."""
    jobs = snapshot.jobs
    if jobs.requests.accept_all:
        return
    typed = ((shares.gpus > 0) & (shares.kind >= 0)).nonzero()[0]
    wrong = typed[~jobs.allowed_kinds[typed, shares.kind[typed]]]
    if wrong.size:
        name = snapshot.cluster.type_names[int(shares.kind[wrong[0]])]
        raise BadPlan(
            f"the policy gives job {jobs.ids[int(wrong[0])]} GPUs of type {name}, which it does not accept"
        )


def check_range(snapshot: Snapshot, shares: Shares) -> None:
    """Raise BadPlan where a job that is to have other GPUs than it holds is to have too few or too many."""
    jobs, cluster = snapshot.jobs, snapshot.cluster
    rows = ((shares.gpus != jobs.held_gpus) & (shares.gpus > 0)).nonzero()[0]
    if not rows.size:
        return
    gpus, asking = shares.gpus[rows], jobs.rows[rows]
    fewest, most = jobs.requests.min_gpus[asking], jobs.requests.max_gpus[asking]
    if cluster.any_stand_ins:  # a share of no stated type may be of any
        stand_ins = cluster.stand_ins
        most = most * np.where(shares.kind[rows] >= 0, stand_ins[shares.kind[rows]], stand_ins.max())
    if shares.profiling is not None:
        fewest = np.where(shares.profiling[rows], 1, fewest)
    outside = (gpus < fewest) | (gpus > most)
    if outside.any():
        first = int(outside.argmax())
        least, largest = fewest[first], most[first]
        expected = f"{least} to {largest}" if least < largest else f"{least}"
        row = int(rows[first])
        raise BadPlan(f"the policy gives job {jobs.ids[row]} {gpus[first]} GPUs, expected {expected}")


def holdable_gpus(snapshot: Snapshot) -> IntArray:
    """(types,) GPUs that jobs may hold: a job may stay on a node that takes no new ones."""
    if snapshot.all_usable:
        return snapshot.capacity
    cluster, busy = snapshot.cluster, np.bitwise_count(snapshot.placement.busy)
    gpus = np.where(snapshot.usable, cluster.node_gpus, busy)
    return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)


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
