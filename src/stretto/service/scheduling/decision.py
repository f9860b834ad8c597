"""One decision: what it looks at, its plan, batches and profiling runs, and how the log keeps it.

Which job is to run on one GPU of which type, so that what is not known of its model becomes known.

Sia (SOSP 2023), section 3.2, profiles every model on one GPU of each type before it is scheduled. Here the
first job of a model trains on one worker of one type after the other, moving as jobs do, so that nothing of
it is wasted; once a type has been measured, or has had its time, it is done with. Later jobs of the model
know the points and are free from the beginning.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np

from stretto.model import (
    Adaptivity,
    BoolArray,
    LenderState,
    Loans,
    Memory,
    Plan,
    ProfilesFirst,
    Snapshot,
    Trigger,
    actions_between,
    digest,
    ints,
)
from stretto.scheduler.round import Scheduler
from stretto.service.scheduling.constraints import constraints_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.events import Decided
from stretto.service.state.records import JobRecord
from stretto.service.state.reducer import actions_json
from stretto.service.state.state import State

LONGEST_S = 120.0  # on one type, if nothing is reported meanwhile; chosen: reports come every 30 s


def profiles_of(state: State, now_s: float) -> Mapping[str, int]:
    """By job, the type on which it is to run with one worker now; the oldest of each model."""
    cluster, placement = state.cluster, state.placement
    if cluster is None or placement is None or len(cluster.types) < 2:
        return {}
    type_of_job: dict[str, int] = {}
    models: set[str] = set()
    free = np.bincount(cluster.kind, np.where(state.usable(), placement.free, 0), len(cluster.types))
    for record in state.open_jobs():
        model = record.spec.model
        if not model or model in models or not _may_profile(record):
            continue
        models.add(model)
        allowed = np.array(
            [not record.job.gpu_types or name in record.job.gpu_types for name in cluster.type_names]
        )
        kind = _next_type(state, record, allowed, free >= record.job.gpus_per_worker, now_s)
        if kind is not None:
            type_of_job[record.id] = kind
    return type_of_job


def _may_profile(record: JobRecord) -> bool:
    """Whether it can run on one worker, and go on elsewhere; a job that was profiled beforehand need not."""
    job = record.job
    fits = job.adaptivity is not Adaptivity.RIGID and job.min_gpus <= job.gpus_per_worker
    uses_sdk = record.uses_sdk is not False and (record.uses_sdk or not record.attempt)
    waits = record.held or bool(record.ending)
    return bool(fits and uses_sdk and job.preemptible and not waits and not record.learned.profile)


def _next_type(
    state: State, record: JobRecord, allowed: BoolArray, is_free: BoolArray, now_s: float
) -> int | None:
    """The type that it holds while that is unknown, else the first unknown one that is free."""
    prior = state.models.get(record.spec.model)
    each = record.job.gpus_per_worker
    done_types = {int(point[0]) for point in (prior.points if prior is not None else ()) if point[2] <= each}
    accounting = record.accounting
    for kind in np.flatnonzero(allowed).tolist():
        here_s = now_s - accounting.held_since_s if accounting.held_gpus and accounting.kind == kind else 0.0
        if accounting.on_type_s.get(kind, 0.0) + here_s >= LONGEST_S:
            done_types.add(kind)
    unknown = [kind for kind in np.flatnonzero(allowed).tolist() if kind not in done_types]
    if accounting.held_gpus and accounting.kind in unknown:
        return accounting.kind
    return next((kind for kind in unknown if is_free[kind]), None)


# ── one decision: what it looks at, its plan, and how the log keeps it; the same when it is repeated ────────


def snapshot_for(
    scheduler: Scheduler,
    builder: SnapshotBuilder,
    state: State,
    now_s: float,
    due: frozenset[Trigger],
    memory: Memory = None,
) -> Snapshot:
    """All that a decision looks at: with constraints, batches, and what the policy remembers.

    A node must have been seen. The snapshot alone repeats the decision: `decide(snapshot, scheduler)`.
    """
    assert state.placement is not None
    batches = {name: batch for name in state.placement if (batch := state.jobs[str(name)].batch) is not None}
    constraints = constraints_of(state, now_s)
    if isinstance(scheduler.policy, ProfilesFirst) and scheduler.policy.profiles_first:
        constraints = replace(constraints, profiles=profiles_of(state, now_s))
    snapshot = builder.observe(state, now_s, due, memory)
    lenders = () if scheduler.lending is None else lenders_of(state, now_s, scheduler.lending.period_s)
    return replace(snapshot, constraints=constraints, batches=batches, lenders=lenders)


def lenders_of(state: State, now_s: float, period_s: float) -> tuple[LenderState, ...]:
    """Lenders that have said what they need, with their nodes that are up and open.

    What those that are not would serve falls to the others. Without a need nothing of a lender is lent.
    """
    nodes: dict[str, list[int]] = {}
    for index, node in enumerate(state.nodes):
        if node.lender and node.up and not node.closed:
            nodes.setdefault(node.lender, []).append(index)
    return tuple(
        LenderState(
            name,
            ints(nodes[name]),
            lender.headroom,
            period_s,
            lender.demand(now_s, period_s, len(nodes[name])),
            nan,
        )
        for name, lender in sorted(state.lenders.items())
        if lender.needs and name in nodes
    )


def loans_json(snapshot: Snapshot, loans: Loans | None) -> dict[str, Any]:
    """What was settled with lenders, as the log keeps it; {} where that changes nothing."""
    if loans is None:
        return {}
    cluster, changed = snapshot.cluster, loans.usable != snapshot.usable
    as_json: dict[str, Any] = {
        "lent": [cluster.nodes[node].id for node in np.flatnonzero(changed & loans.usable).tolist()],
        "returned": [cluster.nodes[node].id for node in np.flatnonzero(changed & ~loans.usable).tolist()],
        "preempted": list(loans.preempted),
        "scaled_in": list(loans.scaled_in),
        "actions": actions_json(actions_between(snapshot.placement, loans.placement), cluster),
    }
    return {key: value for key, value in as_json.items() if value}


def decided(snapshot: Snapshot, plan: Plan, seen: int, took_ms: float) -> Decided:
    """The event of a decision. A job that the policy was not shown keeps what it holds."""
    decided_about = set(snapshot.jobs.ids) if plan.actions else set()
    actions = [action for action in plan.actions if action.job in decided_about]
    return Decided(
        seen=seen,
        at_s=snapshot.now_s,
        due=tuple(sorted(trigger.value for trigger in snapshot.due)),
        actions=tuple(actions_json(actions, snapshot.cluster)),
        wake_s=plan.wake_s if plan.wake_s is not None and plan.wake_s > snapshot.now_s else None,
        memory=digest(plan.memory),
        prices=None if plan.prices is None else tuple(float(price) for price in plan.prices),
        gap=plan.gap,
        took_ms=round(took_ms, 3),
        batches={name: batch.to_json() for name, batch in plan.batches.items()},
        preempted={
            preemption.job: (preemption.by, preemption.priority, preemption.gpus)
            for preemption in plan.preemptions
        },
        loans=loans_json(snapshot, plan.loans),
    )
