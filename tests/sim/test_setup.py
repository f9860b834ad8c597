"""From a workload to a world: who runs by what, where, and with which settings."""

from math import isnan, nan
from typing import Any

import pytest

from stretto.estimate.beliefs import Fit
from stretto.estimate.estimators import MeasuredTables, NoEstimate, OnlineGoodput
from stretto.estimate.throughput import Choice, Mode
from stretto.model import Adaptivity, GpuType, InputError, Job, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup
from stretto.sim.settings import Batches, Fidelity, Profiling, SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.truth.training import TrainingRun
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Truth, Workload

T4, A100, UNKNOWN = GpuType("t4"), GpuType("a100"), GpuType("abacus")
MIXED = cluster_of("mixed", (T4, 1, 4), (A100, 1, 4))
TRAINS = Truth(nan)


def run_of(job: Job, **sim: Any) -> TrainingRun:
    return physics_of(Workload("one", [job], [TRAINS]), MIXED, SimSettings(**sim)).training[0]


def a_training(**rest: Any) -> Job:
    return a_job("t", model="resnet18-cifar10", **rest)


def test_jobs_with_a_duration_run_by_the_clock_and_others_train() -> None:
    jobs = [a_job("r", model="resnet18-cifar10"), a_training(at_s=1.0)]
    physics = physics_of(Workload("two", jobs, [Truth(50.0), TRAINS]), MIXED, SimSettings())
    assert not physics.is_training(0)
    assert physics.is_training(1)
    assert physics.recorded.work_s[0] == 50.0
    assert isnan(physics.recorded.work_s[1])


def test_a_model_that_nobody_knows_is_named_with_its_job() -> None:
    with pytest.raises(InputError, match=r"job t: .*'resnet81'"):
        physics_of(Workload("one", [a_job("t", model="resnet81")], [TRAINS]), MIXED, SimSettings())


@pytest.mark.parametrize(
    ("adaptivity", "batches", "fixed"),
    [
        (Adaptivity.ADAPTIVE, Batches.ADAPTIVE, 0),
        (Adaptivity.ADAPTIVE, Batches.TUNED, 512),
        (Adaptivity.STRONG_SCALING, Batches.ADAPTIVE, 512),
        (Adaptivity.RIGID, Batches.ADAPTIVE, 512),
    ],
)
def test_who_chooses_the_batch(adaptivity: Adaptivity, batches: Batches, fixed: int) -> None:
    assert run_of(a_training(batch_size=512, adaptivity=adaptivity), batches=batches).fixed_batch == fixed


def test_a_fixed_batch_that_nobody_named_is_the_initial_one() -> None:
    assert run_of(a_training(), batches=Batches.TUNED).fixed_batch == 128


def test_in_the_published_simulator_no_batch_above_the_submitted_one_is_shown() -> None:
    theirs = run_of(a_training(batch_size=512), fidelity=Fidelity.ARTIFACT)
    assert (theirs.visible.max_batch, theirs.visible.max_is_soft) == (512, True)
    assert theirs.truth.limits.max_batch == 4096  # the job itself may go higher
    ours = run_of(a_training(batch_size=512))
    assert ours.visible is ours.truth.limits


def test_equal_models_share_one_truth() -> None:
    jobs = [a_training(), a_job("u", model="resnet18-cifar10", at_s=1.0)]
    physics = physics_of(Workload("two", jobs, [TRAINS] * 2), MIXED, SimSettings())
    assert physics.training[0].truth is physics.training[1].truth


def test_a_training_job_accepts_only_types_on_which_it_runs() -> None:
    cluster = cluster_of("odd", (UNKNOWN, 1, 4), (T4, 1, 4), (A100, 1, 4))
    jobs = [a_training(), a_job("u", model="ncf", gpu_types=("abacus", "a100"), at_s=1.0)]
    physics = physics_of(Workload("two", jobs, [TRAINS] * 2), cluster, SimSettings())
    assert [job.gpu_types for job in physics.requests.jobs] == [("t4", "a100"), ("a100",)]


def test_a_training_job_that_could_run_nowhere_is_refused() -> None:
    cluster = cluster_of("odd", (UNKNOWN, 1, 4), (T4, 1, 4))
    picky = a_training(gpu_types=("abacus",))
    with pytest.raises(InputError, match=r"job t: .* \['t4'\] here, got \['abacus'\]"):
        physics_of(Workload("one", [picky], [TRAINS]), cluster, SimSettings())


def setup_for(policy: str, sim: SimSettings | None = None, **estimate: Any) -> Setup:
    return Setup(a_cluster(1), load_policy(policy), sim or SimSettings(), estimate_settings=estimate)


def test_a_policy_gets_the_estimator_that_serves_its_views() -> None:
    assert setup_for("fifo").make_estimator() == NoEstimate()
    assert setup_for("gavel").make_estimator() == MeasuredTables()
    assert setup_for("sia").make_estimator() == OnlineGoodput()


def test_settings_of_estimates_are_for_all_policies_and_matter_to_those_that_use_them() -> None:
    assert setup_for("fifo", mode="oracle").make_estimator() == NoEstimate()
    assert setup_for("sia", mode="no-prof").make_estimator() == OnlineGoodput(mode=Mode.NO_PROF)
    with pytest.raises(InputError, match=r"unknown setting estimate\.mood, did you mean 'mode'\?"):
        setup_for("fifo", mood="good").make_estimator()
    with pytest.raises(
        InputError, match=r"estimate.mode must be one of oracle, bootstrap, no-prof, got 'best'"
    ):
        setup_for("sia", mode="best").make_estimator()


def test_the_fit_follows_the_world_unless_told_otherwise() -> None:
    artifact = SimSettings(fidelity=Fidelity.ARTIFACT)
    published = OnlineGoodput(reference=Choice.FIRST_MODEL, fit=Fit.PUBLISHED)
    assert setup_for("sia", artifact).make_estimator() == published
    assert setup_for("sia", artifact, fit="best").make_estimator() == OnlineGoodput(
        reference=Choice.FIRST_MODEL
    )


def test_an_oracle_gets_a_world_that_shows_it_the_truth() -> None:
    assert setup_for("sia").sim_in_use().profiling is Profiling.ONE_GPU
    assert setup_for("sia", mode="oracle").sim_in_use().profiling is Profiling.ORACLE


def test_nobody_chooses_batches_under_a_policy_that_does_not_look_at_goodput() -> None:
    assert setup_for("fifo").sim_in_use().batches is Batches.TUNED
    assert setup_for("sia").sim_in_use().batches is Batches.ADAPTIVE


def test_every_setting_is_told_as_it_was_used() -> None:
    resolved = setup_for("sia", SimSettings(fidelity=Fidelity.ARTIFACT), mode="oracle").resolved()
    assert resolved["estimate.mode"] == "oracle"
    assert resolved["estimate.fit"] == "published"
    assert resolved["sim.profiling"] == "oracle"
    assert resolved["policy.round_s"] == 60.0
    assert not any("._" in name for name in resolved)


def test_types_of_recorded_jobs_have_relative_speeds() -> None:
    cluster = cluster_of("mixed", (GpuType("slow", speed=0.5), 1, 4), (GpuType("fast", speed=2.0), 1, 4))
    workload = Workload(
        "two", [a_job("a"), a_job("b", at_s=1.0)], [Truth(10.0), Truth(10.0, gpu_type="fast")]
    )
    physics = physics_of(workload, cluster, SimSettings())
    on_one = [physics.tables[row].per_s[:, 1].tolist() for row in (0, 1)]
    assert on_one == [[0.5, 2.0], [0.25, 1.0]]
