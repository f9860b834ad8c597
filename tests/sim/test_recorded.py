"""Jobs of which a trace tells only how long they ran."""

import numpy as np
import pytest

from stretto.model import (
    ON_CHANGE,
    GpuType,
    InputError,
    JobId,
    MeasuredSpeeds,
    Pinned,
    Verb,
    View,
    cluster_of,
    no_placement,
)
from stretto.scheduler.loop import run
from stretto.sim.accounting import Had
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import SimSettings
from stretto.sim.truth.recorded import RecordedRuns
from stretto.testing.builders import a_cluster, a_job, grant

from .made_worlds import NO_RESTARTS, Told, a_workload, on, seen

SLOW, FAST = GpuType("slow"), GpuType("fast", speed=2.5)
MIXED = cluster_of("mixed", (SLOW, 1, 4), (FAST, 1, 4))


@pytest.mark.parametrize(
    ("gpus", "takes_s"), [pytest.param(1, 400.0, id="fewer"), (4, 100.0), pytest.param(8, 50.0, id="more")]
)
def test_a_job_is_as_fast_as_it_has_gpus(gpus: int, takes_s: float) -> None:
    jobs = a_workload((a_job("a", gpus=4, max_gpus=8), 100.0))
    assert seen(on(ON_CHANGE, at_0={"a": {0: gpus}}), jobs, a_cluster(8)).completed_s("a") == takes_s


@pytest.mark.parametrize(
    ("recorded_on", "node", "takes_s"),
    [
        pytest.param("", 0, 100.0, id="durations of no type are those of a type of speed 1"),
        pytest.param("", 1, 40.0, id="a type of speed 2.5 needs less"),
        pytest.param("fast", 1, 100.0, id="as recorded on its own type"),
        pytest.param("fast", 0, 250.0, id="slower where it was not recorded"),
    ],
)
def test_a_job_runs_at_the_relative_speed_of_its_type(recorded_on: str, node: int, takes_s: float) -> None:
    jobs = a_workload((a_job("a", gpus=2), 100.0), gpu_type=recorded_on)
    assert seen(on(ON_CHANGE, at_0={"a": {node: 2}}), jobs, MIXED).completed_s("a") == pytest.approx(takes_s)


def test_a_type_that_the_cluster_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="unknown gpu type 'warp'"):
        seen(Told({}), a_workload((a_job("a"), 1.0), gpu_type="warp"), MIXED)


def test_the_first_start_is_free_and_every_later_one_costs_an_overhead_on_held_gpus() -> None:
    script = {0.0: {"a": {0: 1}}, 20.0: {}, 30.0: {"a": {0: 1}}, 60.0: {"a": {0: 2}}}
    jobs = a_workload((a_job("a", max_gpus=2), 100.0))
    run = seen(Told(script), jobs, a_cluster(2), SimSettings(restart_s=12.0))
    done_s = 20.0 + (60.0 - 30.0 - 12.0)
    assert run.completed_s("a") == 60.0 + 12.0 + (100.0 - done_s) / 2
    assert run.world.accounting.attained_gpu_s[0] == 20.0 + 30.0 + 2 * (run.completed_s("a") - 60.0)


def test_progress_is_lost_with_the_job_where_there_are_no_checkpoints() -> None:
    jobs = a_workload((a_job("a", max_gpus=2), 100.0))
    sim = SimSettings(restart_s=0.0, checkpoints=False)
    stopped = Told({0.0: {"a": {0: 1}}, 90.0: {}, 95.0: {"a": {0: 1}}})
    resized = Told({0.0: {"a": {0: 1}}, 90.0: {"a": {0: 2}}})
    assert seen(stopped, jobs, a_cluster(2), sim).completed_s("a") == 195.0
    assert seen(resized, jobs, a_cluster(2), sim).completed_s("a") == 95.0  # not stopped: nothing is lost
    twice = Told({0.0: {"a": {0: 1}}, 40.0: {"a": {0: 2}}, 60.0: {"a": {0: 1}}})
    assert seen(twice, jobs, a_cluster(2), sim).completed_s("a") == 80.0


def test_retuning_a_job_that_is_still_restarting_does_not_let_it_off() -> None:
    class Retuned(Told):
        name = "retuned"

        def allocate(self, snapshot, speeds):  # type: ignore[no-untyped-def]
            shares = super().allocate(snapshot, speeds)
            batch = 8 if snapshot.now_s >= 35.0 else 4
            pinned = {row: Pinned(p.nodes, p.gpus, (), (batch,)) for row, p in shares.pinned.items()}
            object.__setattr__(shares, "pinned", pinned)
            return shares

    script = {0.0: {"a": {0: 1}}, 20.0: {}, 30.0: {"a": {0: 1}}, 35.0: {"a": {0: 1}}}
    run = seen(Retuned(script), a_workload((a_job("a"), 100.0)), a_cluster(1), SimSettings(restart_s=12.0))
    assert [action.verb for action in run.plans[-1].actions] == [Verb.RETUNE]
    assert run.completed_s("a") == 30.0 + 12.0 + 80.0


