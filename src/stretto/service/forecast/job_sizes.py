"""How many GPUs jobs would hold, at times ahead: what several simulated futures say, as a fan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from stretto.model import FloatArray
from stretto.service.forecast.fork import Fork
from stretto.service.forecast.simulate import (
    DRAWS,
    LONGEST_S,
    Forecast,
    Sample,
    deadline_in,
    outside_of,
    play,
    span_json,
)
from stretto.sim.world import SimulatedWorld

STEPS = 60  # of time; chosen: a picture has some hundred pixels for them
MOST_JOBS = 200  # that are told of one by one; chosen: more than a page shows


@dataclass(frozen=True)
class Ahead:
    """What is to be foreseen."""

    ahead_s: float
    jobs: tuple[str, ...] = ()  # one by one; those that a picture shows

    def times(self, now_s: float) -> FloatArray:
        """The times that are looked at."""
        return now_s + np.linspace(0.0, self.ahead_s, STEPS + 1)


@dataclass
class SizeRecorder:
    """Notes what jobs hold in one future, after each of its decisions."""

    times: FloatArray
    jobs: Sequence[str]
    total: FloatArray = field(init=False)
    by_job: FloatArray = field(init=False)
    _next: int = 0  # of the times: the first that has not been filled
    _held: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self.total = np.full(len(self.times), np.nan)
        self.by_job = np.full((len(self.jobs), len(self.times)), np.nan)

    def decided(self, world: SimulatedWorld) -> bool:
        """A decision was carried out: what was held until then is known. Whether enough is."""
        self.fill(world, world.now_s)
        self._held = {str(name): allocation.gpus for name, allocation in world.placement.items()}
        return self._next == len(self.times)

    def fill(self, world: SimulatedWorld, until_s: float) -> None:
        """Note what is held before `until_s`: a job that ends between two decisions holds nothing then."""
        last = int(np.searchsorted(self.times, until_s))
        if last <= self._next:
            return
        rows = {str(name): row for row, name in enumerate(world.requests.ids)}
        ends = world.accounting.completed_s
        there = self.times[self._next : last]
        self.total[self._next : last] = 0.0
        self.by_job[:, self._next : last] = 0.0
        index = {name: row for row, name in enumerate(self.jobs)}
        for name, gpus in self._held.items():
            end_s = float(ends[rows[name]])
            holds = gpus * (there < (end_s if isfinite(end_s) else inf))
            self.total[self._next : last] += holds
            if name in index:
                self.by_job[index[name], self._next : last] = holds
        self._next = last

    def anew(self) -> None:
        """The future is played again."""
        self._next, self._held = 0, {}
        self.__post_init__()


def sizes_ahead(fork: Fork, asked: Ahead, unix_s: float, draws: int = DRAWS) -> dict[str, Any]:
    """What jobs would hold: the middle of the draws, and where most lie. Fewer draws if time runs out."""
    times, until = asked.times(fork.now_s), deadline_in(LONGEST_S)
    recorders: list[SizeRecorder] = []
    samples: list[Sample] = []
    for seed in range(draws):
        recorder = SizeRecorder(times, asked.jobs)
        sample = play(fork, seed, None, until, recorder)
        if samples and deadline_in(0.0) >= until:
            break
        recorders.append(recorder)
        samples.append(sample)
    outlook = Forecast(fork, tuple(samples))
    return {
        "policy": fork.configured.policy,
        "draws": len(samples),
        "step_s": asked.ahead_s / STEPS,
        "held": fan_json(np.array([recorder.total for recorder in recorders])),
        "jobs": {
            name: {
                "held": fan_json(np.array([recorder.by_job[row] for recorder in recorders])),
                "start": span_json(outlook.start(name), unix_s),
                "end": span_json(outlook.end(name), unix_s),
            }
            for row, name in enumerate(asked.jobs)
        },
    }


def fan_json(values: FloatArray) -> dict[str, list[float | None]]:
    """(draws, times) as three rows: the middle, and a tenth of the draws below and above."""
    known = [not np.isnan(column).any() for column in values.T]
    ordered = np.sort(values, axis=0)
    last = len(values) - 1
    outside = outside_of(len(values))
    rows = {"low": outside, "middle": last // 2, "high": last - outside}
    return {
        name: [
            float(value) if is_known else None for value, is_known in zip(ordered[row], known, strict=True)
        ]
        for name, row in rows.items()
    }
