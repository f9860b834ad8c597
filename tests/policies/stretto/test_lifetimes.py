"""How long configurations last, from what became of earlier ones."""

from collections.abc import Mapping

import numpy as np
import pytest

from stretto.model import Allocation, digest
from stretto.policies.stretto.lifetimes import Lifetimes
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

CLUSTER = a_cluster(4, 4)
JOBS = [a_job("1"), a_job("2")]
LONG_S = 1e12  # a half-life in which nothing is forgotten


def seen(
    before: Lifetimes, now_s: float, held: Mapping[str, Allocation], half_life_s: float = LONG_S
) -> Lifetimes:
    snapshot = a_snapshot(*JOBS, cluster=CLUSTER, allocations=held, now_s=now_s)
    return before.at(snapshot, half_life_s)


def test_while_nothing_is_known_the_usual_lifetime_is_expected() -> None:
    assert Lifetimes().mean_s(180.0, weight=5.0) == 180.0


def test_what_has_ended_counts_with_how_long_it_lasted() -> None:
    first = seen(Lifetimes(), 0.0, {"1": grant(0, n0=1), "2": grant(0, n1=1)})
    moved = seen(first, 100.0, {"1": grant(0, n0=2), "2": grant(0, n1=1)})
    assert (moved.ended, moved.lasted_s) == pytest.approx((1.0, 100.0))
    gone = seen(moved, 400.0, {"1": grant(0, n0=2)})
    assert (gone.ended, gone.lasted_s) == pytest.approx((2.0, 500.0))


def test_what_still_lasts_counts_with_its_age() -> None:
    first = seen(Lifetimes(), 0.0, {"1": grant(0, n0=1)})
    later = seen(first, 600.0, {"1": grant(0, n0=1)})
    assert later.mean_s(180.0, weight=2.0) == (2 * 180.0 + 600.0) / 2


def test_what_ended_long_ago_counts_less() -> None:
    first = seen(Lifetimes(), 0.0, {"1": grant(0, n0=1)})
    ended = seen(first, 100.0, {})
    later = seen(ended, 160.0, {}, half_life_s=60.0)
    assert (later.ended, later.lasted_s) == pytest.approx((0.5, 50.0))


def test_the_mean_of_exponential_lifetimes_is_found_although_some_still_last() -> None:
    """Configurations of one job, one after the other, cut off in the middle."""
    ends_s = np.cumsum(np.random.default_rng(1).exponential(300.0, 2_000))
    state, gpus = Lifetimes(), 1
    for end_s in [0.0, *ends_s.tolist()]:
        gpus = 3 - gpus
        state = seen(state, end_s, {"1": grant(0, n0=gpus)})
    state = seen(state, ends_s[-1] + 1_000.0, {"1": grant(0, n0=gpus)})
    assert state.mean_s(10.0, weight=5.0) == pytest.approx(300.0, rel=0.06)


def test_it_is_a_value_with_a_fingerprint() -> None:
    state = seen(Lifetimes(), 5.0, {"1": grant(0, n0=1)})
    assert digest(state) == digest(seen(Lifetimes(), 5.0, {"1": grant(0, n0=1)}))
    assert digest(state) != digest(seen(Lifetimes(), 5.0, {"1": grant(0, n0=2)}))
