"""Nodes whose GPUs are no power of two, and jobs that ask for exactly so many: end to end, by both policies.

Sia and Stretto choose with the same program, which counts a node of 6 GPUs as virtual nodes of 4 and 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import (
    NO_CONSTRAINTS,
    Adaptivity,
    Allocation,
    Cluster,
    Configurations,
    Constraints,
    Durations,
    GpuType,
    Job,
    JobId,
    Plan,
    Promise,
    Reward,
    Snapshot,
    Speeds,
    Why,
    cluster_of,
    lowest_gpus,
)
from stretto.place import load_placer
from stretto.policies import load_policy
from stretto.policies.stretto.policy import Stretto
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import (
    a_cluster,
    a_job,
    a_snapshot,
    grant,
    nothing_shown,
    some_progress,
    speeds_of,
)

NOW_S = 10_000.0
SIZES = (3, 5, 6, 7, 10, 12)
RIGID: Mapping[str, Any] = {"adaptivity": Adaptivity.RIGID}
POLICIES = pytest.mark.parametrize("policy", ["stretto", "sia"])


@dataclass(frozen=True)
class Linear:
    """Every job does one step in a second on each GPU, as far as anything is known of it."""

    replica_gpus: int = 1
    unknown: frozenset[str] = frozenset()
    exponent: float = 1.0  # of the number of GPUs, by which speed grows

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        jobs, types = snapshot.jobs, len(snapshot.cluster.types)
        per_s = np.tile(configurations.gpus.astype(float) ** self.exponent, (len(jobs), 1))
        on_request = np.tile(jobs.gpus[:, None].astype(float) ** self.exponent, (1, types))
        is_unknown = [job in self.unknown for job in jobs.ids]
        per_s[is_unknown], on_request[is_unknown] = np.nan, np.nan
        replica_gpus = np.full((len(jobs), types), self.replica_gpus)
        return speeds_of(configurations, per_s, types, requested_per_s=on_request, replica_gpus=replica_gpus)


def snapshot_of(
    jobs: Sequence[Job],
    cluster: Cluster,
    held: Mapping[str, Allocation] | None = None,
    constraints: Constraints = NO_CONSTRAINTS,
    left: float = 1e5,
    **progress: Any,
) -> Snapshot:
    types, count = len(cluster.types), len(jobs)
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=NOW_S,
        known_progress=some_progress(count, **progress),
        known_evidence=nothing_shown(count, types),
        known_work=np.full(count, left),
        known_estimates=Durations(np.full(count, np.nan), np.full(count, np.nan)),
    )
    return replace(snapshot, constraints=constraints)


def plan_for(policy: str, snapshot: Snapshot, estimator: Linear | None = None) -> Plan:
    return decide(snapshot, Scheduler(estimator or Linear(), load_policy(policy), load_placer("whole-nodes")))


def gpus_of(plan: Plan) -> dict[str, int]:
    return {job: allocation.gpus for job, allocation in plan.placement.items()}


def actions_of(plan: Plan) -> list[tuple[str, str]]:
    return [(action.verb.value, action.job) for action in plan.actions]


def on(first: int, gpus: int, node: int = 0) -> Allocation:
    """So many GPUs of a node, from one of them on."""
    return Allocation(0, (node,), (((1 << gpus) - 1) << first,))


# ── exact requests that wait ────────────────────────────────────────────────────────────────────────────────


@POLICIES
@pytest.mark.parametrize("size", SIZES)
def test_a_rigid_job_gets_a_whole_idle_node_of_any_size(policy: str, size: int) -> None:
    plan = plan_for(policy, snapshot_of([a_job("1", size, **RIGID)], a_cluster(size)))
    assert gpus_of(plan) == {"1": size}


@POLICIES
@pytest.mark.parametrize(("node", "gpus"), [(6, 5), (7, 5), (7, 6), (10, 9), (12, 9), (12, 10), (12, 11)])
def test_a_rigid_job_gets_more_than_the_largest_virtual_node(policy: str, node: int, gpus: int) -> None:
    plan = plan_for(policy, snapshot_of([a_job("1", gpus, **RIGID)], a_cluster(node)))
    assert gpus_of(plan) == {"1": gpus}


@POLICIES
@pytest.mark.parametrize(("nodes", "gpus"), [((6, 6), 12), ((3, 3), 6), ((12, 12), 20), ((6, 6, 6), 14)])
def test_a_rigid_job_gets_several_nodes_of_any_size(policy: str, nodes: tuple[int, ...], gpus: int) -> None:
    plan = plan_for(policy, snapshot_of([a_job("1", gpus, **RIGID)], a_cluster(*nodes)))
    assert gpus_of(plan) == {"1": gpus}


@POLICIES
def test_two_nodes_of_three_take_two_rigid_jobs_of_three(policy: str) -> None:
    jobs = [a_job("1", 3, **RIGID), a_job("2", 3, **RIGID)]
    assert gpus_of(plan_for(policy, snapshot_of(jobs, a_cluster(3, 3)))) == {"1": 3, "2": 3}


@POLICIES
@pytest.mark.parametrize("size", SIZES)
def test_a_job_without_a_choice_and_one_that_may_not_be_stopped_start_on_such_a_node(
    policy: str, size: int
) -> None:
    one_size = a_job("1", size, min_gpus=size, max_gpus=size)
    assert gpus_of(plan_for(policy, snapshot_of([one_size], a_cluster(size)))) == {"1": size}
    bound = a_job("1", size, min_gpus=1, max_gpus=size, preemptible=False)
    assert gpus_of(plan_for(policy, snapshot_of([bound], a_cluster(size)))) == {"1": size}


@POLICIES
def test_other_nodes_are_split_as_before(policy: str) -> None:
    # Three nodes of 6 beside that of the rigid job: of exactly 4 GPUs only three have room.
    jobs = [a_job("1", 6, **RIGID), *(a_job(name, 4, at_s=1.0, **RIGID) for name in "2345")]
    plan = plan_for(policy, snapshot_of(jobs, a_cluster(6, 6, 6, 6), held={"1": on(0, 6)}))
    assert gpus_of(plan).get("1") == 6
    assert sum(gpus == 4 for gpus in gpus_of(plan).values()) == 3
    assert Why.FRAGMENTED not in plan.why.code


@POLICIES
def test_what_no_nodes_can_hold_together_waits_and_takes_nothing_from_others(policy: str) -> None:
    # 12 GPUs there are, but no way to place 8 and 4 of them.
    jobs = [a_job("1", 12, **RIGID), a_job("2", 3, at_s=1.0, **RIGID)]
    plan = plan_for(policy, snapshot_of(jobs, a_cluster(6, 3, 3)))
    assert gpus_of(plan) == {"2": 3}
    assert plan.why.code[0] == Why.NO_FREE_GPUS


# ── jobs that run ───────────────────────────────────────────────────────────────────────────────────────────


@POLICIES
@pytest.mark.parametrize("preemptible", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_job_that_holds_a_whole_node_keeps_it(policy: str, size: int, preemptible: bool) -> None:
    job = a_job("1", size, preemptible=preemptible, **RIGID)
    plan = plan_for(policy, snapshot_of([job], a_cluster(size), held={"1": on(0, size)}))
    assert not plan.actions


def test_a_job_that_may_not_be_stopped_keeps_a_node_of_three() -> None:
    jobs = [a_job("1", 3, preemptible=False, **RIGID), a_job("2", 2, at_s=1.0, max_gpus=4)]
    plan = plan_for("stretto", snapshot_of(jobs, a_cluster(3), held={"1": on(0, 3)}))
    assert gpus_of(plan) == {"1": 3}
    assert plan.why.code.tolist() == [Why.RUNS, Why.NO_FREE_GPUS]


@POLICIES
@pytest.mark.parametrize("preemptible", [False, True])
def test_a_job_of_high_priority_is_not_stopped_beside_a_lower_one(policy: str, preemptible: bool) -> None:
    high = a_job("high", 5, at_s=1.0, priority=1, preemptible=preemptible, **RIGID)
    low = a_job("low", 3, at_s=2.0, **RIGID)
    held = {"high": on(0, 5), "low": on(5, 3)}
    assert not plan_for(policy, snapshot_of([high, low], a_cluster(8), held=held)).actions


@POLICIES
def test_a_job_of_high_priority_starts_beside_a_lower_one_that_may_not_be_stopped(policy: str) -> None:
    high = a_job("high", 2, at_s=1.0, priority=1, **RIGID)
    low = a_job("low", 6, at_s=2.0, preemptible=False, **RIGID)
    plan = plan_for(policy, snapshot_of([high, low], a_cluster(8), held={"low": on(0, 6)}))
    assert actions_of(plan) == [("start", "high")]


@POLICIES
def test_a_job_keeps_what_it_has_beside_gpus_of_others(policy: str) -> None:
    job = a_job("1", 3, preemptible=False, **RIGID)
    constraints = Constraints(others={0: 5})
    snapshot = snapshot_of([job], a_cluster(8), held={"1": on(0, 3)}, constraints=constraints)
    assert not plan_for(policy, snapshot).actions


@POLICIES
def test_jobs_that_stay_count_on_the_nodes_where_they_are(policy: str) -> None:
    # The one that stays on the node of 4 leaves that of 8 free, whatever was counted first.
    stays = a_job("1", 4, preemptible=False, **RIGID)
    waits = a_job("2", 8, at_s=1.0, **RIGID)
    plan = plan_for(policy, snapshot_of([stays, waits], a_cluster(8, 4), held={"1": on(0, 4, node=1)}))
    assert gpus_of(plan) == {"1": 4, "2": 8}


@POLICIES
def test_the_rest_of_a_node_beside_what_stays_is_used(policy: str) -> None:
    jobs = [a_job("1", 5, preemptible=False, **RIGID), a_job("2", 7, at_s=1.0, **RIGID)]
    plan = plan_for(policy, snapshot_of(jobs, a_cluster(12), held={"1": on(0, 5)}))
    assert gpus_of(plan) == {"1": 5, "2": 7}


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Some nodes of odd sizes; jobs that hold some of their GPUs, or wait."""
    sizes = draw(st.lists(st.sampled_from((*SIZES, 2, 4, 8)), min_size=1, max_size=4))
    cluster, busy = a_cluster(*sizes), [0] * len(sizes)
    jobs, held = [], {}
    for number in range(draw(st.integers(1, 6))):
        name, gpus, preemptible = str(number), draw(st.integers(1, 12)), draw(st.booleans())
        rest = RIGID if draw(st.booleans()) else {"min_gpus": 1, "max_gpus": gpus}
        jobs.append(a_job(name, gpus, at_s=float(number), preemptible=preemptible, **rest))
        room = [node for node, size in enumerate(sizes) if size - busy[node].bit_count() >= gpus]
        if draw(st.booleans()) and room:
            node = draw(st.sampled_from(room))
            mask = lowest_gpus(((1 << sizes[node]) - 1) & ~busy[node], gpus)
            busy[node] |= mask
            held[name] = Allocation(0, (node,), (mask,))
    return snapshot_of(jobs, cluster, held)


