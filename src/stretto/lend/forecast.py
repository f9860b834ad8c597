"""What will a lender need next? Ways to foresee it from what it has needed so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
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
        before, after = changes[:-1], np.diff(past)[self.window - 1 :]
        gram = before.T @ before + self.ridge * np.eye(self.window) * float(before.var())
        weights = np.linalg.solve(gram + 1e-12 * np.eye(self.window), before.T @ after)
        return float(np.clip(past[-1] + changes[-1] @ weights, 0.0, 1.0))


# ── the network of Lyra ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lstm:
    """The network of Lyra: an LSTM with a window of ten values and two hidden layers, by Adam on the MSE.

    The paper says no more of it, and trains it beforehand. Here it is trained on what has been seen so far,
    anew after every `every` values. It starts from the same random weights each time, so a forecast depends
    on nothing but the demand. It learns the change from the last value, in units of the series' own spread.
    Until there are `every` values, nothing is expected to change. Training takes a few seconds, a forecast
    0.3 ms.
    """

    window: int = 10  # values; Lyra, section 6
    layers: int = 2  # Lyra, section 6
    hidden: int = 32  # units of a layer; chosen
    steps: int = 960  # of Adam; chosen: 30 times through a week of values
    batch: int = 64  # values in a step; chosen
    rate: float = 3e-3  # of Adam; chosen
    every: int = 288  # values from one training to the next; chosen: a day of five minutes
    most: int = 2_016  # latest values that it is trained on; chosen, as for the regression

    name: ClassVar[str] = "lstm"

    def __post_init__(self) -> None:
        """Check that there is PyTorch, which the core of this package does without."""
        if find_spec("torch") is None:
            raise InputError("lend.forecast=lstm needs PyTorch: install stretto[torch]")
        if self.window < 1 or self.every < self.window + 2 or self.most < self.every:
            raise InputError(
                "a forecast by LSTM expects 1 <= window and window + 2 <= every <= most, "
                f"got {self.window}, {self.every} and {self.most}"
            )

    def next_share(self, demand: FloatArray, truth: float) -> float:
        """The next value by the network that was trained last, within 0 and 1."""
        trained_on = len(demand) // self.every * self.every
        if trained_on == 0:
            return float(demand[-1])
        past = np.ascontiguousarray(demand[max(trained_on - self.most, 0) : trained_on])
        change_after = trained(self, past.tobytes())
        return float(np.clip(demand[-1] + change_after(demand[-self.window :]), 0.0, 1.0))


@lru_cache(maxsize=8)  # each lender of a few has the network of its day
def trained(settings: Lstm, past: bytes) -> Callable[[FloatArray], float]:
    """The change to expect after a window of values, learned from a series (float64 as bytes); remembered."""
    import torch  # takes seconds to import, and is asked for by this forecast alone

    series = np.frombuffer(past)
    spread = max(float(series.std()), 1e-6)  # a constant series has none
    scaled = (series - series.mean()) / spread
    windows = np.lib.stride_tricks.sliding_window_view(scaled, settings.window)[:-1]
    inputs = torch.tensor(windows.copy(), dtype=torch.float32)[..., None]
    changes = torch.tensor(np.diff(scaled)[settings.window - 1 :].copy(), dtype=torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network only waits for more of them
    with torch.random.fork_rng(devices=[]):  # the same weights each time, and no draw of anything else moves
        torch.manual_seed(0)
        network = torch.nn.LSTM(1, settings.hidden, num_layers=settings.layers, batch_first=True)
        last = torch.nn.Linear(settings.hidden, 1)
        adam = torch.optim.Adam([*network.parameters(), *last.parameters()], lr=settings.rate)
        for _ in range(settings.steps):
            rows = torch.randint(len(inputs), (settings.batch,))
            foreseen = last(network(inputs[rows])[0][:, -1])[:, 0]
            loss = torch.nn.functional.mse_loss(foreseen, changes[rows])
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    torch.set_num_threads(threads)

    def change_after(window: FloatArray) -> float:
        with torch.no_grad():
            scaled = torch.tensor((window - series.mean()) / spread, dtype=torch.float32)
            return float(last(network(scaled[None, :, None])[0][:, -1])[0, 0]) * spread

    return change_after


# ── the forecasts by name, and how far off they are ───────────────────────────────────────────────


FORECASTS: Mapping[str, type[Forecast]] = {
    "learned": Learned,
    "last": Last,
    "lstm": Lstm,
    "oracle": Oracle,
}


def squared_error(forecast: Forecast, series: FloatArray, first: int) -> float:
    """Mean squared error of one-step forecasts of `series[first:]`, each from what lies before it."""
    wrong = [
        forecast.next_share(series[:row], float(series[row])) - float(series[row])
        for row in range(first, len(series))
    ]
    return float(np.mean(np.square(wrong)))
