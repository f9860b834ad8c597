from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import Cluster, Durations, InputError, Shares, Snapshot, View, every
from stretto.place.registry import load_placer
from stretto.policies import load_policy
from stretto.policies.synergy import Base, Synergy, best_total, least_enough, rates_wanted, tune
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.situations import Situation, situations

J1 = (np.array([12.0, 20.0]), np.array([100.0, 160.0]))  # cores, and speed with them
J2 = (np.array([4.0, 12.0]), np.array([50.0, 50.0]))


def with_cores(*nodes: int, cores: int = 24) -> Cluster:
    cluster = a_cluster(*nodes)
    return replace(cluster, nodes=tuple(replace(node, cpus=cores) for node in cluster.nodes))


def needing(cluster: Cluster, *jobs: tuple[int, float], **rest: Any) -> Snapshot:
    """Jobs a second apart, as (GPUs asked for, cores for each GPU that make them fastest)."""
    named = [a_job(f"j{at}", gpus, at_s=float(at)) for at, (gpus, _) in enumerate(jobs)]
    known: dict[str, Any] = {
        "known_cpu_demand": np.array([cores for _, cores in jobs]),
        "known_progress": some_progress(len(jobs)),
    }
    return a_snapshot(*named, cluster=cluster, **(known | rest))


def asked(policy: Synergy, snapshot: Snapshot) -> Shares:
    columns = policy.configurations(snapshot.cluster)
    blank = speeds_of(columns, np.zeros((len(snapshot.jobs), 0)), types=len(snapshot.cluster.types))
    return policy.allocate(snapshot.limited_to(policy.views), blank)


def test_cores_go_to_the_job_that_can_use_them() -> None:
    wants = [least_enough(*curve, usual=12.0, enough=0.95) / 4 for curve in (J1, J2)]
    tuned = tune(
        np.array([4, 4]), np.array(wants)[:, None], np.array([[3.0]]), np.array([8]), np.array([8]), {}
    )
    cores = 4 * tuned.rate[:, 0]
    assert cores.tolist() == [20.0, 4.0]
    speed = sum(float(np.interp(have, *curve)) for have, curve in zip(cores, (J1, J2), strict=True))
    in_proportion = sum(float(np.interp(12.0, *curve)) for curve in (J1, J2))
    assert (speed, in_proportion) == (210.0, 150.0)


def test_no_other_division_of_the_cores_is_faster() -> None:
    total, cores = best_total([J1, J2], usual=np.array([12.0, 12.0]), capacity=24.0)
    assert total == pytest.approx(210.0)
    assert cores == pytest.approx([20.0, 4.0])


def test_a_decision_divides_the_cores_in_the_same_way() -> None:
    shares = asked(Synergy(enough=1.0), needing(with_cores(8), (4, 5.0), (4, 1.0)))
    assert shares.cpus is not None
    assert shares.cpus.tolist() == [20.0, 4.0]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_has_less_than_in_proportion_and_no_node_gives_more_than_it_has(seed: int) -> None:
    draw = np.random.default_rng(seed)
    nodes = int(draw.integers(1, 5))
    sizes, fair = np.full(nodes, 8), np.repeat([[3.0, 60.0]], nodes, axis=0)
    gpus = draw.choice([1, 2, 3, 4, 8, 12], int(draw.integers(1, 12)))
    gpus = gpus[np.cumsum(gpus) <= sizes.sum()]
    want = np.stack((draw.uniform(0.5, 12.0, len(gpus)), draw.uniform(5.0, 200.0, len(gpus))), axis=1)
    tuned = tune(gpus, want, fair, sizes, sizes, {})
    used, taken = np.zeros((nodes, 2)), np.zeros(nodes)
    for share, where in enumerate(tuned.where):
        assert sum(where.values()) == gpus[share]
        for node, count in where.items():
            used[node] += count * tuned.rate[share]
            taken[node] += count
    assert (taken <= sizes).all()
    assert (used <= fair * 8 + 1e-6).all()
    assert (tuned.rate >= np.minimum(want, fair[0]) - 1e-9).all()
    assert (tuned.rate <= want + 1e-9).all()


def test_who_has_more_gives_back_when_somebody_comes() -> None:
    tuned = tune(
        np.array([4, 4]),
        np.array([[6.0], [6.0]]),
        np.array([[3.0]]),
        np.array([4]),
        np.array([8]),
        {0: {0: 4}},
    )
    assert tuned.rate.tolist() == [[3.0], [3.0]]


def test_a_job_goes_to_the_node_that_has_the_cores() -> None:
    hungry, modest, another = (4, 5.0), (4, 1.0), (4, 5.0)
    cluster = with_cores(8, 8)
    held = {"j0": grant(0, n0=4), "j1": grant(0, n1=4)}
    shares = asked(Synergy(enough=1.0), needing(cluster, hungry, modest, another, allocations=held))
    assert shares.pinned[2].nodes == (1,)
    assert shares.cpus is not None
    assert shares.cpus.tolist() == [20.0, 4.0, 20.0]


def test_the_placer_carries_the_cores_out_and_leaves_running_jobs_alone() -> None:
    snapshot = needing(with_cores(8, 8), (4, 5.0), (4, 1.0), allocations={"j0": grant(0, n0=4)})
    shares = asked(Synergy(enough=1.0), snapshot)
    placed = load_placer("pinned").place(snapshot, shares)
    assert {str(job): one.cpus for job, one in placed.items()} == {"j0": 20.0, "j1": 4.0}
    assert placed[snapshot.jobs.ids[0]].nodes == (0,)


def test_rates_wanted_are_enough_and_never_slower_than_in_proportion() -> None:
    demand = np.array([10.0, 3.1, 1.0, np.nan])
    assert rates_wanted(demand, fair=3.0, enough=0.95) == pytest.approx([9.5, 3.0, 1.0, 3.0])


def test_without_cores_it_is_the_base_policy() -> None:
    snapshot = needing(a_cluster(8), (4, 5.0), (4, 1.0))
    shares = asked(Synergy(), snapshot)
    assert shares.cpus is None
    assert shares.gpus.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("base", "served"),
    [
        pytest.param(Base.FIFO, [0, 1, 0], id="who runs stays, and nobody passes the head of the queue"),
        pytest.param(Base.SRTF, [0, 0, 1], id="the shortest runs"),
        pytest.param(Base.LAS, [1, 0, 0], id="the first in the first queue runs"),
    ],
)
def test_the_base_decides_who_runs(base: Base, served: list[int]) -> None:
    left_s = np.array([300.0, 200.0, 100.0])
    snapshot = needing(
        a_cluster(1),
        (1, 1.0),
        (1, 1.0),
        (1, 1.0),
        allocations={"j1": grant(0, n0=1)},
        known_durations=Durations(left_s, left_s),
        known_progress=some_progress(
            3, attained_gpu_s=[0.0, 20_000.0, 0.0], first_start_s=[np.nan, 1.0, np.nan]
        ),
    )
    assert asked(Synergy(base=base), snapshot).gpus.tolist() == served


def test_views_follow_the_base_and_wrong_parameters_are_refused() -> None:
    assert Synergy().views == {View.CPU_DEMAND, View.PROGRESS}
    assert Synergy(base=Base.SRTF).views == {View.CPU_DEMAND, View.ORACLE_DURATION}
    assert Synergy().triggers == every(300.0)
    with pytest.raises(InputError, match=r"policy\.enough must be > 0 and <= 1, got 0"):
        load_policy("synergy", enough="0")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [Synergy(base=base) for base in Base]:
        PROMISES[promise](policy, situation)
