"""What the world does with a plan, and how it accounts for it."""

from dataclasses import replace

import pytest

from stretto.model import ON_CHANGE, Action, JobId, Plan, Verb, every
from stretto.scheduler.round import Scheduler, decide
from stretto.sim.run import Setup, scheduler_of, world_of
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.world import CapacityEvent, SimulatedWorld
from stretto.testing.builders import a_cluster, a_job, grant
from stretto.traces.workload import Workload

from .made_worlds import NO_RESTARTS, Told, a_truth, a_workload, on, seen, seen_training


def waiting_world(
    workload: Workload, policy: Told, *nodes: int, events: tuple[CapacityEvent, ...] = ()
) -> tuple[SimulatedWorld, Scheduler]:
    setup = Setup(a_cluster(*nodes), policy, NO_RESTARTS, capacity_events=events)
    return world_of(workload, setup), scheduler_of(setup)


def step(world: SimulatedWorld, scheduler: Scheduler) -> Plan:
    assert world.wait()
    return decide(world.observe(), scheduler)


def dropped(world: SimulatedWorld) -> list[tuple[str, str]]:
    return [(str(job), reason) for _, job, reason in world.history.dropped]


def test_an_action_for_a_job_that_has_ended_since_is_dropped() -> None:
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_50={})
    world, scheduler = waiting_world(a_workload((a_job("a"), 100.0), (a_job("b"), 500.0)), policy, 1, 1)
    world.act(step(world, scheduler))
    late = step(world, scheduler)  # at 50: stop a
    assert [action.verb for action in late.actions] == [Verb.STOP]
    world.act(replace(late, actions=()))
    assert world.wait()  # a ends at 100
    world.act(late)
    assert dropped(world) == [("a", "the job has ended")]
    assert world.accounting.completed_s[0] == 100.0
    assert world.history.preemptions == 0


def test_an_action_on_gpus_that_have_changed_since_is_dropped() -> None:
    goes = CapacityEvent(30.0, 0, usable=False)
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_20={"a": {0: 2}})
    jobs = a_workload((a_job("a", max_gpus=2), 100.0))
    world, scheduler = waiting_world(jobs, policy, 2, 2, events=(goes,))
    world.act(step(world, scheduler))
    late = step(world, scheduler)  # at 20: grow
    assert [action.verb for action in late.actions] == [Verb.GROW]
    assert world.wait()  # its node goes at 30
    world.act(late)
    assert dropped(world) == [("a", "its GPUs have changed since")]
    assert len(world.placement) == 0


def test_an_action_on_a_node_that_has_gone_is_dropped() -> None:
    goes = CapacityEvent(30.0, 0, usable=False)
    jobs = a_workload((a_job("a"), 100.0))
    world, scheduler = waiting_world(jobs, on(ON_CHANGE, at_0={"a": {0: 1}}), 1, 1, events=(goes,))
    late = step(world, scheduler)
    assert world.wait()
    world.act(late)
    assert dropped(world) == [("a", "a node has gone")]


def test_who_was_to_get_the_gpus_of_a_dropped_move_does_not_get_them() -> None:
    jobs = a_workload((a_job("a"), 100.0), (a_job("b"), 100.0))
    world, scheduler = waiting_world(jobs, on(ON_CHANGE, at_0={"a": {0: 1}}), 1, 1)
    plan = step(world, scheduler)
    world.act(plan)
    a, b, elsewhere = JobId("a"), JobId("b"), grant(0, n1=1)
    late = replace(
        plan,
        actions=(
            Action(Verb.MOVE, a, elsewhere, elsewhere),  # a is not where this says
            Action(Verb.START, b, None, world.placement[a]),
        ),
    )
    world.act(late)
    assert dropped(world) == [("a", "its GPUs have changed since"), ("b", "others hold its GPUs")]
    assert dict(world.placement) == {a: grant(0, n0=1)}


def test_gpus_are_released_before_they_are_taken() -> None:
    """Two jobs swap nodes in one plan."""
    policy = on(ON_CHANGE, at_0={"a": {0: 1}, "b": {1: 1}}, at_10={"a": {1: 1}, "b": {0: 1}})
    run = seen(policy, a_workload((a_job("a"), 30.0), (a_job("b"), 30.0)), a_cluster(1, 1))
    assert [action.verb for action in run.plans[1].actions] == [Verb.MOVE, Verb.MOVE]
    assert run.world.history.dropped == []
    assert run.completed_s("a") == run.completed_s("b") == 30.0


