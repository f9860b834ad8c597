"""Finish-time fairness, against cases that can be worked out on paper."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.clusters import read_cluster
from stretto.lend import CapacityLoaning
from stretto.model import Adaptivity, Cluster, GpuType, InputError, Job, Node, NodeId
from stretto.policies.registry import load_policy
from stretto.sim import metrics
from stretto.sim.fairness import share_of, with_fairness
from stretto.sim.lenders import SimulatedLender
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import FairShare, Fidelity, SimSettings
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Truth, Workload


def fairness_of(
    jobs: list[tuple[Job, Truth]],
    cluster: Cluster,
    policy: str = "fifo",
    fidelity: Fidelity = Fidelity.PAPER,
    **settings: Any,
) -> Result:
    workload = Workload("made", [job for job, _ in jobs], [truth for _, truth in jobs])
    setup = Setup(cluster, load_policy(policy, **settings), SimSettings(fidelity=fidelity))
    return with_fairness(simulate(workload, setup), workload, setup)


def rho(result: Result) -> list[float]:
    assert result.fairness is not None
    return [round(float(one), 6) for one in result.fairness]


def rigid(name: str, gpus: int, duration_s: float, at_s: float = 0.0, **rest: Any) -> tuple[Job, Truth]:
    return a_job(name, gpus, at_s, adaptivity=Adaptivity.RIGID, **rest), Truth(duration_s=duration_s)


FAST_AND_SLOW = Cluster(
    "two types",
    (GpuType("slow", speed=1.0), GpuType("fast", speed=2.0)),
    (Node(NodeId("s0"), "slow", 4), Node(NodeId("s1"), "slow", 2), Node(NodeId("f0"), "fast", 2)),
)


def test_two_that_share_in_space_are_as_well_off_as_alone() -> None:
    # Each has half of the GPUs all the time, which is its share: 100 s / 100 s.
    assert rho(fairness_of([rigid("a", 4, 100), rigid("b", 4, 100)], a_cluster(8))) == [1.0, 1.0]


def test_who_goes_first_gains_and_who_waits_loses() -> None:
    # a has all 4 GPUs for 100 s; its share would be 2 of them, on which it would take 200 s: 100 / 200.
    # b is there for 200 s, with a for half of them: N = 1.5, share 8/3, alone 100 · 4 / (8/3) = 150 s.
    found = fairness_of([rigid("a", 4, 100), rigid("b", 4, 100)], a_cluster(4))
    assert rho(found) == [0.5, round(200 / 150, 6)]
    summary = found.summary()
    assert summary["avg_ftf"] == pytest.approx((0.5 + 4 / 3) / 2)
    assert summary["worst_ftf"] == pytest.approx(4 / 3)
    assert summary["unfair_fraction"] == 0.5


def test_a_job_smaller_than_its_share_gains_nothing_from_the_rest_of_it() -> None:
    assert rho(fairness_of([rigid("a", 2, 100)], a_cluster(8))) == [1.0]


def test_types_count_by_their_gpus() -> None:
    # It runs on the type with most free GPUs, slow: 100 s. Alone on slow 100 s, on fast 50 s.
    assert rho(fairness_of([rigid("a", 1, 100)], FAST_AND_SLOW)) == [round(6 / 8 * 1 + 2 / 8 * 2, 6)]


def test_a_type_too_small_for_the_job_leaves_its_weight_to_the_others() -> None:
    assert rho(fairness_of([rigid("a", 4, 100)], FAST_AND_SLOW)) == [1.0]


def test_a_type_that_the_job_does_not_accept_leaves_its_weight_to_the_others() -> None:
    assert rho(fairness_of([rigid("a", 1, 100, gpu_types=("slow",))], FAST_AND_SLOW)) == [1.0]


def test_a_duration_recorded_on_a_type_is_that_on_this_type() -> None:
    # 100 s on fast are 200 s on slow, where it runs: alone 200 s there, and 100 s on fast.
    job, _ = rigid("a", 1, 0)
    found = fairness_of([(job, Truth(duration_s=100, gpu_type="fast"))], FAST_AND_SLOW)
    assert rho(found) == [round(6 / 8 * 1 + 2 / 8 * 2, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", list(Fidelity))
@pytest.mark.parametrize("at_s", [0.0, 1.0, 37.0, 60.0, 119.5])
@pytest.mark.parametrize("adaptivity", list(Adaptivity))
def test_who_is_alone_is_exactly_as_well_off_as_alone(
    fidelity: Fidelity, at_s: float, adaptivity: Adaptivity
) -> None:
    job = a_job("a", 2, at_s, model="resnet18-cifar10", batch_size=256, adaptivity=adaptivity)
    cluster = share_of(read_cluster("sia-homo-64"), 0, 8)
    found = fairness_of([(job, Truth())], cluster, "sia", fidelity)
    assert rho(found) == [1.0]
    assert found.summary()["unfair_fraction"] == 0.0


def test_a_rigid_job_above_its_share_has_its_gpus_for_a_part_of_the_time() -> None:
    # Under Sia too, where a rigid job cannot be simulated on fewer GPUs than it asks for.
    cluster = a_cluster(4)
    alone_s = 600.0
    found = fairness_of([rigid("a", 4, alone_s), rigid("b", 4, alone_s)], cluster, "sia")
    jct_s = found.completed_s - found.requests.submitted_s
    contention = metrics.contention_over_life(found.requests.submitted_s, found.completed_s)
    assert found.fairness is not None
    assert found.fairness == pytest.approx(jct_s / (alone_s * contention), rel=1e-6)


@pytest.mark.parametrize("fair_share", list(FairShare))
def test_an_adaptive_job_is_simulated_on_the_whole_gpus_around_its_share(fair_share: FairShare) -> None:
    cluster = share_of(read_cluster("sia-homo-64"), 0, 8)
    jobs = [a_job(name, 2, model="resnet18-cifar10", batch_size=256) for name in ("a", "b", "c")]
    workload = Workload("made", jobs, [Truth()] * len(jobs))
    setup = Setup(cluster, load_policy("sia"), SimSettings(fair_share=fair_share))
    found = with_fairness(simulate(workload, setup), workload, setup)
    contention = metrics.contention_over_life(found.requests.submitted_s, found.completed_s)
    ratios = []
    for job, share, jct_s in zip(jobs, 8 / contention, found.completed_s, strict=True):
        fewer, part = int(share), share % 1 if fair_share is FairShare.BETWEEN else 0.0
        on_fewer_s, on_more_s = (
            fairness_alone(job, share_of(cluster, 0, gpus)) for gpus in (fewer, fewer + 1)
        )
        ratios.append(jct_s / ((1 - part) * on_fewer_s + part * on_more_s))
    assert rho(found) == pytest.approx(ratios, rel=1e-5)


def test_a_job_that_is_never_started_on_one_more_has_the_figure_of_its_whole_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy could start it on 3 GPUs and not on 4: a share of 3.7 still has a figure."""
    cluster = share_of(read_cluster("sia-homo-64"), 0, 8)
    jobs = [a_job(name, 2, model="resnet18-cifar10", batch_size=256) for name in ("a", "b", "c")]
    workload = Workload("made", jobs, [Truth()] * len(jobs))
    setup = Setup(cluster, load_policy("sia"), SimSettings(fair_share=FairShare.BETWEEN))
    result = simulate(workload, setup)
    whole = replace(setup, sim=SimSettings(fair_share=FairShare.WHOLE))
    expected = rho(with_fairness(result, workload, whole))
    contention = metrics.contention_over_life(result.requests.submitted_s, result.completed_s)
    refused = {int(share) + 1 for share in 8 / contention} - {int(share) for share in 8 / contention}

    def refuse(alone: Workload, on: Setup) -> Result:
        if on.cluster.total_gpus in refused:
            raise InputError("the policy never starts it")
        return simulate(alone, on)

    monkeypatch.setattr("stretto.sim.fairness.simulate", refuse)
    assert refused
    assert rho(with_fairness(result, workload, setup)) == expected


