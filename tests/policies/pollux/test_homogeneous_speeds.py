"""One curve for each job out of the speeds by type."""

import numpy as np
import pytest

from stretto.model import Cluster, FloatArray, GpuType, cluster_of, counts_within
from stretto.policies.pollux.homogeneous import largest_possible, type_blind
from stretto.testing.builders import speeds_of

ONE, OTHER = GpuType("one"), GpuType("other")
CLUSTER = cluster_of("two", (ONE, 2, 4), (OTHER, 2, 4))


def curve(
    rates: FloatArray, exponents: FloatArray, cluster: Cluster = CLUSTER, units: int = 8, **rest: object
) -> tuple[FloatArray, list[bool]]:
    """The blind curve (on several nodes, gpus) of one job whose speed is rate * gpus ** exponent by type."""
    columns = counts_within(cluster, units)
    per_s = (
        rates[columns.kind] * columns.gpus ** exponents[columns.kind] * np.where(columns.nodes > 1, 0.5, 1.0)
    )
    speeds = speeds_of(columns, per_s[None], types=len(rates), **rest)
    allowed = np.ones((1, len(rates)), dtype=np.bool_)
    blind, runs = type_blind(speeds, cluster, allowed, int(cluster.node_gpus.min()), units)
    return blind[0], runs[0].tolist()


def test_types_of_equal_scaling_give_that_scaling_whatever_their_speeds() -> None:
    blind, _ = curve(np.array([1.0, 9.0]), np.array([0.8, 0.8]))
    assert blind[0, 1:5] / blind[0, 1] == pytest.approx(np.arange(1, 5) ** 0.8)
    assert blind[1, 2:] / blind[0, 1] == pytest.approx(0.5 * np.arange(2, 9) ** 0.8)


def test_types_seen_count_alike_and_types_not_seen_do_not_count() -> None:
    both, _ = curve(np.array([1.0, 9.0]), np.array([0.4, 0.8]))
    assert both[0, 4] / both[0, 1] == pytest.approx(4**0.6)
    seen, _ = curve(np.array([1.0, 9.0]), np.array([0.4, 0.8]), observed_gpus=np.array([[0, 4]]))
    assert seen[0, 4] / seen[0, 1] == pytest.approx(4**0.8)


def test_a_type_on_which_a_job_cannot_run_is_left_out() -> None:
    blind, runs = curve(np.array([np.nan, 9.0]), np.array([0.4, 0.8]))
    assert runs == [False, True]
    assert blind[0, 4] / blind[0, 1] == pytest.approx(4**0.8)


def test_a_count_is_possible_if_it_is_on_every_type_that_has_it() -> None:
    cluster = cluster_of("uneven", (ONE, 1, 4), (OTHER, 2, 4))
    blind, _ = curve(np.array([1.0, 2.0]), np.array([1.0, 1.0]), cluster=cluster)
    assert np.isfinite(blind[0, 1:5]).all()
    assert np.isnan(blind[0, 5:]).all()
    assert np.isfinite(blind[1, 5:]).all()  # of the second type only
    columns = counts_within(cluster, 8)
    per_s = np.where((columns.kind == 1) & (columns.gpus == 3), np.nan, 1.0 * columns.gpus)
    three, _ = type_blind(speeds_of(columns, per_s[None], types=2), cluster, np.ones((1, 2), np.bool_), 4, 8)
    assert np.isnan(three[0, :, 3]).all()
    assert np.isfinite(three[0, 0, [1, 2, 4]]).all()


def test_several_parts_of_the_only_node_of_a_type_are_that_node() -> None:
    cluster = cluster_of("alone", (ONE, 1, 4))
    blind, _ = curve(np.array([2.0]), np.array([1.0]), cluster=cluster, units=4)
    assert blind[1, 2:].tolist() == pytest.approx(blind[0, 2:].tolist())


def test_the_largest_possible_count_up_to_each() -> None:
    possible = np.array([[False, False, True, False, False, True]])
    assert largest_possible(possible).tolist() == [[0, 0, 2, 2, 2, 5]]
