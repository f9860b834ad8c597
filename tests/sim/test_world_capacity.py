"""Nodes that come and go under running jobs."""

import numpy as np
import pytest

from stretto.model import ON_CHANGE, CapacityNotice, Trigger, every
from stretto.policies.fifo import FirstInFirstOut
from stretto.sim.metrics import usage
from stretto.sim.settings import SimSettings
from stretto.sim.world import CapacityEvent
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import NO_RESTARTS, Told, a_truth, a_workload, on, seen, seen_training


def test_jobs_on_a_node_that_goes_are_stopped_and_queued() -> None:
    goes, comes = CapacityEvent(30.0, 0, usable=False), CapacityEvent(70.0, 0, usable=True)
    jobs = a_workload((a_job("a", gpus=4), 100.0), (a_job("b", gpus=2), 100.0))
    run = seen(FirstInFirstOut(), jobs, a_cluster(4, 2), capacity_events=[goes, comes])
    assert [snapshot.usable.tolist() for snapshot in run.snapshots][:3] == [
        [True, True],
        [False, True],
        [True, True],
    ]
    assert [dict(plan.placement).keys() for plan in run.plans][:3] == [{"a", "b"}, {"b"}, {"a", "b"}]
    assert run.at(30.0).due == {Trigger.CAPACITY}
    assert run.at(30.0).capacity.tolist() == [2]
    assert run.completed_s("a") == 140.0  # 30 s before, 70 s after
    assert run.completed_s("b") == 100.0
    assert run.world.history.preemptions == 0  # a node that goes is not the scheduler's doing
    assert run.world.accounting.last_stop_s[run.row("a")] == 30.0


def test_a_job_on_several_nodes_loses_all_of_them() -> None:
    goes = CapacityEvent(30.0, 1, usable=False)
    jobs = a_workload((a_job("a", gpus=2, max_gpus=2), 100.0))
    policy = on(ON_CHANGE, at_0={"a": {0: 1, 1: 1}}, at_30={}, at_50={"a": {0: 1}})
    run = seen(policy, jobs, a_cluster(1, 1), capacity_events=[goes])
    assert run.world.placement.free.tolist() == [1, 1]
    assert run.world.accounting.attained_gpu_s[0] == pytest.approx(2 * 30.0 + 140.0)
    assert run.completed_s("a") == 190.0  # stopped at 30, at half speed from 50


def test_a_change_that_is_announced_shows_as_a_notice_until_it_comes() -> None:
    goes = CapacityEvent(100.0, 1, usable=False, notice_s=40.0)
    run = seen(FirstInFirstOut(), a_workload((a_job("a"), 200.0)), a_cluster(1, 1), capacity_events=[goes])
    assert run.decided_s == [0.0, 60.0, 100.0]
    assert run.at(60.0).notices == (CapacityNotice(1, usable=False, by_s=100.0),)
    assert run.at(60.0).usable.all()
    assert run.at(100.0).notices == ()
    assert run.at(100.0).usable.tolist() == [True, False]


def test_every_change_of_nodes_or_jobs_is_a_new_version() -> None:
    goes = CapacityEvent(100.0, 1, usable=False, notice_s=40.0)
    jobs = a_workload((a_job("a"), 200.0), (a_job("b", at_s=10.0), 1000.0))
    run = seen(
        on(every(30.0), at_0={"a": {0: 1}, "b": {0: 1}}), jobs, a_cluster(2, 1), capacity_events=[goes]
    )
    versions = {snapshot.now_s: snapshot.version for snapshot in run.snapshots}
    assert versions[30.0] > versions[0.0]  # b came
    assert versions[60.0] > versions[30.0]  # the notice
    assert versions[90.0] == versions[60.0]
    assert versions[120.0] > versions[90.0]  # the node went
    assert versions[210.0] > versions[180.0]  # a ended


def test_a_training_that_ended_since_the_last_round_is_not_stopped_by_its_nodes_going() -> None:
    """It ends at 90 between rounds; the node goes at 100; nobody looks before 120."""
    goes = CapacityEvent(100.0, 0, usable=False)
    policy = on(every(60.0), at_0={"a": {0: 1}, "b": {1: 1}})
    jobs = [a_job("a"), a_job("b", at_s=70.0)]
    truth = a_truth(epoch_s=90.0, epochs=1, restart_s=0.0)
    run = seen_training(policy, jobs, a_cluster(1, 1), truth, capacity_events=[goes])
    assert run.completed_s("a") == pytest.approx(90.0)
    assert run.world.accounting.executed_s[0] == pytest.approx(90.0)
    assert run.world.history.preemptions == 0


def test_a_training_stopped_by_its_node_keeps_its_progress_but_restarts() -> None:
    goes = CapacityEvent(60.0, 0, usable=False)
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_80={"a": {1: 1}})
    truth = a_truth(epoch_s=100.0, epochs=1, restart_s=10.0)
    run = seen_training(policy, [a_job("a")], a_cluster(1, 1), truth, capacity_events=[goes])
    assert run.completed_s("a") == pytest.approx(80.0 + 10.0 + (100.0 - 50.0))


def test_a_recorded_job_without_checkpoints_starts_again_from_nothing() -> None:
    goes = CapacityEvent(60.0, 0, usable=False)
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_80={"a": {1: 1}})
    jobs = a_workload((a_job("a"), 100.0))
    kept = seen(policy, jobs, a_cluster(1, 1), SimSettings(restart_s=5.0), [goes])
    lost = seen(policy, jobs, a_cluster(1, 1), SimSettings(restart_s=5.0, checkpoints=False), [goes])
    assert kept.completed_s("a") == 80.0 + 5.0 + 40.0
    assert lost.completed_s("a") == 80.0 + 5.0 + 100.0


def test_utilization_counts_the_nodes_that_were_there() -> None:
    from stretto.sim.run import Setup, simulate

    goes = CapacityEvent(50.0, 1, usable=False)
    jobs = a_workload((a_job("a"), 100.0))
    setup = Setup(a_cluster(1, 3), Told({0.0: {"a": {0: 1}}}), NO_RESTARTS, capacity_events=[goes])
    result = simulate(jobs, setup)
    assert result.utilization() == usage(100.0, 50.0 * 4 + 50.0 * 1)
    assert [usable.tolist() for usable in result.history.usable] == [[4], [1]]
    assert np.array(result.history.busy).tolist() == [[1], [1]]
