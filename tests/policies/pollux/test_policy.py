"""Pollux: the paper's formulas, tiny clusters whose best matrix is known, and what happens over rounds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import (
    Allocation,
    Cluster,
    GpuType,
    InputError,
    Job,
    Shares,
    Snapshot,
    Speeds,
    Why,
    cluster_of,
    digest,
)
from stretto.place import AsPinned
from stretto.policies.pollux.homogeneous import idle_of_one_type, virtual_nodes_of
from stretto.policies.pollux.policy import Normalisation, Pollux, fitness, realloc_factor
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress, speeds_of

Speed = Callable[[int, int], float]  # (nodes, gpus) -> goodput

OLD_S = 100_000.0  # long enough for restarts to cost next to nothing


def amdahl(parallel: float, spread: float = 1.0) -> Speed:
    """Goodput with a serial part, times `spread` on several nodes."""
    return lambda nodes, gpus: (spread if nodes > 1 else 1.0) / (1 - parallel + parallel / gpus)


def only_on(counts: set[int]) -> Speed:
    """Perfect scaling on these numbers of GPUs, and no speed known on others."""
    return lambda nodes, gpus: float(gpus) if gpus in counts else np.nan


def speeds_by(policy: Pollux, cluster: Cluster, curves: list[Speed], **rest: Any) -> Speeds:
    columns = policy.configurations(cluster)
    sizes = list(zip(columns.nodes.tolist(), columns.gpus.tolist(), strict=True))
    per_s = [[curve(nodes, gpus) for nodes, gpus in sizes] for curve in curves]
    types = len(cluster.types)
    matrix = np.array(per_s).reshape(len(curves), len(columns))
    return speeds_of(columns, matrix, types=types, **rest)


def a_round(
    *jobs: Job,
    cluster: Cluster,
    curves: list[Speed] | None = None,
    held: Mapping[str, Allocation] | None = None,
    policy: Pollux | None = None,
    progress: Mapping[str, Any] | None = None,
    now_s: float = OLD_S,
    speeds: Mapping[str, Any] | None = None,
    **rest: Any,
) -> tuple[Snapshot, Shares]:
    """One decision; jobs scale perfectly and have held 64 GPUs, unless told otherwise."""
    policy = policy or Pollux()
    known = some_progress(len(jobs), **({"largest_held_gpus": np.full(len(jobs), 64)} | dict(progress or {})))
    snapshot = a_snapshot(*jobs, cluster=cluster, allocations=held, now_s=now_s, known_progress=known, **rest)
    curves = curves or [amdahl(1.0)] * len(jobs)
    return snapshot, policy.allocate(snapshot, speeds_by(policy, cluster, curves, **(speeds or {})))


def gpus_by_job(snapshot: Snapshot, shares: Shares) -> dict[str, int]:
    return {str(job): int(gpus) for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True)}


def test_the_power_mean_of_speedups_1_2_4_with_p_minus_1_is_1_7143() -> None:
    assert fitness(np.array([1.0, 2.0, 4.0]), -1.0) == pytest.approx(1.7143, abs=5e-5)


def test_a_job_of_an_hour_with_two_restarts_keeps_0_9752_of_its_speedup() -> None:
    assert realloc_factor(np.array([3600.0]), np.array([2]), 30.0)[0] == pytest.approx(0.9752, abs=5e-5)


@pytest.mark.parametrize(
    ("p", "expected"), [(1.0, 7 / 3), (0.0, 2.0), (-1.0, 12 / 7), (-2.0, (21 / 48) ** -0.5)]
)
def test_fitness_is_the_power_mean_for_every_p(p: float, expected: float) -> None:
    assert fitness(np.array([1.0, 2.0, 4.0]), p) == pytest.approx(expected)


def test_a_restart_factor_is_never_below_zero() -> None:
    assert realloc_factor(np.array([50.0]), np.array([5]), 30.0)[0] == 0.0


@pytest.mark.parametrize(
    ("largest_held", "expected"), [(0, 1), (1, 2), (2, 4), (3, 6), (8, 8)], ids=lambda held: f"{held}"
)
def test_a_lone_job_gets_at_most_twice_what_it_ever_held(largest_held: int, expected: int) -> None:
    progress = {"largest_held_gpus": [largest_held]}
    _, shares = a_round(a_job("a"), cluster=a_cluster(4, 4), progress=progress)
    assert shares.gpus.tolist() == [expected]


@pytest.mark.parametrize(
    ("job", "reach", "expected"),
    [
        pytest.param(a_job("a", max_gpus=3), 99, 3, id="no more than its owner allows"),
        pytest.param(a_job("a"), 2, 2, id="no more than its batch limits can keep busy"),
        pytest.param(a_job("a", gpus=3, min_gpus=3, max_gpus=3), 99, 3, id="a rigid job gets what it asks"),
    ],
)
def test_a_lone_job_gets(job: Job, reach: int, expected: int) -> None:
    _, shares = a_round(job, cluster=a_cluster(4, 4), speeds={"reach_gpus": np.array([reach])})
    assert shares.gpus.tolist() == [expected]


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        pytest.param([amdahl(1.0), amdahl(1.0)], {"a": 4, "b": 4}, id="equal jobs share equally"),
        pytest.param(
            [amdahl(1.0), amdahl(0.0)], {"a": 7, "b": 1}, id="who cannot use GPUs does not get them"
        ),
        pytest.param([amdahl(1.0, 0.3)] * 2, {"a": 4, "b": 4}, id="nobody spreads where that is slow"),
    ],
)
def test_two_jobs_on_two_nodes_of_four(curves: list[Speed], expected: dict[str, int]) -> None:
    jobs = [a_job("a"), a_job("b")]
    snapshot, shares = a_round(*jobs, cluster=a_cluster(4, 4), curves=curves)
    assert gpus_by_job(snapshot, shares) == expected


def test_nobody_waits_while_somebody_has_two_gpus() -> None:
    jobs = [a_job(f"j{index}") for index in range(8)]
    _, shares = a_round(*jobs, cluster=a_cluster(4, 4))
    assert shares.gpus.tolist() == [1] * 8


def test_a_running_job_is_not_moved_for_nothing() -> None:
    held = {"a": grant(0, n1=2), "b": grant(0, n0=2)}
    snapshot, shares = a_round(
        a_job("a", max_gpus=2), a_job("b", max_gpus=2), cluster=a_cluster(4, 4), held=held
    )
    placement = AsPinned().place(snapshot, shares)
    assert placement is snapshot.placement


def test_restarts_that_cost_more_than_they_gain_are_not_made() -> None:
    job = a_job("a", at_s=0.0)
    slow = [amdahl(0.2)]  # 4 GPUs are 1.06 times as fast as 2
    for now_s, expected in ((300.0, 2), (OLD_S, 4)):
        held = {"a": grant(0, n0=2)}
        _, shares = a_round(job, cluster=a_cluster(4), curves=slow, held=held, now_s=now_s)
        assert shares.gpus.tolist() == [expected]


def test_a_job_that_just_arrived_is_started() -> None:
    _, shares = a_round(
        a_job("a", at_s=60.0), cluster=a_cluster(4), now_s=60.0, progress={"largest_held_gpus": [0]}
    )
    assert shares.gpus.tolist() == [1]


def test_no_node_is_shared_by_two_jobs_that_span_nodes() -> None:
    jobs = [a_job("a", gpus=3, min_gpus=3, max_gpus=3), a_job("b", gpus=3, min_gpus=3, max_gpus=3)]
    for avoid, served in ((True, 1), (False, 2)):
        policy = Pollux(avoid_interference=avoid)
        _, shares = a_round(*jobs, cluster=a_cluster(2, 2, 2), policy=policy)
        assert (shares.gpus > 0).sum() == served


def test_a_recovering_job_keeps_its_allocation() -> None:
    held = {"a": grant(0, n0=1)}
    for recovering, expected in ((True, 1), (False, 4)):
        progress = {"recovering": [recovering]}
        _, shares = a_round(a_job("a"), cluster=a_cluster(4), held=held, progress=progress)
        assert shares.gpus.tolist() == [expected]


def test_a_job_that_may_not_be_stopped_keeps_exactly_its_gpus() -> None:
    kept = Allocation(0, (0, 1), (0b0110, 0b1000))
    jobs = [a_job("a", preemptible=False), a_job("b"), a_job("c")]
    _, shares = a_round(*jobs, cluster=a_cluster(4, 4), held={"a": kept})
    assert (shares.pinned[0].nodes, shares.pinned[0].masks) == (kept.nodes, kept.masks)
    assert shares.gpus.sum() == 8


def test_a_job_on_a_node_that_goes_has_to_move() -> None:
    snapshot, _ = a_round(a_job("a", max_gpus=2), cluster=a_cluster(4, 4), held={"a": grant(0, n0=2)})
    snapshot = replace(snapshot, usable=np.array([False, True]))
    shares = Pollux().allocate(snapshot, speeds_by(Pollux(), snapshot.cluster, [amdahl(1.0)]))
    assert shares.pinned[0].nodes == (1,)


FAST, SLOW = GpuType("fast", speed=3.0), GpuType("slow", speed=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_job_given_two_types_keeps_one_and_the_faster_where_they_are_as_many(seed: int) -> None:
    """Any 8 of the 12 GPUs look alike to Pollux; at least 4 of them are fast, at most 4 slow."""
    cluster = cluster_of("mixed", (SLOW, 1, 4), (FAST, 1, 8))
    policy = Pollux(within_smallest_type=False)
    snapshot, _ = a_round(a_job("a", max_gpus=8), cluster=cluster, policy=policy)
    speeds = speeds_by(policy, cluster, [amdahl(1.0)])
    shares = policy.allocate(replace(snapshot, seed=seed), speeds)
    assert shares.kind.tolist() == [1]
    assert 4 <= shares.gpus[0] <= 8
    assert shares.pinned[0].nodes == (1,)


@settings(max_examples=scaled(25), deadline=None)
@given(st.integers(0, 10_000))
def test_nobody_ever_gets_gpus_of_two_types_or_outside_its_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = cluster_of("mixed", (SLOW, 2, 4), (FAST, 2, 8))
    asked = rng.integers(1, 9, (6, 2))
    asked.sort(axis=1)
    jobs = [
        a_job(f"j{row}", gpus=int(g), min_gpus=int(g), max_gpus=int(most))
        for row, (g, most) in enumerate(asked)
    ]
    snapshot, shares = a_round(*jobs, cluster=cluster, policy=Pollux(generations=10))
    served = shares.gpus > 0
    assert ((shares.gpus >= asked[:, 0]) & (shares.gpus <= asked[:, 1]))[served].all()
    for row, pin in shares.pinned.items():
        assert {int(kind) for kind in cluster.kind[list(pin.nodes)]} == {int(shares.kind[row])}
    placed = AsPinned().place(snapshot, shares)
    assert len(placed) == served.sum()


@pytest.mark.parametrize(
    ("least", "held", "code"),
    [
        pytest.param(9, [], Why.TOO_LARGE, id="it needs more than there are"),
        pytest.param(5, [], Why.DECLINED, id="it needs more than this policy gives"),
        pytest.param(4, [0b11110000, 0b00000110], Why.WORTH_LESS, id="others keep more than their least"),
        pytest.param(1, [1 << gpu for gpu in range(8)], Why.NO_FREE_GPUS, id="everybody has one GPU"),
        pytest.param(3, [0b00111111], Why.WORTH_LESS, id="too few are free"),
    ],
)
def test_a_job_waits_because(least: int, held: list[int], code: Why) -> None:
    """Whoever is there before it may not be stopped."""
    names = [f"j{index}" for index in range(len(held))]
    jobs = [a_job(name, preemptible=False) for name in names]
    last = a_job("z", gpus=least, min_gpus=least, at_s=1.0)
    now = {name: Allocation(0, (0,), (mask,)) for name, mask in zip(names, held, strict=True)}
    policy = Pollux(most_gpus=4)
    _, shares = a_round(*jobs, last, cluster=a_cluster(8), held=now, policy=policy)
    assert shares.why.of(len(held)) is code
    assert f"needs {least} GPUs" in shares.why.evidence[len(held)]


@pytest.mark.parametrize("population", [1, 2, 3])
def test_a_population_may_be_tiny(population: int) -> None:
    policy = Pollux(population=population, generations=50)
    _, shares = a_round(a_job("a"), a_job("b"), cluster=a_cluster(2), policy=policy)
    assert shares.gpus.sum() <= 2
    assert shares.memory.population.shape == (population, 2, 1)


def test_a_job_of_which_no_speed_is_known_waits_to_be_profiled() -> None:
    _, shares = a_round(a_job("a"), cluster=a_cluster(4), curves=[only_on(set())])
    assert shares.why.of(0) is Why.NOT_PROFILED


def test_a_job_never_seen_that_needs_several_gpus_is_started_on_its_least() -> None:
    _, shares = a_round(
        a_job("a", gpus=2, min_gpus=2),
        cluster=a_cluster(4),
        curves=[only_on({1})],
        progress={"largest_held_gpus": [0]},
        speeds={"modelled": np.array([False])},
    )
    assert shares.gpus.tolist() == [2]


def test_a_job_that_runs_on_some_counts_only_leaves_no_gpu_idle_inside_it() -> None:
    _, shares = a_round(a_job("a"), cluster=a_cluster(4, 4), curves=[only_on({3, 6})])
    assert shares.gpus.tolist() == [6]


@pytest.mark.parametrize(("normalisation", "expected"), [(Normalisation.FAIR, 6), (Normalisation.ONE_GPU, 5)])
def test_a_fair_share_as_the_base_favours_who_scales(normalisation: Normalisation, expected: int) -> None:
    """By hand: Σ 1/s is 4/g + (.7 + .3/(8-g))/.775 with the fair base of 4 GPUs, else 1/g + .7 + .3/(8-g)."""
    policy = Pollux(normalisation=normalisation)
    curves = [amdahl(1.0), amdahl(0.3)]
    _, shares = a_round(a_job("a"), a_job("b"), cluster=a_cluster(8), curves=curves, policy=policy)
    assert shares.gpus.tolist() == [expected, 8 - expected]


def best_fitness(snapshot: Snapshot, curves: list[Speed], policy: Pollux) -> float:
    """FITNESS of the best allowed matrix, written out for one matrix at a time."""
    jobs, cluster = snapshot.jobs, snapshot.cluster
    count, nodes = len(jobs), len(cluster.nodes)
    size = int(cluster.node_gpus[0])
    fair = max(1, cluster.total_gpus // count)

    def speedup(row: int, gpus: tuple[int, ...]) -> float:
        if not sum(gpus):
            return policy.waiting_speedup
        gain = curves[row](sum(g > 0 for g in gpus), sum(gpus)) / curves[row](1 if fair <= size else 2, fair)
        held = snapshot.placement.get(jobs[row].id)
        now = dict(zip(held.nodes, held.shape, strict=True)) if held else {}
        if held and gpus != tuple(now.get(node, 0) for node in range(nodes)):
            age_s = snapshot.now_s - jobs.submitted_s[row]
            restarts = int(jobs.progress.restarts[row])
            gain *= max(age_s - restarts * 30.0, 0.0) / (age_s + 30.0)
        return max(gain, policy.waiting_speedup)

    rows = list(product(range(size + 1), repeat=nodes))
    best = 0.0
    for matrix in product(rows, repeat=count):
        columns = list(zip(*matrix, strict=True))
        spread = [sum(g > 0 for g in row) > 1 for row in matrix]
        if any(sum(column) > size for column in columns):
            continue
        if any(sum(s for s, g in zip(spread, column, strict=True) if g) > 1 for column in columns):
            continue
        if any(
            sum(row) > job.max_gpus for row, job in zip(matrix, (jobs[r] for r in range(count)), strict=True)
        ):
            continue
        values = np.array([speedup(row, gpus) for row, gpus in enumerate(matrix)])
        best = max(best, fitness(values, policy.fairness_power))
    return best


@settings(max_examples=scaled(12), deadline=None)
@given(st.integers(0, 10_000))
def test_on_a_tiny_cluster_no_matrix_is_better_than_the_chosen_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = [amdahl(rng.uniform(0.3, 1.0), rng.uniform(0.4, 1.0)) for _ in range(3)]
    jobs = [a_job(f"j{row}", max_gpus=int(rng.integers(1, 5)), at_s=float(row)) for row in range(3)]
    alone = seed % 2 or jobs[0].max_gpus == 1
    held = {"j0": grant(0, n0=1) if alone else grant(0, n0=1, n1=1)}
    policy, cluster = Pollux(), a_cluster(2, 2)
    progress = {"restarts": [2, 0, 0]}
    snapshot, shares = a_round(
        *jobs, cluster=cluster, curves=curves, held=held, now_s=400.0, policy=policy, progress=progress
    )
    assert chosen_fitness(snapshot, shares, curves, policy) == pytest.approx(
        best_fitness(snapshot, curves, policy)
    )


def chosen_fitness(snapshot: Snapshot, shares: Shares, curves: list[Speed], policy: Pollux) -> float:
    """FITNESS of what was chosen: that of the only matrix that is allowed."""
    fair = max(1, snapshot.cluster.total_gpus // len(snapshot.jobs))
    size = int(snapshot.cluster.node_gpus[0])
    values = []
    for row, curve in enumerate(curves):
        pin, held = shares.pinned.get(row), snapshot.placement.get(snapshot.jobs[row].id)
        if pin is None:
            values.append(policy.waiting_speedup)
            continue
        gain = curve(len(pin.nodes), sum(pin.gpus)) / curve(1 if fair <= size else 2, fair)
        if held and (held.nodes, held.shape) != (pin.nodes, pin.gpus):
            age_s = float(snapshot.now_s - snapshot.jobs.submitted_s[row])
            gain *= max(age_s - int(snapshot.jobs.progress.restarts[row]) * 30.0, 0.0) / (age_s + 30.0)
        values.append(max(gain, policy.waiting_speedup))
    return fitness(np.array(values), policy.fairness_power)


def test_the_same_snapshot_gives_the_same_shares_and_another_seed_may_not() -> None:
    jobs = [a_job(f"j{row}") for row in range(6)]
    snapshot, first = a_round(*jobs, cluster=a_cluster(4, 4, 4, 4))
    speeds = speeds_by(Pollux(), snapshot.cluster, [amdahl(1.0)] * 6)
    assert digest(Pollux().allocate(snapshot, speeds)) == digest(first)
    other = Pollux().allocate(replace(snapshot, seed=1), speeds)
    assert digest(other.memory) != digest(first.memory)


def test_each_round_draws_anew() -> None:
    snapshot, first = a_round(*[a_job(f"j{row}") for row in range(6)], cluster=a_cluster(4, 4, 4, 4))
    speeds = speeds_by(Pollux(), snapshot.cluster, [amdahl(1.0)] * 6)
    second = Pollux().allocate(replace(snapshot, memory=first.memory), speeds)
    assert (first.memory.rounds, second.memory.rounds) == (1, 2)


def test_the_population_follows_arrivals_and_departures() -> None:
    policy = Pollux(generations=0)
    cluster = a_cluster(4, 4)
    snapshot, first = a_round(a_job("a"), a_job("b", at_s=1.0), cluster=cluster)
    before = first.memory.population
    later, _ = a_round(a_job("b", at_s=1.0), a_job("c", at_s=2.0), cluster=cluster, policy=policy)
    after = policy.allocate(
        replace(later, memory=first.memory), speeds_by(policy, cluster, [amdahl(1.0)] * 2)
    ).memory
    assert after.bred == ("b", "c")
    was = {matrix[1].tobytes() for matrix in before} | {bytes(2)}
    assert {matrix[0].tobytes() for matrix in after.population} <= was
    assert after.population.shape == before.shape
    assert snapshot.jobs.ids == ("a", "b")


def test_a_second_round_is_never_worse_than_keeping_what_the_first_one_chose() -> None:
    jobs = [a_job(f"j{row}") for row in range(5)]
    curves = [amdahl(0.9 - row / 20, 0.8) for row in range(5)]
    cluster = a_cluster(4, 4, 4)
    snapshot, first = a_round(*jobs, cluster=cluster, curves=curves)
    placement = AsPinned().place(snapshot, first)
    held = {str(job): allocation for job, allocation in placement.items()}
    again, second = a_round(*jobs, cluster=cluster, curves=curves, held=held, memory=first.memory)
    kept, chosen = (chosen_fitness(again, shares, curves, Pollux()) for shares in (first, second))
    assert chosen >= kept


@pytest.mark.parametrize(
    ("free", "kinds", "gpus", "expected"),
    [
        pytest.param([4, 4, 4], [True, True], 2, [2, 0, 0], id="the faster type"),
        pytest.param([1, 4, 2], [True, True], 2, [0, 0, 2], id="the fullest node with room"),
        pytest.param([4, 4, 4], [False, True], 6, [0, 4, 2], id="several nodes of one type"),
        pytest.param([4, 2, 1], [False, True], 4, [0, 0, 0], id="no type has as many"),
    ],
)
def test_idle_gpus_of_one_type(free: list[int], kinds: list[bool], gpus: int, expected: list[int]) -> None:
    cluster = cluster_of("two", (GpuType("fast", speed=2.0), 1, 4), (GpuType("slow"), 2, 4))
    shown = virtual_nodes_of(cluster, np.ones(3, dtype=np.bool_))
    assert idle_of_one_type(shown, np.array(free), np.array(kinds), gpus).tolist() == expected


def test_nobody_there_is_no_error() -> None:
    _, shares = a_round(cluster=a_cluster(4), curves=[])
    assert len(shares.gpus) == 0


@pytest.mark.parametrize(
    ("field", "value"), [("population", 0), ("generations", -1), ("most_gpus", 0), ("waiting_speedup", 0.0)]
)
def test_a_senseless_parameter_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"policy.{field} must be"):
        Pollux(**{field: value})  # type: ignore[arg-type]
