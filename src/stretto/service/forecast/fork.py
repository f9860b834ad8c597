"""The live state as a simulated world that goes on from now: the jobs there, what is left, what is held.

Nothing in it is true by construction. What is left of a job is what its training or its owner says. Its speed
is what was measured, else what the service supposes of every job. `Fork.assumed` says so in words.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.estimate.estimators import OnlineGoodput
from stretto.estimate.speed_table import speed_table
from stretto.jobfile import JobSpec
from stretto.jobfile.to_job import spec_to_job
from stretto.model import (
    NO_CONSTRAINTS,
    Allocation,
    Cluster,
    Constraints,
    EndedJobs,
    FloatArray,
    GpuType,
    Job,
    MeasuredSpeeds,
    Memory,
    Node,
    NodeId,
    Purpose,
    Requests,
    Trigger,
    Triggers,
    UsageLedger,
    View,
    frozen,
    gpus_by_type,
    no_placement,
    powers_and_whole_nodes,
)
from stretto.scheduler.constraints.shared_nodes import less_foreign_use
from stretto.scheduler.round import Scheduler
from stretto.service.forecast.corrections import Corrections, Interval, corrected
from stretto.service.scheduling.constraints import constraints_of
from stretto.service.scheduling.estimates import (
    RESTART_S,
    SWITCH_S,
    known_points,
    largest_known_gpus,
    prior_table,
    speed_evidence_of,
)
from stretto.service.scheduling.scheduler import check_types, scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.duration_errors import Distributions, left_after
from stretto.service.state.events import Configured
from stretto.service.state.jobs import in_priority_class
from stretto.service.state.on_hold import Hold, holds_at, until_s
from stretto.service.state.records import Accounting, JobRecord
from stretto.service.state.relations import NOTHING_PAST, Named, outcomes_of, resolved
from stretto.service.state.remaining import (
    SPREAD,
    Basis,
    Remaining,
    attained_gpu_s,
    remaining_of,
    stated_duration,
)
from stretto.service.state.state import State
from stretto.service.state.status import Reason, names_of, why_not_yet
from stretto.sim.accounting import Charging, Had
from stretto.sim.physics import Physics
from stretto.sim.settings import Batches, SimSettings
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.world import SimulatedWorld

NEW = "new"  # the id of a job that has not been submitted
LEAST_ROUND_S = 60.0  # rounds in a prediction are no shorter; chosen: it looks hours ahead
SIM = SimSettings(restart_s=RESTART_S, resize_s=SWITCH_S, batches=Batches.TUNED)


@dataclass(frozen=True)
class ExtraNodes:
    """Nodes that are not there."""

    gpu_type: str
    gpus: int  # of each
    count: int = 1


@dataclass(frozen=True)
class ForkedJob:
    """One job of a fork."""

    job: Job
    name: str
    accounting: Accounting  # a copy
    remaining: Remaining
    whole_s: float  # on what it asks for
    stated_s: float  # the same as it was stated or assumed at first, which may have turned out as too short
    had_s: float  # of that, up to now
    speeds: MeasuredSpeeds  # by GPU type and count, in what is left per second
    held: Allocation | None
    from_s: float  # not before
    after: tuple[str, ...]  # jobs of the fork that must have ended before


@dataclass(frozen=True)
class Fork:
    """The state at one moment, copied: simulating it disturbs nothing, and may take its time elsewhere."""

    now_s: float
    cluster: Cluster
    usable: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    configured: Configured
    memory: Memory
    members: tuple[ForkedJob, ...]  # by submission
    left_out: Mapping[str, str]  # open jobs about which nothing can be said, and why
    assumed: tuple[str, ...]
    constraints: Constraints = NO_CONSTRAINTS
    usage: UsageLedger = field(default_factory=UsageLedger)  # of jobs that hold nothing yet
    ended_jobs: EndedJobs = field(default_factory=EndedJobs)
    errors: Distributions = field(default_factory=dict)  # of beliefs about durations, where they are known
    corrections: Corrections = field(default_factory=dict)  # of intervals; none: they are as drawn

    def corrected(self, kind: str, span: Interval) -> Interval:
        """An interval of a "start" or an "end" that lies ahead."""
        return corrected(self.corrections, kind, span, self.now_s)

    def under(self, configured: Configured) -> "Fork":
        """The same moment under another scheduler, which remembers nothing."""
        return replace(self, configured=configured, memory=None)


def fork_of(
    state: State,
    now_s: float,
    extra: Sequence[ExtraNodes] = (),
    more: tuple[JobSpec, str] | None = None,
    past: Mapping[str, Named] = NOTHING_PAST,
    memory: Memory = None,
    away: Collection[str] = (),
    most_waiting: int | None = None,
) -> Fork:
    """Copy what is needed of the state. A node must have been seen.

    more: one more job and its user; its id is NEW. Raises InputError where it can never run. past: of the
    jobs that have left the state, those that it names as coming first. memory: the policy's, after its last
    decision. away: ids of jobs that are not there; those that wait for them do not. most_waiting: jobs
    without GPUs that are looked at, the first in line; None: all.
    """
    assert state.cluster is not None
    cluster = larger(state.cluster, state.types, extra)
    usable = np.concatenate([state.usable(), np.ones(len(cluster.nodes) - len(state.nodes), dtype=np.bool_)])
    left_out: dict[str, str] = {}
    records: list[JobRecord] = []
    in_line, behind = first_in_line(state, most_waiting)
    for record in in_line:
        if record.id in away:
            continue
        reason = why_not_yet(state, record, now_s)
        if reason in (Reason.ENDING, Reason.HELD, Reason.NEVER):
            left_out[record.id] = reason.value
        else:
            records.append(record)
    if more is not None:
        records.append(_not_submitted(*more, state, cluster, now_s, past))
    holds = holds_at(state, now_s)
    members = [
        _member(record, row, state, now_s, None if holds is None else holds(record))
        for record, row in zip(records, _speeds(records, state, cluster, now_s), strict=True)
    ]
    if away:
        members = [
            replace(member, after=tuple(name for name in member.after if name not in away))
            for member in members
        ]
    assumptions = _assumptions(members, sum(not known_points(record) for record in records))
    if more is not None and more[0].hold:
        assumptions = (f"{more[0].name} is released at once", *assumptions)
    assumptions = (*_new_types(state.cluster, state.types, extra), *assumptions)
    if behind:
        assumptions = (f"{behind} more jobs, which wait behind these, are not there", *assumptions)
    constraints = constraints_of(state, now_s)
    if more is not None and more[0].elastic is not None and more[0].elastic.sizes:
        constraints = replace(constraints, sizes={**constraints.sizes, NEW: more[0].elastic.sizes})
    return Fork(
        now_s,
        _without_lenders(cluster),
        usable,
        state.configured,
        memory,
        tuple(members),
        left_out,
        assumptions,
        constraints,
        state.usage.released(now_s),
        state.ended_jobs,
        state.duration_errors.distributions(
            [record for record in records if record.accounting.starts], now_s
        ),
    )


def first_in_line(state: State, most_waiting: int | None) -> tuple[list[JobRecord], int]:
    """Open jobs by submission, and how many were left out.

    Of those that hold nothing, the first so many by priority, then by submission. Which of them a policy
    would serve first is its own affair.
    """
    records = state.open_jobs()
    waiting = [record for record in records if not record.accounting.held_gpus]
    if most_waiting is None or len(waiting) <= most_waiting:
        return records, 0
    waiting.sort(key=turn_in_line)
    left_out = {record.id for record in waiting[most_waiting:]}
    return [record for record in records if record.id not in left_out], len(left_out)


def turn_in_line(record: JobRecord) -> tuple[int, int]:
    """What is less of a job that comes earlier: by priority, then by submission."""
    return -record.job.priority, record.number


def _new_types(
    cluster: Cluster, types: Mapping[str, GpuType], extra: Sequence[ExtraNodes]
) -> tuple[str, ...]:
    """What is assumed of GPU types of which nothing is known: perhaps their names are mistyped."""
    known = {*cluster.type_names, *types}
    new = [GpuType(name) for name in dict.fromkeys(each.gpu_type for each in extra) if name not in known]
    return tuple(f"no node has had GPUs of type {each.name}: their speed is {each.speed:g}" for each in new)


def _without_lenders(cluster: Cluster) -> Cluster:
    """The same nodes, none of them a lender's: what is on loan stays so, and nothing else is usable."""
    if not any(node.lender for node in cluster.nodes):
        return cluster
    nodes = tuple(replace(node, lender="") for node in cluster.nodes)
    return Cluster(cluster.name, cluster.types, nodes, cluster.levels)


