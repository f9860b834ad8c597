"""Why does a job not run, which jobs have what it waits for, what is it worth, and what would start it?

Asked of the policy itself: a decision is pure, so it can be asked about snapshots that never were.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf, isnan, nan
from typing import Any

import numpy as np

from stretto.model import (
    Adaptivity,
    BidsForGpus,
    Job,
    Memory,
    Plan,
    Requests,
    Snapshot,
    StrettoError,
    Trigger,
    gpus_by_type,
    types_in_words,
)
from stretto.scheduler.constraints.shared_nodes import less_foreign_use
from stretto.scheduler.round import Scheduler, decide
from stretto.service.forecast.corrections import Interval
from stretto.service.forecast.fork import Fork, fork_of, turn_in_line
from stretto.service.forecast.simulate import DRAWS, Forecast, outlook_of, span_json
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.messages import NEVER, gpus_of, headline, span_in_words
from stretto.service.state.records import JobRecord
from stretto.service.state.remaining import remaining_of
from stretto.service.state.state import State
from stretto.service.state.status import JobStatus, status_of
from stretto.sim.world import SimulatedWorld

HYPOTHESES_S, DRAWS_S = 0.05, 0.12  # of wall time from the start; chosen: an answer within 0.2 s
MOST_HYPOTHESES = 12
MOST_HOLDERS = 8  # shown; chosen


@dataclass(frozen=True)
class Question:
    """All that an answer needs, copied from the state: it can be answered beside the service."""

    job: str
    status: JobStatus  # of the job
    fork: Fork
    snapshot: Snapshot  # what the policy is shown of the nodes
    scheduler: Scheduler
    prices: tuple[float, ...] | None
    decision_ms: float  # what the last decision took
    names: Mapping[str, tuple[str, str]]  # name and user of those that hold GPUs
    unix_s: float


def question_of(
    state: State,
    record: JobRecord,
    now_s: float,
    scheduler: Scheduler,
    plan: Plan | None,
    latest: Snapshot | None,
    decision_ms: float,
    memory: Memory = None,
) -> Question:
    """Copy what is needed. A node must have been seen. memory: the policy's, after its last decision."""
    due = scheduler.policy.triggers.on | {Trigger.ARRIVAL}
    holders = [] if state.placement is None else list(state.placement)
    fork = fork_of(state, now_s, memory=memory)
    snapshot = SnapshotBuilder(scheduler.policy.views).observe(state, now_s, due, memory)
    snapshot = replace(snapshot, constraints=fork.constraints)
    return Question(
        job=record.id,
        status=status_of(state, record, now_s, plan, latest),
        fork=fork,
        snapshot=less_foreign_use(snapshot.placement, fork.constraints.others).show(snapshot),
        scheduler=scheduler,
        prices=state.prices,
        decision_ms=decision_ms,
        names={name: (state.jobs[name].spec.name, state.jobs[name].user) for name in holders},
        unix_s=state.unix_s,
    )


def explained(question: Question) -> dict[str, Any]:
    """The answer, as JSON values; times are Unix times."""
    began = time.perf_counter()
    status = question.status
    ended, waits = status.ended_s is not None, not status.gpus
    never = status.reason in NEVER
    changes: list[dict[str, Any]] = []
    outlook = None
    if waits and not ended:
        changes = _changes(question, began + HYPOTHESES_S)
    if not ended and question.job not in question.fork.left_out and not never:
        outlook = _outlook(question, waits, began + DRAWS_S)
    when = None if outlook is None else (outlook.start if waits else outlook.end)(question.job)
    foreseen_s = max((draw.reached_s for draw in outlook.draws), default=nan) if outlook else nan
    members = question.fork.members
    findings = Findings(
        basis=next((each.remaining.basis.value for each in members if each.job.id == question.job), ""),
        when=when,
        foreseen_s=foreseen_s,
        draws=0 if outlook is None else len(outlook.draws),
        starts_as=_first(question, outlook) if waits and outlook else None,
        changes=changes,
        holders=_holders(question, outlook) if waits and not ended else [],
        prices=_prices(question),
        assumed=list(question.fork.assumed) if outlook else [],
    )
    return answer_of(status, findings, question.fork.now_s, question.unix_s, began)


@dataclass(frozen=True)
class Findings:
    """What was found out about a job, beside its status. Times are those of the service."""

    basis: str  # what says how long it takes
    when: Interval | None  # it starts, or ends; None: nothing can be said
    foreseen_s: float  # up to when was looked ahead; NaN: not at all
    draws: int
    starts_as: dict[str, Any] | None
    changes: list[dict[str, Any]]
    holders: list[dict[str, Any]]
    prices: list[dict[str, Any]]
    assumed: list[str]


