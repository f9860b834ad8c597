"""What every placer promises, whatever its rule."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import (
    Allocation,
    BadPlan,
    Cluster,
    GpuType,
    Job,
    JobId,
    Pinned,
    Placement,
    Snapshot,
    cluster_of,
    no_placement,
)
from stretto.place import PLACERS, load_placer
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, shares_held, shares_of

EVERY = pytest.mark.parametrize("name", PLACERS)


def where(placement: Placement) -> dict[str, dict[int, int]]:
    """GPUs by job and node."""
    return {str(job): dict(zip(held.nodes, held.shape, strict=True)) for job, held in placement.items()}


@EVERY
def test_a_decision_that_changes_nothing_returns_the_same_placement(name: str) -> None:
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(4, 4), allocations={"a": grant(0, n0=2)})
    for shares in (
        shares_of(snapshot, {"a": 2}),
        shares_of(snapshot, {"a": 2}, kind={"a": 0}, nodes={"a": 1}),
        shares_of(snapshot, {"a": 2}, pinned={"a": Pinned((0,), (2,))}),
    ):
        assert load_placer(name).place(snapshot, shares) is snapshot.placement


@EVERY
def test_an_unchanged_job_keeps_its_very_allocation_while_others_come_and_go(name: str) -> None:
    held = {"a": grant(0, n0=3), "b": grant(0, n1=4)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(4, 4), allocations=held)
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 3, "c": 1}))
    assert after[JobId("a")] is snapshot.placement[JobId("a")]
    assert shares_held(after) == {"a": 3, "c": 1}


@EVERY
def test_a_shrinking_job_gives_back_the_node_where_it_holds_fewest(name: str) -> None:
    snapshot = a_snapshot(
        a_job("a"), cluster=a_cluster(4, 4, 4), allocations={"a": grant(0, n0=2, n1=4, n2=4)}
    )
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 8}))
    assert where(after) == {"a": {1: 4, 2: 4}}


@EVERY
def test_a_shrinking_job_keeps_the_lowest_of_its_gpus(name: str) -> None:
    snapshot = a_snapshot(
        a_job("a"), cluster=a_cluster(8), allocations={"a": Allocation(0, (0,), (0b11110000,))}
    )
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 2}))
    assert after[JobId("a")].masks == (0b00110000,)


@EVERY
def test_a_growing_job_keeps_its_gpus_where_there_is_room(name: str) -> None:
    held = {"a": Allocation(0, (1,), (0b1100,))}
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(8, 8), allocations=held)
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 4}))
    assert after[JobId("a")] == Allocation(0, (1,), (0b1111,))
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 16}))
    assert where(after) == {"a": {0: 8, 1: 8}}


@EVERY
def test_named_gpus_are_the_lowest_free_ones(name: str) -> None:
    held = {"a": Allocation(0, (0,), (0b00000101,))}
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(8), allocations=held)
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 2, "b": 1}))
    assert after[JobId("b")].masks == (0b00000010,)


@EVERY
def test_a_job_that_runs_and_finds_no_room_to_grow_stays(name: str) -> None:
    held = {"a": grant(0, n0=4), "b": Allocation(0, (0,), (0b11110000,))}
    jobs = [a_job("a"), a_job("b", preemptible=False)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8), allocations=held)
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 8, "b": 4}))
    assert after is snapshot.placement


@EVERY
def test_jobs_may_change_places_on_a_full_cluster(name: str) -> None:
    two_types = cluster_of("two", (GpuType("old"), 1, 4), (GpuType("new"), 1, 4))
    held = {"a": grant(0, n0=4), "b": grant(1, n1=4)}
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=two_types, allocations=held)
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 4, "b": 4}, kind={"a": 1, "b": 0}))
    assert where(after) == {"a": {1: 4}, "b": {0: 4}}


@EVERY
def test_a_job_without_a_stated_type_gets_the_one_with_most_free_gpus_that_it_accepts(name: str) -> None:
    cluster = cluster_of("three", (GpuType("small"), 1, 4), (GpuType("big"), 1, 8), (GpuType("huge"), 2, 8))
    jobs = [a_job("any", at_s=0), a_job("picky", at_s=1, gpu_types=("small", "big")), a_job("small", at_s=2)]
    snapshot = a_snapshot(*jobs, cluster=cluster)
    shares = shares_of(snapshot, {"any": 4, "picky": 2, "small": 1}, kind={"small": 0})
    after = load_placer(name).place(snapshot, shares)
    assert {job: held.kind for job, held in after.items()} == {"any": 2, "picky": 1, "small": 0}


@EVERY
def test_gpu_types_are_never_mixed(name: str) -> None:
    two_types = cluster_of("two", (GpuType("old"), 1, 4), (GpuType("new"), 1, 4))
    snapshot = a_snapshot(a_job("a"), cluster=two_types)
    assert len(load_placer(name).place(snapshot, shares_of(snapshot, {"a": 8}))) == 0


@EVERY
def test_a_type_s_limit_on_the_nodes_of_a_job_is_kept(name: str) -> None:
    cluster = cluster_of("limited", (GpuType("gpu", max_nodes_per_job=2), 3, 4))
    snapshot = a_snapshot(a_job("a"), cluster=cluster)
    assert shares_held(load_placer(name).place(snapshot, shares_of(snapshot, {"a": 8}))) == {"a": 8}
    assert shares_held(load_placer(name).place(snapshot, shares_of(snapshot, {"a": 12}))) == {}


@EVERY
def test_a_job_on_a_lost_node_is_placed_on_others_or_waits(name: str) -> None:
    held = {"a": grant(0, n0=4), "b": grant(0, n1=2)}
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(4, 4, 4), allocations=held)
    moved = load_placer(name).place(
        replace(snapshot, usable=np.array([False, True, True])), shares_of(snapshot, {"a": 4, "b": 2})
    )
    assert where(moved) == {"a": {2: 4}, "b": {1: 2}}
    waits = load_placer(name).place(
        replace(snapshot, usable=np.array([False, True, False])), shares_of(snapshot, {"a": 4, "b": 2})
    )
    assert where(waits) == {"b": {1: 2}}


@EVERY
def test_a_job_that_the_snapshot_does_not_list_keeps_its_gpus(name: str) -> None:
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(4))
    stranger = snapshot.placement.changed({JobId("stranger"): grant(0, n0=3)})
    after = load_placer(name).place(replace(snapshot, placement=stranger), shares_of(snapshot, {"a": 2}))
    assert shares_held(after) == {"stranger": 3}


@EVERY
@pytest.mark.parametrize(
    ("order", "placed"),
    [
        pytest.param(None, {"large", "late"}, id="by size where no order is stated, ties by submission"),
        pytest.param(["late", "early", "large"], {"late", "early"}, id="in the order stated"),
        pytest.param(["late"], {"late", "large"}, id="what the order leaves out comes after it, by size"),
    ],
)
def test_jobs_take_turns(name: str, order: list[str] | None, placed: set[str]) -> None:
    jobs = [a_job("early", at_s=0), a_job("large", at_s=1), a_job("late", at_s=2)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4))
    shares = shares_of(snapshot, {"early": 2, "large": 3, "late": 1}, order=order)
    assert set(load_placer(name).place(snapshot, shares)) == placed


@EVERY
def test_in_order_means_that_nobody_new_passes_one_who_waits(name: str) -> None:
    jobs = [a_job("runs", at_s=0), a_job("first", at_s=1), a_job("second", at_s=2)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(4), allocations={"runs": grant(0, n0=2)})
    asked = {"runs": 3, "first": 3, "second": 1}
    order = ["first", "second", "runs"]
    strict = shares_of(snapshot, asked, order=order, in_order=True)
    assert shares_held(load_placer(name).place(snapshot, strict)) == {"runs": 3}
    passing = shares_of(snapshot, asked, order=order)
    assert shares_held(load_placer(name).place(snapshot, passing)) == {"runs": 3, "second": 1}


@EVERY
def test_a_pinned_job_is_exactly_where_the_policy_says(name: str) -> None:
    held = {"a": grant(0, n0=2), "b": grant(0, n1=2)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(4, 4, 4), allocations=held)
    pins = {
        "a": Pinned((1, 2), (1, 1)),
        "b": Pinned((1,), (2,), (0b1100,), local_batch=(32, 64)),
        "c": Pinned((0, 1), (2, 1), local_batch=(8, 8, 16)),
    }
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 2, "b": 2, "c": 3}, pinned=pins))
    assert after[JobId("a")] == Allocation(0, (1, 2), (0b1, 0b1))
    assert after[JobId("b")] == Allocation(0, (1,), (0b1100,), (32, 64))
    assert after[JobId("c")] == Allocation(0, (0, 1), (0b11, 0b10), (8, 8, 16))


@EVERY
def test_a_pin_that_only_retunes_a_job_leaves_its_gpus_alone(name: str) -> None:
    snapshot = a_snapshot(a_job("a"), cluster=a_cluster(4), allocations={"a": Allocation(0, (0,), (0b1010,))})
    pins = {"a": Pinned((0,), (2,), local_batch=(4, 4))}
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 2}, pinned=pins))
    assert after[JobId("a")] == Allocation(0, (0,), (0b1010,), (4, 4))


@EVERY
def test_a_pin_on_gpus_that_another_job_keeps_cannot_be_honoured(name: str) -> None:
    held = {"a": grant(0, n0=3), "b": grant(0, n1=1)}
    snapshot = a_snapshot(*(a_job(job) for job in "abc"), cluster=a_cluster(4, 4), allocations=held)
    pins = {"b": Pinned((0,), (2,)), "c": Pinned((0,), (2,))}
    after = load_placer(name).place(snapshot, shares_of(snapshot, {"a": 3, "b": 2, "c": 2}, pinned=pins))
    assert where(after) == {"a": {0: 3}, "b": {1: 1}}


@EVERY
@pytest.mark.parametrize(
    ("pin", "message"),
    [
        pytest.param(Pinned((0,), (3,)), "expected 2 in all", id="another count than the share"),
        pytest.param(Pinned((0, 1), (2,)), "expected 2 in all", id="nodes without a count"),
        pytest.param(Pinned((0,), (2,), (0b111,)), "expected .2,. of them", id="other named GPUs"),
        pytest.param(Pinned((1, 0), (1, 1)), "increasing order", id="nodes out of order"),
        pytest.param(Pinned((0, 2), (1, 1)), "expected one type", id="two GPU types"),
    ],
)
def test_a_pin_that_contradicts_itself_is_a_bad_plan(name: str, pin: Pinned, message: str) -> None:
    cluster = cluster_of("two", (GpuType("old"), 2, 4), (GpuType("new"), 1, 4))
    snapshot = a_snapshot(a_job("a"), cluster=cluster)
    with pytest.raises(BadPlan, match=message):
        load_placer(name).place(snapshot, shares_of(snapshot, {"a": 2}, pinned={"a": pin}))


@dataclass(frozen=True)
class Situation:
    """Something that can be asked of a placer."""

    snapshot: Snapshot
    gpus: dict[str, int]
    kind: dict[str, int]
    order: list[str] | None


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Two GPU types, nodes of several sizes, jobs that are somewhere and are now to have other shares."""
    sizes = st.sampled_from([2, 4, 6, 8])
    groups = [(GpuType(name), draw(st.integers(1, 3)), draw(sizes)) for name in ("x", "y")]
    cluster = cluster_of("drawn", *groups)
    names = [f"j{index}" for index in range(draw(st.integers(1, 8)))]
    placement = _somehow(draw, cluster, names)
    jobs = [a_job(name, at_s=i, preemptible=draw(st.booleans())) for i, name in enumerate(names)]
    snapshot = a_snapshot(
        *jobs, cluster=cluster, allocations={str(job): held for job, held in placement.items()}
    )
    usable = np.array(draw(st.lists(st.sampled_from([True] * 7 + [False]), min_size=len(cluster.nodes),
                                    max_size=len(cluster.nodes))))  # fmt: skip
    left = replace(snapshot, usable=usable).capacity.tolist()
    gpus, kind = {}, {}
    for name in names:
        type_ = draw(st.integers(0, 1))
        gpus[name] = draw(st.integers(0, min(left[type_], 10)))
        left[type_] -= gpus[name]
        kind[name] = type_ if draw(st.booleans()) else -1
    order = draw(st.none() | st.permutations(names))
    return Situation(replace(snapshot, usable=usable), gpus, kind, order)


