"""More than a count of GPUs: profiling runs, several types, cores, batches; and curves of speed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    ON_CHANGE,
    Adaptivity,
    Cluster,
    GpuType,
    InputError,
    Node,
    NodeId,
    Shares,
    Snapshot,
    Speeds,
    View,
    cluster_of,
)
from stretto.sim.settings import Batches, Scaling, SimSettings
from stretto.sim.truth.scaling import Curves
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.learning import LearningCurve

from .made_worlds import NO_RESTARTS, Told, a_truth, a_workload, on, seen, seen_training

FAST, SLOW = GpuType("fast"), GpuType("slow", speed=0.5, stand_ins=2)
BOTH = cluster_of("both", (FAST, 1, 4), (SLOW, 1, 4))


@dataclass(frozen=True)
class Detailed(Told):
    """Told, with more columns of its shares by time."""

    details: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    local_batch: Mapping[float, tuple[int, ...]] = field(default_factory=dict)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        shares = super().allocate(snapshot, speeds)
        begun = max(at_s for at_s in self.script if at_s <= snapshot.now_s)
        batches = self.local_batch.get(begun, ())
        pinned = {row: replace(pin, local_batch=batches) for row, pin in shares.pinned.items()}
        more: dict[str, Any] = {
            name: np.where(shares.gpus > 0, value, 0).astype(type(value))
            for name, value in self.details.get(begun, {}).items()
        }
        return replace(shares, pinned=pinned, **more)


@pytest.mark.parametrize(
    ("sim", "ends_s"),
    [
        pytest.param(NO_RESTARTS, 115.0, id="trains on the GPUs that it has: 30 s at half its speed"),
        pytest.param(replace(NO_RESTARTS, profiling_trains=False), 130.0, id="unless it trains nothing"),
    ],
)
def test_a_profiling_run_holds_gpus_and(sim: SimSettings, ends_s: float) -> None:
    script = {0.0: {"a": {0: 1}}, 30.0: {"a": {0: 2}}}
    details = {0.0: {"profiling": True}, 30.0: {"profiling": False}}
    policy = Detailed(script, ON_CHANGE, frozenset({View.PROGRESS}), details=details)
    rigid = a_job("a", gpus=2, adaptivity=Adaptivity.RIGID)
    run = seen(policy, a_workload((rigid, 100.0)), a_cluster(4), sim)
    assert run.completed_s("a") == ends_s
    assert run.at(30.0).jobs.progress.profiled_s.tolist() == [30.0]


def test_a_job_that_goes_on_where_it_was_profiled_does_not_start_again() -> None:
    script = {0.0: {"a": {0: 2}}, 30.0: {"a": {0: 2}}}
    details = {0.0: {"profiling": True}, 30.0: {"profiling": False}}
    costly = SimSettings(restart_s=50.0)
    policy, workload = Detailed(script, details=details), a_workload((a_job("a", gpus=2), 100.0))
    run = seen(policy, workload, a_cluster(4), costly)
    assert (run.completed_s("a"), run.world.accounting.starts[0]) == (100.0, 1)


def test_a_profiling_run_of_less_than_one_copy_of_a_model_trains_nothing() -> None:
    script = {0.0: {"a": {0: 2}}, 30.0: {"a": {0: 4}}}
    details = {0.0: {"profiling": True}, 30.0: {"profiling": False}}
    truth = a_truth(epoch_s=100.0, epochs=1, restart_s=0.0, replica_gpus=np.array([4]))
    piped = a_job("a", gpus=4, adaptivity=Adaptivity.RIGID)
    run = seen_training(Detailed(script, details=details), [piped], a_cluster(4), truth)
    assert run.completed_s("a") == pytest.approx(130.0)


def test_a_job_on_two_types_is_as_fast_as_its_parts_less_the_loss_of_mixing() -> None:
    mixing = a_job("a", gpus=4, heterogeneous=True)

    @dataclass(frozen=True)
    class AnyType(Told):
        def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
            shares = super().allocate(snapshot, speeds)
            return replace(shares, kind=np.full_like(shares.kind, -1))

    run = seen(AnyType({0.0: {"a": {0: 3, 1: 2}}}), a_workload((mixing, 100.0)), BOTH, NO_RESTARTS)
    assert run.completed_s("a") == pytest.approx(100.0 / (0.7 * (3 + 2 * 0.5) / 4))
    by_type = {held.kind: held.gpus for held in run.world.history.held}
    assert by_type == {0: 3, 1: 2}


def test_more_gpus_of_a_lesser_type_make_up_for_their_speed() -> None:
    rigid = a_job("a", gpus=2, adaptivity=Adaptivity.RIGID)
    assert seen(on(ON_CHANGE, at_0={"a": {1: 4}}), a_workload((rigid, 100.0)), BOTH).completed_s("a") == 100.0


def test_cores_beyond_the_proportional_share_speed_up_who_needs_them() -> None:
    node = Node(NodeId("n"), "fast", 4, cpus=8)
    policy = Detailed({0.0: {"a": {0: 2}}}, details={0.0: {"cpus": 6.0}}, views=frozenset({View.CPU_DEMAND}))
    workload = a_workload((a_job("a", gpus=2), 100.0), cpus_per_gpu=4.0)
    run = seen(policy, workload, Cluster("cores", (FAST,), (node,)))
    assert run.completed_s("a") == pytest.approx(100.0 * 2 / 3)  # 3 cores a GPU instead of 2, of 4 needed
    assert run.at(0.0).jobs.cpu_demand.tolist() == [4.0]


@pytest.mark.parametrize(("checkpoints", "ends_s"), [(True, 110.0), (False, 150.0), (None, 110.0)])
def test_a_job_may_say_itself_whether_it_keeps_its_progress(checkpoints: bool | None, ends_s: float) -> None:
    script = on(ON_CHANGE, at_0={"a": {0: 1}}, at_40={}, at_50={"a": {0: 1}})
    run = seen(script, a_workload((a_job("a", checkpoints=checkpoints), 100.0)), a_cluster(1))
    assert run.completed_s("a") == ends_s


def test_a_policy_that_chooses_batches_chooses_them() -> None:
    policy = Detailed({0.0: {"a": {0: 2}}, 10.0: {"a": {0: 2}}}, local_batch={0.0: (5, 5), 10.0: (10, 10)})
    truth = a_truth(epoch_s=100.0, epochs=1, restart_s=0.0, max_batch=20)
    run = seen_training(policy, [a_job("a")], a_cluster(2), truth, replace(NO_RESTARTS, resize_s=1.0), 0)
    # 10 samples in 0.5 s, then a second to change, then 20 in 1 s: always 20 samples a second, of 1,000.
    assert run.completed_s("a") == pytest.approx(51.0, abs=0.01)


def test_what_a_job_reports_follows_its_curve() -> None:
    curve = LearningCurve(epochs=4, dataset_samples=50.0)
    policy = Told({0.0: {"a": {0: 1}}, 60.0: {"a": {0: 1}}}, views=frozenset({View.LEARNING}))
    run = seen(policy, a_workload((a_job("a"), 100.0), learning=curve), a_cluster(1))
    before, after = run.at(0.0).jobs.learning, run.at(60.0).jobs.learning
    assert before.samples.tolist() == [0.0]
    assert np.isnan(before.metric).all()
    assert after.samples[0] == pytest.approx(0.6 * 4 * 50)
    assert after.history[0].tolist() == curve.metrics[:2].tolist() == sorted(after.history[0])
    assert after.loss[0] < after.initial_loss[0]


def test_a_made_curve_is_the_same_every_time_and_noisy_where_asked() -> None:
    noisy = LearningCurve(epochs=9, dataset_samples=1.0, noise=0.05, seed=3)
    assert np.array_equal(noisy.metrics, replace(noisy).metrics)
    assert not np.array_equal(noisy.metrics, replace(noisy, seed=4).metrics)
    with pytest.raises(InputError, match="at least one epoch"):
        LearningCurve(epochs=0, dataset_samples=1.0)


V100 = cluster_of("v100", (GpuType("v100"), 4, 8))
BY_MODEL = SimSettings(batches=Batches.TUNED, scaling=Scaling.CATALOGUE)


def test_speeds_by_the_catalogue_are_1_on_the_request_grow_less_than_linearly_and_less_when_spread() -> None:
    curve = Curves(V100, BY_MODEL).of(a_job("a", gpus=4, model="resnet50", max_gpus=32), np.ones(1))
    compact, spread = curve.per_s[0], curve.spread_per_s[0]
    assert compact[4] == 1.0
    assert (np.diff(compact[1:9]) > 0).all()
    assert compact[8] < 2.0
    assert (spread[2:9] <= compact[2:9]).all()
    assert spread[1] == compact[1]
    assert spread[32] == compact[32]  # needs all nodes anyway


def test_a_model_that_the_catalogue_lacks_follows_the_nearest_and_an_unknown_one_is_refused() -> None:
    curves = Curves(V100, BY_MODEL)
    known, nearest = (curves.of(a_job("a", gpus=2, model=name), np.ones(1)) for name in ("vgg16", "alexnet"))
    assert np.array_equal(known.per_s, nearest.per_s)
    with pytest.raises(InputError, match="unknown model 'resnet999'"):
        curves.of(a_job("a", model="resnet999"), np.ones(1))


def test_every_worker_beyond_the_fewest_may_bring_less() -> None:
    lossy = Curves(a_cluster(8), SimSettings(scaling_loss=0.2))
    curve = lossy.of(a_job("a", gpus=2, min_gpus=2, max_gpus=4), np.ones(1)).per_s[0]
    assert curve[2:6].tolist() == pytest.approx([1.0, 1.4, 1.8, 1.8])


def test_choosing_its_batch_never_slows_an_adaptive_job_down_and_helps_one_that_spread_a_small_one() -> None:
    fixed = Curves(V100, SimSettings(batches=Batches.TUNED))
    free = Curves(V100, SimSettings())
    adaptive = a_job("a", gpus=8, model="resnet50", max_gpus=16)
    before, after = (curves.of(adaptive, np.ones(1)).per_s[0, 1:17] for curves in (fixed, free))
    assert (after >= before).all()
    assert (after > 1.1 * before).any()
    elastic = replace(adaptive, adaptivity=Adaptivity.STRONG_SCALING)
    assert np.array_equal(free.of(elastic, np.ones(1)).per_s[0, 1:17], before)
    nameless = replace(adaptive, model="nobody-knows")
    assert np.array_equal(free.of(nameless, np.ones(1)).per_s[0, 1:17], before)