def answer_of(
    status: JobStatus, findings: Findings, now_s: float, unix_s: float, began: float
) -> dict[str, Any]:
    """The answer, as JSON values; times are Unix times. began: a moment of `time.perf_counter`."""
    waits, when = not status.gpus, findings.when
    answer = {
        "id": status.id,
        "name": status.name,
        "state": status.state,
        "ended": status.ended_s is not None,
        "never": status.reason in NEVER,
        "reason": status.reason,
        "evidence": status.evidence,
        "gpus": status.gpus,
        "gpu_type": status.gpu_type,
        "nodes": status.nodes,
        "preempted": status.preempted,
        "took_from": status.took_from,
        "basis": findings.basis,
        "start" if waits else "end": None if when is None else span_json(when, unix_s),
        "foreseen": None if isnan(findings.foreseen_s) else round(findings.foreseen_s + unix_s, 3),
        "draws": findings.draws,
        "starts_as": findings.starts_as,
        "changes": findings.changes,
        "holders": findings.holders,
        "prices": findings.prices,
        "assumed": findings.assumed,
    }
    words = ""
    if when is not None and isfinite(when.middle_s):
        soon = when.middle_s - now_s < 1.0
        words = "now" if soon else f"in about {span_in_words(when.middle_s - now_s)}"
        if not soon and when.plus_minus_s >= 1.0:
            words += f" (± {span_in_words(when.plus_minus_s)})"
    return {
        **answer,
        "headline": headline(answer, words),
        "now": round(now_s + unix_s, 3),
        "took_ms": round((time.perf_counter() - began) * 1e3, 1),
    }


# ── of very many jobs: what is known already, and what was foreseen a while ago ─────────────────────────────


MOST_SIMULATED = 500  # open jobs, above which no simulation is waited for; chosen: it would take over 0.2 s


def explained_at_once(
    state: State,
    record: JobRecord,
    status: JobStatus,
    now_s: float,
    spans: Mapping[str, tuple[Interval, Interval]],
    made_s: float,
    reached_s: float,
    draws: int,
    assumed: Sequence[str],
) -> dict[str, Any]:
    """The answer without asking the policy anything.

    spans: starts and ends as foreseen at `made_s` in so many draws, up to `reached_s`. Of a job behind all
    that were looked at, `foreseen` says when the last of these starts.
    """
    began = time.perf_counter()
    waits, ended = not status.gpus, status.ended_s is not None
    span = spans.get(record.id)
    when = None if span is None or ended else span[0 if waits else 1]
    if when is not None and when.middle_s < now_s:  # it was foreseen to be over by now
        when = Interval(now_s, max(when.low_s, now_s), max(when.high_s, now_s))
    is_foreseen = when is not None and isfinite(when.middle_s)
    assumptions = list(assumed)
    if span is None:
        can_start = waits and not (ended or record.held or status.reason in NEVER)
        before_s = _last_before_s(state, record, spans) if can_start else nan
        reached_s = reached_s if isinf(before_s) else max(before_s, now_s)
        assumptions.append("jobs before it in line start before it, which was not looked at itself")
    is_known = not isnan(reached_s)
    findings = Findings(
        basis=remaining_of(record, now_s).basis.value if not ended else "",
        when=when if is_foreseen else None,
        foreseen_s=reached_s,
        draws=draws if is_known else 0,
        starts_as=None,
        changes=[],
        holders=_holders_at_once(state, record, spans) if waits and not ended else [],
        prices=_prices_at_once(state),
        assumed=[f"as foreseen {span_in_words(now_s - made_s)} ago", *assumptions] if is_known else [],
    )
    return answer_of(status, findings, now_s, state.unix_s, began)


def _last_before_s(state: State, record: JobRecord, spans: Mapping[str, tuple[Interval, Interval]]) -> float:
    """When the last job that was looked at would start; NaN unless this one is in line behind all of them."""
    others = [(state.open_job(name), start.middle_s) for name, (start, _) in spans.items()]
    waiting = [
        (other, start_s) for other, start_s in others if other is not None and not other.accounting.held_gpus
    ]
    if not waiting or any(turn_in_line(other) > turn_in_line(record) for other, _ in waiting):
        return nan
    return max(start_s for _, start_s in waiting)