@POLICIES
@settings(max_examples=scaled(150), deadline=None)
@given(snapshot=worlds())
def test_what_may_not_be_stopped_keeps_exactly_what_it_has(policy: str, snapshot: Snapshot) -> None:
    plan = plan_for(policy, snapshot)
    for row, job in enumerate(snapshot.jobs.ids):
        before = snapshot.placement.get(job)
        if before is not None and not snapshot.jobs.preemptible[row]:
            assert plan.placement.get(job) == before


@POLICIES
@settings(max_examples=scaled(100), deadline=None)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    which=st.integers(0, 3),
    missing=st.integers(0, 2),
)
def test_a_rigid_job_alone_runs_wherever_it_fits_a_node(
    policy: str, sizes: list[int], which: int, missing: int
) -> None:
    gpus = max(sizes[which % len(sizes)] - missing, 1)
    plan = plan_for(policy, snapshot_of([a_job("1", gpus, **RIGID)], a_cluster(*sizes)))
    assert gpus_of(plan) == {"1": gpus}


# ── workers of several GPUs ─────────────────────────────────────────────────────────────────────────────────


@POLICIES
@pytest.mark.parametrize("worker", [3, 5, 6, 7])
@pytest.mark.parametrize("nodes", [(8,), (8, 8, 8, 8)])
def test_an_elastic_job_of_large_workers_runs_on_whole_ones(
    policy: str, worker: int, nodes: tuple[int, ...]
) -> None:
    job = a_job("1", worker, min_gpus=worker, max_gpus=8 * worker, gpus_per_worker=worker)
    plan = plan_for(policy, snapshot_of([job], a_cluster(*nodes)), Linear(replica_gpus=worker))
    gpus = gpus_of(plan)["1"]
    assert gpus >= worker
    assert gpus % worker == 0


