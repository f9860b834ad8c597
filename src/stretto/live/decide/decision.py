"""One decision: what it looks at, its plan, and how the log keeps it; the same when it is repeated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.live.decide.batches import new_batches
from stretto.live.decide.constraints import constraints_of
from stretto.live.decide.observe import Observer
from stretto.live.decide.profiling import profiles_of
from stretto.live.state.events import Decided
from stretto.live.state.plans import actions_json
from stretto.live.state.records import Batch
from stretto.live.state.state import State
from stretto.model import Plan, ProfilesFirst, Snapshot, Trigger, digest
from stretto.scheduler.round import Scheduler, decide


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
    observer: Observer, state: State, now_s: float, due: frozenset[Trigger], scheduler: Scheduler
) -> Asked:
    """Look at a state, for this scheduler. A node must have been seen."""
    assert state.placement is not None
    batches = {str(name): batch for name in state.placement if (batch := state.jobs[name].batch) is not None}
    constraints = constraints_of(state, now_s)
    if isinstance(scheduler.policy, ProfilesFirst) and scheduler.policy.profiles_first:
        constraints = replace(constraints, profiles=profiles_of(state, now_s))
    return Asked(replace(observer.observe(state, now_s, due), constraints=constraints), batches)


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
