"""Noise of gradients and what follows for the learning rate."""

import math

import numpy as np
import pytest

from stretto.errors import InputError
from stretto.sdk.settings import rule_named
from stretto.sdk.step_profiler import Noise, Sample, between, differenced

pytestmark = pytest.mark.torch

DIMENSIONS = 200
SQR, VAR = 4.0, 50.0  # |µ|² and the variance of a gradient of one sample


def gradients(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """`count` mean gradients of `size` samples each, with the statistics above."""
    mean = np.full(DIMENSIONS, math.sqrt(SQR / DIMENSIONS))
    return mean + rng.normal(0.0, math.sqrt(VAR / DIMENSIONS / size), (count, DIMENSIONS))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_gradients_of_several_workers_tell_both_moments(count: int) -> None:
    rng = np.random.default_rng(1)
    samples = []
    for _ in range(2000):
        drawn = gradients(count, 16, rng)
        samples.append(between(float((drawn**2).sum()), float((drawn.mean(0) ** 2).sum()), count, 16))
    assert np.mean([sample.sqr for sample in samples]) == pytest.approx(SQR, rel=0.03)
    assert np.mean([sample.var for sample in samples]) == pytest.approx(VAR / 16, rel=0.03)


def test_two_steps_in_a_row_tell_both_moments_to_one_worker() -> None:
    rng = np.random.default_rng(2)
    samples = []
    for _ in range(2000):
        before, now = gradients(2, 32, rng)
        samples.append(differenced(float(before @ before), float(now @ now), float(before @ now), 32))
    assert np.mean([sample.sqr for sample in samples]) == pytest.approx(SQR, rel=0.03)
    assert np.mean([sample.var for sample in samples]) == pytest.approx(VAR / 32, rel=0.03)


def test_the_variance_is_told_for_the_initial_batch_whatever_was_measured() -> None:
    noise = Noise()
    for size in (16, 64, 256):
        noise = noise.with_sample(Sample(SQR, VAR / size, size), initial=32, batches=1.0)
    assert noise.var == pytest.approx(VAR / 32)
    assert noise.sqr == pytest.approx(SQR)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_an_overflow_is_no_measurement(broken: float) -> None:
    before = Noise().with_sample(Sample(1.0, 2.0, 32), 32, 1.0)
    assert before.with_sample(Sample(broken, 1.0, 32), 32, 1.0) == before
    assert before.with_sample(Sample(1.0, broken, 32), 32, 1.0) == before


def test_noise_follows_from_gradients_of_unequal_batches_likewise() -> None:
    rng = np.random.default_rng(5)
    true, spread = np.array([3.0, -1.0, 2.0]), 4.0  # |µ|² = 14; of one sample σ² = 3 · 16
    parts = (12, 3, 9)
    weights = np.array(parts) * len(parts) / sum(parts)
    found = []
    for _ in range(20_000):
        gradients = np.array([true + spread / np.sqrt(part) * rng.standard_normal(3) for part in parts])
        weighted = gradients * weights[:, None]
        mean = weighted.mean(axis=0)
        found.append(
            between(float((weighted**2).sum()), float(mean @ mean), 3, 8.0, float((weights**2).sum()))
        )
    assert np.mean([each.sqr for each in found]) == pytest.approx(14.0, rel=0.03)
    assert np.mean([each.var for each in found]) == pytest.approx(48.0 / 8.0, rel=0.03)


def test_a_gain_is_between_nothing_and_all() -> None:
    assert Noise().gain(8.0) == 1.0
    only_noise = Noise().with_sample(Sample(0.0, 1.0, 32), 32, 1.0)
    assert only_noise.gain(8.0) == pytest.approx(8.0)
    no_noise = Noise().with_sample(Sample(1.0, 0.0, 32), 32, 1.0)
    assert no_noise.gain(8.0) == pytest.approx(1.0)
    nothing = Noise().with_sample(Sample(0.0, 0.0, 32), 32, 1.0)
    assert nothing.gain(8.0) == 1.0
    scale, phi = 4.0, 3.0  # φ/M0; gain = (φ/M0 + 1)/(φ/M + 1)
    both = Noise().with_sample(Sample(1.0, phi, 32), 32, 1.0)
    assert both.gain(scale) == pytest.approx((phi + 1) / (phi / scale + 1))


@pytest.mark.parametrize(
    ("rule", "factor"),
    [("linear", 4.0), ("sqrt", 2.0), ("square-root", 2.0), ("adascale", 2.5), ("fixed", 1.0)],
)
def test_a_rule_gives_its_factor(rule: str, factor: float) -> None:
    assert rule_named(rule)(4.0, 2.5) == factor


def test_a_rule_that_is_none_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"linear.*adascale.*'cubic'"):
        rule_named("cubic")