def fairness_alone(job: Job, cluster: Cluster) -> float:
    setup = Setup(cluster, load_policy("sia"), SimSettings())
    return float(simulate(Workload("alone", [job], [Truth()]), setup).completed_s[0])


def test_the_moment_of_a_round_at_which_a_job_comes_changes_more_than_its_wait() -> None:
    # So alone it must be simulated from that moment on: its age decides when it may grow.
    cluster = share_of(read_cluster("sia-homo-64"), 0, 8)
    setup = Setup(cluster, load_policy("sia"), SimSettings(fidelity=Fidelity.ARTIFACT))
    after_wait_s = []
    for submitted_s, round_s in ((60.0, 60.0), (61.0, 120.0)):
        job = a_job("a", 2, submitted_s, model="resnet18-cifar10", batch_size=256)
        result = simulate(Workload("alone", [job], [Truth()]), setup)
        after_wait_s.append(float(result.completed_s[0]) - round_s)
    assert after_wait_s[0] > 1.25 * after_wait_s[1]


def test_an_unfinished_job_has_no_figure() -> None:
    workload = [rigid("a", 1, 100), rigid("b", 1, 100)]
    jobs = Workload("made", [job for job, _ in workload], [truth for _, truth in workload])
    setup = Setup(a_cluster(4), load_policy("fifo"), SimSettings())
    result = simulate(jobs, setup)
    cut = replace(result, completed_s=np.array([100.0, np.nan]))
    assert np.isnan(with_fairness(cut, jobs, setup).fairness).tolist() == [False, True]  # type: ignore[arg-type]


