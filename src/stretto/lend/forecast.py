"""How many of its servers will a lender need within the next period? As a share of them.

Lyra (EuroSys 2023, section 6) predicts the next five minutes with an LSTM on a window of ten values.
"""

from dataclasses import dataclass
from math import isnan
from typing import ClassVar, Protocol

import numpy as np

from stretto.model import FloatArray, InputError


class Forecast(Protocol):
    """A way to look ahead."""

    name: ClassVar[str]

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The share needed within the next period; `demand` per period up to now, `truth` NaN if hidden."""


@dataclass(frozen=True)
class Oracle:
    """What really comes: the largest share within the next period, shown by a simulated world."""

    name: ClassVar[str] = "oracle"

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The truth; InputError where the world does not show it. Never less than the share of now."""
        if isnan(truth):
            raise InputError(
                "lend.forecast=oracle: expected a world that knows demand ahead, this one does not"
            )
        return max(truth, float(demand[-1]))


@dataclass(frozen=True)
class Last:
    """That nothing changes."""

    name: ClassVar[str] = "last"

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The share of now."""
        return float(demand[-1])


@dataclass(frozen=True)
class Learned:
    """Ridge regression of the next change on the last ones, over the part of the series seen so far.

    Deviation from Lyra's LSTM with two hidden layers: a linear model on the same window of ten values. It is
    fitted anew at every forecast from the past alone, so it needs no training data, draws nothing and cannot
    look ahead. Until there is as much past as `least` asks for, nothing is expected to change.
    """

    window: int = 10  # values; Lyra, section 6
    ridge: float = 1e-4  # penalty on weights, per sample; chosen: small beside the changes' own variance
    least: int = 36  # values before it is fitted; chosen: three hours of five minutes
    most: int = 2_016  # latest values that it is fitted to; chosen: a week of five minutes

    name: ClassVar[str] = "learned"

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.window < 2 or self.least < self.window + 2 or self.most < self.least or self.ridge <= 0:
            raise InputError(
                f"a learned forecast expects 2 <= window, window + 2 <= least <= most and ridge > 0, "
                f"got {self.window}, {self.least}, {self.most} and {self.ridge:g}"
            )

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The fitted next value, within 0 and 1."""
        past = demand[-self.most :]
        if len(past) < self.least:
            return float(past[-1])
        windows = np.lib.stride_tricks.sliding_window_view(past, self.window)
        changes = np.column_stack([np.diff(windows, axis=1), windows[:, -1] - past.mean()])
        known, after = changes[:-1], np.diff(past)[self.window - 1 :]
        gram = known.T @ known + self.ridge * np.eye(self.window) * float(known.var())
        weights = np.linalg.solve(gram + 1e-12 * np.eye(self.window), known.T @ after)
        return float(np.clip(past[-1] + changes[-1] @ weights, 0.0, 1.0))


FORECASTS: dict[str, type[Forecast]] = {"oracle": Oracle, "last": Last, "learned": Learned}


def squared_error(forecast: Forecast, series: FloatArray, first: int) -> float:
    """Mean squared error of one-step forecasts of `series[first:]`, each from what lies before it."""
    wrong = [
        forecast.next_share(series[:at], float(series[at])) - float(series[at])
        for at in range(first, len(series))
    ]
    return float(np.mean(np.square(wrong)))
