"""How many servers are lent, and what becomes of the jobs on those that go back."""

from dataclasses import replace
from math import ceil, floor, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.lend import RULES, CapacityLoaning, lendable
from stretto.lend.forecast import Last, Oracle
from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    FloatArray,
    GpuType,
    InputError,
    LenderState,
    Node,
    NodeId,
    Snapshot,
    floats,
    ints,
)
from stretto.sim.metrics import collateral_damage
from stretto.testing.builders import a_job, a_snapshot

V100, T4 = GpuType("v100"), GpuType("t4", speed=1 / 3, stand_ins=3)
ALL, HALF = 0b11111111, 0b1111


def a_lending_cluster(own: int, lent: int) -> Cluster:
    named = [Node(NodeId(f"v100-{index}"), "v100", 8) for index in range(own)]
    named += [Node(NodeId(f"t4-{index}"), "t4", 8, lender="inference") for index in range(lent)]
    return Cluster("lending", (V100, T4) if own else (T4,), tuple(named))


def with_lender(
    snapshot: Snapshot, on_loan: list[int], demand: float, ahead: float = nan, headroom: float = 0.0
) -> Snapshot:
    lent = ints([index for index, node in enumerate(snapshot.cluster.nodes) if node.lender])
    usable = np.ones(len(snapshot.cluster.nodes), dtype=np.bool_)
    usable[lent] = False
    usable[on_loan] = True
    lender = LenderState("inference", lent, headroom, 300.0, floats([demand]), ahead)
    return replace(snapshot, usable=usable, lenders=(lender,))


def a_figure_5(demand: float, on_loan: int = 6) -> Snapshot:
    """The example of the paper, on nodes 1 to 6 behind one of its own."""
    cluster = a_lending_cluster(own=1, lent=6)
    held = {
        "a": Allocation(1, (1, 2), (ALL, ALL)),
        "b": Allocation(1, (3,), (ALL,)),
        "c": Allocation(1, (4, 5), (ALL, 0b11)),
        "d": Allocation(1, (5, 6), (0b1100, ALL)),
    }
    jobs = [a_job(name, gpus=4, max_gpus=64, adaptivity=Adaptivity.STRONG_SCALING) for name in held]
    snapshot = a_snapshot(*jobs, cluster=cluster, allocations=held)
    return with_lender(snapshot, list(range(1, 1 + on_loan)), demand)


@pytest.mark.parametrize(
    ("servers", "headroom", "share", "lent"),
    [
        pytest.param(520, 0.02, 0.42, 290, id="the trough of the paper: 509.6 less 219 in use, rounded down"),
        pytest.param(520, 0.02, 0.95, 15, id="its peak"),
        pytest.param(520, 0.02, 1.0, 0, id="nothing once everything is in use"),
        pytest.param(10, 0.0, 0.3, 7, id="a share that is a whole number of servers, but for rounding"),
        pytest.param(10, 0.0, 0.31, 6, id="a server that is needed in part is needed"),
    ],
)
def test_what_may_be_lent_leaves_demand_and_headroom(
    servers: int, headroom: float, share: float, lent: int
) -> None:
    lender = LenderState("inference", np.arange(servers), headroom, 300.0, floats([share]), nan)
    assert lendable(lender, Last()) == lent


def test_an_oracle_sees_what_comes_and_refuses_where_it_is_hidden() -> None:
    lender = LenderState("inference", np.arange(10), 0.0, 300.0, floats([0.2]), 0.5)
    assert lendable(lender, Oracle()) == 5
    with pytest.raises(InputError, match=r"lend\.forecast=oracle: expected a world that knows demand ahead"):
        lendable(replace(lender, next_demand=nan), Oracle())


def test_idle_servers_with_the_lowest_numbers_are_lent_first() -> None:
    snapshot = with_lender(a_snapshot(cluster=a_lending_cluster(1, 6)), [3], demand=0.5)
    loans = CapacityLoaning(forecast="last").settle(snapshot)
    assert np.flatnonzero(loans.usable).tolist() == [0, 1, 2, 3]
    assert loans.placement is snapshot.placement
    assert (loans.preempted, loans.demanded_gpus) == ((), 0)


