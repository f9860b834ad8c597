"""Sia's program on the paper's example and on tiny clusters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.estimate.estimators import OnlineGoodput
from stretto.model import (
    NOTHING_OBSERVED,
    Adaptivity,
    Allocation,
    Cluster,
    Evidence,
    GpuType,
    InputError,
    Job,
    Observations,
    Point,
    Progress,
    Shares,
    TrainingLimits,
    Why,
    cluster_of,
    powers_and_whole_nodes,
    virtual_nodes,
)
from stretto.place.registry import load_placer
from stretto.policies.sia.policy import Discount, FirstType, Sia, SiaMemory
from stretto.solve import assign
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress, speeds_of

A, B = GpuType("A"), GpuType("B")
TABLE_1 = cluster_of("table 1", (A, 1, 2), (B, 1, 4))  # the running example of section 3.4
GOODPUT = [[1, 1, 2, 3, 4], [2, 4, 1, 2, 3]]  # columns (1,1,A) (1,2,A) (1,1,B) (1,2,B) (1,4,B)
T4, RTX, A100 = GpuType("t4", max_nodes_per_job=16), GpuType("rtx"), GpuType("a100")


def limits(types: int, restart_s: float = 30.0, replica_gpus: Sequence[int] | None = None) -> TrainingLimits:
    return TrainingLimits(
        init_batch=32,
        max_batch=4096,
        min_local=np.full(types, 8),
        max_local=np.full(types, 256),
        single_per_s=np.linspace(100.0, 300.0, types),
        replica_gpus=np.array(replica_gpus or [1] * types),
        restart_s=restart_s,
        reach_gpus=512,
    )


def evidence(jobs: int, types: int, **rest: Any) -> list[Evidence]:
    return [Evidence(limits(types, **rest), (NOTHING_OBSERVED,) * types, np.nan, np.nan) for _ in range(jobs)]


def grown(jobs: int, **columns: Any) -> Progress:
    """Progress of jobs that have held more GPUs than there are, so that their growth is not limited."""
    return some_progress(jobs, **{"largest_held_gpus": [2**20] * jobs, **columns})


def allocate(
    policy: Sia,
    cluster: Cluster,
    jobs: Sequence[Job],
    goodput: Any,
    held: Any = None,
    now_s: float = 10_000.0,
    progress: Any = None,
    shown: list[Evidence] | None = None,
    memory: Any = None,
    **speeds: Any,
) -> Shares:
    types = len(cluster.types)
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=now_s,
        memory=memory,
        known_progress=progress or grown(len(jobs)),
        known_evidence=shown or evidence(len(jobs), types),
    )
    believed = speeds_of(powers_and_whole_nodes(cluster), goodput, types=types, **speeds)
    return policy.allocate(snapshot, believed)


def given(shares: Shares, cluster: Cluster) -> list[tuple[int, str]]:
    return [
        (int(gpus), cluster.type_names[int(kind)] if kind >= 0 else "-")
        for gpus, kind in zip(shares.gpus, shares.kind, strict=True)
    ]


@pytest.mark.parametrize("power", [1.0, 0.5, -0.5])
def test_the_choice_of_table_1_is_the_same_for_every_fairness_power(power: float) -> None:
    jobs = [a_job("1"), a_job("2")]
    shares = allocate(Sia(fairness_power=power), TABLE_1, jobs, GOODPUT)
    assert given(shares, TABLE_1) == [(4, "B"), (2, "A")]


@pytest.mark.parametrize(
    ("power", "best", "runner_up"), [(1.0, 8.0, 7.0), (0.5, 4.0, 3.7321), (-0.5, 1.0, 1.0774)]
)
def test_the_choice_of_table_1_and_its_runner_up_are_worth_what_the_paper_says(
    power: float, best: float, runner_up: float
) -> None:
    """Sums of G^p of what is chosen, freely and where job 1 may have two GPUs at most."""

    def worth_of(jobs: Sequence[Job]) -> float:
        shares = allocate(Sia(fairness_power=power), TABLE_1, jobs, GOODPUT)
        offered = powers_and_whole_nodes(TABLE_1)
        chosen = offered.columns_of(np.ones(2, dtype=np.int64), shares.gpus, shares.kind)
        return float((np.array(GOODPUT, dtype=np.float64)[[0, 1], chosen] ** power).sum())

    assert worth_of([a_job("1"), a_job("2")]) == pytest.approx(best, abs=1e-4)
    assert worth_of([a_job("1", max_gpus=2), a_job("2")]) == pytest.approx(runner_up, abs=1e-4)


@pytest.mark.parametrize(
    ("age_s", "restarts", "restart_s", "factor"),
    [(3600, 2, 30, 0.9752), (600, 3, 120, 0.3333), (300, 0, 250, 0.5455), (100, 1, 120, 1.0)],
)
def test_the_restart_factor_decides_whether_a_better_configuration_is_taken(
    age_s: float, restarts: int, restart_s: float, factor: float
) -> None:
    """A job on one GPU moves to two exactly where these are 1/r times as good."""
    cluster = cluster_of("one node", (A, 1, 2))

    def moves(gain: float) -> bool:
        shares = allocate(
            Sia(discount=Discount.PAPER),
            cluster,
            [a_job("j")],
            [[1.0, gain]],
            held={"j": grant(0, n0=1)},
            now_s=age_s,
            progress=grown(1, restarts=[restarts]),
            shown=evidence(1, 1, restart_s=restart_s),
        )
        return int(shares.gpus[0]) == 2

    assert moves(1.002 / factor)
    assert not moves(0.998 / factor)


@pytest.mark.parametrize(
    ("discount", "expected"), [(Discount.PAPER, 0), (Discount.ROBUST, 1)], ids=["paper", "robust"]
)
def test_below_a_restart_factor_of_0_8264_a_job_is_rather_stopped_than_made_smaller(
    discount: Discount, expected: int
) -> None:
    """One of two GPUs goes to a job that must be served; (r · 1)^-0.5 > 1.1 where r < 0.8264."""
    cluster = cluster_of("one node", (A, 1, 2))
    shares = allocate(
        Sia(discount=discount),
        cluster,
        [a_job("old"), a_job("new", at_s=900.0, preemptible=False)],
        [[1.0, 1.5], [1.0, np.nan]],
        held={"old": grant(0, n0=2)},
        requested_per_s=np.ones((2, 1)),
        now_s=1000.0,
        progress=grown(2, restarts=[7, 0]),  # r = (1000 - 210) / 1030 = 0.767
    )
    assert shares.gpus.tolist() == [expected, 1]


def test_waiting_is_penalised_and_not_rewarded_as_equation_2_is_printed() -> None:
    """With λ = 5 and p = 1 equation 2 as printed is largest (10 > 8) where nobody is served."""
    shares = allocate(Sia(fairness_power=1.0, wait_penalty=5.0), TABLE_1, [a_job("1"), a_job("2")], GOODPUT)
    assert given(shares, TABLE_1) == [(4, "B"), (2, "A")]


def test_configurations_are_powers_within_a_node_and_whole_nodes() -> None:
    assert len(powers_and_whole_nodes(cluster_of("t4", (T4, 16, 4)))) == 18
    assert len(powers_and_whole_nodes(cluster_of("rtx", (RTX, 3, 8)))) == 6
    assert len(powers_and_whole_nodes(cluster_of("a100", (A100, 2, 8)))) == 5
    assert len(powers_and_whole_nodes(cluster_of("mixed", (T4, 6, 4), (A100, 2, 8), (RTX, 3, 8)))) == 19
    assert virtual_nodes(12) == (8, 4)


def test_a_job_that_never_ran_starts_with_one_gpu_of_the_type_that_its_profile_favours() -> None:
    cluster = cluster_of("mixed", (T4, 2, 4), (A100, 1, 8))
    snapshot = a_snapshot(
        a_job("new"),
        cluster=cluster,
        known_progress=some_progress(1),
        known_evidence=evidence(1, 2),
    )
    policy = Sia(first_type=FirstType.PROFILED)
    speeds = OnlineGoodput().estimate(snapshot, policy.configurations(cluster))
    assert given(policy.allocate(snapshot, speeds), cluster) == [(1, "a100")]


def test_a_job_grows_to_at_most_twice_the_gpus_on_which_it_was_observed() -> None:
    cluster = cluster_of("one node", (A, 1, 8))
    observed = np.array([[2]])
    shares = allocate(Sia(), cluster, [a_job("j")], [[1.0, 2.0, 4.0, 8.0]], observed_gpus=observed)
    assert shares.gpus.tolist() == [4]


def test_a_restarting_job_keeps_what_it_has() -> None:
    progress = grown(2, recovering=[True, False], restarts=[1, 0])
    shares = allocate(
        Sia(), TABLE_1, [a_job("1"), a_job("2")], GOODPUT, held={"1": grant(0, n0=1)}, progress=progress
    )
    assert given(shares, TABLE_1)[0] == (1, "A")


def test_a_rigid_job_gets_what_it_asked_for_on_its_best_type_or_waits() -> None:
    cluster = cluster_of("mixed", (A, 1, 8), (B, 1, 8))
    rigid = [a_job(name, gpus=6, adaptivity=Adaptivity.RIGID) for name in "123"]
    nothing = np.full((3, len(powers_and_whole_nodes(cluster))), np.nan)
    shares = allocate(Sia(), cluster, rigid, nothing, requested_per_s=np.array([[1.0, 3.0]] * 3))
    assert sorted(given(shares, cluster)) == [(0, "-"), (6, "A"), (6, "B")]


def test_an_elastic_job_none_of_whose_sizes_is_a_configuration_gets_what_it_asked_for() -> None:
    cluster = cluster_of("one node", (A, 1, 8))
    jobs = [a_job("1", gpus=3, min_gpus=3, max_gpus=3), a_job("2", gpus=6, min_gpus=5, max_gpus=7)]
    speeds, seen = [[1.0, 2.0, 4.0, 8.0]] * 2, np.array([[1]] * 2)
    for some in (jobs[:1], jobs[1:]):
        shares = allocate(
            *(Sia(), cluster, some, speeds[:1]), observed_gpus=seen[:1], requested_per_s=np.array([[1.0]])
        )
        assert shares.gpus.tolist() == [some[0].gpus]


@pytest.mark.parametrize(("fewest", "most", "starts_on"), [(3, 4, 4), (3, 8, 4), (5, 8, 8), (2, 8, 2)])
def test_a_job_starts_on_the_smallest_configuration_that_is_not_below_its_minimum(
    fewest: int, most: int, starts_on: int
) -> None:
    cluster = cluster_of("one node", (A, 1, 8))
    job = a_job("1", gpus=fewest, min_gpus=fewest, max_gpus=most)
    shares = allocate(Sia(), cluster, [job], [[1.0, 2.0, 4.0, 8.0]], observed_gpus=np.array([[0]]))
    assert shares.gpus.tolist() == [starts_on]


def test_hybrid_parallel_jobs_run_on_whole_replicas() -> None:
    """A replica is 2 GPUs of A and 4 of B (section 3.4); estimates are NaN for anything else."""
    cluster = cluster_of("mixed", (A, 1, 8), (B, 2, 8))
    shown = [
        Evidence(
            limits(2, replica_gpus=[2, 4]),
            (
                Observations((Point(1, 1, 8, 0.1, 0.1), Point(1, 2, 8, 0.1, 0.11))),
                NOTHING_OBSERVED,
            ),
            1.0,
            10.0,
        )
    ]
    snapshot = a_snapshot(
        a_job("gpt", gpus=2, min_gpus=2),
        cluster=cluster,
        now_s=500,
        known_progress=grown(1),
        known_evidence=shown,
    )
    policy = Sia()
    speeds = OnlineGoodput().estimate(snapshot, policy.configurations(cluster))
    possible = [
        (int(gpus), int(kind))
        for gpus, kind, value in zip(
            speeds.configurations.gpus, speeds.configurations.kind, speeds.per_s[0], strict=True
        )
        if value > 0
    ]
    assert possible == [(2, 0), (4, 0), (8, 0), (4, 1), (8, 1), (16, 1)]
    shares = policy.allocate(snapshot, speeds)
    assert given(shares, cluster) in ([(8, "A")], [(16, "B")])  # at most twice the two replicas seen


def test_a_job_that_may_not_be_stopped_is_let_in_while_its_demand_fits_and_then_kept() -> None:
    cluster = cluster_of("one node", (A, 1, 4))
    jobs = [a_job("a", gpus=3, preemptible=False), a_job("b", gpus=3, preemptible=False), a_job("c")]
    speeds: dict[str, Any] = {"requested_per_s": np.ones((3, 1))}
    goodput = [[1, 1, 1], [1, 1, 1], [1, 2, 4]]
    first = allocate(Sia(), cluster, jobs, goodput, **speeds)
    assert first.gpus.tolist() == [3, 0, 1]
    later = allocate(Sia(), cluster, jobs, goodput, held={"a": grant(0, n0=3)}, **speeds)
    assert later.gpus.tolist() == [3, 0, 1]


def test_a_reservation_is_kept_whatever_it_costs_the_others() -> None:
    cluster = cluster_of("mixed", (A, 1, 4), (B, 1, 4))
    jobs = [a_job("r", reserved=(1, 4, "B")), a_job("x")]
    shares = allocate(
        Sia(),
        cluster,
        jobs,
        [[1, 2, 3, 1, 2, 3], [1, 2, 3, 10, 20, 30]],
        requested_per_s=np.ones((2, 2)),
    )
    assert given(shares, cluster) == [(4, "B"), (4, "A")]


def test_a_job_that_no_type_can_hold_is_told_so() -> None:
    cluster = cluster_of("one node", (A, 1, 4))
    big = a_job("big", gpus=8, adaptivity=Adaptivity.RIGID)
    shares = allocate(Sia(), cluster, [big], [[np.nan] * 3], requested_per_s=np.ones((1, 1)))
    assert shares.why.of(0) is Why.TOO_LARGE


@pytest.mark.parametrize(
    ("preemptible", "reason"),
    [(True, Why.WORTH_LESS), (False, Why.NO_FREE_GPUS)],
    ids=["by worth", "for room"],
)
def test_who_waits_for_gpus_that_nobody_could_be_made_to_leave_is_told_so(
    preemptible: bool, reason: Why
) -> None:
    cluster = cluster_of("one node", (A, 1, 4))
    jobs = [
        a_job("runs", gpus=4, preemptible=preemptible),
        a_job("waits", gpus=2, adaptivity=Adaptivity.RIGID),
    ]
    shares = allocate(
        Sia(),
        cluster,
        jobs,
        [[1, 2, 4], [np.nan, 1, np.nan]],
        held={"runs": grant(0, n0=4)},
        progress=grown(2, restarts=[200, 0]),  # r = 0.4: it would rather be stopped than made smaller
        requested_per_s=np.ones((2, 1)),
    )
    assert shares.gpus.tolist() == [4, 0]
    assert shares.why.of(1) is reason


def test_prices_and_a_certified_gap_come_with_the_shares() -> None:
    jobs = [a_job(str(number)) for number in range(6)]
    shares = allocate(Sia(), TABLE_1, jobs, GOODPUT * 3)
    assert shares.prices is not None
    assert shares.prices.shape == (2,)
    assert shares.gap == pytest.approx(0.0, abs=1e-9)
    assert (shares.why.code[shares.gpus == 0] == Why.WORTH_LESS).all()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"fairness_power": 0.0}, "policy.fairness_power must be >= -16, <= 16 and not 0, got 0"),
        ({"fairness_power": 1e18}, "policy.fairness_power must be >= -16, <= 16 and not 0, got 1e"),
        ({"wait_penalty": 0.0}, "wait_penalty must be > 0, got 0"),
        ({"growth": 0}, "growth must be >= 1, got 0"),
        ({"restart_s": -1.0}, "restart_s must be >= 0, got -1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sia(**setting)


@pytest.mark.parametrize(
    ("nodes", "wanted", "served"),
    [
        pytest.param((12, 12), 8, [8, 8, 4], id="a node of 12 is virtual nodes of 8 and 4"),
        pytest.param((8, 4, 4), 8, [8, 4, 4], id="small nodes do not add up to a large one"),
        pytest.param((8, 8), 8, [8, 4, 4], id="equal powers of two are one pool"),
    ],
)
def test_what_is_chosen_can_be_placed_on_nodes_of_any_size(
    nodes: tuple[int, ...], wanted: int, served: list[int]
) -> None:
    cluster = a_cluster(*nodes)
    jobs = [a_job(str(number), max_gpus=wanted) for number in range(3)]
    offered = powers_and_whole_nodes(cluster)
    shares = allocate(Sia(fairness_power=1.0), cluster, jobs, [offered.gpus.tolist()] * 3)
    assert sorted(shares.gpus.tolist(), reverse=True) == served
    snapshot = a_snapshot(*jobs, cluster=cluster)
    placed = load_placer("whole-nodes").place(snapshot, shares)
    assert len(placed) == sum(gpus > 0 for gpus in served)


def test_a_hybrid_job_that_never_ran_may_start_with_one_replica_of_any_type() -> None:
    cluster = cluster_of("mixed", (A, 1, 2), (B, 1, 8))
    job = a_job("gpt", gpus=2, min_gpus=2, gpu_types=("B",))
    snapshot = a_snapshot(
        job,
        cluster=cluster,
        known_progress=some_progress(1),
        known_evidence=evidence(1, 2, replica_gpus=[2, 8]),
    )
    policy = Sia()
    speeds = OnlineGoodput().estimate(snapshot, policy.configurations(cluster))
    assert given(policy.allocate(snapshot, speeds), cluster) == [(8, "B")]


def test_a_job_that_may_not_be_stopped_stays_on_a_node_that_takes_no_new_ones() -> None:
    cluster = a_cluster(4, 4)
    jobs = [a_job("a", gpus=4, preemptible=False), a_job("b", gpus=4, preemptible=False)]
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations={"a": grant(0, n0=4), "b": grant(0, n1=4)},
        known_progress=grown(2),
        known_evidence=evidence(2, 1),
    )
    draining = replace(snapshot, usable=np.array([False, True]))
    speeds = speeds_of(powers_and_whole_nodes(cluster), [[1.0, 2.0, 3.0, 4.0]] * 2)
    assert Sia().allocate(draining, speeds).gpus.tolist() == [4, 4]


def test_the_cost_of_a_restart_that_a_job_does_not_name_is_a_setting() -> None:
    """r = (5000 - 3000) / 8000 keeps a job that would move for 1.5 times the goodput at S = 30 s."""
    cluster = cluster_of("one node", (A, 1, 2))

    def gpus_after(restart_s: float) -> int:
        snapshot = a_snapshot(
            a_job("j"),
            cluster=cluster,
            allocations={"j": grant(0, n0=1)},
            now_s=5000.0,
            known_progress=grown(1, restarts=[1]),
            known_evidence=[None],
        )
        speeds = speeds_of(powers_and_whole_nodes(cluster), [[1.0, 1.5]])
        return int(Sia(restart_s=restart_s).allocate(snapshot, speeds).gpus[0])

    assert (gpus_after(30.0), gpus_after(3000.0)) == (2, 1)


@pytest.mark.parametrize("digits", [2, 4, 6])
def test_sizes_in_steps_cost_no_more_than_the_ladder_says(digits: int) -> None:
    """Five jobs that scale perfectly up to 59 nodes each, of 300: nothing but their sizes can differ."""
    cluster = cluster_of("wide", (A100, 300, 8))
    jobs = [a_job(str(number), max_gpus=59 * 8) for number in range(5)]

    def served(policy: Sia) -> int:
        offered = policy.configurations(cluster)
        snapshot = a_snapshot(*jobs, cluster=cluster, known_progress=grown(5), known_evidence=evidence(5, 1))
        return int(policy.allocate(snapshot, speeds_of(offered, [offered.gpus.tolist()] * 5)).gpus.sum())

    every = served(Sia(fairness_power=1.0, size_digits=62))
    some = Sia(fairness_power=1.0, size_digits=digits)
    ladder = some.configurations(cluster).ladder
    assert ladder is not None
    assert every == 5 * 59 * 8
    assert (1 - ladder.most_lost) * every <= served(some) <= every
    assert (served(some) == every) == (ladder.why_not(59 * 8, 0) == "") == (digits == 6)


def test_a_job_on_a_size_between_the_steps_goes_on_to_one_of_them() -> None:
    cluster = cluster_of("wide", (A100, 80, 8))
    policy = Sia()
    offered = policy.configurations(cluster)
    held = Allocation(0, tuple(range(67)), (255,) * 67)
    snapshot = a_snapshot(
        a_job("j", max_gpus=67 * 8),
        cluster=cluster,
        allocations={"j": held},
        now_s=10_000.0,
        known_progress=grown(1),
        known_evidence=evidence(1, 1),
    )
    assert offered.ladder is not None
    assert offered.ladder.why_not(held.gpus, 0) == "67 nodes lie between the steps of 66 and 68"
    shares = policy.allocate(snapshot, speeds_of(offered, [offered.gpus.tolist()]))
    assert (shares.nodes.tolist(), shares.gpus.tolist()) == ([66], [66 * 8])


@pytest.mark.parametrize("neighbour", [Adaptivity.ADAPTIVE, Adaptivity.RIGID])
def test_a_job_starts_on_the_next_configuration_whatever_runs_beside_it(neighbour: Adaptivity) -> None:
    """Three GPUs are no configuration; that a rigid job has columns of its own changes nothing for others."""
    cluster = cluster_of("small", (A100, 1, 8))
    offered = powers_and_whole_nodes(cluster)
    jobs = [a_job("j", gpus=3, min_gpus=3, max_gpus=8), a_job("k", adaptivity=neighbour, max_gpus=1)]
    snapshot = a_snapshot(
        *jobs, cluster=cluster, known_progress=some_progress(2), known_evidence=evidence(2, 1)
    )
    speeds = speeds_of(offered, [offered.gpus.tolist()] * 2, requested_per_s=np.array([[3.0], [1.0]]))
    assert Sia().allocate(snapshot, speeds).gpus.tolist() == [4, 1]


def test_a_round_about_many_jobs_goes_on_from_the_prices_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [a_job(str(number)) for number in range(8)]
    few = allocate(Sia(), TABLE_1, jobs, GOODPUT * 4)
    assert few.memory is None, "a small cluster is decided anew, and remembers nothing"
    large = Sia(goes_on_from=8)
    first = allocate(large, TABLE_1, jobs, GOODPUT * 4)
    assert first.gpus.tolist() == few.gpus.tolist()
    assert isinstance(first.memory, SiaMemory)
    assert max(first.memory.prices) > 0
    asked = list[Any]()

    def noted(problem: Any, **also: Any) -> Any:
        asked.append(also)
        return assign(problem, **also)

    monkeypatch.setattr("stretto.policies.sia.policy.assign", noted)
    for memory in (first.memory, SiaMemory((1.0,)), None):
        allocate(large, TABLE_1, jobs, GOODPUT * 4, memory=memory)
    assert asked[0]["start"].tolist() == list(first.memory.prices)
    assert asked[1:] == [{}, {}], "prices of other pools say nothing"
