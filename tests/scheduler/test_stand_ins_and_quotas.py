"""Quotas on clusters on which several GPUs of a type stand in for one that a job asks for."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.estimate.estimators import OnlineGoodput
from stretto.model import (
    NOTHING_OBSERVED,
    Adaptivity,
    Constraints,
    Durations,
    Evidence,
    GpuType,
    JobId,
    Plan,
    Queue,
    TrainingLimits,
    cluster_of,
)
from stretto.place.registry import load_placer
from stretto.policies.registry import load_policy
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import a_job, a_snapshot, grant, some_progress

LIMITS = TrainingLimits(
    init_batch=32,
    max_batch=4096,
    min_local=np.array([8]),
    max_local=np.array([256]),
    single_per_s=np.array([100.0]),
    replica_gpus=np.ones(1, dtype=np.int64),
    restart_s=30.0,
    reach_gpus=512,
)


def decided(policy: str, stand_ins: int, asked: int, quota_gpus: int) -> Plan:
    """What becomes of a job that may not be preempted and holds three GPUs of a queue with a quota."""
    rigid = Adaptivity.RIGID
    job = a_job("1", gpus=asked, preemptible=False, queue="lab", adaptivity=rigid)
    snapshot = a_snapshot(
        job,
        cluster=cluster_of("lent", (GpuType("old", stand_ins=stand_ins), 1, 12)),
        allocations={"1": grant(0, n0=3)},
        known_progress=some_progress(1),
        known_evidence=[Evidence(LIMITS, (NOTHING_OBSERVED,), np.nan, np.nan)],
        known_work=np.array([1e5]),
        known_estimates=Durations(np.array([np.nan]), np.array([np.nan])),
    )
    rules = Constraints(queues={"lab": Queue("lab", quota_gpus=quota_gpus)})
    scheduler = Scheduler(OnlineGoodput(), load_policy(policy), load_placer("whole-nodes"))
    return decide(replace(snapshot, constraints=rules), scheduler)


@pytest.mark.parametrize("policy", ["sia", "stretto"])
@pytest.mark.parametrize("quota_gpus", [1, 2, 3, 12])
@pytest.mark.parametrize(("stand_ins", "asked"), [(1, 3), (3, 1)])
def test_what_may_not_be_preempted_keeps_all_that_stands_in_for_what_it_asked_for(
    policy: str, stand_ins: int, asked: int, quota_gpus: int
) -> None:
    plan = decided(policy, stand_ins, asked, quota_gpus)
    assert plan.actions == ()
    assert plan.placement[JobId("1")].gpus == 3