@pytest.mark.parametrize(
    ("accepts", "on_loan"),
    [
        pytest.param(("t4",), [1, 3], id="3 V100 are 9 T4, two servers"),
        pytest.param(("v100",), [], id="nothing for those who would not run there"),
    ],
)
def test_on_demand_no_more_is_lent_than_waiting_jobs_could_use(
    accepts: tuple[str, ...], on_loan: list[int]
) -> None:
    snapshot = a_snapshot(a_job("j", 3, min_gpus=3, gpu_types=accepts), cluster=a_lending_cluster(1, 6))
    loans = CapacityLoaning(forecast="last", on_demand=True).settle(with_lender(snapshot, [3, 5], demand=0.5))
    assert np.flatnonzero(loans.usable[1:]).tolist() == [node - 1 for node in on_loan]
    assert (loans.preempted, loans.demanded_gpus) == ((), 0)  # what is idle was not asked back


def test_on_demand_servers_in_use_stay_and_elastic_jobs_there_may_grow() -> None:
    cluster = a_lending_cluster(own=1, lent=6)
    held = {"e": Allocation(1, (2,), (0b111,)), "r": Allocation(1, (4,), (0b111,))}
    elastic = a_job("e", gpus=1, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING)
    rigid = a_job("r", gpus=1, max_gpus=1)
    snapshot = with_lender(a_snapshot(elastic, rigid, cluster=cluster, allocations=held), [2, 3, 4, 5], 0.0)
    loans = CapacityLoaning(forecast="last", on_demand=True).settle(snapshot)
    # Three more workers of three T4 each need two servers at most; all others go back but those in use.
    assert np.flatnonzero(loans.usable[1:]).tolist() == [0, 1, 2, 3]
    assert dict(loans.placement) == dict(snapshot.placement)


def test_two_servers_of_figure_5_go_back_with_one_preemption_and_no_damage() -> None:
    loans = CapacityLoaning(forecast="last").settle(a_figure_5(demand=2 / 6))
    assert np.flatnonzero(loans.usable).tolist() == [0, 3, 4, 5, 6]
    assert loans.preempted == ("a",)
    assert sorted(loans.placement) == ["b", "c", "d"]
    assert (loans.vacated_gpus, loans.demanded_gpus) == (16, 16)


def test_collateral_damage_is_what_is_vacated_beyond_the_servers_that_go() -> None:
    loans = CapacityLoaning(forecast="last").settle(a_figure_5(demand=3 / 6))
    assert loans.preempted == ("a", "c")
    assert collateral_damage(floats([loans.vacated_gpus]), floats([loans.demanded_gpus])) == 2 / 24


def test_a_job_loses_flexible_workers_and_goes_on_where_it_keeps_its_least() -> None:
    cluster = a_lending_cluster(own=1, lent=2)
    wide = Allocation(1, (1, 2), (ALL, HALF), flexible=(0b11000000, HALF))
    job = a_job("e", gpus=2, min_gpus=2, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING)
    snapshot = with_lender(a_snapshot(job, cluster=cluster, allocations={"e": wide}), [1, 2], demand=0.5)
    loans = CapacityLoaning(forecast="last").settle(snapshot)
    assert (loans.preempted, loans.scaled_in) == ((), ("e",))
    assert loans.placement[job.id] == Allocation(1, (1,), (ALL,), flexible=(0b11000000,))
    assert np.flatnonzero(loans.usable).tolist() == [0, 1]
    needs_more = replace(job, gpus=4, min_gpus=4)  # 12 T4: the two flexible masks must not both go
    snapshot = with_lender(
        a_snapshot(needs_more, cluster=cluster, allocations={"e": wide}), [1, 2], demand=0.5
    )
    assert CapacityLoaning(forecast="last").settle(snapshot).preempted == ("e",)


def test_a_mixed_job_keeps_what_it_holds_on_servers_of_its_own() -> None:
    cluster = a_lending_cluster(own=1, lent=1)
    both = Allocation(0, (0, 1), (HALF, ALL), flexible=(0, ALL))
    job = a_job("h", gpus=4, min_gpus=4, max_gpus=8, heterogeneous=True, adaptivity=Adaptivity.STRONG_SCALING)
    snapshot = with_lender(a_snapshot(job, cluster=cluster, allocations={"h": both}), [1], demand=1.0)
    loans = CapacityLoaning(forecast="last").settle(snapshot)
    assert loans.placement[job.id] == Allocation(0, (0,), (HALF,))
    assert loans.scaled_in == ("h",)


