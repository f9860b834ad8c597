"""Promises of Lyra's placement over random rounds: lent nodes, workers of several GPUs, mixed types."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    Durations,
    GpuType,
    Job,
    JobId,
    LenderState,
    Node,
    NodeId,
    Placement,
    Snapshot,
    floats,
    no_speeds,
)
from stretto.place.as_pinned import AsPinned
from stretto.policies.lyra.policy import Fungible, Lyra
from stretto.testing.builders import a_snapshot

ROUNDS = 4
POLICIES = {
    "as published": Lyra(),
    "nothing apart": Lyra(special_placement=False),
    "lent servers first": Lyra(fungible_first=Fungible.LENT),
    "fixed": Lyra(scaling=False),
}


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Own nodes of 4 or 8 GPUs, and lent ones of 8."""
    types = (GpuType("own"), GpuType("lent", stand_ins=draw(st.sampled_from([1, 2, 3]))))
    own = draw(st.lists(st.sampled_from([4, 8]), min_size=1, max_size=3))
    nodes = [Node(NodeId(f"o{index}"), "own", gpus) for index, gpus in enumerate(own)]
    lent = draw(st.integers(1, 4))
    nodes += [Node(NodeId(f"l{index}"), "lent", 8, lender="them") for index in range(lent)]
    return Cluster("drawn", types, tuple(nodes))


