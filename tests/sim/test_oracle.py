"""What an oracle is shown, and that it helps."""

from math import nan

import numpy as np
import pytest

from stretto.estimate.estimators import OnlineGoodput
from stretto.estimate.throughput import ThroughputModel
from stretto.model import NOTHING_OBSERVED, GpuType, Policy, Snapshot, cluster_of, powers_and_whole_nodes
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate, world_of
from stretto.sim.settings import Profiling, SimSettings
from stretto.sim.truth.parametric import parametric_truth
from stretto.sim.truth.training import TrainingRun, true_observations
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

from .made_worlds import a_truth

T4, A100 = GpuType("t4"), GpuType("a100")
MIXED = cluster_of("mixed", (T4, 4, 4), (A100, 1, 8))
SYNCING = ThroughputModel(0.02, 0.004, 0.08, 0.004, 0.02, 0.002, 1.5)


def test_the_truth_is_shown_on_every_type_within_nodes_and_across() -> None:
    truth = parametric_truth("resnet18-cifar10", MIXED)
    t4, a100 = true_observations(truth, MIXED)
    assert {(point.nodes, point.gpus) for point in t4.points} == {
        (1, 1), (1, 2), (1, 4), (2, 8), (4, 16),
    }  # fmt: skip
    assert {(point.nodes, point.gpus) for point in a100.points} == {(1, 1), (1, 2), (1, 4), (1, 8)}
    for point in t4.points:
        step_s, sync_s = truth.step(0, (point.gpus // point.nodes,) * point.nodes, point.local_batch)
        assert (point.step_s, point.grad_s) == (step_s, step_s - sync_s)
        assert 32 <= point.local_batch <= truth.limits.max_local[0]


def test_of_a_type_on_which_it_does_not_run_nothing_is_shown() -> None:
    truth = a_truth(types=2, max_local=np.array([10, 0]))
    assert true_observations(truth, MIXED)[1] == NOTHING_OBSERVED


def test_replicas_of_several_gpus_are_shown_whole() -> None:
    truth = a_truth(types=2, max_batch=64, replica_gpus=np.array([2, 8]))
    t4, a100 = true_observations(truth, MIXED)
    assert {(point.nodes, point.gpus) for point in t4.points} == {(1, 1), (1, 2), (2, 4), (4, 8)}
    assert {(point.nodes, point.gpus) for point in a100.points} == {(1, 1)}


def test_no_more_gpus_are_shown_than_the_largest_batch_can_keep_busy() -> None:
    truth = a_truth(types=2, max_batch=64, min_local=np.full(2, 16), max_local=np.full(2, 32))
    assert max(point.gpus for point in true_observations(truth, MIXED)[0].points) == 4


def test_what_was_foreseen_stays_and_nothing_is_measured_on_top() -> None:
    truth = a_truth(params=SYNCING, types=2, restart_s=0.0)
    foreseen = true_observations(truth, MIXED)
    run = TrainingRun(truth, truth.limits, 10, SimSettings(profiling=Profiling.ORACLE), foreseen)
    assert run.evidence is not None
    assert run.evidence.observed is foreseen
    assert run.evidence.grad_sqr == 1.0  # and how noisy its gradients are
    run.give(0, (3,), moved=True, now_s=0.0)
    run.advance(5.0)
    assert run.evidence.observed is foreseen


def first_snapshot(policy: Policy, mode: str) -> Snapshot:
    jobs = [a_job("a", model="resnet18-cifar10")]
    setup = Setup(MIXED, policy, SimSettings(), estimate_settings={"mode": mode})
    world = world_of(Workload("one", jobs, [Truth(nan)]), setup)
    assert world.wait()
    return world.observe()


def test_an_oracle_knows_the_true_goodput_of_a_job_that_never_ran() -> None:
    """The truth is the very formula that is fitted, so that the fit finds it."""
    policy = load_policy("sia")
    columns = powers_and_whole_nodes(MIXED)
    speeds = OnlineGoodput(mode="oracle").estimate(first_snapshot(policy, "oracle"), columns)  # type: ignore[arg-type]
    assert speeds.modelled.all()
    truth = parametric_truth("resnet18-cifar10", MIXED)
    batch, scale = 4 * 64, 4 * 64 / 128
    gain = (truth.noise[0] + 1) / (truth.noise[0] / scale + 1)
    on_four_t4 = gain / truth.step(0, (4,), batch // 4)[0]
    assert speeds.per_s[0, columns.index(1, 4, 0)] >= 0.97 * on_four_t4  # the best batch is no worse
    believed = OnlineGoodput().estimate(first_snapshot(policy, "bootstrap"), columns)
    assert not believed.modelled.any()


def test_an_oracles_jobs_start_on_one_gpu_and_double_like_all_others() -> None:
    held: list[int] = []
    jobs = [a_job("a", model="resnet18-cifar10")]
    setup = Setup(MIXED, load_policy("sia"), SimSettings(), estimate_settings={"mode": "oracle"})
    simulate(
        Workload("one", jobs, [Truth(nan)]),
        setup,
        record=lambda snapshot, plan: held.extend(one.gpus for one in plan.placement.values()),
    )
    assert held[0] == 1
    assert all(later <= 2 * max(held[: at + 1]) for at, later in enumerate(held[1:]))
    assert max(held) > 2


def a_mix_of_models(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    models = ["resnet18-cifar10", "bert-short", "lstm-wikitext2", "deepspeech2"]
    jobs = [
        a_job(f"j{number:02}", model=str(rng.choice(models)), at_s=float(at_s))
        for number, at_s in enumerate(np.sort(rng.uniform(0, 3600, 16)))
    ]
    return Workload("made", jobs, [Truth(nan)] * len(jobs))


@pytest.mark.long
def test_the_more_is_known_beforehand_the_sooner_jobs_are_done() -> None:
    """Sia, section 5.7: the oracle is best, and one-GPU profiles are better than none. On average only."""

    def mean_jct_s(mode: str) -> float:
        setup = Setup(MIXED, load_policy("sia"), SimSettings(), estimate_settings={"mode": mode})
        return float(np.mean([simulate(a_mix_of_models(seed), setup).jct_s.mean() for seed in range(4)]))

    assert mean_jct_s("oracle") < mean_jct_s("bootstrap") < mean_jct_s("no-prof")