@POLICIES
def test_an_elastic_job_goes_on_with_its_one_worker_of_three(policy: str) -> None:
    job = a_job("1", 3, min_gpus=3, max_gpus=6, gpus_per_worker=3)
    snapshot = snapshot_of(
        [job], a_cluster(8), held={"1": on(0, 3)}, constraints=Constraints(whole_workers=True)
    )
    assert not plan_for(policy, snapshot, Linear(replica_gpus=3)).actions


@POLICIES
def test_a_job_without_a_choice_gets_as_many_whole_replicas_as_it_asks_for(policy: str) -> None:
    job = a_job("1", 7, min_gpus=3, max_gpus=7)
    assert gpus_of(plan_for(policy, snapshot_of([job], a_cluster(8)), Linear(replica_gpus=3))) == {"1": 6}


# ── speeds on other GPUs than were asked for ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rest", "held"),
    [
        pytest.param({"reserved": (1, 2, "gpu")}, {}, id="reserved"),
        pytest.param({"preemptible": False}, {"1": on(0, 2)}, id="not to be stopped"),
    ],
)
def test_a_deadline_is_promised_by_the_speed_on_the_gpus_that_are_kept(
    rest: dict[str, Any], held: dict[str, Allocation]
) -> None:
    # 8,000 steps take 1,000 s on the 8 GPUs asked for and 4,000 s on the 2 that it has.
    job = a_job(
        "1", 8, at_s=NOW_S - 1, min_gpus=1, max_gpus=8, rewards=(Reward(NOW_S + 1_500, 100.0),), **rest
    )
    policy, snapshot = Stretto(promised_share=1.0), snapshot_of([job], a_cluster(8), held, left=8_000.0)
    speeds = Linear().estimate(snapshot, policy.configurations(snapshot.cluster))
    outlook = policy.outlook(snapshot, speeds, JobId("1"))
    assert outlook.promise is Promise.NO
    assert outlook.end_s >= NOW_S + 4_000