def _holders_at_once(
    state: State, record: JobRecord, spans: Mapping[str, tuple[Interval, Interval]]
) -> list[dict[str, Any]]:
    """The largest jobs that hold GPUs of the types that the job accepts."""
    cluster = state.cluster
    assert cluster is not None
    accepted = set(record.job.gpu_types or cluster.type_names)
    holding = [
        (name, allocation)
        for name, allocation in (state.placement or {}).items()
        if not accepted.isdisjoint(cluster.type_names[kind] for kind in gpus_by_type(allocation, cluster))
    ]
    holding.sort(key=lambda pair: (-pair[1].gpus, str(pair[0])))
    return [
        {
            "id": name,
            "name": state.jobs[name].spec.name,
            "user": state.jobs[name].user,
            "gpus": allocation.gpus,
            "gpu_type": types_in_words(allocation, cluster),
            "end": span_json(spans[name][1], state.unix_s) if name in spans else None,
        }
        for name, allocation in holding[:MOST_HOLDERS]
    ]


def _prices_at_once(state: State) -> list[dict[str, Any]]:
    """Of every type what it costs by the last decision, and what is free; not what the job could pay."""
    cluster, placement = state.cluster, state.placement
    assert cluster is not None
    assert placement is not None
    usable, count = state.usable(), len(cluster.types)
    free = np.bincount(cluster.kind, np.where(usable, placement.free, 0), count).astype(int)
    gpus = np.bincount(cluster.kind, np.where(usable, [node.gpus for node in cluster.nodes], 0), count)
    prices = state.prices if state.prices is not None and len(state.prices) == count else (None,) * count
    return [
        {
            "gpu_type": name,
            "free": int(free[kind]),
            "gpus": int(gpus[kind]),
            "price": None if prices[kind] is None else round(float(prices[kind] or 0.0), 4),
            "pays": None,
        }
        for kind, name in enumerate(cluster.type_names)
    ]


# ── what would start it ───────────────────────────────────────────────────────────────────────────


def _changes(question: Question, until: float) -> list[dict[str, Any]]:
    """The least changes of the request under which the policy would start the job at once."""
    snapshot = replace(question.snapshot, batches=None)  # only whether it starts is asked
    row = _row_of(snapshot, question.job)
    if row is None or question.decision_ms / 1e3 > HYPOTHESES_S / 2:
        return []
    changes: list[dict[str, Any]] = []
    for change, job in list(_hypotheses(snapshot, row))[:MOST_HYPOTHESES]:
        if time.perf_counter() >= until:
            break
        try:
            plan = decide(_with(snapshot, row, job), question.scheduler)
        except StrettoError:  # a request that this policy cannot even consider
            continue
        allocation = plan.placement.get(job.id)
        if allocation is not None:
            gpus, gpu_type = allocation.gpus, types_in_words(allocation, snapshot.cluster)
            changes.append({"change": change, "gpus": gpus, "gpu_type": gpu_type})
            if change:  # the first is the nearest; where nothing is to be changed, say no more
                break
            return changes
    return changes


def _hypotheses(snapshot: Snapshot, row: int) -> Iterator[tuple[str, Job]]:
    """Other requests, the least different first: as it is, fewer GPUs, other types, both, more urgent."""
    job, cluster = snapshot.jobs[row], snapshot.cluster
    yield "", job
    accepted = set(job.gpu_types or cluster.type_names)
    free = dict(zip(cluster.type_names, snapshot.free.tolist(), strict=True))
    capacity = dict(zip(cluster.type_names, snapshot.capacity.tolist(), strict=True))
    for name in cluster.type_names:
        if name not in accepted and capacity[name] >= job.min_gpus and free[name] >= job.min_gpus:
            yield f"on {name}", replace(job, gpu_types=(name,))
    sizes = _smaller(job, max(free.values(), default=0))
    for size in sizes:
        for name in sorted(free, key=lambda name: (name not in accepted, -free[name])):
            if free[name] >= size:
                change = f"with {gpus_of(size, name)}"
                yield change, _sized(job, size, name)
    highest = max((job_there.priority for job_there in _jobs(snapshot)), default=0)
    if highest >= job.priority:
        yield f"with priority {highest + 1}", replace(job, priority=highest + 1)


def _smaller(job: Job, most: int) -> list[int]:
    """Sizes below what the job needs, in whole workers, that are free: the largest, then halves of it."""
    each = job.gpus_per_worker
    size = min(job.min_gpus - each, most) // each * each
    sizes = []
    while size >= each:
        sizes.append(size)
        size = size // 2 // each * each
    return sizes


