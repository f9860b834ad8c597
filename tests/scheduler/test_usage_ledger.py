"""Usage decays in closed form: as a sum over all that was held, however often somebody looks."""

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import PARTS_OF_A_GPU, UsageLedger, rate_of

A, B = ("q", "a"), ("q", "b")
STEPS = st.lists(
    st.tuples(st.floats(0, 2e6), st.sampled_from([A, B]), st.integers(0, 64)), min_size=1, max_size=12
)


@given(steps=STEPS, half_life_s=st.floats(60, 1e7), later_s=st.floats(0, 1e6))
def test_usage_is_the_sum_over_what_was_held_each_part_halved_with_its_age(
    steps: list[tuple[float, tuple[str, str], int]], half_life_s: float, later_s: float
) -> None:
    ledger, held, now_s = UsageLedger(half_life_s), {A: 0, B: 0}, 0.0
    spans: dict[tuple[str, str], list[tuple[float, float, int]]] = {A: [], B: []}
    for passed_s, account, gpus in steps:
        for one, count in held.items():
            spans[one].append((now_s, now_s + passed_s, count))
        now_s += passed_s
        ledger.change(account, rate_of(gpus - held[account], 1.0), now_s)
        held[account] = gpus
    for one, count in held.items():
        spans[one].append((now_s, now_s + later_s, count))
    now_s += later_s
    found = ledger.at(now_s)
    for one, parts in spans.items():
        whole = 0.0
        for since_s, until_s, gpus in parts:  # Simpson's rule on many pieces, not the formula under test
            at_s = np.linspace(since_s, until_s, 2_001)
            value = gpus * np.exp2(-(now_s - at_s) / half_life_s)
            weights = np.where(np.arange(2_001) % 2, 4.0, 2.0)
            weights[[0, -1]] = 1.0
            if (until_s - since_s) / half_life_s > 200:  # too steep for pieces of this size
                whole += gpus * half_life_s / log(2) * 2 ** -((now_s - until_s) / half_life_s)
            else:
                whole += float((value * weights).sum()) * (until_s - since_s) / 6_000
        assert found.get(one, 0.0) == pytest.approx(whole, rel=1e-3, abs=1e-6)


@given(steps=STEPS, looks=st.lists(st.floats(0, 1e7), max_size=5))
def test_looking_changes_nothing(steps: list[tuple[float, tuple[str, str], int]], looks: list[float]) -> None:
    seen, unseen = UsageLedger(), UsageLedger()
    now_s = 0.0
    for passed_s, account, gpus in steps:
        now_s += passed_s
        for ledger in (seen, unseen):
            ledger.change(account, rate_of(gpus, 1.0), now_s)
        for later_s in looks:
            seen.at(now_s + later_s)
    assert seen == unseen
    assert seen.at(now_s) == unseen.at(now_s)


def test_a_half_life_later_it_is_half_and_a_fast_gpu_counts_for_more() -> None:
    ledger = UsageLedger(half_life_s=1_000.0)
    ledger.change(A, rate_of(2, 0.1), 0.0)
    ledger.change(A, -rate_of(2, 0.1), 0.001)
    assert ledger.at(1_000.001)[A] == pytest.approx(0.0001, rel=1e-5)
    assert ledger.balances[A].rate == 0
    ledger.change(B, rate_of(1, 3.2), 0.0)
    assert ledger.at(10.0)[B] == pytest.approx(32.0, rel=0.01)
    assert rate_of(1, 1.0) == PARTS_OF_A_GPU


def test_another_half_life_counts_from_when_it_was_set() -> None:
    ledger = UsageLedger(half_life_s=1_000.0)
    ledger.change(A, rate_of(1, 1.0), 0.0)
    ledger.change(A, -rate_of(1, 1.0), 1.0)
    ledger.live_by(10.0, 1_001.0)
    assert ledger.at(1_011.0)[A] == pytest.approx(0.25, rel=1e-3)
