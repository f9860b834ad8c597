"""What holds in every run, whatever the policy: nothing is given twice, and the accounting balances."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Adaptivity, Cluster, GpuType, Job, Placement, Plan, Policy, Snapshot, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.world import CapacityEvent
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

T4, A100 = GpuType("t4"), GpuType("a100", speed=2.0)
CLUSTERS = (
    cluster_of("two nodes", (T4, 2, 4)),
    cluster_of("mixed", (T4, 2, 2), (A100, 1, 4)),
)
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fifo": {},
    "srtf": {},
    "tiresias": {"queue_bounds_gpu_s": (300.0,)},
    "gavel": {},
    "sia": {},
}
TRAINED = "resnet18-cifar10"  # in the built-in catalogue


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to six jobs that fit any of the clusters; some train, the others are recorded."""
    timed: list[tuple[Job, Truth]] = []
    for number in range(draw(st.integers(1, 6))):
        trains = draw(st.integers(0, 3)) == 0
        job = a_job(
            f"j{number}",
            gpus=draw(st.sampled_from([1, 2, 4])),
            at_s=float(draw(st.integers(0, 400))),
            adaptivity=draw(st.sampled_from([Adaptivity.RIGID, Adaptivity.ADAPTIVE])),
            model=TRAINED if trains else "",
            batch_size=256 if trains else 0,
        )
        timed.append((job, Truth(nan if trains else float(draw(st.integers(1, 900))))))
    timed.sort(key=lambda pair: (pair[0].submitted_s, pair[0].id))
    return Workload("drawn", [job for job, _ in timed], [truth for _, truth in timed])


def ran(
    policy: Policy,
    workload: Workload,
    cluster: Cluster,
    sim: SimSettings,
    events: Sequence[CapacityEvent] = (),
) -> tuple[Result, list[tuple[Snapshot, Plan]]]:
    decisions: list[tuple[Snapshot, Plan]] = []
    setup = Setup(cluster, policy, sim, capacity_events=events)
    result = simulate(workload, setup, record=lambda snapshot, plan: decisions.append((snapshot, plan)))
    return result, decisions


def gpus_held(placement: Placement) -> dict[tuple[int, int], list[str]]:
    """Jobs by (node, GPU)."""
    holders: dict[tuple[int, int], list[str]] = defaultdict(list)
    for job, allocation in placement.items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            assert int(placement.cluster.kind[node]) == allocation.kind
            for gpu in range(mask.bit_length()):
                if mask >> gpu & 1:
                    holders[node, gpu].append(job)
    return holders


def check_placements(decisions: Sequence[tuple[Snapshot, Plan]]) -> None:
    for snapshot, plan in decisions:
        for (node, gpu), jobs in gpus_held(plan.placement).items():
            assert len(jobs) == 1
            assert gpu < snapshot.cluster.node_gpus[node]
            assert snapshot.usable[node]


def check_accounting(result: Result, decisions: Sequence[tuple[Snapshot, Plan]]) -> None:
    """GPU-seconds, time with GPUs and time without, once more from the plans alone."""
    jobs = result.requests.jobs
    row_of = {job.id: row for row, job in enumerate(jobs)}
    gpu_s, held_s = np.zeros(len(jobs)), np.zeros(len(jobs))
    nexts = [snapshot.now_s for snapshot, _ in decisions[1:]] + [np.inf]
    for (snapshot, plan), until_s in zip(decisions, nexts, strict=True):
        for job, allocation in plan.placement.items():
            row = row_of[job]
            lasted_s = min(until_s, float(result.completed_s[row])) - snapshot.now_s
            gpu_s[row] += allocation.gpus * lasted_s
            held_s[row] += lasted_s
    assert result.attained_gpu_s == pytest.approx(gpu_s)
    assert result.executed_s == pytest.approx(held_s)
    assert result.queue_s + result.executed_s == pytest.approx(result.jct_s)
    assert result.queue_s.min() >= 0
    assert (result.first_start_s >= result.requests.submitted_s).all()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=scaled(40), deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS), restart_s=st.sampled_from([0.0, 20.0]))
def test_nothing_is_given_twice_and_the_accounting_balances(
    policy: str, workload: Workload, cluster: Cluster, restart_s: float
) -> None:
    result, decisions = ran(
        load_policy(policy, **POLICIES[policy]), workload, cluster, SimSettings(restart_s=restart_s)
    )
    assert result.done.all()
    check_placements(decisions)
    check_accounting(result, decisions)
    assert result.history.dropped == []


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=scaled(25), deadline=None)
@given(workload=workloads(), at_s=st.integers(0, 500), lasts_s=st.integers(1, 500), node=st.integers(0, 1))
def test_jobs_outlive_a_node_that_goes_and_comes_back(
    policy: str, workload: Workload, at_s: int, lasts_s: int, node: int
) -> None:
    events = (
        CapacityEvent(float(at_s), node, usable=False),
        CapacityEvent(float(at_s + lasts_s), node, usable=True),
    )
    result, decisions = ran(
        load_policy(policy, **POLICIES[policy]), workload, CLUSTERS[0], SimSettings(), events
    )
    assert result.done.all()
    check_placements(decisions)
    gone = [snapshot for snapshot, _ in decisions if at_s <= snapshot.now_s < at_s + lasts_s]
    assert all(not snapshot.usable[node] for snapshot in gone)
    row, start_s, end_s, _, gpus = result.history.columns()
    held = np.bincount(row, gpus * (end_s - start_s), len(workload.jobs))
    assert result.attained_gpu_s == pytest.approx(held)


@settings(max_examples=scaled(40), deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS))
def test_in_the_published_simulators_world_everybody_is_served_at_whole_rounds(
    workload: Workload, cluster: Cluster
) -> None:
    result, decisions = ran(
        load_policy("sia"), workload, cluster, SimSettings(fidelity=Fidelity.ARTIFACT, restart_s=20.0)
    )
    assert result.done.all()
    check_placements(decisions)
    assert {snapshot.now_s % 60.0 for snapshot, _ in decisions} == {0.0}
    assert decisions[0][0].now_s >= 60.0
    assert (result.first_start_s % 60.0 == 0).all()


@settings(max_examples=scaled(40), deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS))
def test_under_fifo_recorded_jobs_run_once_and_for_as_long_as_they_did(
    workload: Workload, cluster: Cluster
) -> None:
    result, _ = ran(load_policy("fifo"), workload, cluster, SimSettings())
    durations = np.array([truth.duration_s for truth in workload.truths])
    recorded = np.isfinite(durations)
    kinds = {one.row: one.kind for one in result.history.held}
    speeds = np.array([cluster.types[kinds[row]].speed for row in range(len(durations))])
    assert result.executed_s[recorded] == pytest.approx((durations / speeds)[recorded])
    assert result.restarts.max() == 0