def _not_submitted(
    spec: JobSpec, user: str, state: State, cluster: Cluster, now_s: float, past: Mapping[str, Named]
) -> JobRecord:
    job = spec_to_job(spec, NEW, now_s, cluster, user=user, epoch_s=state.unix_s)
    check_types(spec, state.configured)
    job = in_priority_class(state, job)
    record = JobRecord(spec, job, user, "", "", state.submitted)
    record.prior = state.models.get(spec.measured_as, record.prior) if spec.model else record.prior
    record.after = resolved(state.relations, state.jobs, spec, user, past)
    record.outcomes = outcomes_of(state.relations, state.jobs, record.after, past)
    if spec.start_after is not None:
        record.not_before_s = spec.start_after.seconds(now_s, state.unix_s)
    return record


def larger(cluster: Cluster, types: Mapping[str, GpuType], extra: Sequence[ExtraNodes]) -> Cluster:
    """The cluster with more nodes behind its own. Raises InputError for nodes that cannot be."""
    if not extra:
        return cluster
    types_by_name = {gpu_type.name: gpu_type for gpu_type in cluster.types}
    nodes = list(cluster.nodes)
    for new_nodes in extra:
        types_by_name.setdefault(
            new_nodes.gpu_type, types.get(new_nodes.gpu_type, GpuType(new_nodes.gpu_type))
        )
        nodes += [
            Node(NodeId(f"+{len(nodes) + number}"), new_nodes.gpu_type, new_nodes.gpus)
            for number in range(new_nodes.count)
        ]
    return Cluster(cluster.name, tuple(types_by_name.values()), tuple(nodes), cluster.levels)


