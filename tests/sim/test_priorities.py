"""Who has a higher priority goes first, whatever the policy."""

import pytest
from tests.sim.made_worlds import NO_RESTARTS, a_workload

from stretto.model import Adaptivity, Job, JobId
from stretto.policies.registry import load_policy, policy_names
from stretto.sim.run import Setup, simulate
from stretto.testing.builders import a_cluster


def a_job(name: str, submitted_s: float, priority: int = 0, gpus: int = 1) -> Job:
    return Job(JobId(name), submitted_s, gpus, adaptivity=Adaptivity.RIGID, priority=priority)


@pytest.mark.parametrize("policy", policy_names())
def test_the_last_of_three_ends_before_the_second_where_its_priority_is_higher(policy: str) -> None:
    workload = a_workload(
        (a_job("first", 0.0), 600.0),
        (a_job("second", 1.0), 600.0),
        (a_job("last", 2.0, priority=1000), 600.0),
    )
    result = simulate(workload, Setup(a_cluster(1), load_policy(policy), NO_RESTARTS))
    _, second_s, last_s = result.completed_s.tolist()
    assert last_s < second_s