def _somehow(draw: st.DrawFn, cluster: Cluster, names: list[str]) -> Placement:
    placement = no_placement(cluster)
    for name in names:
        kind = draw(st.integers(0, 1))
        parts: dict[int, int] = {}
        for node in np.flatnonzero(cluster.kind == kind).tolist():
            free = ((1 << int(cluster.node_gpus[node])) - 1) & ~int(placement.busy[node])
            taken = free & draw(st.integers(0, 255))
            if taken and draw(st.booleans()):
                parts[node] = taken
        if parts:
            placement = placement.changed(
                {JobId(name): Allocation(kind, tuple(parts), tuple(parts.values()))}
            )
    return placement


@EVERY
@given(situation=situations())
def test_any_shares_give_a_placement_that_the_cluster_can_hold(name: str, situation: Situation) -> None:
    snapshot = situation.snapshot
    shares = shares_of(snapshot, situation.gpus, situation.kind, order=situation.order)
    after = load_placer(name).place(snapshot, shares)  # raises where a GPU would be held twice
    no_placement(snapshot.cluster).changed(dict(after))
    assert np.array_equal(after.free, snapshot.cluster.node_gpus - np.bitwise_count(after.busy))
    for job, held in after.items():
        before = snapshot.placement.get(job)
        assert situation.gpus[job] > 0
        assert {int(snapshot.cluster.kind[node]) for node in held.nodes} == {held.kind}
        assert snapshot.usable[list(held.nodes)].all()
        assert all(held.masks)
        as_wanted = held.gpus == situation.gpus[job] and situation.kind[job] in (-1, held.kind)
        assert as_wanted or (before is not None and held.kind == before.kind)
        if not as_wanted and before is not None:
            assert held.gpus == min(before.gpus, situation.gpus[job])
            assert set(held.nodes) <= set(before.nodes) or name in (
                "whole-nodes",
                "buddy",
            )  # these move others