def _member(
    record: JobRecord, speeds: MeasuredSpeeds, state: State, now_s: float, hold: Hold | None
) -> ForkedJob:
    remaining, allocation = remaining_of(record, now_s), state.wanted(record.id)
    held_until_s = 0.0 if hold is None or allocation is not None else until_s(state, hold[1])
    job = record.job
    if job.checkpoints is None and (record.uses_sdk or record.spec.elastic is not None):
        job = replace(job, checkpoints=True)
    ends_by_clock = job.purpose is Purpose.SERVING
    if remaining.basis is Basis.TRAINING and allocation is not None and not ends_by_clock:
        assert state.cluster is not None
        most = speeds.per_s.shape[1] - 1
        parts = gpus_by_type(allocation, state.cluster).items()
        pace = sum(float(speeds.per_s[kind, min(gpus, most)]) for kind, gpus in parts)
        remaining = replace(remaining, left_s=remaining.left_s * pace)
    after = tuple(
        earlier
        for name in names_of(record)
        for earlier in state.relations.jobs_of(name)
        if earlier in state.jobs and not state.jobs[earlier].has_ended and not record.attempt
    )
    from_s = max(record.not_before_s, record.job.submitted_s, held_until_s)
    if allocation is not None:  # whatever it waited for, it is there: it cannot end before it comes
        after, from_s = (), min(from_s, now_s)
        job = _coming(job, now_s) if job.submitted_s > now_s else job
    return ForkedJob(
        job=job,
        name=record.spec.name,
        accounting=replace(  # as policies are told
            record.accounting,
            on_type_s=dict(record.accounting.on_type_s),
            starts=max(record.accounting.starts, record.attempt),
            largest_held=largest_known_gpus(record),
        ),
        remaining=remaining,
        whole_s=max(stated_duration(record)[0], remaining.left_s),
        stated_s=stated_duration(record)[0],
        had_s=attained_gpu_s(record, now_s) / job.gpus,
        speeds=speeds,
        held=allocation,
        from_s=from_s,
        after=after,
    )


