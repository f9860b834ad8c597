"""When the world asks its scheduler, and what has happened by then."""

import pytest

from stretto.model import ON_CHANGE, BadPlan, Trigger, Triggers, View, every
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.world import CapacityEvent, Starved
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import NO_RESTARTS, Told, a_truth, a_workload, on, seen, seen_training

ANYTHING = Triggers(frozenset(Trigger) - {Trigger.ROUND})
ANYTHING_AND_ROUNDS = Triggers(frozenset(Trigger), round_s=100.0)
ARTIFACT = SimSettings(fidelity=Fidelity.ARTIFACT, restart_s=0.0)


def test_at_one_instant_jobs_end_then_nodes_change_then_jobs_come_then_timers_and_rounds_are_due() -> None:
    policy = Told({0.0: {"a": {0: 1}}, 100.0: {"a": {0: 1}, "b": {1: 1}}}, ANYTHING_AND_ROUNDS)
    jobs = a_workload((a_job("a"), 100.0), (a_job("b", at_s=100.0), 50.0))
    leaves = CapacityEvent(100.0, node=0, usable=False)
    run = seen(policy, jobs, a_cluster(1, 1), capacity_events=[leaves])
    assert run.completed_s("a") == 100.0
    assert run.world.history.preemptions == 0  # it had ended before its node went
    then = run.at(100.0)
    assert then.jobs.ids == ("b",)
    assert then.usable.tolist() == [False, True]
    assert then.due == {
        Trigger.COMPLETION,
        Trigger.CAPACITY,
        Trigger.ARRIVAL,
        Trigger.WAKE,
        Trigger.ROUND,
    }
    assert run.decided_s.count(100.0) == 1


def test_a_policy_of_events_is_asked_at_once_and_only_then() -> None:
    jobs = a_workload((a_job("a", at_s=7.0), 10.0), (a_job("b", at_s=9.5), 30.0))
    run = seen(on(ANYTHING, at_0={"a": {0: 1}, "b": {0: 1}}), jobs, a_cluster(2))
    assert run.decided_s == [7.0, 9.5, 17.0]
    assert run.completed_s("b") == 39.5


def test_a_policy_of_rounds_is_asked_at_multiples_of_its_period_while_somebody_is_there() -> None:
    jobs = a_workload((a_job("a", at_s=130.0), 100.0), (a_job("b", at_s=1000.0), 10.0))
    run = seen(on(every(60.0), at_0={"a": {0: 1}, "b": {0: 1}}), jobs, a_cluster(1))
    assert run.decided_s == [180.0, 240.0, 1020.0]
    assert run.completed_s("a") == 280.0


def test_who_comes_inside_an_interval_waits_for_the_next_round() -> None:
    jobs = a_workload((a_job("a"), 1000.0), (a_job("b", at_s=61.0), 10.0))
    run = seen(on(every(60.0), at_0={"a": {0: 1}, "b": {1: 1}}), jobs, a_cluster(1, 1))
    assert run.world.accounting.first_start_s[run.row("b")] == 120.0


def test_who_comes_with_a_round_is_in_it() -> None:
    run = seen(on(every(60.0), at_0={"a": {0: 1}}), a_workload((a_job("a", at_s=120.0), 10.0)), a_cluster(1))
    assert run.decided_s == [120.0]


@pytest.mark.parametrize(("sim", "first_s"), [(NO_RESTARTS, 0.0), (ARTIFACT, 60.0)])
def test_the_published_simulator_takes_one_step_before_its_first_round(
    sim: SimSettings, first_s: float
) -> None:
    run = seen(on(every(60.0), at_0={"a": {0: 1}}), a_workload((a_job("a"), 10.0)), a_cluster(1), sim)
    assert run.decided_s[0] == first_s


def test_a_policy_may_name_a_time_to_be_asked_again() -> None:
    policy = on(ANYTHING, at_0={"a": {0: 1}}, at_40={"a": {0: 2}})
    run = seen(policy, a_workload((a_job("a", max_gpus=2), 100.0)), a_cluster(2))
    assert run.decided_s == [0.0, 40.0]
    assert run.at(40.0).due == {Trigger.WAKE}
    assert run.completed_s("a") == 70.0