def test_speed_on_a_number_that_is_no_configuration_is_in_proportion() -> None:
    job = a_job("1", 8, at_s=NOW_S - 1, min_gpus=1, max_gpus=8, preemptible=False)
    policy, snapshot = Stretto(), snapshot_of([job], a_cluster(8), {"1": on(0, 3)}, left=9_000.0)
    for exponent, seconds in ((1.0, 3_000.0), (0.5, 9_000.0 / (8**0.5 * 3 / 8))):
        speeds = Linear(exponent=exponent).estimate(snapshot, policy.configurations(snapshot.cluster))
        ends_s = policy.outlook(snapshot, speeds, JobId("1")).end_s
        assert ends_s == pytest.approx(NOW_S + seconds * 1.1)  # its doubt


@pytest.mark.parametrize("size", [4, 6])
def test_sia_serves_a_reserved_job_of_unknown_speed_beside_others(size: int) -> None:
    jobs = [
        a_job("1", 4, min_gpus=1, max_gpus=4, reserved=(1, 2, "gpu")),
        a_job("2", 2, at_s=1.0, min_gpus=1, max_gpus=4),
    ]
    plan = plan_for("sia", snapshot_of(jobs, a_cluster(size)), Linear(unknown=frozenset({"1"})))
    assert gpus_of(plan) == {"1": 2, "2": 1}


def test_two_types_of_odd_nodes_are_told_apart() -> None:
    cluster = cluster_of("two", (GpuType("A"), 1, 6), (GpuType("B"), 2, 3))
    jobs = [a_job("1", 6, gpu_types=("B",), **RIGID), a_job("2", 6, at_s=1.0, **RIGID)]
    plan = plan_for("stretto", snapshot_of(jobs, cluster))
    assert {job: allocation.kind for job, allocation in plan.placement.items()} == {"1": 1, "2": 0}
    running = {"1": grant(1, n1=3, n2=3), "2": grant(0, n0=6)}
    assert not plan_for("stretto", snapshot_of(jobs, cluster, held=running)).actions
