"""From events to the state. No clock, no I/O: the same events give the same state.

The log names nodes, and times by the calendar: the reducer reads both.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from stretto.jobfile.to_job import rewards_of
from stretto.model import (
    HALF_LIFE_S,
    Action,
    Allocation,
    Batch,
    Cluster,
    JobId,
    PriorityClass,
    Queue,
    Reservation,
    Verb,
)
from stretto.scheduler.check import still_apply
from stretto.service.state import events as happened
from stretto.service.state.budget_events import budget_deleted, budget_reached, budget_set
from stretto.service.state.events import Event, body_of, subject_of
from stretto.service.state.jobs import (
    array_submitted,
    job_cancelled,
    job_ended,
    job_held,
    job_prioritised,
    job_requeued,
    job_retired,
    job_scaled,
    job_submitted,
    queue_of,
)
from stretto.service.state.lenders import (
    end_loans_unless_settled,
    guarantee_missed,
    lender_deleted,
    lender_set,
    need_reported,
    nodes_handed_over,
    settle,
)
from stretto.service.state.nodes import node_cordoned, node_dead, node_lost, node_seen, types_seen
from stretto.service.state.on_hold import holds_at
from stretto.service.state.records import JobRecord, Preempted, Token
from stretto.service.state.state import Skipped, State
from stretto.service.state.usage import Cause, CauseKind
from stretto.service.state.usage_events import note_usage
from stretto.service.state.workers import fold_worker_event, leave_unseen


def actions_json(actions: Iterable[Action], cluster: Cluster) -> list[dict[str, Any]]:
    """JSON values that `actions_of` turns into equal actions."""
    return [
        {
            "verb": action.verb.value,
            "job": action.job,
            "before": _allocation_json(action.before, cluster),
            "after": _allocation_json(action.after, cluster),
        }
        for action in actions
    ]


def actions_of(actions: Iterable[Mapping[str, Any]], cluster: Cluster) -> list[Action]:
    """The actions that were written."""
    return [
        Action(
            Verb(action["verb"]),
            JobId(action["job"]),
            _allocation(action["before"], cluster),
            _allocation(action["after"], cluster),
        )
        for action in actions
    ]


def _allocation_json(allocation: Allocation | None, cluster: Cluster) -> dict[str, Any] | None:
    if allocation is None:
        return None
    as_json: dict[str, Any] = {
        "nodes": {
            cluster.nodes[node].id: mask
            for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
        }
    }
    if allocation.local_batch:
        as_json["local_batch"] = list(allocation.local_batch)
    if allocation.flexible:
        as_json["flexible"] = list(allocation.flexible)
    if allocation.profiling:
        as_json["profiling"] = True
    if allocation.cpus:
        as_json["cpus"] = allocation.cpus
    return as_json


def _allocation(as_json: Mapping[str, Any] | None, cluster: Cluster) -> Allocation | None:
    if as_json is None:
        return None
    masks = sorted((cluster.node_index[name], mask) for name, mask in as_json["nodes"].items())
    nodes = tuple(node for node, _ in masks)
    return Allocation(
        kind=int(cluster.kind[nodes[0]]),
        nodes=nodes,
        masks=tuple(mask for _, mask in masks),
        local_batch=tuple(as_json.get("local_batch", ())),
        flexible=tuple(as_json.get("flexible", ())),
        profiling=bool(as_json.get("profiling", False)),
        cpus=float(as_json.get("cpus", 0.0)),
    )


# ── times that people name by the calendar: they move on the clock of the service when that is corrected ────


def log_began(state: State, event: happened.Began, now_s: float) -> None:
    """The clock of the service begins to count."""
    state.unix_s = event.unix_s
    state.calendar.begin(event.unix_s)


def clock_set(state: State, event: happened.ClockSet, now_s: float) -> None:
    """The clocks were read: what people have named by the calendar follows where that is sure."""
    before = state.calendar.bound_unix_s
    state.calendar.set(event, now_s)
    state.unix_s = event.unix_s
    if event.bound_unix_s != before:
        _move_reservations(state)
        for record in state.open_jobs():
            _move_job(state, record)


def reserved(state: State, event: happened.Reserved, now_s: float) -> None:
    """GPUs are kept; those of reservations that have passed are not, but a clock may still be corrected."""
    passed = sorted((one.until_s, name) for name, one in state.reservations.items() if one.until_s <= now_s)
    for _, name in passed[: max(len(passed) - MOST_PASSED, 0)]:
        unreserved(state, happened.Unreserved(name), now_s)
    state.reservations[event.name] = Reservation(**happened.body_of(event))
    state.reserved_unix_s[event.name] = (event.from_s + state.unix_s, event.until_s + state.unix_s)


def unreserved(state: State, event: happened.Unreserved, now_s: float) -> None:
    """Nothing is kept under this name."""
    state.reservations.pop(event.name, None)
    state.reserved_unix_s.pop(event.name, None)


MOST_PASSED = 1_000  # reservations that are remembered after their end; chosen: some hundred kilobytes


def _move_reservations(state: State) -> None:
    offset_s = state.calendar.bound_unix_s
    for name, (from_unix_s, until_unix_s) in state.reserved_unix_s.items():
        state.reservations[name] = replace(
            state.reservations[name], from_s=from_unix_s - offset_s, until_s=until_unix_s - offset_s
        )


def _move_job(state: State, record: JobRecord) -> None:
    """Its deadlines; and its start, unless it has waited for something else since."""
    spec, offset_s = record.spec, state.calendar.bound_unix_s
    rewards = rewards_of(spec, record.job.submitted_s, offset_s)
    # What they are worth stays: it is that of the service which took the job.
    rewards = tuple(
        replace(moved, value=reward.value) for moved, reward in zip(rewards, record.job.rewards, strict=True)
    )
    start = spec.start_after
    not_before_s = record.not_before_s
    if start is not None and start.at_unix_s is not None and not record.attempt and not_before_s > 0:
        not_before_s = start.at_unix_s - offset_s
    if (rewards, not_before_s) != (record.job.rewards, record.not_before_s):
        record.job, record.not_before_s = replace(record.job, rewards=rewards), not_before_s
        state.version += 1
        state.touch(record.id)


# ── from events to the state. No clock, no I/O: the same events give the same state ─────────────────────────


log = logging.getLogger(__name__)


def apply_or_skip(state: State, event: Event, seq: int, at_s: float) -> Skipped | None:
    """As `apply`; an event that cannot be folded is passed over, noted in the state, and returned.

    What is in the log stays there: to refuse it would keep every later start from its state. So whatever goes
    wrong is caught, also what was not foreseen.
    """
    try:
        apply(state, event, seq, at_s)
    except Exception as wrong:
        return skip(state, seq, at_s, type(event).__name__, subject_of(event), wrong)
    return None


def skip(state: State, seq: int, at_s: float, kind: str, subject: str, wrong: Exception) -> Skipped:
    """Pass over an event, and say so."""
    state.seq, state.at_s = seq, max(at_s, state.at_s)
    skipped = Skipped(seq, kind, subject, str(wrong) or type(wrong).__name__)
    state.skip(skipped)
    log.error("event %d (%s of %r) is left out of the state: %s", seq, kind, subject, skipped.why)
    return skipped


def apply(state: State, event: Event, seq: int, at_s: float) -> None:
    """The event of number `seq` happened at `at_s`: the state is what follows from it.

    Raises whatever goes wrong with an event that cannot be folded; see `apply_or_skip`.
    """
    state.seq, state.at_s = seq, max(at_s, state.at_s)
    change = _CHANGES.get(type(event))
    if change is not None:
        change(state, event, state.at_s)
        return
    record = state.jobs.get(str(getattr(event, "job", "")))
    before = (record.suspensions, record.resizes) if record is not None else None
    if record is not None and fold_worker_event(record, event, state.at_s, state.cluster):
        state.touch(record.id)
        note_usage(record, event, state.at_s, state.unix_s)
        state.tell(event, record)
        if before is not None:
            state.note_costs(record, *before)
        if isinstance(event, happened.Reported) and record.spec.model and record.learned.points:
            state.learn(record)


MOST_TOOK_FROM = 8  # jobs that are remembered of one that preempts; chosen


def _preempted(state: State, record: JobRecord, preempted: Preempted) -> None:
    record.preempted = preempted
    if (other := state.open_job(preempted.by)) is not None:
        before = [name for name in other.took_from if name != record.id]
        other.took_from = (*before, record.id)[-MOST_TOOK_FROM:]


def _decided(state: State, event: happened.Decided, now_s: float) -> None:
    assert state.cluster is not None
    assert state.placement is not None
    if event.loans:  # first what was settled with lenders: the plan builds on what is left
        _settled(state, event, now_s)
    usable = state.usable()
    hold_of = holds_at(state, now_s)

    def why_stale(action: Action) -> str:
        if (record := state.open_job(action.job)) is None:
            return "the job has ended"
        if record.ending or record.held:
            return "the job is to end or wait"
        if state.wanted(action.job) != action.before:
            return "its GPUs have changed since"
        if action.after is not None and not usable[list(action.after.nodes)].all():
            return "a node has gone"
        if action.after is not None and any(
            state.nodes[node].is_closed_to(record) for node in action.after.nodes
        ):
            return "a node takes no such job any more"
        if action.before is None and hold_of is not None and hold_of(record) is not None:
            return "its budget is used up"
        return ""

    dropped: set[str] = set()

    def drop(action: Action, reason: str) -> None:
        state.dropped += 1
        dropped.add(action.job)

    batches = {job: Batch.from_json(batch) for job, batch in event.batches.items()}
    actions = still_apply(state.placement, actions_of(event.actions, state.cluster), why_stale, drop)
    if actions:
        state.placement = state.placement.changed({action.job: action.after for action in actions})
    by_policy = Cause(CauseKind.POLICY, state.configured.policy)
    for action in actions:
        record, preempted = state.jobs[action.job], event.preempted.get(action.job)
        cause = by_policy if preempted is None else _cause_of(state, preempted)
        state.hold(record, action.after, now_s, cause, event.due)
        state.touch(record.id)
        if action.job in event.preempted:
            by, priority, gpus = event.preempted[action.job]
            _preempted(state, record, Preempted(by, priority, gpus, event.at_s))
    for job, batch in batches.items():  # each is for the GPUs that the plan gave
        if (changed := state.open_job(job)) is not None and job not in dropped:
            changed.batch = batch
            state.touch(job)
    state.wake_s, state.prices = event.wake_s, event.prices
    state.decisions += 1


def _cause_of(state: State, preempted: tuple[str, int, int]) -> Cause:
    """What a decision takes is charged to the job of higher priority that needs it."""
    other = state.jobs.get(preempted[0])
    user, queue = ("", "") if other is None else (other.user, other.queue)
    return Cause(CauseKind.JOB, preempted[0], user, queue)


def _settled(state: State, event: happened.Decided, now_s: float) -> None:
    """Jobs make room where nodes go back to lenders, unless their GPUs have changed since."""
    assert state.cluster is not None
    assert state.placement is not None
    for action in actions_of(event.loans.get("actions", ()), state.cluster):
        record = state.open_job(action.job)
        if record is None or state.placement is None or state.wanted(action.job) != action.before:
            continue
        state.placement = state.placement.changed({action.job: action.after})
        record.why = "nodes went back to their lender"
        state.hold(record, action.after, now_s, Cause(CauseKind.LENDER))
        state.touch(record.id)
    settle(state, event.loans, now_s)


def _lead_taken(state: State, event: happened.LeadTaken, now_s: float) -> None:
    state.epoch = max(event.epoch, state.epoch)


def _incarnated(state: State, event: happened.Incarnated, now_s: float) -> None:
    state.incarnation = event.name
    if event.last_id > state.largest_id:
        state.lost_ids = (*state.lost_ids, (state.largest_id + 1, event.last_id))
        state.largest_id = event.last_id
    for record in state.open_jobs() if event.ends_elastic else ():
        if record.is_open and record.elastic:
            leave_unseen(record, now_s)
            state.touch(record.id)


def _configured(state: State, event: happened.Configured, now_s: float) -> None:
    state.nodes_changed |= event.topology != state.configured.topology and bool(state.nodes)
    state.configured = event
    state.usage.live_by(event.fair_share_half_life_s or HALF_LIFE_S, now_s)
    end_loans_unless_settled(state, now_s)


def _user_shares_set(state: State, event: happened.UserSharesSet, now_s: float) -> None:
    state.user_shares[event.user] = event.shares


def _gpu_price_set(state: State, event: happened.GpuPriceSet, now_s: float) -> None:
    state.gpu_prices.set(event.gpu_type, event.price, event.from_us)


def _webhook_done(state: State, event: happened.WebhookDone, now_s: float) -> None:
    state.outbox.done(event.webhook)


def _priority_class_set(state: State, event: happened.PriorityClassSet, now_s: float) -> None:
    classes = state.priority_classes
    if event.is_default:
        for name, one in classes.items():
            classes[name] = replace(one, is_default=False)
    classes[event.name] = PriorityClass(**body_of(event))


def _priority_class_deleted(state: State, event: happened.PriorityClassDeleted, now_s: float) -> None:
    state.priority_classes.pop(event.name, None)


def _queue_set(state: State, event: happened.QueueSet, now_s: float) -> None:
    state.queues[event.name] = Queue(**body_of(event))
    for record in state.open_jobs():
        name = queue_of(state, record.spec.queue, record.user)
        weight = event.weight if name == event.name else record.job.weight
        if (name, weight) != (record.queue, record.job.weight):
            state.move_to_queue(record, name, weight, now_s)


def _queue_deleted(state: State, event: happened.QueueDeleted, now_s: float) -> None:
    if state.queues.pop(event.name, None) is None:
        return
    for name, queue in state.queues.items():
        if queue.parent == event.name:
            state.queues[name] = replace(queue, parent="")
    for record in state.open_jobs():
        if record.queue == event.name:
            name = queue_of(state, record.spec.queue, record.user)
            weight = state.queues[name].weight if name in state.queues else 1.0
            state.move_to_queue(record, name, weight, now_s)


def _token_made(state: State, event: happened.TokenMade, now_s: float) -> None:
    state.tokens[event.sha256] = Token(
        event.name, event.user, event.role, event.sha256, event.expires_unix_s, scope=event.scope
    )


def _token_used(state: State, event: happened.TokenUsed, now_s: float) -> None:
    for token in state.tokens.values():
        if token.name == event.name:
            token.used_unix_s = max(token.used_unix_s, event.unix_s)


def _token_revoked(state: State, event: happened.TokenRevoked, now_s: float) -> None:
    state.tokens = {digest: token for digest, token in state.tokens.items() if token.name != event.name}


_CHANGES: Mapping[type[Event], Callable[[State, Any, float], None]] = {
    happened.Began: log_began,
    happened.ClockSet: clock_set,
    happened.LeadTaken: _lead_taken,
    happened.Incarnated: _incarnated,
    happened.Configured: _configured,
    happened.TypesSeen: types_seen,
    happened.NodeSeen: node_seen,
    happened.NodeLost: node_lost,
    happened.NodeDead: node_dead,
    happened.NodeCordoned: node_cordoned,
    happened.LenderSet: lender_set,
    happened.LenderDeleted: lender_deleted,
    happened.NeedReported: need_reported,
    happened.NodesHandedOver: nodes_handed_over,
    happened.GuaranteeMissed: guarantee_missed,
    happened.QueueSet: _queue_set,
    happened.QueueDeleted: _queue_deleted,
    happened.PriorityClassSet: _priority_class_set,
    happened.PriorityClassDeleted: _priority_class_deleted,
    happened.UserSharesSet: _user_shares_set,
    happened.GpuPriceSet: _gpu_price_set,
    happened.BudgetSet: budget_set,
    happened.BudgetDeleted: budget_deleted,
    happened.BudgetReached: budget_reached,
    happened.WebhookDone: _webhook_done,
    happened.Reserved: reserved,
    happened.Unreserved: unreserved,
    happened.TokenMade: _token_made,
    happened.TokenUsed: _token_used,
    happened.TokenRevoked: _token_revoked,
    happened.Submitted: job_submitted,
    happened.ArraySubmitted: array_submitted,
    happened.Held: job_held,
    happened.Scaled: job_scaled,
    happened.Prioritised: job_prioritised,
    happened.Requeued: job_requeued,
    happened.Cancelled: job_cancelled,
    happened.Ended: job_ended,
    happened.Retired: job_retired,
    happened.Decided: _decided,
}
