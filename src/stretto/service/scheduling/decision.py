"""One decision: what it looks at, its plan, batches and profiling runs, and how the log keeps it.

Which job is to run on one GPU of which type, so that what is not known of its model becomes known.

Sia (SOSP 2023), section 3.2, profiles every model on one GPU of each type before it is scheduled. Here the
first job of a model trains on one worker of one type after the other, moving as jobs do, so that nothing of
it is wasted; once a type has been measured, or has had its time, it is done with. Later jobs of the model
know the points and are free from the beginning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.estimate.registry import ChoosesBatches
from stretto.model import (
    Adaptivity,
    Allocation,
    BoolArray,
    Memory,
    Plan,
    ProfilesFirst,
    Snapshot,
    TrainingLimits,
    Trigger,
    digest,
)
from stretto.scheduler.round import Scheduler, decide
from stretto.service.scheduling.constraints import constraints_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.events import Decided
from stretto.service.state.plans import actions_json
from stretto.service.state.records import Batch, JobRecord
from stretto.service.state.state import State

LONGEST_S = 120.0  # on one type, if nothing is reported meanwhile; chosen: reports come every 30 s


def profiles_of(state: State, now_s: float) -> Mapping[str, int]:
    """By job, the type on which it is to run with one worker now; the oldest of each model."""
    cluster, placement = state.cluster, state.placement
    if cluster is None or placement is None or len(cluster.types) < 2:
        return {}
    found: dict[str, int] = {}
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
            found[record.id] = kind
    return found


def _may_profile(record: JobRecord) -> bool:
    """Whether it can run on one worker, and go on elsewhere; who was profiled beforehand need not."""
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
    known = {int(point[0]) for point in (prior.points if prior is not None else ()) if point[2] <= each}
    books = record.books
    for kind in np.flatnonzero(allowed).tolist():
        here_s = now_s - books.held_since_s if books.held_gpus and books.kind == kind else 0.0
        if books.on_type_s.get(kind, 0.0) + here_s >= LONGEST_S:
            known.add(kind)
    unknown = [kind for kind in np.flatnonzero(allowed).tolist() if kind not in known]
    if books.held_gpus and books.kind in unknown:
        return books.kind
    return next((kind for kind in unknown if is_free[kind]), None)


# ── which batch does each adaptive job train with on the GPUs that a plan gives it? ─────────────────────────


NEAR = 0.1  # a batch that differs by less from the one in use does not change it; chosen


def new_batches(
    snapshot: Snapshot, plan: Plan, scheduler: Scheduler, before: Mapping[str, Batch]
) -> dict[str, Batch]:
    """Batches that differ from those `before`, by job. Pure: the same decision, the same batches."""
    evidence = snapshot.jobs.known_evidence
    if evidence is None:
        return {}
    found: dict[str, Batch] = {}
    asked: list[tuple[int, int, int, int]] = []
    moved = {action.job for action in plan.actions}
    for row, name in enumerate(snapshot.jobs.ids):
        held = plan.placement.get(name)
        one = evidence[row]
        if held is None or one is None or one.fixed_batch:
            continue
        job = snapshot.jobs[row]
        if job.adaptivity is not Adaptivity.ADAPTIVE:
            continue
        if held.local_batch:
            found[name] = _dictated(held, job.gpus_per_worker, one.limits)
        elif any(one.observed):
            asked.append((row, held.kind, len(held.nodes), held.gpus))
    if asked and isinstance(scheduler.estimator, ChoosesBatches):
        configurations = scheduler.policy.configurations(snapshot.cluster)
        for (row, *_), choice in zip(
            asked, scheduler.estimator.batches(snapshot, configurations, asked), strict=True
        ):
            limits = evidence[row].limits  # type: ignore[union-attr]
            total = min(choice.total_batch, limits.max_batch)  # rounding may have gone beyond
            name = snapshot.jobs.ids[row]
            was, batch = before.get(name), Batch(total, choice.local_batch, choice.accumulation + 1)
            if total and (was is None or name in moved or abs(total - was.total) > NEAR * was.total):
                found[name] = batch
    return {name: batch for name, batch in found.items() if batch != before.get(name)}


def _dictated(held: Allocation, gpus_per_worker: int, limits: TrainingLimits) -> Batch:
    """What a policy says GPU by GPU, in as few passes as fit into memory; at least what was tuned for.

    ONES does not accumulate, and would train with less where that does not fit on the GPUs at once.
    """
    total = min(max(sum(held.local_batch), limits.init_batch), limits.max_batch)
    max_local = int(limits.max_local[held.kind])
    share = -(-total // (held.gpus // gpus_per_worker))
    passes = -(-share // max_local) if max_local > 0 else 1
    return Batch(total, -(-share // passes), passes)


# ── one decision: what it looks at, its plan, and how the log keeps it; the same when it is repeated ────────


@dataclass(frozen=True)
class Asked:
    """All that a decision looks at."""

    snapshot: Snapshot
    batches: Mapping[str, Batch] = field(default_factory=dict)  # wanted so far, by job


@dataclass(frozen=True)
class Answer:
    """All that comes of it."""

    plan: Plan
    batches: Mapping[str, Batch]  # that are wanted from now on, of jobs where they are new


def asked_of(
    observer: SnapshotBuilder,
    state: State,
    now_s: float,
    due: frozenset[Trigger],
    scheduler: Scheduler,
    memory: Memory = None,
) -> Asked:
    """Look at a state, for this scheduler and with what its policy remembers. A node must have been seen."""
    assert state.placement is not None
    batches = {str(name): batch for name in state.placement if (batch := state.jobs[name].batch) is not None}
    constraints = constraints_of(state, now_s)
    if isinstance(scheduler.policy, ProfilesFirst) and scheduler.policy.profiles_first:
        constraints = replace(constraints, profiles=profiles_of(state, now_s))
    return Asked(replace(observer.observe(state, now_s, due, memory), constraints=constraints), batches)


def answer_to(asked: Asked, scheduler: Scheduler) -> Answer:
    """Decide. Pure and deterministic."""
    plan = decide(asked.snapshot, scheduler)
    return Answer(plan, new_batches(asked.snapshot, plan, scheduler, asked.batches))


def decided(asked: Asked, answer: Answer, seen: int, took_ms: float) -> Decided:
    """The event of a decision. A job that it was not asked about keeps what it holds."""
    snapshot, plan = asked.snapshot, answer.plan
    shown = set(snapshot.jobs.ids) if plan.actions else set()
    actions = [action for action in plan.actions if action.job in shown]
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
        batches={name: batch.to_json() for name, batch in answer.batches.items()},
        preempted={one.job: (one.by, one.priority, one.gpus) for one in plan.preemptions},
    )
