"""Whoever cannot be stopped again does not begin where a promised deadline will need its GPUs."""

from collections.abc import Sequence

import pytest

from stretto.model import Job, Reward
from stretto.policies.stretto.policy import Stretto
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Truth, Workload

DUE_S = 500.0


def unstoppable(name: str, gpus: int, at_s: float) -> Job:
    return a_job(name, gpus=gpus, at_s=at_s, preemptible=False)


def promised(preemptible: bool = False) -> Job:
    return a_job("c", gpus=4, at_s=60.0, preemptible=preemptible, rewards=(Reward(DUE_S, 110.0),))


def ends_of(lasts_s: Sequence[tuple[Job, float]], policy: Stretto, nodes: int = 1) -> dict[str, float]:
    jobs, durations_s = zip(*lasts_s, strict=True)
    workload = Workload("promised", jobs, [Truth(duration_s=each) for each in durations_s])
    result = simulate(workload, Setup(a_cluster(*[4] * nodes), policy, SimSettings(restart_s=1.0)))
    return {str(job.id): float(end) for job, end in zip(jobs, result.completed_s, strict=True)}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("preemptible", [True, False])
def test_a_long_job_waits_for_one_that_was_promised_its_deadline(keeps: bool, preemptible: bool) -> None:
    jobs = [
        (unstoppable("a", 4, 0.0), 200.0),
        (unstoppable("b", 4, 30.0), 1_800.0),
        (promised(preemptible), 250.0),
    ]
    ends_s = ends_of(jobs, Stretto(keeps_promises=keeps))
    assert (ends_s["c"] <= DUE_S) == keeps


@pytest.mark.parametrize("lasts_s", [20.0, 1_800.0])
def test_one_that_is_over_in_time_need_not_wait(lasts_s: float) -> None:
    jobs = [
        (unstoppable("a", 4, 0.0), 100.0),
        (unstoppable("b", 4, 30.0), lasts_s),
        (promised(), 250.0),
    ]
    ends_s = ends_of(jobs, Stretto())
    assert ends_s["c"] <= DUE_S
    assert (ends_s["b"] < ends_s["c"]) == (lasts_s < 100.0)


def test_small_ones_leave_enough_together() -> None:
    small = [(unstoppable(f"b{number}", 1, 30.0), 1_800.0) for number in range(6)]
    jobs = [(unstoppable("a", 4, 0.0), 200.0), *small, (promised(), 250.0)]
    ends_s = ends_of(jobs, Stretto(), nodes=2)
    assert ends_s["c"] <= DUE_S
    begun_s = [ends_s[f"b{number}"] - 1_800.0 for number in range(6)]
    assert [begin_s < ends_s["c"] for begin_s in begun_s] == [True] * 4 + [False] * 2


def test_where_there_is_room_beside_the_promise_nobody_waits() -> None:
    jobs = [
        (unstoppable("a", 4, 0.0), 200.0),
        (unstoppable("b", 4, 30.0), 1_800.0),
        (promised(), 250.0),
    ]
    ends_s = ends_of(jobs, Stretto(), nodes=2)
    assert ends_s["b"] == 30.0 + 1_800.0
    assert ends_s["c"] <= DUE_S