def _speeds(
    records: Sequence[JobRecord], state: State, cluster: Cluster, now_s: float
) -> list[MeasuredSpeeds]:
    """What is believed of every job: supposed, or as measured, where the two agree on what was asked for."""
    tables = [
        prior_table(record, cluster)
        if record.job.purpose is not Purpose.SERVING
        else speed_table(speed_evidence_of(record, cluster), cluster).speeds
        for record in records
    ]
    measured = [
        row
        for row, record in enumerate(records)
        if known_points(record) and record.job.purpose is not Purpose.SERVING
    ]
    if not measured or cluster is not state.cluster:
        return tables
    snapshot = SnapshotBuilder(frozenset({View.GOODPUT_MODEL})).observe(state, now_s, frozenset())
    position = {name: row for row, name in enumerate(snapshot.jobs.ids)}
    choices = powers_and_whole_nodes(cluster)
    speeds = OnlineGoodput().estimate(snapshot, choices)
    for row in measured:
        place = position.get(records[row].job.id)
        if place is not None:
            tables[row] = _believed(
                speeds.per_s[place], choices.kind, choices.gpus, tables[row], records[row]
            )
    return tables


def _believed(
    per_s: FloatArray,
    kind: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    gpus: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    prior: MeasuredSpeeds,
    record: JobRecord,
) -> MeasuredSpeeds:
    """Goodput at some sizes as a table of all sizes; the type that is known best is as fast as supposed."""
    table = prior.per_s.copy()
    counts = np.arange(table.shape[1])
    reported_type = int((record.learned.points or known_points(record))[-1][0])
    rows: dict[int, FloatArray] = {}
    for type_index in range(len(table)):
        mine = (kind == type_index) & np.isfinite(per_s) & (per_s > 0)
        if mine.any():
            rows[type_index] = np.interp(counts, np.append(0, gpus[mine]), np.append(0.0, per_s[mine]))
    gpus_asked = min(record.job.gpus, table.shape[1] - 1)
    if reported_type not in rows or not rows[reported_type][gpus_asked] > 0:
        return prior
    scale = table[reported_type, gpus_asked] / rows[reported_type][gpus_asked]
    for type_index, row in rows.items():
        table[type_index] = row * scale
    return MeasuredSpeeds(frozen(table), frozen(table))


def _assumptions(members: Sequence[ForkedJob], unmeasured: int) -> tuple[str, ...]:
    assumptions = []
    counts = {basis: sum(member.remaining.basis is basis for member in members) for basis in Basis}
    words = {
        Basis.TRAINING: "by what the training reports",
        Basis.EXPECTED: "by the expected_time of the owner",
        Basis.LIMIT: "by its max_time, since nobody has said how long it takes",
        Basis.ASSUMED: "an hour on what it asked for, since nobody has said",
    }
    for basis, count in counts.items():
        if count:
            assumptions.append(f"what is left of {count} job{'s' * (count != 1)}: {words[basis]}")
    if unmeasured:
        assumptions.append(
            f"speed of {unmeasured} job{'s' * (unmeasured != 1)}, which nobody has measured: "
            "nine tenths of each doubling of GPUs is gained"
        )
    assumptions.append(f"a restart takes {RESTART_S:g} s, a change of size {SWITCH_S:g} s; nobody else comes")
    return tuple(assumptions)


# ── the world ─────────────────────────────────────────────────────────────────────────────────────


def factors(fork: Fork, seed: int) -> FloatArray:
    """(members,) what is left over what is believed. Draw 0 is the middle of what is likely.

    Where enough jobs have ended of which the same was believed, it is drawn from what became of those. Else
    it spreads as was chosen.
    """
    count, draw = len(fork.members), np.random.default_rng([seed, 17])
    spread = np.array([SPREAD[member.remaining.basis] for member in fork.members])
    ratios = np.exp(spread * draw.normal(size=count)) if seed else np.ones(count)
    chance = draw.uniform(size=count) if seed else np.full(count, 0.5)
    for basis, errors in fork.errors.items():
        rows = np.flatnonzero([member.remaining.basis is basis for member in fork.members])
        if rows.size:
            of_basis = [fork.members[row] for row in rows.tolist()]
            stated_s, had_s, left_s = np.array(
                [(member.stated_s, member.had_s, member.remaining.left_s) for member in of_basis]
            ).T
            ratios[rows] = left_after(stated_s, had_s, errors, chance[rows]) / left_s
    return ratios


