"""What of the truth each view shows."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from stretto.model import ON_CHANGE, EndedJobs, FloatArray, GpuType, Kind, NotDeclared, View, cluster_of
from stretto.sim.physics import alone_s
from stretto.sim.run import Setup, world_of
from stretto.sim.settings import SimSettings
from stretto.sim.truth.parametric import parametric_truth
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Outcome, Truth, Workload

from .made_worlds import Told, a_truth, a_workload, on, seen, seen_training, with_views

T4 = cluster_of("t4", (GpuType("t4"), 1, 2))
FOUR = cluster_of("t4", (GpuType("t4"), 1, 4))
COLUMNS = {
    View.PROGRESS: "progress",
    View.ORACLE_DURATION: "durations",
    View.ESTIMATED_DURATION: "estimates",
    View.REMAINING_WORK: "remaining_work",
    View.THROUGHPUT_TABLE: "tables",
    View.GOODPUT_MODEL: "evidence",
    View.LEARNING: "learning",
    View.CPU_DEMAND: "cpu_demand",
    View.ENDED_JOBS: "ended",
}


@pytest.mark.parametrize("view", list(View))
def test_a_world_shows_what_was_declared_and_nothing_else(view: View) -> None:
    policy = with_views(on(ON_CHANGE, at_0={"a": {0: 1}}), view)
    shown = seen(policy, a_workload((a_job("a"), 10.0)), a_cluster(1)).at(0.0).jobs
    assert getattr(shown, COLUMNS[view]) is not None
    also = {View.THROUGHPUT_TABLE} if view is View.GOODPUT_MODEL else set()  # to fall back on
    for other in set(View) - {view} - also:
        with pytest.raises(NotDeclared):
            getattr(shown, COLUMNS[other])


def test_jobs_that_have_ended_are_counted_by_kind_with_the_time_for_which_they_ran() -> None:
    script = {"at_0": {"i": {0: 1}, "b": {0: 1}}, "at_5": {"b": {0: 1}}, "at_20": {"b": {0: 1}, "f": {0: 1}}}
    policy = with_views(on(ON_CHANGE, **script, at_90={"last": {0: 1}}), View.ENDED_JOBS)
    interactive = a_job("i", kind=Kind.INTERACTIVE)
    jobs = [(interactive, 5.0), (a_job("b"), 60.0), (a_job("f"), 30.0), (a_job("last"), 10.0)]
    workload = a_workload(*jobs)
    fails = [replace(truth, outcome=Outcome.FAILED) if job.id == "f" else truth for job, truth in
             zip(workload.jobs, workload.truths, strict=True)]  # fmt: skip
    shown = seen(policy, replace(workload, truths=fails), a_cluster(2))
    assert shown.at(0.0).jobs.ended == EndedJobs()
    assert shown.at(5.0).jobs.ended == EndedJobs(interactive=1, interactive_s=5.0)
    assert shown.at(90.0).jobs.ended == EndedJobs(
        interactive=1, interactive_s=5.0, batch=2, batch_s=90.0, failed=1, failed_s=30.0
    )


def test_a_training_jobs_time_is_that_on_what_it_asked_for_on_its_fastest_type() -> None:
    truth = a_truth(epoch_s=100.0, epochs=3, restart_s=0.0)
    policy = with_views(on(ON_CHANGE, at_0={"a": {0: 1}, "b": {0: 1}}), View.ORACLE_DURATION)
    jobs = [a_job("a", gpus=2, batch_size=10), a_job("b", at_s=150.0, batch_size=10)]
    then = seen_training(policy, jobs, a_cluster(2), truth).at(150.0).jobs.durations
    assert then.duration_s == pytest.approx([150.0, 300.0])
    assert then.remaining_s == pytest.approx([75.0, 300.0])  # a held one GPU for 150 s of 300


def test_a_training_job_that_names_no_batch_is_timed_at_the_initial_one() -> None:
    policy = with_views(on(ON_CHANGE, at_0={"a": {0: 1}}), View.ORACLE_DURATION)
    shown = seen_training(policy, [a_job("a")], a_cluster(1), a_truth(epoch_s=100.0)).at(0.0)
    assert shown.jobs.durations.duration_s == pytest.approx([300.0])


def test_time_alone_is_infinite_where_no_type_can_run_so() -> None:
    assert alone_s(a_truth(), 11, 10) == ()  # more GPUs than samples
    assert alone_s(a_truth(epoch_s=100.0), 5, 10) == pytest.approx((20.0, 40.0, 60.0))


def test_remaining_work_of_a_training_job_is_in_steps_of_its_initial_batch() -> None:
    policy = with_views(on(ON_CHANGE, at_0={"a": {0: 1}}, at_40={"a": {0: 1}}), View.REMAINING_WORK)
    run = seen_training(policy, [a_job("a")], a_cluster(1), a_truth(epoch_s=100.0, restart_s=0.0))
    assert run.at(40.0).jobs.remaining_work == pytest.approx([260.0])


def test_evidence_is_for_training_jobs_only() -> None:
    policy = Told({0.0: {"a": {0: 1}}}, views=frozenset({View.GOODPUT_MODEL}))
    recorded = seen(policy, a_workload((a_job("a"), 10.0)), a_cluster(1)).at(0.0).jobs
    assert list(recorded.evidence) == [None]
    assert recorded.tables[0].per_s[0, 1] == 1.0
    trained = seen_training(policy, [a_job("a")], a_cluster(1), a_truth()).at(0.0).jobs
    assert trained.evidence[0] is not None


def test_progress_mixes_training_and_recorded_jobs() -> None:
    script = {0.0: {"r": {0: 1}, "t": {0: 1}}, 60.0: {}, 70.0: {"r": {0: 1}, "t": {0: 1}}}
    policy = Told({**script, 80.0: script[70.0]}, views=frozenset({View.PROGRESS}))
    jobs = [a_job("r"), a_job("t", model="resnet18-cifar10", batch_size=128)]
    workload = Workload("mixed", jobs, [Truth(200.0), Truth(nan)])
    run = seen(policy, workload, T4, SimSettings(restart_s=50.0))
    progress = run.at(80.0).jobs.progress
    assert progress.recovering.tolist() == [True, True]
    assert progress.restarts.tolist() == [1, 1]
    assert progress.executed_s.tolist() == [70.0, 70.0]


def test_remaining_work_at_a_fixed_batch_is_in_steps_of_that_batch() -> None:
    """Divided by the measured steps per second it gives the time that a policy needs to compare."""
    truth = parametric_truth("resnet18-cifar10", FOUR)
    jobs = [a_job("tuned", gpus=4, model="resnet18-cifar10", batch_size=2048)]
    policy = Told({0.0: {"tuned": {0: 4}}}, views=frozenset({View.REMAINING_WORK, View.THROUGHPUT_TABLE}))
    run = seen_training(policy, jobs, FOUR, truth, fixed_batch=2048)
    table = truth.table(2048, 4)
    steps = run.at(0.0).jobs.remaining_work[0]
    assert steps < truth.epoch_ends[-1] / 2  # a step of 16 initial batches is worth many
    assert steps / table.per_s[0, 4] == pytest.approx(truth.alone_s(0, 4, 2048)[-1])


def test_estimated_durations_are_wrong_by_what_the_settings_say() -> None:
    jobs = a_workload(*((a_job(f"j{number:03}"), 100.0) for number in range(200)))
    told = Told({0.0: {"j000": {0: 1}}, 100.0: {}}, views=frozenset({View.ESTIMATED_DURATION}))

    def estimates(**errors: Any) -> FloatArray:
        world = world_of(jobs, Setup(a_cluster(1), told, SimSettings(**errors), seed=3))
        assert world.wait()
        return world.observe().jobs.estimates.duration_s

    assert (estimates() == 100.0).all()
    wrong = estimates(wrong_durations=0.4)
    assert 50 < (wrong != 100.0).sum() < 110
    assert ((wrong >= 75.0) & (wrong <= 125.0)).all()
    assert 8.0 < estimates(duration_error=0.1).std() < 12.0
    assert (estimates(duration_error=0.1) == estimates(duration_error=0.1)).all()


def test_work_that_is_left_is_wrong_by_what_the_settings_say_and_liars_say_a_tenth() -> None:
    jobs = a_workload(*((a_job(f"j{number:03}"), 100.0) for number in range(200)))
    views = frozenset({View.REMAINING_WORK, View.ESTIMATED_DURATION})
    told = Told({0.0: {"j000": {0: 1}}, 100.0: {}}, views=views)

    def said(**errors: Any) -> tuple[FloatArray, FloatArray]:
        world = world_of(jobs, Setup(a_cluster(1), told, SimSettings(**errors), seed=3))
        assert world.wait()
        table = world.observe().jobs
        return table.remaining_work, table.estimates.remaining_s

    assert (said()[0] == 100.0).all()
    work, left_s = said(work_error=0.1)
    assert 8.0 < work.std() < 12.0
    assert (left_s == 100.0).all()
    work, left_s = said(liars=0.2)
    assert 20 < (work == 10.0).sum() < 60
    assert (work == left_s).all()
