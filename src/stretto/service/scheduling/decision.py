"""One decision: what it looks at, its plan, batches and profiling runs, and how the log keeps it.

Which job is to run on one GPU of which type, so that what is not known of its model becomes known.

Sia (SOSP 2023), section 3.2, profiles every job on one GPU of each type before it is scheduled. Here a job
trains on one worker of one type after the other, moving as jobs do, so that nothing of it is wasted. Once a
type has been measured, or has had its time, it is done with. What jobs of one model have shown is evidence
for all of them. A type on which any of them was measured on one worker needs no run of another. A type is
left to the job that is on it. A job that names no model is profiled for itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np

from stretto.model import (
    Adaptivity,
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
from stretto.service.state.reported_metrics import with_points
from stretto.service.state.state import State

LONGEST_S = 120.0  # on one type, if nothing is reported meanwhile; chosen: reports come every 30 s


def profiles_of(state: State, now_s: float) -> Mapping[str, int]:
    """By job, the type on which it is to run with one worker now.

    Under `profiles: model` of the configuration, which older logs have, only the oldest job of each model.
    """
    cluster, placement = state.cluster, state.placement
    if cluster is None or placement is None or len(cluster.types) < 2:
        return {}
    type_of_job: dict[str, int] = {}
    every_job = state.configured.profiles == "job"
    models: set[str] = set()  # that a job is profiled for
    under_way: dict[str, set[int]] = {}  # by model, types that a job is on
    free = np.bincount(cluster.kind, np.where(state.usable(), placement.free, 0), len(cluster.types))
    candidates = [record for record in state.open_jobs() if _may_profile(record)]
    if every_job:  # what is under way on a type goes on there
        unknown = {record.id: _unknown_types(state, record, now_s) for record in candidates}
        candidates.sort(key=lambda record: _held_type(record) not in unknown[record.id])
    for record in candidates:
        model = record.spec.measured_as
        if not (every_job or (model and model not in models)):
            continue
        models.add(model)
        unknown_types = _unknown_types(state, record, now_s)
        if every_job and model:
            unknown_types = [kind for kind in unknown_types if kind not in under_way.get(model, ())]
        sizes = [record.job.worker_gpus(name) for name in cluster.type_names]
        kind = next((kind for kind in unknown_types if free[kind] >= sizes[kind]), None)
        if _held_type(record) in unknown_types:
            kind = _held_type(record)
        if kind is not None:
            type_of_job[record.id] = kind
            under_way.setdefault(model, set()).add(kind)
            if every_job and _held_type(record) != kind:  # others see what is left
                free[kind] -= sizes[kind]
    return type_of_job


def _may_profile(record: JobRecord) -> bool:
    """Whether it can run on one worker, and go on elsewhere; a job that was profiled beforehand need not."""
    job = record.job
    one_worker = min(job.replica_gpus.values(), default=job.gpus_per_worker)
    fits = job.adaptivity is not Adaptivity.RIGID and job.min_gpus <= one_worker
    uses_sdk = record.uses_sdk is not False and (record.uses_sdk or not record.attempt)
    waits = record.held or bool(record.ending)
    return bool(fits and uses_sdk and job.preemptible and not waits and not record.learned.profile)


def _held_type(record: JobRecord) -> int:
    """The GPU type that a job holds; -1 none."""
    return record.accounting.kind if record.accounting.held_gpus else -1


def _unknown_types(state: State, record: JobRecord, now_s: float) -> list[int]:
    """Types that a job may run on, on which one worker was neither measured nor had its time."""
    cluster, prior, accounting = state.cluster, state.models.get(record.spec.measured_as), record.accounting
    assert cluster is not None
    points = prior.points if prior is not None else ()
    if state.configured.profiles == "job":
        points = with_points(points, record.learned.points)
    allowed = [
        kind
        for kind, name in enumerate(cluster.type_names)
        if not record.job.gpu_types or name in record.job.gpu_types
    ]
    sizes = {kind: record.job.worker_gpus(cluster.type_names[kind]) for kind in allowed}
    done_types = {int(point[0]) for point in points if point[2] <= sizes.get(int(point[0]), 0)}
    for kind in allowed:
        here_s = now_s - accounting.held_since_s if _held_type(record) == kind else 0.0
        if accounting.on_type_s.get(kind, 0.0) + here_s >= LONGEST_S:
            done_types.add(kind)
    return [kind for kind in allowed if kind not in done_types]


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
    constraints = constraints_of(state, now_s)
    if isinstance(scheduler.policy, ProfilesFirst) and scheduler.policy.profiles_first:
        constraints = replace(constraints, profiles=profiles_of(state, now_s))
    snapshot = builder.observe(state, now_s, due, memory)
    lenders = () if scheduler.lending is None else lenders_of(state, now_s, scheduler.lending.period_s)
    return replace(snapshot, constraints=constraints, batches=builder.batches(state), lenders=lenders)


def lenders_of(state: State, now_s: float, period_s: float) -> tuple[LenderState, ...]:
    """Lenders that have said what they need, with their nodes that are up and open.

    What those that are not would serve falls to the others. Closed ones that are on loan are there to go
    back. Without a need nothing of a lender is lent.
    """
    nodes: dict[str, list[int]] = {}
    closed: dict[str, list[int]] = {}
    for index, node in enumerate(state.nodes):
        if node.lender and node.up:
            group = closed if node.closed else nodes
            group.setdefault(node.lender, []).append(index)
    lenders = []
    for name, lender in sorted(state.lenders.items()):
        its, shut = nodes.get(name, []), closed.get(name, [])
        lent = tuple(index for index in shut if state.nodes[index].on_loan)
        if not lender.needs or not (its or lent):
            continue
        at_home = len(its) + len(shut) - len(lent)  # once all that are open have gone back
        needs_closed = lender.lacking(len(its) + len(shut), at_home)
        demand = lender.demand(now_s, period_s, max(len(its), 1))
        lenders.append(
            LenderState(name, ints(its), lender.headroom, period_s, demand, nan, lent, needs_closed)
        )
    return tuple(lenders)


def loans_json(snapshot: Snapshot, loans: Loans | None) -> dict[str, Any]:
    """What was settled with lenders, as the log keeps it; {} where that changes nothing."""
    if loans is None:
        return {}
    cluster, changed = snapshot.cluster, loans.usable != snapshot.usable
    returned = sorted({*np.flatnonzero(changed & ~loans.usable).tolist(), *loans.closed})
    as_json: dict[str, Any] = {
        "lent": [cluster.nodes[node].id for node in np.flatnonzero(changed & loans.usable).tolist()],
        "returned": [cluster.nodes[node].id for node in returned],
        "preempted": list(loans.preempted),
        "scaled_in": list(loans.scaled_in),
        "actions": actions_json(actions_between(snapshot.placement, loans.placement), cluster),
    }
    return {key: value for key, value in as_json.items() if value}


def decided(snapshot: Snapshot, plan: Plan, seen: int, took_ms: float) -> Decided:
    """The event of a decision. A job that the policy was not shown keeps what it holds."""
    decided_about = {action.job for action in plan.actions}
    if decided_about:
        decided_about.intersection_update(snapshot.jobs.ids)
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
