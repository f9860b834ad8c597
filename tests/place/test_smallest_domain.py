"""A job of several nodes goes into the smallest domain of the network that can hold it."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Adaptivity, Cluster, GpuType, JobId, Node, NodeId, Placement, Snapshot, Why
from stretto.place import PLACERS, load_placer
from stretto.place.draft import Draft
from stretto.policies import load_policy
from stretto.scheduler.round import decide
from stretto.sim.run import Setup, scheduler_of
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job, a_snapshot, grant, shares_of

EVERY = pytest.mark.parametrize("name", PLACERS)
STILL: dict[str, dict[str, Any]] = {"whole-nodes": {"evict": False}, "buddy": {"migrate": False}}


def a_network(*racks: int, racks_per_leaf: int = 2, gpus: int = 4) -> Cluster:
    """Racks of so many nodes, under leaves of so many racks."""
    nodes = tuple(
        Node(NodeId(f"r{rack}n{at}"), "gpu", gpus, domains=(f"leaf{rack // racks_per_leaf}", f"rack{rack}"))
        for rack, count in enumerate(racks)
        for at in range(count)
    )
    return Cluster("net", (GpuType("gpu"),), nodes, ("leaf", "rack"))


def placed(
    name: str, cluster: Cluster, gpus: int, held: dict[str, Any] | None = None, **now: int
) -> tuple[int, ...]:
    """The nodes of a job `new` of so many GPUs beside others."""
    held = held or {}
    snapshot = a_snapshot(
        *(a_job(job) for job in held if job != "new"), a_job("new", at_s=1), cluster=cluster, allocations=held
    )
    shares = {job: allocation.gpus for job, allocation in held.items()} | {"new": gpus} | now
    return tuple(load_placer(name).place(snapshot, shares_of(snapshot, shares))[JobId("new")].nodes)


@EVERY
@pytest.mark.parametrize(
    ("racks", "gpus", "expected"),
    [
        pytest.param((3, 2, 3, 2), 8, (3, 4), id="the tightest rack that can hold it"),
        pytest.param((3, 3, 3, 2), 12, (0, 1, 2), id="of equal ones the first"),
        pytest.param((1, 1, 3, 3, 4, 1), 20, (8, 9, 10, 11, 12), id="the tightest leaf, where no rack can"),
        pytest.param((1, 2, 2, 2, 2, 2), 16, (3, 4, 5, 6), id="a leaf that is full by it"),
        pytest.param(
            (1, 2, 2, 2, 1, 3), 24, (1, 2, 3, 4, 5, 6), id="the largest leaf, and a rack for the rest"
        ),
    ],
)
def test_a_job_of_several_nodes_goes_into_the_smallest_domain(
    name: str, racks: tuple[int, ...], gpus: int, expected: tuple[int, ...]
) -> None:
    assert placed(name, a_network(*racks), gpus) == expected


@EVERY
def test_a_job_within_a_node_goes_where_it_went_without_topology(name: str) -> None:
    held = {"a": grant(0, n0=1), "b": grant(0, n4=3)}
    network = a_network(3, 2, 3)
    flat = Cluster("flat", network.types, tuple(Node(node.id, "gpu", 4) for node in network.nodes))
    for gpus in (1, 2, 3, 4):
        assert placed(name, network, gpus, held) == placed(name, flat, gpus, held)


@EVERY
def test_a_job_that_grows_stays_on_its_nodes_and_grows_as_near_as_can_be(name: str) -> None:
    cluster = a_network(2, 2, 3, 3)
    assert placed(name, cluster, 8, {"new": grant(0, n0=4)}) == (0, 1)
    taken = {"a": grant(0, n1=4)}
    assert placed(name, cluster, 8, {"new": grant(0, n0=4), **taken}) in {(0, 2), (0, 3)}
    taken |= {"b": grant(0, n2=4), "c": grant(0, n3=4)}
    assert placed(name, cluster, 8, {"new": grant(0, n0=4), **taken})[0] == 0


def test_what_no_rack_can_hold_with_whole_nodes_finds_one_with_parts() -> None:
    cluster = a_network(2, 2, 2, 2)
    held = {"a": grant(0, n1=2), "b": grant(0, n2=1), "c": grant(0, n4=1), "d": grant(0, n6=3)}
    assert placed("consolidated", cluster, 6, held) == (0, 1)


@settings(max_examples=scaled(100), deadline=None)
@given(
    name=st.sampled_from(sorted(PLACERS)),
    racks=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    racks_per_leaf=st.integers(1, 3),
    nodes=st.integers(1, 5),
    less=st.integers(0, 3),
)
def test_a_job_alone_spans_no_more_domains_than_it_must(
    name: str, racks: list[int], racks_per_leaf: int, nodes: int, less: int
) -> None:
    """By trying all sets of nodes: on the outermost level that it must span, and on those around it."""
    cluster = a_network(*racks, racks_per_leaf=racks_per_leaf)
    nodes = min(nodes, len(cluster.nodes))
    spans = cluster.topology.spans
    best = min(spans(each) for each in combinations(range(len(cluster.nodes)), nodes))
    chosen = placed(name, cluster, 4 * nodes - less if nodes > 1 else 4)
    assert len(chosen) == nodes
    decisive = 1 + next((level for level, count in enumerate(best) if count > 1), len(best))
    assert spans(chosen)[:decisive] == best[:decisive]


@settings(max_examples=scaled(100), deadline=None)
@given(
    name=st.sampled_from(sorted(PLACERS)),
    racks=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    before=st.lists(st.sampled_from((0, 1, 2, 3, 4, 8, 12)), min_size=6, max_size=6),
    after=st.lists(st.sampled_from((-1, 0, 1, 4, 8, 10, 16)), min_size=6, max_size=6),
)
def test_no_job_is_moved_for_topology_and_no_gpu_is_given_twice(
    name: str, racks: list[int], before: list[int], after: list[int]
) -> None:
    cluster = a_network(*racks)
    placer = load_placer(name, **STILL.get(name, {}))
    names = [f"j{row}" for row in range(6)]

    def step(placement: Placement | None, gpus: dict[str, int]) -> Snapshot:
        held = {} if placement is None else {str(job): found for job, found in placement.items()}
        snapshot = a_snapshot(*(a_job(job) for job in names), cluster=cluster, allocations=held)
        return a_snapshot(
            *(a_job(job) for job in names),
            cluster=cluster,
            allocations=dict(placer.place(snapshot, shares_of(snapshot, gpus)).items()),
        )

    first = step(None, dict(zip(names, before, strict=True)))
    held = {job: first.placement[JobId(job)].gpus if JobId(job) in first.placement else 0 for job in names}
    asked = {job: held[job] if now < 0 else now for job, now in zip(names, after, strict=True)}
    second = step(first.placement, asked)
    for job in names:
        if held[job] and asked[job] == held[job]:
            assert second.placement[JobId(job)] == first.placement[JobId(job)]
    masks = np.zeros(len(cluster.nodes), dtype=np.int64)
    for allocation in second.placement.values():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            assert not masks[node] & mask
            masks[node] |= mask


@EVERY
@pytest.mark.parametrize(
    ("within", "gpus", "nodes"),
    [
        ("rack", 8, 2),
        ("rack", 12, 0),
        ("leaf", 12, 3),
        ("leaf", 20, 0),
        ("", 20, 5),
        ("pod", 4, 1),
        ("pod", 8, 0),
    ],
)
def test_a_job_that_must_be_within_a_domain_is_there_or_waits(
    name: str, within: str, gpus: int, nodes: int
) -> None:
    snapshot = a_snapshot(a_job("new", within=within), cluster=a_network(2, 2, 2, 2))
    allocation = load_placer(name).place(snapshot, shares_of(snapshot, {"new": gpus})).get(JobId("new"))
    assert (len(allocation.nodes) if allocation else 0) == nodes


def test_the_reason_names_the_level_within_which_a_job_must_be() -> None:
    snapshot = a_snapshot(
        a_job("a", gpus=12, adaptivity=Adaptivity.RIGID, within="rack"), cluster=a_network(2, 2)
    )
    plan = decide(snapshot, scheduler_of(Setup(snapshot.cluster, load_policy("fifo"), SimSettings())))
    assert plan.actions == ()
    assert plan.why.of(0) is Why.FRAGMENTED
    assert plan.why.evidence[0] == "no rack has room for its 12 GPUs, within which it must be"


def test_counts_of_domains_are_those_of_the_nodes_after_every_step() -> None:
    cluster = a_network(2, 3, 1)
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=cluster, allocations={"a": grant(0, n0=4, n3=2)})
    draft = Draft(snapshot)
    draft.room_of(0)
    for job, taken in product((JobId("a"), JobId("b")), ({"n1": 4, "n2": 1}, {"n0": 4, "n3": 3, "n4": 4})):
        draft.lift(job)
        if draft.is_free(grant(0, **taken)):
            draft.put(job, grant(0, **taken))
        fresh = Draft(a_snapshot(a_job("a"), a_job("b"), cluster=cluster))
        for other in (JobId("a"), JobId("b")):
            if (allocation := draft.current(other)) is not None:
                fresh.put(other, allocation)
        kept, made = draft.room_of(0), fresh.room_of(0)
        assert (kept.free == made.free).all()
        assert (kept.whole == made.whole).all()
        assert (kept.idle == made.idle).all()