def world_of(
    fork: Fork, seed: int = 0, from_s: Mapping[str, float] | None = None
) -> tuple[SimulatedWorld, Scheduler]:
    """The fork ready to go on, and its scheduler. Draw `seed` of what is left; 0: as believed.

    from_s: when jobs that wait for others may start, by id; one that is not there does not come.
    """
    scheduler = scheduler_of(fork.configured)
    policy, starts = scheduler.policy, from_s or {}
    drawn = factors(fork, seed)
    rows = sorted(
        (
            (max(starts.get(member.job.id, member.from_s), 0.0), number)
            for number, member in enumerate(fork.members)
            if not member.after or member.job.id in starts
        ),
    )
    members = [fork.members[number] for _, number in rows]
    # What may start later is submitted later, which is all that a simulated world knows of it.
    jobs = [
        _coming(member.job, at_s) if at_s > fork.now_s else member.job
        for member, (at_s, _) in zip(members, rows, strict=True)
    ]
    factor = np.array([drawn[number] for _, number in rows])
    tables = [member.speeds for member in members]
    allocations = {member.job.id: member.held for member in members if member.held is not None}
    view = less_foreign_use(no_placement(fork.cluster).changed(allocations), fork.constraints.others)
    cluster = view.shown
    requests, fair = Requests(jobs, cluster), fork.constraints.fair_share
    whole_s, left_s = (
        np.array([(member.whole_s, member.remaining.left_s) for member in members]).reshape(-1, 2).T
    )
    paces = [
        _by_the_clock(member.speeds) if member.job.purpose is Purpose.SERVING else member.speeds
        for member in members
    ]
    recorded = RecordedRuns(whole_s * factor, cluster, paces, first_left_s=left_s * factor)
    world = SimulatedWorld(
        cluster,
        Physics(requests, {}, recorded, tables, SIM, seed),
        _triggers(scheduler),
        policy.views,
        SIM,
        fork.configured.seed,
        charging=None if fair is None else Charging(jobs, cluster, fair, fork.usage.released(fork.now_s)),
        ended_jobs=fork.ended_jobs,
    )
    had = [_had(member, fork.now_s) for member in members]
    world.resume(fork.now_s, view.usable(fork.usable), view.to_shown(view.placement), had, fork.memory)
    return world, scheduler


def _by_the_clock(speeds: MeasuredSpeeds) -> MeasuredSpeeds:
    """Of a job that serves until its time is over, whether it keeps its latency or not."""
    flat = frozen(np.ones_like(speeds.per_s))
    return MeasuredSpeeds(flat, flat)


def _coming(job: Job, at_s: float) -> Job:
    late = bool(job.rewards) and job.rewards[0].deadline_s < at_s
    return replace(job, submitted_s=at_s, rewards=() if late else job.rewards)


def _triggers(scheduler: Scheduler) -> Triggers:
    triggers = scheduler.policy.triggers
    on = triggers.on | {Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY}
    round_s = None if triggers.round_s is None else max(triggers.round_s, LEAST_ROUND_S)
    return replace(triggers, on=on, round_s=round_s)


def _had(member: ForkedJob, now_s: float) -> Had:
    """What a job has had so far, and since when it holds what it holds."""
    accounting = member.accounting
    return Had(
        executed_s=accounting.executed_s,
        attained_gpu_s=accounting.attained_gpu_s,
        first_start_s=accounting.first_start_s,
        last_stop_s=accounting.last_stop_s,
        starts=accounting.starts,
        largest_held=accounting.largest_held,
        held_since_s=min(accounting.held_since_s, now_s) if accounting.held_gpus else now_s,
    )
