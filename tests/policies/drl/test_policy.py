from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import ON_CHANGE, Adaptivity, Cluster, InputError, MeasuredSpeeds, Shares, Snapshot
from stretto.policies import load_policy
from stretto.policies.drl import policy as drl_module
from stretto.policies.drl.network import (
    FEATURES,
    Network,
    Seen,
    features,
    logits,
    read_network,
    write_network,
)
from stretto.policies.drl.policy import BUNDLED, FALLBACK, LearnedSizes
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.situations import Situation, situations

GREEDY = LearnedSizes(weights="greedy")


def sizing(cluster: Cluster, *exponents: float, **rest: Any) -> Snapshot:
    """Jobs a second apart with a speed of g ** exponent on up to 8 GPUs."""
    jobs = [a_job(f"j{at}", 1, at_s=float(at), max_gpus=8) for at in range(len(exponents))]
    curves = [np.concatenate(([[np.nan]], [np.arange(1, 9) ** power]), axis=1) for power in exponents]
    known: dict[str, Any] = {
        "known_tables": [MeasuredSpeeds(per_s, per_s) for per_s in curves],
        "known_progress": some_progress(len(jobs)),
    }
    return a_snapshot(*jobs, cluster=cluster, **({"now_s": 100.0} | known | rest))


def asked(policy: LearnedSizes, snapshot: Snapshot) -> Shares:
    columns = policy.configurations(snapshot.cluster)
    blank = speeds_of(columns, np.ones((len(snapshot.jobs), len(columns))), types=len(snapshot.cluster.types))
    return policy.allocate(snapshot.limited_to(policy.views), blank)


def network_that_rates(**weight: float) -> Network:
    """A network that rates growing and stopping by a sum of some features, all of them never negative."""
    layers = [np.zeros((FEATURES, 4)), np.zeros(4), np.eye(4), np.zeros(4), np.zeros((4, 2)), np.zeros(2)]
    for unit, (name, value) in enumerate(weight.items()):
        layers[0][{"waits": 0, "held": 1, "is_stop": 11}[name], unit] = 1.0
        layers[4][unit, 0] = value
    return Network(tuple(layers))


@pytest.fixture
def weights_in(tmp_path: Path) -> Any:
    def stored(network: Network) -> str:
        path = tmp_path / "weights.npz"
        write_network(path, network)
        return str(path)

    return stored


def test_greedy_starts_everybody_and_gives_the_rest_to_who_scales_best() -> None:
    assert asked(GREEDY, sizing(a_cluster(6), 0.5, 0.99)).gpus.tolist() == [1, 5]
    assert asked(GREEDY, sizing(a_cluster(2), 0.5, 0.9, 0.9)).gpus.tolist() == [1, 1, 0]


def test_the_action_that_is_rated_best_is_done_until_that_is_to_stop(weights_in: Any) -> None:
    starts_jobs = LearnedSizes(weights=weights_in(network_that_rates(waits=2.0, is_stop=1.0)))
    assert asked(starts_jobs, sizing(a_cluster(8), 0.9, 0.9)).gpus.tolist() == [1, 1]


def test_nobody_is_stopped_and_nobody_shrinks_below_its_least(weights_in: Any) -> None:
    shrinks = network_that_rates(is_stop=1.0)
    shrinks.layers[5][1] = 5.0
    snapshot = sizing(a_cluster(8, 8), 0.9, 0.9, allocations={"j0": grant(0, n0=5), "j1": grant(0, n1=2)})
    assert asked(LearnedSizes(weights=weights_in(shrinks)), snapshot).gpus.tolist() == [1, 1]
    bundled = asked(LearnedSizes(), snapshot)
    assert (bundled.gpus >= 1).all()


def test_an_idle_cluster_starts_somebody_whatever_the_network_says(weights_in: Any) -> None:
    idles = network_that_rates(waits=-5.0)
    assert asked(LearnedSizes(weights=weights_in(idles)), sizing(a_cluster(8), 0.9, 0.9)).gpus.tolist() == [
        1,
        0,
    ]


def test_more_jobs_than_are_shown_can_start_at_once(weights_in: Any) -> None:
    snapshot = sizing(a_cluster(*[8] * 8), *[0.5] * 60)
    starts_jobs = LearnedSizes(weights=weights_in(network_that_rates(waits=2.0, is_stop=1.0)), shown=8)
    assert (asked(starts_jobs, snapshot).gpus > 0).all()


def test_greedy_looks_at_everybody() -> None:
    shares = asked(LearnedSizes(weights="greedy", shown=2), sizing(a_cluster(*[8] * 8), *[0.5] * 60))
    assert (shares.gpus > 0).all()


def test_a_job_that_may_not_be_preempted_keeps_its_size() -> None:
    jobs = [a_job("fixed", 1, max_gpus=8, preemptible=False), a_job("rigid", 2, adaptivity=Adaptivity.RIGID)]
    per_s = np.array([[np.nan, *range(1, 9)]])
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(8),
        allocations={"fixed": grant(0, n0=3)},
        known_tables=[MeasuredSpeeds(per_s, per_s)] * 2,
        known_progress=some_progress(2),
    )
    assert asked(GREEDY, snapshot).gpus.tolist() == [3, 2]


def test_the_ratings_do_not_depend_on_the_order_of_jobs() -> None:
    draw = np.random.default_rng(0)
    network = Network(
        tuple(draw.normal(size=shape) for shape in [(FEATURES, 5), (5,), (5, 5), (5,), (5, 2), (2,)])
    )
    columns = {name: draw.uniform(0.0, 5.0, 3) for name in Seen.__slots__[:7]}
    scalars = {name: np.array([float(at + 4)]) for at, name in enumerate(Seen.__slots__[7:])}
    turned = {name: column[::-1] for name, column in columns.items()}
    anything = np.ones(3, dtype=np.bool_)
    one = logits(network, features(Seen(**columns, **scalars)), anything, anything)
    other = logits(network, features(Seen(**turned, **scalars)), anything, anything)
    assert other == pytest.approx(np.concatenate((one[2::-1], one[5:2:-1], one[6:])))


def test_weights_survive_a_file_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    network = network_that_rates(held=0.5)
    write_network(path, network)
    assert all((a == b).all() for a, b in zip(read_network(path).layers, network.layers, strict=True))
    np.savez(path, layer0=np.zeros((3, 3)))
    with pytest.raises(InputError, match="expected the weights of a trained network"):
        read_network(path)
    with pytest.raises(InputError, match=r"nowhere\.npz: expected the weights"):
        load_policy("drl", weights="nowhere.npz")


def test_without_trained_weights_the_settings_say_that_it_is_greedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(drl_module, "BUNDLED", tmp_path / "none.npz")
    policy = LearnedSizes()
    assert policy.weights == FALLBACK
    snapshot = sizing(a_cluster(6), 0.5, 0.99)
    assert asked(policy, snapshot).gpus.tolist() == asked(GREEDY, snapshot).gpus.tolist()


def test_the_weights_come_with_the_package_and_are_used() -> None:
    assert BUNDLED.exists()
    assert LearnedSizes().weights == "trained"
    assert asked(LearnedSizes(), sizing(a_cluster(8), 0.9, 0.9)).gpus.sum() >= 2


def test_it_is_asked_when_jobs_come_or_go_and_refuses_wrong_parameters() -> None:
    assert LearnedSizes().triggers == ON_CHANGE
    with pytest.raises(InputError, match="shown must be >= 2, got 1"):
        load_policy("drl", shown="1")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [GREEDY]:
        PROMISES[promise](policy, situation)
