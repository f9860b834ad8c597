"""A plan that exceeds a quota or a permitted size is cut, whatever the policy was told before."""

from dataclasses import replace

import pytest

from stretto.estimate.estimators import NoEstimate
from stretto.model import Adaptivity, Allocation, Constraints, JobId, Placement, Queue, Why
from stretto.place.consolidate import Relaxed
from stretto.policies.registry import load_policy
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.limits import enforce_limits
from stretto.scheduler.constraints.steps import reclaim, visible_part
from stretto.scheduler.round import Scheduler
from stretto.testing.builders import a_cluster, a_job, a_snapshot

QUEUES = {
    "lab": Queue("lab", quota_gpus=3, borrow_gpus=0),
    "others": Queue("others", quota_gpus=5, borrow_gpus=0),
}


def context_of(sizes: dict[str, tuple[int, ...]]) -> DecisionContext:
    """Nothing runs; an elastic job and two of one GPU wait in the queue `lab`, one in `others`."""
    jobs = [
        a_job("e", at_s=0.0, gpus=1, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING, queue="lab"),
        a_job("f", at_s=1.0, gpus=1, queue="lab"),
        a_job("g", at_s=2.0, gpus=1, queue="lab"),
        a_job("o", at_s=3.0, gpus=1, queue="others"),
    ]
    snapshot = replace(
        a_snapshot(*jobs, cluster=a_cluster(8)), constraints=Constraints(queues=QUEUES, sizes=sizes)
    )
    return reclaim(visible_part(snapshot, Scheduler(NoEstimate(), load_policy("fifo"), Relaxed())))


def planned(context: DecisionContext, **gpus: int) -> Placement:
    """A plan in which each job holds the next so many GPUs of the only node."""
    changes, first = {}, 0
    for name, count in gpus.items():
        changes[JobId(name)] = Allocation(0, (0,), (((1 << count) - 1) << first,))
        first += count
    return context.placement.changed(changes)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"e": 1, "f": 1, "g": 1, "o": 1}, {"e": 1, "f": 1, "g": 1, "o": 1}),  # just the quota
        ({"e": 3, "f": 1, "g": 1, "o": 1}, {"e": 3, "o": 1}),  # the last that came goes first
        ({"e": 2, "f": 1, "g": 1, "o": 1}, {"e": 2, "f": 1, "o": 1}),
        ({"e": 4, "o": 1}, {"e": 3, "o": 1}),  # an elastic job is made smaller
    ],
)
def test_a_plan_beyond_a_quota_is_cut_from_behind(plan: dict[str, int], expected: dict[str, int]) -> None:
    context = context_of({})
    placement = enforce_limits(context, planned(context, **plan))
    assert {str(name): allocation.gpus for name, allocation in placement.items()} == expected
    rows = {str(job.id): row for row, job in enumerate(context.jobs)}
    for name in {*plan} - {*expected}:
        assert context.why[rows[name]][0] is Why.QUOTA


def test_a_size_between_permitted_ones_is_cut_to_the_next_smaller() -> None:
    context = context_of({"e": (1, 2, 4)})
    placement = enforce_limits(context, planned(context, e=3))
    assert placement[JobId("e")].gpus == 2