def test_gpu_seconds_are_the_integral_of_what_was_held() -> None:
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_10={"a": {0: 4}}, at_15={}, at_40={"a": {0: 2}})
    run = seen(policy, a_workload((a_job("a", max_gpus=4), 60.0)), a_cluster(4))
    end_s = 40.0 + (60.0 - 10.0 - 4 * 5.0) / 2
    assert run.completed_s("a") == end_s
    assert run.world.accounting.attained_gpu_s[0] == 10.0 + 4 * 5.0 + 2 * (end_s - 40.0)
    assert run.world.accounting.executed_s[0] == 15.0 + end_s - 40.0
    assert run.world.accounting.largest_held[0] == 4
    row, start_s, stop_s, kind, gpus = run.world.history.columns()
    assert list(zip(start_s, stop_s, gpus, strict=True)) == [(0, 10, 1), (10, 15, 4), (40, end_s, 2)]
    assert set(row) == set(kind) == {0}


def test_time_without_gpus_and_time_with_some_make_up_the_completion_time() -> None:
    policy = on(ON_CHANGE, at_7={"a": {0: 1}}, at_20={}, at_25={"a": {0: 1}})
    run = seen(policy, a_workload((a_job("a"), 30.0)), a_cluster(1), SimSettings(restart_s=4.0))
    waited_s, restarting_s = 7.0 + 5.0, 4.0
    assert run.completed_s("a") == 30.0 + waited_s + restarting_s
    assert run.world.accounting.executed_s[0] == 30.0 + restarting_s  # it holds its GPUs while it restarts
    assert run.world.accounting.first_start_s[0] == 7.0
    assert run.world.accounting.last_stop_s[0] == 20.0


def test_restarts_count_every_start_of_workers_after_the_first() -> None:
    script = {0.0: {"a": {0: 1}}, 10.0: {"a": {0: 2}}, 20.0: {"a": {1: 2}}, 30.0: {}, 40.0: {"a": {1: 2}}}
    run = seen(Told(script), a_workload((a_job("a", max_gpus=2), 100.0)), a_cluster(2, 2))
    assert run.world.accounting.starts[0] - 1 == 3  # grown, moved, resumed
    assert run.world.history.preemptions == 1


def test_progress_shows_what_the_accounting_says() -> None:
    from stretto.model import View

    policy = replace(
        on(ON_CHANGE, at_0={"a": {0: 1}}, at_10={}, at_30={"a": {0: 2}}, at_33={"a": {0: 2}}),
        views=frozenset({View.PROGRESS}),
    )
    jobs = a_workload((a_job("a", max_gpus=2), 100.0))
    run = seen(policy, jobs, a_cluster(2), SimSettings(restart_s=5.0))
    before, during = run.at(30.0).jobs.progress, run.at(33.0).jobs.progress
    assert (before.executed_s[0], before.attained_gpu_s[0], before.last_stop_s[0]) == (10.0, 10.0, 10.0)
    assert (during.executed_s[0], during.attained_gpu_s[0], during.first_start_s[0]) == (13.0, 16.0, 0.0)
    assert (during.restarts[0], during.largest_held_gpus[0]) == (1, 2)
    assert not before.recovering[0]
    assert during.recovering[0]  # until 35


def test_gpus_of_a_job_that_ends_stay_with_it_until_the_next_round_in_the_published_simulator() -> None:
    policy = on(every(60.0), at_0={"a": {0: 1}}, at_180={"b": {0: 1}})
    truth = a_truth(epoch_s=70.0, epochs=1, restart_s=0.0)
    ours = seen_training(policy, [a_job("a"), a_job("b")], a_cluster(1), truth)
    theirs = seen_training(
        policy, [a_job("a"), a_job("b")], a_cluster(1), truth, SimSettings(fidelity=Fidelity.ARTIFACT)
    )
    assert ours.world.accounting.attained_gpu_s[0] == pytest.approx(70.0)
    assert theirs.completed_s("a") == 60.0 + 70.0
    assert theirs.world.accounting.attained_gpu_s[0] == 120.0
    assert theirs.world.accounting.executed_s[0] == 70.0


def test_samples_are_taken_at_every_decision() -> None:
    jobs = a_workload((a_job("a"), 30.0), (a_job("b", at_s=10.0), 30.0))
    history = seen(on(ON_CHANGE, at_0={"a": {0: 1}}, at_30={"b": {0: 1}}), jobs, a_cluster(1)).world.history
    assert history.sample_s == [0.0, 10.0, 30.0]
    assert history.active == [1, 2, 1]
    assert history.waiting == [0, 1, 0]


def test_the_memory_of_a_policy_comes_back_in_the_next_snapshot() -> None:
    jobs = a_workload((a_job("a"), 30.0), (a_job("b", at_s=10.0), 30.0))
    policy = Told({0.0: {"a": {0: 1}, "b": {0: 1}}}, memory=("lease", 3))
    run = seen(policy, jobs, a_cluster(2))
    assert run.at(0.0).memory is None
    assert run.at(10.0).memory == ("lease", 3)
