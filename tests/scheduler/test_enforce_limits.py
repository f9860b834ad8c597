"""A plan that exceeds a quota or a permitted size is cut, whatever the policy was told before."""

from dataclasses import replace
from typing import Any

import pytest

from stretto.estimate.estimators import NoEstimate
from stretto.model import (
    Adaptivity,
    Allocation,
    Constraints,
    GpuType,
    Job,
    JobId,
    Placement,
    Queue,
    Reservation,
    Why,
    cluster_of,
    gpus_by_type,
)
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


# ── jobs on several GPU types at once ─────────────────────────────────────────────────────────────

TWO_TYPES = cluster_of("two", (GpuType("own"), 1, 4), (GpuType("lent"), 1, 4))
ON_BOTH = Allocation(0, (0, 1), (0b1111, 0b1111))


def mixing(name: str = "m") -> Job:
    elastic: dict[str, Any] = {"min_gpus": 1, "max_gpus": 8, "adaptivity": Adaptivity.STRONG_SCALING}
    return a_job(name, gpus=4, heterogeneous=True, user="ada", **elastic)


def context_with(
    reserved: Reservation, held: dict[str, Allocation] | None = None, **constraints: Any
) -> DecisionContext:
    """A job that may mix types, beside a reservation of bob's."""
    snapshot = a_snapshot(mixing(), cluster=TWO_TYPES, allocations=held)
    snapshot = replace(snapshot, constraints=Constraints(reservations=(reserved,), **constraints))
    return reclaim(visible_part(snapshot, Scheduler(NoEstimate(), load_policy("lyra"), Relaxed())))


@pytest.mark.parametrize(("gpu_type", "left"), [("own", {0: 1, 1: 4}), ("lent", {0: 4, 1: 1})])
def test_a_job_on_several_types_leaves_what_is_reserved_of_each(gpu_type: str, left: dict[int, int]) -> None:
    context = context_with(Reservation("r", 0.0, 100.0, gpu_type, 3, user="bob"))
    placement = enforce_limits(context, context.placement.changed({JobId("m"): ON_BOTH}))
    assert gpus_by_type(placement[JobId("m")], TWO_TYPES) == left


def test_a_job_on_several_types_gives_back_those_that_are_reserved() -> None:
    reserved = Reservation("r", 0.0, 100.0, "lent", 3, user="bob")
    context = context_with(reserved, held={"m": ON_BOTH})
    assert gpus_by_type(context.placement[JobId("m")], TWO_TYPES) == {0: 4, 1: 1}


def test_where_nothing_of_a_type_is_left_a_job_on_several_types_keeps_the_others() -> None:
    reserved = Reservation("r", 0.0, 100.0, "own", 4, user="bob")
    held = context_with(reserved, held={"m": ON_BOTH}).placement[JobId("m")]
    assert gpus_by_type(held, TWO_TYPES) == {1: 4}
    assert held.kind == 1


def test_what_a_job_keeps_on_a_closed_node_counts_for_a_reservation_by_its_own_type() -> None:
    reserved = Reservation("r", 0.0, 100.0, "lent", 1, user="bob")
    held = Allocation(0, (0, 1), (0b1, 0b11))
    context = context_with(reserved, held={"z": held}, staying={"z": mixing("z")})
    (limit,) = [limit for limit in context.limits if limit.gpu_type == 1]
    assert (limit.staying, limit.most) == (2, 1)