def test_contention_counts_quiet_hours_as_much_as_busy_minutes() -> None:
    # One job for 1,000 s, and a burst of ten for one second each: 1.01 jobs on average.
    submitted_s = np.array([0.0, *np.full(10, 500.0)])
    completed_s = np.array([1000.0, *np.full(10, 501.0)])
    found = metrics.contention_over_life(submitted_s, completed_s)
    assert found == pytest.approx([1.01, *np.full(10, 11.0)])


def test_contention_is_the_overlap_of_lives_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    submitted_s = np.sort(rng.uniform(0, 1e4, 50))
    completed_s = submitted_s + rng.exponential(500, 50) + 1
    begins = np.maximum(submitted_s[:, None], submitted_s[None, :])
    ends = np.minimum(completed_s[:, None], completed_s[None, :])
    expected = np.maximum(ends - begins, 0).sum(axis=1) / (completed_s - submitted_s)
    assert metrics.contention_over_life(submitted_s, completed_s) == pytest.approx(expected)


def test_shares_come_in_nodes_of_the_usual_size() -> None:
    cluster = read_cluster("sia-hetero-64")
    assert [node.gpus for node in share_of(cluster, 0, 10).nodes] == [4, 4, 2]
    assert [node.gpus for node in share_of(cluster, 1, 7).nodes] == [7]
    assert share_of(cluster, 1, 7).type_names == ("a100",)


def test_a_job_alone_on_its_share_borrows_nothing() -> None:
    nodes = (
        Node(NodeId("n"), "own", 4),
        *(Node(NodeId(f"l{at}"), "lent", 4, lender="them") for at in range(2)),
    )
    cluster = Cluster("shared", (GpuType("own"), GpuType("lent")), nodes)
    jobs = [rigid("a", 2, 600.0)]
    workload = Workload("made", [job for job, _ in jobs], [truth for _, truth in jobs])
    lenders = (SimulatedLender("them", np.array([1, 2]), 0.0, 300.0, np.array([0.5])),)
    policy = load_policy("sia")
    setup = Setup(cluster, policy, SimSettings(), lending=CapacityLoaning(forecast="oracle"), lenders=lenders)
    assert rho(with_fairness(simulate(workload, setup), workload, setup)) == [1.0]
