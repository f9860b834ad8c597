"""Every interface between a policy and the world, each used by a policy made for nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from stretto.model import (
    ON_CHANGE,
    Adaptivity,
    BadPlan,
    CapacityNotice,
    Cluster,
    Configurations,
    Durations,
    EndedJobs,
    GpuType,
    InputError,
    JobId,
    Learning,
    Node,
    NodeId,
    NotDeclared,
    Pinned,
    Placement,
    Plan,
    Policy,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    Triggers,
    Verb,
    View,
    Why,
    configurations_from,
    digest,
    every,
    ints,
    no_speeds,
)
from stretto.place.registry import load_placer
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.scheduler.loop import run
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress
from stretto.testing.play import play

ANYTHING = frozenset(View)
NAN = np.full(1, np.nan)


@dataclass(frozen=True)
class Dummy:
    """Answers with a function of the snapshot."""

    answer: Callable[[Snapshot, Speeds], Shares]
    asks: Triggers = ON_CHANGE
    columns: Configurations = NO_CONFIGURATIONS

    name: ClassVar[str] = "dummy"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "any"

    @property
    def triggers(self) -> Triggers:
        return self.asks

    def configurations(self, cluster: Cluster) -> Configurations:
        return self.columns

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        return self.answer(snapshot, speeds)


@dataclass(frozen=True)
class Knowing(Dummy):
    """The same with every view."""

    views: ClassVar[frozenset[View]] = ANYTHING


class FlatEstimator:
    """One step per second on anything."""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        nothing = no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), configurations)
        return replace(nothing, per_s=np.ones(nothing.per_s.shape))


class FromShares:
    """Places pinned shares where they are pinned, and the others on node 0 from its first GPU."""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        placement = snapshot.placement.changed(dict.fromkeys(snapshot.placement))
        for row in np.flatnonzero(shares.gpus).tolist():
            pin = shares.pinned.get(row, Pinned((0,), (int(shares.gpus[row]),)))
            free = [int(~placement.busy[node] & ((1 << 16) - 1)) for node in pin.nodes]
            masks = pin.masks or tuple(
                lowest(mask, count) for mask, count in zip(free, pin.gpus, strict=True)
            )
            held = replace(grant(0), nodes=pin.nodes, masks=masks, local_batch=pin.local_batch)
            placement = placement.changed({snapshot.jobs.ids[row]: held})
        return placement


def lowest(mask: int, count: int) -> int:
    bits = [1 << bit for bit in range(16) if mask >> bit & 1]
    return sum(bits[:count])


def give(snapshot: Snapshot, *gpus: int, **rest: Any) -> Shares:
    """Counts by row on the first type; whoever gets none waits for free GPUs."""
    counts = ints(gpus)
    code = np.where(counts > 0, int(Why.RUNS), int(Why.NO_FREE_GPUS))
    kind = rest.pop("kind", np.where(counts > 0, 0, -1))
    return Shares(counts, kind, np.zeros_like(counts), Reasons(code), **rest)


def decided(policy: Policy, snapshot: Snapshot) -> Plan:
    return decide(snapshot, Scheduler(FlatEstimator(), policy, FromShares()))


def placed(policy: Policy, snapshot: Snapshot) -> Plan:
    return decide(snapshot, Scheduler(FlatEstimator(), policy, load_placer("pinned")))


# Triggers


def times_asked(asks: Triggers, wake_after_s: float | None = None, until_s: float = 1e9) -> list[float]:
    """When a policy that gives each job its request is asked, with jobs a (0 to 50 s) and b (20 to 30 s)."""

    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        wake_s = None if wake_after_s is None else snapshot.now_s + wake_after_s
        return give(snapshot, *snapshot.jobs.gpus.tolist(), wake_s=wake_s)

    jobs = [a_job("a"), a_job("b", at_s=20.0)]
    policy = Dummy(answer, asks)
    return [
        at for at, _ in play(policy, {"a": 50.0, "b": 10.0}, jobs, a_cluster(2), until_s=until_s).decisions
    ]


@pytest.mark.parametrize(
    ("asks", "times"),
    [
        pytest.param(ON_CHANGE, [0.0, 20.0, 30.0, 50.0], id="when jobs come and go"),
        pytest.param(Triggers(frozenset({Trigger.ARRIVAL})), [0.0, 20.0], id="at arrivals only"),
        pytest.param(
            Triggers(frozenset({Trigger.ARRIVAL, Trigger.ROUND}), 25.0),
            [0.0, 20.0, 25.0, 50.0],
            id="and rounds",
        ),
    ],
)
def test_a_policy_is_asked_at_the_triggers_that_it_declares(asks: Triggers, times: list[float]) -> None:
    assert times_asked(asks) == times


def test_a_policy_is_asked_at_the_time_that_it_names() -> None:
    assert times_asked(Triggers(frozenset({Trigger.ARRIVAL})), wake_after_s=12.0) == [
        0.0,
        12.0,
        20.0,
        32.0,
        44.0,
    ]


def test_a_plan_carries_the_time_at_which_its_policy_wants_to_be_asked_again() -> None:
    policy = Dummy(lambda snapshot, speeds: give(snapshot, 1, wake_s=snapshot.now_s + 3.0))
    assert decided(policy, a_snapshot(a_job("a"), cluster=a_cluster(1), now_s=7.0)).wake_s == 10.0


@pytest.mark.parametrize("trigger", Trigger)
def test_every_trigger_can_be_declared_and_is_shown_when_it_is_due(trigger: Trigger) -> None:
    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        return give(snapshot, int(trigger in snapshot.due))

    policy = Dummy(answer, every(60.0) if trigger is Trigger.ROUND else Triggers(frozenset({trigger})))
    assert trigger in policy.triggers.on
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(1))
    assert not decided(policy, snapshot).actions
    assert len(decided(policy, replace(snapshot, due=frozenset({trigger}))).actions) == 1


def test_capacity_is_announced_with_its_deadline() -> None:
    def leave_before(snapshot: Snapshot, speeds: Speeds) -> Shares:
        soon = any(not notice.usable and notice.by_s - snapshot.now_s <= 60 for notice in snapshot.notices)
        return give(snapshot, 0 if soon else 1)

    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(1, 1), allocations={"a": grant(0, n0=1)}, now_s=100.0)
    for by_s, verbs in ((500.0, []), (130.0, [Verb.STOP])):
        told = replace(snapshot, notices=(CapacityNotice(0, usable=False, by_s=by_s),))
        assert [action.verb for action in decided(Dummy(leave_before), told).actions] == verbs


# What a policy may know


READS: dict[View, Callable[[Snapshot], object]] = {
    View.PROGRESS: lambda snapshot: snapshot.jobs.progress.attained_gpu_s,
    View.ORACLE_DURATION: lambda snapshot: snapshot.jobs.durations.duration_s,
    View.ESTIMATED_DURATION: lambda snapshot: snapshot.jobs.estimates.remaining_s,
    View.REMAINING_WORK: lambda snapshot: snapshot.jobs.remaining_work,
    View.THROUGHPUT_TABLE: lambda snapshot: snapshot.jobs.tables,
    View.GOODPUT_MODEL: lambda snapshot: snapshot.jobs.evidence,
    View.LEARNING: lambda snapshot: snapshot.jobs.learning.metric,
    View.CPU_DEMAND: lambda snapshot: snapshot.jobs.cpu_demand,
    View.ENDED_JOBS: lambda snapshot: snapshot.jobs.ended.failed,
}


def fully_known() -> Snapshot:
    return a_snapshot(
        a_job("a"),
        cluster=a_cluster(1),
        known_progress=some_progress(1),
        known_learning=Learning(NAN, NAN, NAN, NAN, NAN, [np.zeros(0)]),
        known_cpu_demand=np.array([3.0]),
        known_ended=EndedJobs(),
        known_durations=Durations(np.ones(1), np.ones(1)),
        known_estimates=Durations(np.ones(1), np.ones(1)),
        known_work=np.ones(1),
        known_tables=[],
        known_evidence=[None],
    )


@pytest.mark.parametrize("view", View)
def test_a_view_can_be_read_by_those_who_declare_it_and_by_nobody_else(view: View) -> None:
    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        READS[view](snapshot)
        return give(snapshot, 1)

    assert len(decided(Knowing(answer), fully_known()).actions) == 1
    with pytest.raises(NotDeclared, match=f"reads view '{view.value}', .* must have View.{view.name}"):
        decided(Dummy(answer), fully_known())


def test_speeds_come_in_the_columns_that_the_policy_asks_for() -> None:
    seen: list[Speeds] = []

    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        seen.append(speeds)
        return give(snapshot, 2)

    columns = configurations_from([(1, 2, 0), (2, 4, 0)])
    decided(Dummy(answer, columns=columns), a_snapshot(a_job("a", 2), cluster=a_cluster(2, 2)))
    assert seen[0].configurations is columns
    assert seen[0].per_s.tolist() == [[1.0, 1.0]]


# What a policy hands over


def test_pinned_gpus_with_a_batch_for_each_reach_the_placement() -> None:
    pin = Pinned(nodes=(0, 1), gpus=(1, 2), masks=(0b10, 0b101), local_batch=(32, 16, 16))
    policy = Dummy(lambda snapshot, speeds: give(snapshot, 3, pinned={0: pin}))
    plan = decided(policy, a_snapshot(a_job("a", 3), cluster=a_cluster(4, 4)))
    held = plan.placement[JobId("a")]
    assert (held.nodes, held.masks, held.shape, held.local_batch) == (
        (0, 1),
        (0b10, 0b101),
        (1, 2),
        (32, 16, 16),
    )
    assert [action.verb for action in plan.actions] == [Verb.START]


def test_a_batch_alone_can_change() -> None:
    def pin(*batch: int) -> Dummy:
        where = Pinned((0,), (2,), (0b11,), local_batch=batch)
        return Dummy(lambda snapshot, speeds: give(snapshot, 2, pinned={0: where}))

    first = decided(pin(8, 8), a_snapshot(a_job("a", 2), cluster=a_cluster(2)))
    running = a_snapshot(a_job("a", 2), cluster=a_cluster(2), allocations={"a": first.placement[JobId("a")]})
    assert [action.verb for action in decided(pin(8, 16), running).actions] == [Verb.RETUNE]
    assert not decided(pin(8, 8), running).actions


def test_some_workers_of_a_job_may_be_flexible() -> None:
    def pin(*flexible: int) -> Dummy:
        where = Pinned((0,), (4,), (0b1111,), flexible=flexible)
        return Dummy(lambda snapshot, speeds: give(snapshot, 4, pinned={0: where}))

    first = placed(pin(0b1100), a_snapshot(a_job("a", 4), cluster=a_cluster(4)))
    assert first.placement[JobId("a")].flexible == (0b1100,)
    running = a_snapshot(a_job("a", 4), cluster=a_cluster(4), allocations={"a": first.placement[JobId("a")]})
    assert [action.verb for action in placed(pin(0b1000), running).actions] == [Verb.RETUNE]
    with pytest.raises(BadPlan, match="not among those"):
        placed(pin(0b10000), running)


def test_a_profiling_run_may_take_fewer_gpus_than_a_job_asks_for_and_training_follows_it() -> None:
    rigid = a_job("a", 4, adaptivity=Adaptivity.RIGID)
    profiles = Dummy(lambda snapshot, speeds: give(snapshot, 2, profiling=np.array([True])))
    first = placed(profiles, a_snapshot(rigid, cluster=a_cluster(4)))
    assert first.placement[JobId("a")].profiling
    with pytest.raises(BadPlan, match=r"expected 4$"):
        placed(Dummy(lambda snapshot, speeds: give(snapshot, 2)), a_snapshot(rigid, cluster=a_cluster(4)))
    small = a_job("a", 2)
    held = {"a": first.placement[JobId("a")]}
    trains = placed(
        Dummy(lambda snapshot, speeds: give(snapshot, 2, profiling=np.array([False]))),
        a_snapshot(small, cluster=a_cluster(4), allocations=held),
    )
    assert [action.verb for action in trains.actions] == [Verb.RETUNE]
    assert not trains.placement[JobId("a")].profiling


def test_several_gpus_of_a_lesser_type_stand_in_for_one() -> None:
    types = (GpuType("fast"), GpuType("slow", stand_ins=3))
    nodes = (Node(NodeId("f"), "fast", 4), Node(NodeId("s"), "slow", 8))
    asks_two = a_job("a", 2, adaptivity=Adaptivity.RIGID)
    snapshot = a_snapshot(asks_two, cluster=Cluster("mixed", types, nodes))

    def given(gpus: int, kind: int) -> Plan:
        return placed(Dummy(lambda snapshot, speeds: give(snapshot, gpus, kind=ints([kind]))), snapshot)

    assert given(6, kind=1).placement[JobId("a")].gpus == 6
    with pytest.raises(BadPlan, match="expected 2 to 6"):
        given(7, kind=1)
    with pytest.raises(BadPlan, match=r"expected 2$"):
        given(3, kind=0)


def test_a_job_that_may_mix_types_is_pinned_to_nodes_of_both() -> None:
    nodes = (Node(NodeId("f"), "fast", 2), Node(NodeId("s"), "slow", 2))
    cluster = Cluster("mixed", (GpuType("fast"), GpuType("slow")), nodes)
    both = Dummy(
        lambda snapshot, speeds: give(snapshot, 4, kind=ints([-1]), pinned={0: Pinned((0, 1), (2, 2))})
    )
    mixing = a_job("a", 4, adaptivity=Adaptivity.RIGID, heterogeneous=True)
    assert placed(both, a_snapshot(mixing, cluster=cluster)).placement[JobId("a")].nodes == (0, 1)
    with pytest.raises(BadPlan, match="expected one type"):
        placed(both, a_snapshot(a_job("a", 4), cluster=cluster))


def test_reasons_and_prices_reach_the_plan_with_the_jobs_that_they_speak_of() -> None:
    code, evidence = ints([Why.RUNS, Why.TOO_LARGE]), {1: "asks 9 GPUs, 1 there is"}

    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        return replace(give(snapshot, 1, 0, prices=np.array([2.5]), gap=0.01), why=Reasons(code, evidence))

    plan = decided(Dummy(answer), a_snapshot(a_job("a"), a_job("b", 9), cluster=a_cluster(1)))
    assert (plan.jobs.ids, plan.why.of(1), plan.why.evidence[1]) == (("a", "b"), Why.TOO_LARGE, evidence[1])
    assert plan.why.of(1) < 0 <= Why.NO_FREE_GPUS  # never, and not yet
    assert plan.prices is not None
    assert (plan.prices.tolist(), plan.gap) == ([2.5], 0.01)


@pytest.mark.parametrize(
    ("gpus", "message"),
    [((3,), "gives job . 3 GPUs, expected 1 to 2"), ((1, 1), "shares have 2 rows, expected 1")],
)
def test_shares_outside_what_a_job_may_have_are_a_bad_plan(gpus: tuple[int, ...], message: str) -> None:
    snapshot = a_snapshot(a_job("a", 2, max_gpus=2), cluster=a_cluster(4))
    with pytest.raises(BadPlan, match=message):
        decided(Dummy(lambda snapshot, speeds: give(snapshot, *gpus)), snapshot)


# What is remembered


@dataclass(frozen=True)
class Turns:
    """A memory as a frozen dataclass."""

    taken: tuple[tuple[JobId, int], ...]
    weights: np.ndarray[Any, np.dtype[np.float64]]


def test_memory_travels_as_a_value_and_replays() -> None:
    def answer(snapshot: Snapshot, speeds: Speeds) -> Shares:
        before = snapshot.memory or Turns((), np.zeros(1))
        taken = (*before.taken, (snapshot.jobs.ids[0], len(before.taken)))
        return give(snapshot, len(taken) % 2, memory=Turns(taken, before.weights + 0.5))

    class World:
        """Hands every plan's memory back in the next snapshot, three times."""

        def __init__(self) -> None:
            self.snapshot = a_snapshot(a_job("a"), cluster=a_cluster(1))
            self.rounds = 0

        def wait(self) -> bool:
            self.rounds += 1
            return self.rounds <= 3

        def observe(self) -> Snapshot:
            return self.snapshot

        def act(self, plan: Plan) -> None:
            held = {str(job): given for job, given in plan.placement.items()}
            self.snapshot = a_snapshot(a_job("a"), cluster=a_cluster(1), allocations=held, memory=plan.memory)

    recorded: list[tuple[Snapshot, Plan]] = []
    scheduler = Scheduler(FlatEstimator(), Dummy(answer), FromShares())
    run(World(), scheduler, lambda snapshot, plan: recorded.append((snapshot, plan)))

    assert [len(plan.memory.taken) for _, plan in recorded] == [1, 2, 3]
    verbs = [[action.verb for action in plan.actions] for _, plan in recorded]
    assert verbs == [[Verb.START], [Verb.STOP], [Verb.START]]
    for snapshot, plan in recorded:  # any past decision replays from its snapshot, in any order
        assert digest(decide(snapshot, scheduler).memory) == digest(plan.memory)
    assert len({digest(plan.memory) for _, plan in recorded}) == 3


def test_equal_memories_have_equal_digests_and_what_is_no_value_has_none() -> None:
    assert digest({"b": 1, "a": (2.0, None)}) == digest({"a": (2.0, None), "b": 1})
    assert digest(np.arange(3)) != digest(np.arange(3.0))
    with pytest.raises(TypeError, match="a memory holds values only, got function"):
        digest(lambda: None)


def test_input_errors_are_of_one_family() -> None:
    with pytest.raises(InputError, match="gpus must be >= 1, got 0"):
        a_job("a", 0)