@pytest.mark.parametrize("rule", ["random", "smallest-count", "optimal", "least-busy"])
def test_other_rules_stop_everybody_on_the_servers_that_go(rule: str) -> None:
    cluster = a_lending_cluster(own=1, lent=1)
    held = {"e": Allocation(1, (1,), (ALL,), flexible=(HALF,))}
    job = a_job("e", gpus=1, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING)
    snapshot = with_lender(a_snapshot(job, cluster=cluster, allocations=held), [1], demand=1.0)
    loans = CapacityLoaning(rule=rule, forecast="last").settle(snapshot)  # type: ignore[arg-type]
    assert (loans.preempted, loans.scaled_in, len(loans.placement)) == (("e",), (), 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": "lira"}, "unknown lend.rule 'lira', expected one of lyra, random"),
        ({"forecast": "guess"}, "unknown lend.forecast 'guess', expected one of learned, last, lstm, oracle"),
        ({"period_s": 0.0}, "lend.period_s must be > 0, got 0"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        CapacityLoaning(**wrong)  # type: ignore[arg-type]
    assert message in str(refused.value)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Random jobs on random servers on loan, some elastic, some with flexible workers; a random demand."""
    own, lent = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    cluster = a_lending_cluster(own, lent)
    on_loan = sorted(draw(st.sets(st.integers(own, own + lent - 1))))
    free = dict.fromkeys(on_loan, 8)
    jobs, held = [], {}
    for number in range(draw(st.integers(0, 10))):
        nodes, masks, spare = [], [], []
        for node in sorted(draw(st.sets(st.sampled_from(on_loan), max_size=3))) if on_loan else []:
            gpus = draw(st.integers(0, free[node]))
            if gpus:
                mask = ((1 << gpus) - 1) << (8 - free[node])
                free[node] -= gpus
                nodes.append(node)
                masks.append(mask)
                spare.append(mask if draw(st.booleans()) else 0)
        name = f"j{number}"
        elastic = draw(st.booleans())
        adaptivity = Adaptivity.STRONG_SCALING if elastic else Adaptivity.RIGID
        jobs.append(a_job(name, gpus=1, max_gpus=24, adaptivity=adaptivity))
        if nodes:
            flexible = tuple(spare) if elastic and any(spare) else ()
            held[name] = Allocation(1, tuple(nodes), tuple(masks), flexible)
    snapshot = a_snapshot(*jobs, cluster=cluster, allocations=held)
    now, ahead = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    return with_lender(snapshot, on_loan, now, max(now, ahead), draw(st.sampled_from([0.0, 0.02, 0.2])))


@settings(max_examples=scaled(150), deadline=None)
@given(
    snapshot=snapshots(),
    rule=st.sampled_from(sorted(RULES)),
    forecast=st.sampled_from(["oracle", "last", "learned"]),
)
def test_nobody_ever_holds_what_a_lender_needs_or_keeps_as_headroom(
    snapshot: Snapshot, rule: str, forecast: str
) -> None:
    loans = CapacityLoaning(rule=rule, forecast=forecast).settle(snapshot)  # type: ignore[arg-type]
    (lender,) = snapshot.lenders
    share = lender.next_demand if forecast == "oracle" else float(lender.demand[-1])
    servers = len(lender.nodes)
    most = max(floor((1 - lender.headroom) * servers - ceil(share * servers - 1e-9) + 1e-9), 0)
    assert loans.usable[lender.nodes].sum() == most
    for job, allocation in loans.placement.items():
        assert loans.usable[list(allocation.nodes)].all()
        before = snapshot.placement[job]
        assert (allocation == before) == (job not in loans.scaled_in)
        assert all(
            mask == before.masks[before.nodes.index(node)]
            for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
        )
        if job in loans.scaled_in:
            stand_ins = snapshot.cluster.stand_ins[allocation.kind]
            assert allocation.gpus >= stand_ins * 1  # every job of these asks for at least one GPU
    stopped = set(snapshot.placement) - set(loans.placement)
    assert stopped == set(loans.preempted)
    assert not stopped & set(loans.scaled_in)
    assert loans.vacated_gpus >= loans.demanded_gpus
    again = CapacityLoaning(rule=rule, forecast=forecast).settle(snapshot)  # type: ignore[arg-type]
    assert (again.usable == loans.usable).all()
    assert again.preempted == loans.preempted


def test_what_a_lender_uses_now_is_never_lent_whatever_is_foreseen() -> None:
    class Falling(Last):
        def next_share(self, demand: FloatArray, truth: float) -> float:
            return 0.0

    lender = LenderState("inference", np.arange(10), 0.0, 300.0, np.array([0.2, 0.6]), np.nan)
    assert lendable(lender, Falling()) == 4
