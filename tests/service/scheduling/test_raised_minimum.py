"""Owners raise the fewest GPUs of a running job above what it holds: every policy can still decide."""

import pytest
from tests.service.scene import Scene

from stretto.model import Trigger
from stretto.policies.registry import policy_names
from stretto.scheduler.round import decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured

DUE = frozenset({Trigger.ARRIVAL, Trigger.ROUND, Trigger.COMPLETION})
STEP_S = 700.0  # beyond any policy's round


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize(("fewest", "most"), [(4, 8), (8, 8), (1, 2)])
def test_a_newcomer_beside_a_job_outside_its_range_is_decided_about(
    policy: str, fewest: int, most: int
) -> None:
    scene = Scene(nodes=2)
    configured = Configured(policy, priorities="preempt", speeds="measured")
    scheduler = scheduler_of(configured)
    observer = SnapshotBuilder(scheduler.policy.views)
    scene.tell(configured)

    def go_on() -> None:
        scene.now_s += STEP_S
        snapshot = snapshot_for(scheduler, observer, scene.state, scene.now_s, DUE, scene.memory)
        plan = decide(snapshot, scheduler)
        scene.tell(decided(snapshot, plan, scene.state.seq, 0.0))
        scene.memory = plan.memory
        scene.reconcile()

    scene.submit("1", gpus=4, expected_time_s=10_800.0)
    scene.submit("2", gpus=1, expected_time_s=10_800.0)
    scene.submit("3", gpus=1, elastic=(1, 8), expected_time_s=10_800.0)
    for _ in range(3):
        go_on()
    scene.tell(happened.Scaled("3", fewest, most))
    scene.submit("4", gpus=1, expected_time_s=300.0)
    for _ in range(3):
        go_on()
