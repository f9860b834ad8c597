import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import InputError
from stretto.estimate.efficiency import (
    GradientNoise,
    efficiency,
    gain,
    noise_of_gradients,
    noise_of_successive,
    noise_scale,
    smoothed,
)
from stretto.estimate.learning_rate import Scaling, rule_named
from stretto.estimate.throughput import ThroughputModel, throughput

MODEL = ThroughputModel(0.05, 0.001, 0.08, 0.004, 0.02, 0.002, 2.0)
INIT = 128
VAR, SQR = 1000 / INIT, 1.0  # a noise scale of 1000 samples


def test_larger_batches_are_less_efficient_and_gain_more_a_step() -> None:
    assert noise_scale(INIT, VAR, SQR) == pytest.approx(1000)
    eff = efficiency(np.array([256, 512, 1024, 4096]), INIT, VAR, SQR)
    assert eff == pytest.approx([0.8981, 0.7460, 0.5573, 0.2214], abs=5e-5)
    assert gain(np.array([512, 1024]), INIT, VAR, SQR) == pytest.approx([2.9841, 4.4585], abs=5e-5)


def test_goodput_is_throughput_times_efficiency() -> None:
    gpus, nodes, accumulation = (
        np.array([1, 2, 4, 8, 4]),
        np.array([1, 1, 1, 2, 1]),
        np.array([0, 0, 0, 0, 1]),
    )
    total = 128 * gpus * (accumulation + 1)
    goodput = throughput(MODEL, nodes, gpus, 128, accumulation) * efficiency(total, INIT, VAR, SQR)
    assert goodput == pytest.approx([719.10, 1283.56, 2126.65, 2768.24, 1595.84], abs=6e-3)


@pytest.mark.parametrize(("rule", "factor"), [("square-root", 2.0), ("linear", 4.0), ("adascale", 2.9841)])
def test_a_fourfold_batch_scales_the_learning_rate_by_its_rule(rule: str, factor: float) -> None:
    at = Scaling(scale=512 / INIT, gain=float(gain(512, INIT, VAR, SQR)))
    assert rule_named(rule)(at) == pytest.approx(factor, abs=5e-5)


@settings(deadline=None)
@given(
    init=st.integers(1, 10_000),
    var=st.floats(1e-6, 1e6),
    sqr=st.floats(1e-6, 1e6),
    more=st.lists(st.floats(1.0, 1e4), min_size=2, max_size=8),
)
def test_larger_batches_gain_more_steps_and_waste_more_samples(
    init: int, var: float, sqr: float, more: list[float]
) -> None:
    total = init * np.array(sorted([1.0, *more]))
    worth, eff = gain(total, init, var, sqr), efficiency(total, init, var, sqr)
    assert worth[0] == pytest.approx(1)
    assert (np.diff(worth) >= -1e-9).all()
    assert (np.diff(eff) <= 1e-9).all()
    assert (worth <= total / init * (1 + 1e-9)).all()
    assert (worth <= (var + sqr) / sqr * (1 + 1e-9)).all()


def test_pure_noise_makes_batches_scale_perfectly_and_no_noise_makes_them_worthless() -> None:
    assert efficiency(1024, 128, 1.0, 0.0) == pytest.approx(1)
    assert gain(1024, 128, 0.0, 1.0) == pytest.approx(1)
    assert noise_scale(128, 1.0, 0.0) == math.inf


@pytest.mark.parametrize(
    ("var", "sqr"), [(1.0, -2.0), (0.0, 0.0), (math.nan, math.nan)], ids=["negative", "zero", "unknown"]
)
def test_where_nothing_can_be_said_a_batch_is_worth_one_step(var: float, sqr: float) -> None:
    assert gain(512, 128, var, sqr) == 1


def test_noise_is_recovered_from_gradients_of_replicas() -> None:
    chance = np.random.default_rng(1)
    truth, spread, replicas, local_batch, init_batch = np.full(50, 0.3), 2.0, 8, 16, 64
    found = []
    for _ in range(400):
        gradients = truth + spread / math.sqrt(local_batch) * chance.standard_normal((replicas, 50))
        norms = (gradients**2).sum(axis=1).tolist()
        mean = float((gradients.mean(axis=0) ** 2).sum())
        found.append(noise_of_gradients(norms, mean, local_batch, init_batch))
    sqr, var = np.mean(found, axis=0)
    assert sqr == pytest.approx((truth**2).sum(), rel=0.03)
    assert var == pytest.approx(50 * spread**2 / init_batch, rel=0.03)


def test_two_successive_gradients_count_as_two_replicas() -> None:
    chance = np.random.default_rng(2)
    one, other = chance.standard_normal((2, 20))
    first, second = float(one @ one), float(other @ other)
    mean = (one + other) / 2
    together = noise_of_gradients([first, second], float(mean @ mean), 8, 32)
    successive = noise_of_successive(first, second, float((one - other) @ (one - other)), 8, 32)
    assert successive == pytest.approx(together)


def test_the_noise_of_a_single_gradient_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 gradients, got 1"):
        noise_of_gradients([1.0], 1.0, 8, 32)


def test_smoothing_starts_at_the_first_estimate_and_forgets_by_initial_batches() -> None:
    first, weight = smoothed(GradientNoise(9.0, 9.0), GradientNoise(2.0, 4.0), 0.0, scale=1.0)
    assert first == pytest.approx((2.0, 4.0))
    at_once, _ = smoothed(first, GradientNoise(0.0, 0.0), weight, scale=4.0)
    step_by_step, so_far = first, weight
    for _ in range(4):
        step_by_step, so_far = smoothed(step_by_step, GradientNoise(0.0, 0.0), so_far, scale=1.0)
    assert at_once == pytest.approx(step_by_step)