def _sized(job: Job, gpus: int, name: str) -> Job:
    return replace(
        job,
        gpus=gpus,
        min_gpus=gpus,
        max_gpus=gpus if job.adaptivity is Adaptivity.RIGID else job.max_gpus,
        gpu_types=(name,),
    )


def _with(snapshot: Snapshot, row: int, job: Job) -> Snapshot:
    jobs = _jobs(snapshot)
    jobs[row] = job
    table = replace(
        snapshot.jobs,
        requests=Requests(jobs, snapshot.cluster),
        rows=np.arange(len(jobs), dtype=np.int64),
    )
    return replace(snapshot, jobs=table)


def _jobs(snapshot: Snapshot) -> list[Job]:
    return [snapshot.jobs[row] for row in range(len(snapshot.jobs))]


def _row_of(snapshot: Snapshot, job: str) -> int | None:
    ids: list[str] = list(snapshot.jobs.ids)
    return ids.index(job) if job in ids else None


# ── when, and which jobs ─────────────────────────────────────────────────────────────────────────────────


def _outlook(question: Question, waits: bool, until: float) -> Forecast | None:
    """A few draws, each until the job has started, or ended."""
    if question.decision_ms / 1e3 > DRAWS_S / 3:  # too few decisions fit to see anything
        return None

    def enough(world: SimulatedWorld, starts: Mapping[str, float]) -> bool:
        if waits:
            return question.job in starts
        return question.job not in world.placement and question.job in starts

    return outlook_of(question.fork, DRAWS, enough, until)


def _first(question: Question, outlook: Forecast) -> dict[str, Any] | None:
    """What the job would hold first, as far as is believed now."""
    fate = outlook.draws[0].fates.get(question.job)
    if fate is None or fate.first is None:
        return None
    cluster = question.fork.cluster
    return {
        "gpus": fate.first.gpus,
        "gpu_type": types_in_words(fate.first, cluster),
        "nodes": {
            cluster.nodes[node].id: mask.bit_count()
            for node, mask in zip(fate.first.nodes, fate.first.masks, strict=True)
        },
    }


def _holders(question: Question, outlook: Forecast | None) -> list[dict[str, Any]]:
    """The jobs that hold GPUs of the types that the job accepts, the largest first."""
    fork = question.fork
    job = next((member.job for member in fork.members if member.job.id == question.job), None)
    names = fork.cluster.type_names
    accepted = set(names) if job is None or not job.gpu_types else set(job.gpu_types)
    holders = []
    for name, allocation in question.snapshot.placement.items():
        if accepted.isdisjoint(names[kind] for kind in gpus_by_type(allocation, fork.cluster)):
            continue
        end = None
        if outlook is not None:
            end = span_json(outlook.end(name), question.unix_s) if name in outlook.holding else None
        called, user = question.names.get(name, ("", ""))
        holders.append(
            {
                "id": name,
                "name": called,
                "user": user,
                "gpus": allocation.gpus,
                "gpu_type": types_in_words(allocation, fork.cluster),
                "end": end,
            }
        )
    holders.sort(key=lambda holder: (-int(str(holder["gpus"])), str(holder["id"])))
    return holders[:MOST_HOLDERS]


def _prices(question: Question) -> list[dict[str, Any]]:
    """Of every type what it costs now, what the job could pay, and what is free."""
    snapshot, policy = question.snapshot, question.scheduler.policy
    pays = np.full(len(snapshot.cluster.types), nan)
    row = _row_of(snapshot, question.job)
    if isinstance(policy, BidsForGpus) and row is not None and question.decision_ms / 1e3 < 2 * HYPOTHESES_S:
        seen = snapshot.limited_to(policy.views)
        speeds = question.scheduler.estimator.estimate(seen, policy.configurations(snapshot.cluster))
        pays = policy.pays(seen, speeds)[row]
    prices = question.prices or (None,) * len(pays)
    if len(prices) != len(pays):  # a type has come since the last decision
        prices = (None,) * len(pays)
    return [
        {
            "gpu_type": name,
            "free": free,
            "gpus": gpus,
            "price": None if price is None else round(float(price), 4),
            "pays": None if not isfinite(pay) else round(float(pay), 4),
        }
        for name, free, gpus, price, pay in zip(
            snapshot.cluster.type_names,
            snapshot.free.tolist(),
            snapshot.capacity.tolist(),
            prices,
            pays.tolist(),
            strict=True,
        )
    ]