def test_a_later_decision_takes_back_the_time_that_an_earlier_one_named() -> None:
    """The wake-up at 500 is for the first decision; the second names none."""

    class Forgetful(Told):
        name = "forgetful"

        def allocate(self, snapshot, speeds):  # type: ignore[no-untyped-def]
            shares = super().allocate(snapshot, speeds)
            object.__setattr__(shares, "wake_s", 500.0 if snapshot.now_s == 0 else None)
            return shares

    policy = Forgetful({0.0: {"a": {0: 1}, "b": {0: 1}}}, ANYTHING)
    run = seen(policy, a_workload((a_job("a"), 1000.0), (a_job("b", at_s=10.0), 10.0)), a_cluster(2))
    assert run.decided_s == [0.0, 10.0, 20.0]


def test_the_ends_of_epochs_are_events_too() -> None:
    policy = on(Triggers(frozenset({Trigger.ARRIVAL, Trigger.EPOCH_END})), at_0={"a": {0: 1}})
    run = seen_training(policy, [a_job("a")], a_cluster(1), a_truth(epoch_s=100.0, restart_s=10.0))
    assert run.decided_s == pytest.approx([0.0, 110.0, 210.0])
    assert run.completed_s("a") == pytest.approx(310.0)


@pytest.mark.parametrize("trigger", [Trigger.PROFILE_DONE, Trigger.ARRIVAL])
def test_a_job_that_is_profiled_first_comes_to_the_scheduler_when_that_is_done(trigger: Trigger) -> None:
    policy = Told({0.0: {"a": {0: 1}}}, Triggers(frozenset({trigger})), frozenset({View.GOODPUT_MODEL}))
    sim = SimSettings(profile_s=25.0, profile_gpus=3, restart_s=0.0)
    run = seen_training(policy, [a_job("a", at_s=5.0)], a_cluster(1), a_truth(restart_s=0.0), sim)
    assert run.decided_s == [30.0]
    assert run.at(30.0).due == {trigger}
    assert run.completed_s("a") == pytest.approx(330.0)
    assert run.world.accounting.attained_gpu_s[0] == pytest.approx(300.0)
    assert (
        run.world.accounting.profiled_gpu_s[0] == 25.0 * 3
    )  # on GPUs of its own: GPU-hours, but no use of the cluster


@pytest.mark.parametrize("triggers", [ANYTHING, every(60.0)], ids=["events", "rounds"])
def test_a_policy_that_starves_everybody_ends_in_an_error_that_names_them(triggers: Triggers) -> None:
    sim = SimSettings(max_idle_rounds=5)
    with pytest.raises(Starved, match=r"2 jobs wait and nothing will start them, first a, b"):
        seen(Told({}, triggers), a_workload((a_job("a"), 1.0), (a_job("b"), 1.0)), a_cluster(1), sim)
    assert issubclass(Starved, BadPlan)


def test_waiting_for_nodes_is_no_starving() -> None:
    away, back = CapacityEvent(0.0, 0, usable=False), CapacityEvent(6000.0, 0, usable=True)
    policy = on(every(60.0), at_0={"a": {0: 1}})
    sim = SimSettings(max_idle_rounds=5)
    run = seen(policy, a_workload((a_job("a"), 10.0)), a_cluster(1), sim, [away, back])
    assert run.completed_s("a") == 6010.0


def test_a_decision_sees_training_jobs_as_they_stand_then() -> None:
    """Not as they stood at their last epoch's end, long before b came."""
    views = frozenset({View.ORACLE_DURATION, View.PROGRESS, View.REMAINING_WORK})
    policy = Told({0.0: {"a": {0: 1}, "b": {1: 1}}}, ON_CHANGE, views)
    jobs = [a_job("a"), a_job("b", at_s=130.0)]
    run = seen_training(policy, jobs, a_cluster(1, 1), a_truth(epoch_s=100.0, restart_s=0.0))
    then = run.at(130.0).jobs
    assert then.durations.remaining_s == pytest.approx([170.0, 300.0])
    assert then.remaining_work == pytest.approx([170.0, 300.0])
    assert then.progress.epochs.tolist() == [1, 0]
