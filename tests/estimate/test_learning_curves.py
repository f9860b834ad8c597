import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.estimate import learning_curves_one_by_one as one_by_one

from stretto.estimate.learning_curves import (
    FAMILIES,
    FEWEST_EPOCHS,
    all_epochs_to_reach,
    epochs_to_reach,
    forecast,
    forecasts,
)

EPOCHS = np.arange(1, 201, dtype=np.float64)
CURVES = {  # the members of five families at parameters of our own
    "pow3": 0.90 - 0.6 * EPOCHS**-0.5,
    "mmf": 0.90 - 0.8 / (1 + (0.05 * EPOCHS) ** 1.5),
    "weibull": 0.93 - 0.8 * np.exp(-((0.03 * EPOCHS) ** 1.1)),
    "janoschek": 0.92 - 0.8 * np.exp(-0.2 * EPOCHS**0.6),
    "ilog2": 0.90 - 0.4 / np.log(EPOCHS + 1),
    "hill3": 0.95 * EPOCHS**0.9 / (6.0**0.9 + EPOCHS**0.9),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_without_noise_is_continued_as_it_goes_on(name: str) -> None:
    truth = CURVES[name]
    ahead = forecast(truth[:40], 200)
    assert ahead is not None
    assert ahead.mean == pytest.approx(truth[40:], abs=0.01)


@pytest.mark.parametrize("name", CURVES)
def test_the_epoch_that_reaches_the_target_is_foreseen_within_a_tenth(name: str) -> None:
    truth = CURVES[name]
    target = float(truth[119])
    assert epochs_to_reach(truth[:50], target, 200) == pytest.approx(120, abs=12)


def test_more_epochs_seen_bring_the_forecast_nearer_on_average() -> None:
    rng = np.random.default_rng(7)
    errors = {
        seen: np.mean(
            [
                abs(epochs_to_reach(noisy[:seen], float(truth[99]), 200) - 100)
                for truth in CURVES.values()
                for noisy in (truth + rng.normal(0, 0.002, 200),)
            ]
        )
        for seen in (8, 60)
    }
    assert errors[60] < errors[8]


@pytest.mark.parametrize("seen", range(FEWEST_EPOCHS))
def test_with_too_few_epochs_the_users_maximum_stands(seen: int) -> None:
    assert forecast(CURVES["pow3"][:seen], 200) is None
    assert epochs_to_reach(CURVES["pow3"][:seen], 0.5, 200) == 200


def test_a_target_out_of_reach_takes_the_users_maximum() -> None:
    assert epochs_to_reach(CURVES["weibull"][:50], 0.99, 200) == 200


def test_a_target_that_was_passed_already_is_met_at_the_next_epoch() -> None:
    assert epochs_to_reach(CURVES["pow3"][:20], 0.1, 200) == 21


def test_who_wants_to_be_surer_is_told_a_later_epoch() -> None:
    seen = CURVES["pow3"][:15] + np.random.default_rng(1).normal(0, 0.004, 15)
    bold, median, careful = (epochs_to_reach(seen, 0.8, 200, p) for p in (0.05, 0.5, 0.95))
    assert bold <= median <= careful
    assert bold < careful


def test_a_loss_comes_negated_and_is_not_bound_to_lie_between_0_and_1() -> None:
    loss = 0.3 + 2.0 * EPOCHS**-0.7
    assert epochs_to_reach(-loss[:50], -float(loss[99]), 200) == pytest.approx(100, abs=10)


def test_percentages_are_forecast_like_fractions() -> None:
    target = float(CURVES["mmf"][99])
    of_100 = epochs_to_reach(100 * CURVES["mmf"][:40], 100 * target, 200)
    assert of_100 == pytest.approx(epochs_to_reach(CURVES["mmf"][:40], target, 200), abs=5)


def test_an_epoch_without_a_report_is_left_out() -> None:
    gap = CURVES["pow3"][:40].copy()
    gap[[3, 17]] = np.nan
    assert epochs_to_reach(gap, float(CURVES["pow3"][99]), 200) == pytest.approx(100, abs=10)


def test_curves_of_accuracies_stay_between_0_and_1() -> None:
    ahead = forecast(0.5 + 0.04 * EPOCHS[:8], 200)
    assert ahead is None or ahead.mean.max() <= 1.0


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=12), st.floats(-1e3, 1e3), st.integers(1, 40))
def test_whatever_was_seen_the_answer_is_an_epoch_ahead_or_the_maximum(
    seen: list[float], target: float, most: int
) -> None:
    epoch = epochs_to_reach(np.array(seen), target, most)
    assert epoch == most or len(seen) < epoch <= most
    assert epoch == epochs_to_reach(np.array(seen), target, most)


def test_weights_add_up_and_favour_what_fits() -> None:
    ahead = forecast(CURVES["hill3"][:30], 200)
    assert ahead is not None
    assert ahead.weights.sum() == pytest.approx(1.0)
    best = min(range(len(ahead.curves)), key=lambda index: ahead.curves[index].mse)
    assert ahead.weights.argmax() == best
    assert {curve.family for curve in ahead.curves} <= {family.name for family in FAMILIES} | {
        "vapor pressure"
    }


@pytest.mark.parametrize("name", CURVES)
def test_fits_side_by_side_are_those_of_one_at_a_time(name: str) -> None:
    noisy = CURVES[name][:23] + np.random.default_rng(5).normal(0, 0.003, 23)
    # Others of other lengths and scales beside it must not change it.
    others = [CURVES["mmf"][:40], -3.0 - EPOCHS[:6] ** -0.5, CURVES["ilog2"][:9]]
    ahead = forecasts([*others, noisy], [60, 90, 150, 200])[-1]
    assert ahead is not None
    expected = one_by_one.fits(noisy, ahead.x)
    fitted = {curve.family: curve for curve in ahead.curves if curve.family in expected}
    assert len(fitted) >= 3
    for family, curve in fitted.items():
        mse, y = expected[family]
        assert curve.mse == pytest.approx(mse, rel=1e-6)
        assert curve.y == pytest.approx(y, abs=1e-6)


def test_a_curve_is_forecast_alike_alone_and_beside_others() -> None:
    rng = np.random.default_rng(3)
    metrics = [
        CURVES[name][: 5 + 9 * row] + rng.normal(0, 0.002, 5 + 9 * row) for row, name in enumerate(CURVES)
    ]
    targets = [float(CURVES[name][119]) for name in CURVES]
    alone = [epochs_to_reach(metric, target, 200) for metric, target in zip(metrics, targets, strict=True)]
    assert all_epochs_to_reach(metrics, targets, [200] * len(metrics)) == alone
    assert len(set(alone)) > 1