@st.composite
def jobs_of(draw: st.DrawFn, name: str) -> Job:
    each = draw(st.sampled_from([1, 1, 2, 4]))
    least = draw(st.integers(1, 4))
    more = draw(st.integers(0, 4))
    asked = draw(st.integers(least, least + more))
    return Job(
        JobId(name),
        float(draw(st.integers(0, 3))),
        asked * each,
        min_gpus=least * each,
        max_gpus=(least + more) * each,
        gpus_per_worker=each,
        adaptivity=draw(st.sampled_from([Adaptivity.STRONG_SCALING, Adaptivity.RIGID])),
        heterogeneous=draw(st.sampled_from([False, False, True])),
        gpu_types=draw(st.sampled_from([(), (), ("own",), ("lent",)])),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """What there is in a few rounds one after the other: jobs come and go, lent nodes too. Nobody holds
    anything yet; lent nodes go only in a round in which nobody is left on them."""
    cluster = draw(clusters())
    jobs = [draw(jobs_of(f"j{index}")) for index in range(draw(st.integers(1, 9)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lent = np.flatnonzero([bool(node.lender) for node in cluster.nodes])
    snapshots = []
    usable = np.array([not node.lender for node in cluster.nodes])
    for _ in range(ROUNDS):
        there = [job for job in jobs if rng.random() < 0.7] or jobs[:1]
        usable = usable.copy()
        usable[lent[rng.random(len(lent)) < 0.7]] = True
        seconds = rng.exponential(1000.0, len(there))
        snapshot = a_snapshot(
            *there, cluster=cluster, known_estimates=Durations(seconds, seconds * rng.random(len(there)))
        )
        lender = LenderState("them", lent, 0.0, 300.0, floats([0.5]), np.nan)
        snapshots.append(replace(snapshot, usable=usable, lenders=(lender,)))
    return snapshots


def after(snapshot: Snapshot, policy: Lyra) -> Placement:
    """The placement of all shares, exactly as they say."""
    nothing = no_speeds(len(snapshot.jobs), 2, policy.configurations(snapshot.cluster))
    shares = policy.allocate(snapshot, nothing)
    placement = AsPinned().place(snapshot, shares)
    assert [placement[job].gpus if job in placement else 0 for job in snapshot.jobs.ids] == list(shares.gpus)
    return placement


def carried_on(snapshot: Snapshot, before: Placement) -> Snapshot:
    """The snapshot when those of its jobs that ran go on to hold what they held."""
    held = {str(job): before[job] for job in snapshot.jobs.ids if job in before}
    table = snapshot.jobs
    jobs = [table[row] for row in range(len(table))]
    new = a_snapshot(*jobs, cluster=snapshot.cluster, allocations=held, known_estimates=table.known_estimates)
    return replace(new, usable=snapshot.usable, lenders=snapshot.lenders)


def base_masks(allocation: Allocation) -> dict[int, int]:
    flexible = allocation.flexible or (0,) * len(allocation.nodes)
    places = zip(allocation.nodes, allocation.masks, flexible, strict=True)
    return {node: mask & ~extra for node, mask, extra in places if mask & ~extra}


def worth(cluster: Cluster, allocation: Allocation, masks: dict[int, int]) -> float:
    """GPUs as asked for."""
    return sum(mask.bit_count() / int(cluster.stand_ins[cluster.kind[node]]) for node, mask in masks.items())


def check(snapshot: Snapshot, placement: Placement, policy: Lyra) -> None:
    cluster = snapshot.cluster
    assert not (placement.busy[~snapshot.usable]).any()
    for row in range(len(snapshot.jobs)):
        job = snapshot.jobs[row]
        if job.id not in placement:
            continue
        now = placement[job.id]
        base = base_masks(now)
        least = job.min_gpus if policy.scaling else job.gpus
        most = job.max_gpus if policy.scaling else job.gpus
        assert worth(cluster, now, base) == pytest.approx(least)
        assert worth(cluster, now, dict(zip(now.nodes, now.masks, strict=True))) <= most + 1e-9
        kinds = {int(cluster.kind[node]) for node in now.nodes}
        assert len(kinds) == 1 or job.heterogeneous
        assert snapshot.jobs.allowed_kinds[row, list(kinds)].all()
        for node, mask in zip(now.nodes, now.masks, strict=True):
            extra = mask & ~base.get(node, 0)
            assert extra.bit_count() % job.gpus_per_worker == 0
            assert (mask & ~extra).bit_count() % job.gpus_per_worker == 0


@settings(max_examples=scaled(250), deadline=None)
@pytest.mark.parametrize("name", POLICIES)
@given(snapshots=histories())
def test_every_round_leaves_base_workers_alone_and_marks_the_others(
    name: str, snapshots: list[Snapshot]
) -> None:
    policy = POLICIES[name]
    before = Placement(snapshots[0].cluster, {}, np.zeros(len(snapshots[0].cluster.nodes), dtype=np.int64))
    for blank in snapshots:
        snapshot = carried_on(blank, before)
        placement = after(snapshot, policy)
        check(snapshot, placement, policy)
        for job, held in snapshot.placement.items():
            assert base_masks(placement[job]) == base_masks(held)
        before = placement


@settings(max_examples=scaled(250), deadline=None)
@given(snapshots=histories())
def test_no_lent_server_ever_hosts_base_and_flexible_workers(snapshots: list[Snapshot]) -> None:
    before = Placement(snapshots[0].cluster, {}, np.zeros(len(snapshots[0].cluster.nodes), dtype=np.int64))
    for blank in snapshots:
        before = after(carried_on(blank, before), Lyra())
        cluster = blank.cluster
        base, flexible = set(), set()
        for held in before.values():
            base |= set(base_masks(held))
            flexible |= {node for node, mask in zip(held.nodes, held.flexible, strict=False) if mask}
        assert not {node for node in base & flexible if cluster.nodes[node].lender}


@settings(max_examples=scaled(150), deadline=None)
@given(snapshots=histories())
def test_with_the_same_jobs_a_second_round_changes_nothing(snapshots: list[Snapshot]) -> None:
    """Nobody is moved to and fro: what a round comes to is where the next one starts."""
    first = after(snapshots[0], Lyra())
    again = carried_on(snapshots[0], first)
    settled = after(again, Lyra())
    gained = sum(one.gpus for one in settled.values()) - sum(one.gpus for one in first.values())
    assert settled is again.placement or gained > 0