@EVERY
@given(situation=situations())
def test_nobody_who_asks_for_no_less_than_it_holds_goes_away_empty(name: str, situation: Situation) -> None:
    snapshot = situation.snapshot
    shares = shares_of(snapshot, situation.gpus, situation.kind, order=situation.order)
    after = load_placer(name).place(snapshot, shares)
    for job, held in snapshot.placement.items():
        same_type = situation.kind[job] in (-1, held.kind)
        if same_type and situation.gpus[job] >= held.gpus and snapshot.usable[list(held.nodes)].all():
            assert after[job].gpus in (held.gpus, situation.gpus[job])


@EVERY
@given(situation=situations())
def test_the_same_snapshot_and_shares_give_the_same_placement(name: str, situation: Situation) -> None:
    shares = shares_of(situation.snapshot, situation.gpus, situation.kind, order=situation.order)
    first, second = (load_placer(name).place(situation.snapshot, shares) for _ in range(2))
    assert list(first.items()) == list(second.items())


@EVERY
@given(situation=situations())
def test_a_second_look_at_what_was_placed_changes_nothing(name: str, situation: Situation) -> None:
    cluster = situation.snapshot.cluster
    shares = shares_of(situation.snapshot, situation.gpus, situation.kind, order=situation.order)
    after = load_placer(name).place(situation.snapshot, shares)
    jobs: list[Job] = [situation.snapshot.jobs[row] for row in range(len(situation.snapshot.jobs))]
    held = {str(job): allocation for job, allocation in after.items()}
    again = replace(a_snapshot(*jobs, cluster=cluster, allocations=held), usable=situation.snapshot.usable)
    kind = {job: allocation.kind for job, allocation in held.items()}
    settled = shares_of(again, shares_held(after), kind)
    assert load_placer(name).place(again, settled) is again.placement