def test_remaining_time_is_what_is_left_on_the_gpus_asked_for() -> None:
    views = frozenset({View.ORACLE_DURATION, View.ESTIMATED_DURATION, View.REMAINING_WORK})
    policy = Told({0.0: {"a": {0: 2}}}, views=views)
    jobs = a_workload((a_job("a", max_gpus=2), 100.0), (a_job("b", at_s=10.0), 5.0))
    policy = Told({0.0: {"a": {0: 2}, "b": {1: 1}}}, views=views)
    then = seen(policy, jobs, a_cluster(2, 1)).at(10.0).jobs
    assert then.durations.duration_s.tolist() == [100.0, 5.0]
    assert then.durations.remaining_s.tolist() == [80.0, 5.0]
    assert then.remaining_work.tolist() == then.estimates.remaining_s.tolist() == [80.0, 5.0]


def test_a_job_still_restarting_recovers_and_one_that_was_stopped_meanwhile_does_not() -> None:
    script = {0.0: {"a": {0: 1}}, 10.0: {}, 20.0: {"a": {0: 1}}, 25.0: {}, 26.0: {"a": {0: 1}}}
    policy = Told({**script, 22.0: {"a": {0: 1}}}, views=frozenset({View.PROGRESS}))
    run = seen(policy, a_workload((a_job("a"), 100.0)), a_cluster(1), SimSettings(restart_s=30.0))
    recovering = {snapshot.now_s: bool(snapshot.jobs.progress.recovering[0]) for snapshot in run.snapshots}
    assert recovering == {0.0: False, 10.0: False, 20.0: False, 22.0: True, 25.0: True, 26.0: False}


def test_throughput_tables_of_recorded_jobs_are_linear_and_1_on_what_was_asked_for() -> None:
    policy = Told({0.0: {"a": {0: 2}}}, views=frozenset({View.THROUGHPUT_TABLE}))
    run = seen(policy, a_workload((a_job("a", gpus=2, max_gpus=4), 10.0)), MIXED, NO_RESTARTS)
    table = run.at(0.0).jobs.tables[0]
    assert table.per_s[0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert table.per_s[1].tolist() == [0.0, 1.25, 2.5, 3.75, 5.0]


def test_booking_twice_at_one_moment_changes_nothing() -> None:
    halves = MeasuredSpeeds(*np.array([[[0.0, 0.5, 1.0]]] * 2))
    runs = RecordedRuns(np.array([100.0]), a_cluster(2), [halves])
    assert runs.give(0, grant(0, n0=1), now_s=10.0, overhead_s=5.0) == 215.0
    runs.settle(0, 55.0)
    runs.settle(0, 55.0)
    assert runs.left_s[0] == 80.0
    assert runs.left_now_s(np.array([0]), 65.0).tolist() == [75.0]
    assert runs.give(0, None, now_s=65.0, overhead_s=0.0) == float("inf")
    assert runs.left_now_s(np.array([0]), 1000.0).tolist() == [75.0]


def test_a_job_without_checkpoints_that_moves_starts_again_from_nothing() -> None:
    jobs = a_workload((a_job("a", max_gpus=2), 100.0))
    moved = Told({0.0: {"a": {0: 1}}, 90.0: {"a": {1: 1}}})
    assert seen(moved, jobs, MIXED, SimSettings(restart_s=0.0, checkpoints=False)).completed_s("a") == 130.0


def test_a_world_that_resumes_goes_on_with_what_jobs_had_and_hold() -> None:
    cluster, policy = a_cluster(2, 2), on(ON_CHANGE, at_0={"a": {0: 1}}, at_130={"a": {0: 1}, "b": {0: 1}})
    workload = a_workload((a_job("a"), 50.0), (a_job("b", at_s=130.0), 20.0))
    setup = Setup(cluster, policy, NO_RESTARTS)
    world = world_of(workload, setup)
    had = [Had(40.0, 60.0, 30.0, 70.0, 2, 4, held_since_s=90.0), Had(0.0, 0.0, np.nan, np.nan, 0, 0)]
    held = no_placement(cluster).changed({JobId("a"): grant(0, n0=1)})
    world.resume(100.0, np.array([True, False]), held, had)
    assert world.usable_gpus.tolist() == [2]
    run(world, scheduler_of(setup), lambda snapshot, plan: None)
    assert world.accounting.completed_s[0] == 150.0  # all its work was before it
    assert world.accounting.executed_s[0] == 40.0 + (150.0 - 90.0)
    assert world.accounting.attained_gpu_s[0] == 60.0 + (150.0 - 90.0)
    assert (
        world.accounting.first_start_s[0],
        world.accounting.starts[0],
        world.accounting.largest_held[0],
    ) == (30.0, 2, 4)
