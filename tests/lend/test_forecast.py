"""Looking ahead: what is forecast, and how far off it is."""

from pathlib import Path

import numpy as np
import pytest

from stretto.lend import CapacityLoaning, forecast
from stretto.lend.forecast import Last, Learned, Lstm, squared_error, trained
from stretto.model import FloatArray, InputError

DAY = 288  # values of five minutes


def a_daily_wave(days: int, noise: float, seed: int = 0) -> FloatArray:
    at = np.arange(days * DAY)
    rough = np.random.default_rng(seed).normal(0.0, noise, len(at))
    return np.asarray(np.clip(0.65 + 0.25 * np.sin(2 * np.pi * at / DAY) + rough, 0, 1))


def test_what_rises_steadily_is_expected_to_rise() -> None:
    rising = np.linspace(0.1, 0.6, 101)
    assert Learned().next_share(rising, np.nan) == pytest.approx(0.605, abs=5e-4)
    assert Last().next_share(rising, np.nan) == 0.6


def test_a_learned_forecast_of_a_daily_wave_is_nearer_than_the_present_value() -> None:
    wave = a_daily_wave(days=4, noise=0.0)
    assert squared_error(Learned(), wave, 3 * DAY) < 0.05 * squared_error(Last(), wave, 3 * DAY)


def test_of_noise_it_expects_the_mean_and_so_beats_the_present_value() -> None:
    noisy = a_daily_wave(days=4, noise=0.02)
    assert squared_error(Learned(), noisy, 3 * DAY) < 0.8 * squared_error(Last(), noisy, 3 * DAY)


def test_it_is_fitted_to_the_past_alone() -> None:
    wave = a_daily_wave(days=3, noise=0.01)
    other = wave.copy()
    other[600:] = 0.5
    assert Learned().next_share(wave[:600], np.nan) == Learned().next_share(other[:600], np.nan)


@pytest.mark.parametrize("values", [1, 5, 35])
def test_with_too_little_past_nothing_is_expected_to_change(values: int) -> None:
    assert Learned().next_share(np.linspace(0.2, 0.4, values), np.nan) == np.linspace(0.2, 0.4, values)[-1]


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_constant_series_stays_where_it_is(value: float) -> None:
    assert Learned().next_share(np.full(200, value), np.nan) == pytest.approx(value)


def test_forecasts_are_shares() -> None:
    steep = np.concatenate([np.full(40, 0.1), np.linspace(0.1, 1.0, 40)])
    assert Learned().next_share(steep, np.nan) == 1.0


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="expects 2 <= window"):
        Learned(window=20, least=10)


@pytest.mark.data
def test_the_error_on_a_public_series_is_below_that_of_the_papers_network(data_dir: Path) -> None:
    series = np.loadtxt(data_dir / "inference" / "demand_lyra_like_15d.csv", delimiter=",", skiprows=1)[:, 1]
    last_days = len(series) - 1_440  # as many values as the paper tests on
    learned = squared_error(Learned(), series, last_days)
    assert learned <= squared_error(Last(), series, last_days)
    assert learned < 0.000_48  # Lyra, section 6, on another series


@pytest.mark.slow
@pytest.mark.torch
def test_the_network_expects_what_a_daily_wave_does_next() -> None:
    wave = a_daily_wave(days=2, noise=0.0)
    first = DAY + 200
    assert squared_error(Lstm(), wave, first) < 0.5 * squared_error(Last(), wave, first)


@pytest.mark.torch
def test_the_network_depends_on_the_past_alone_and_draws_nothing_of_others() -> None:
    import torch

    wave = a_daily_wave(days=2, noise=0.01)
    other = wave.copy()
    other[400:] = 0.5
    few = Lstm(steps=20)
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    expected = few.next_share(wave[:400], np.nan)
    assert torch.rand(1) == drawn
    trained.cache_clear()
    assert few.next_share(other[:400], np.nan) == expected != wave[399]


def test_the_network_expects_no_change_before_its_first_training() -> None:
    assert Lstm().next_share(np.linspace(0.2, 0.4, DAY - 1), np.nan) == 0.4


@pytest.mark.torch
def test_the_network_leaves_a_constant_series_where_it_is() -> None:
    assert Lstm(steps=20).next_share(np.full(300, 0.5), np.nan) == pytest.approx(0.5, abs=1e-5)


def test_without_pytorch_the_network_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^lend\.forecast=lstm needs PyTorch: install stretto\[torch\]$"):
        CapacityLoaning(forecast="lstm")
