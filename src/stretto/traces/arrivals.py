"""When jobs arrive: a Poisson process whose rate follows the hour of the day and comes in bursts.

The rate of an hour is daily cycle x burst. Bursts are log-normal and carry over from hour to hour:
log burst(h+1) = r log burst(h) + noise. Given the number of jobs, their times are independent draws with a
density proportional to the rate, so that exactly so many arrive.
"""

from dataclasses import dataclass
from math import ceil, inf, log, pi, sqrt

import numpy as np

from stretto.model.arrays import FloatArray, floats

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """What is published about arrivals: counts of jobs by the hour, and what follows from them."""

    per_hour: float  # jobs, mean
    median_per_hour: float  # the further below the mean, the burstier
    most_per_hour: float  # which no burst exceeds
    peak_over_trough: float  # of the rate by hour of the day (Philly: of the medians)
    carry_over: float  # correlation of log(1 + jobs) of successive hours
    source: str

    @property
    def burst_sigma(self) -> float:
        """Standard deviation of log burst: the mean of a log-normal is exp(σ²/2) times its median."""
        return sqrt(2 * log(self.per_hour / self.median_per_hour))


PATTERNS = {
    "philly": ArrivalPattern(
        per_hour=31.5,
        median_per_hour=11.0,
        most_per_hour=1_031.0,
        peak_over_trough=1.9,
        carry_over=0.83,
        source="Philly (Jeon et al., ATC 2019), as published with Sia: 82,247 jobs of 109 days",
    ),
    "venus": ArrivalPattern(
        per_hour=28.8,
        median_per_hour=22.0,
        most_per_hour=754.0,
        peak_over_trough=9.25,
        carry_over=0.63,
        source="Venus of Helios (Hu et al., SC 2021), 125,214 GPU jobs of six months",
    ),
    # The median is chosen so that the busiest hour of 8 has 31 to 44 jobs, as in the ten workloads of 8 hours
    # published with Sia; the longer ones have hours of 49.
    "sia": ArrivalPattern(
        per_hour=20.0,
        median_per_hour=18.0,
        most_per_hour=49.0,
        peak_over_trough=1.0,
        carry_over=0.5,
        source="Sia (SOSP 2023), section 4.1: 20 jobs an hour",
    ),
    # Of Lyra only the number of jobs is published. The made workload of that name puts a calendar of days in
    # the place of bursts; these figures serve where another workload asks for the pattern.
    "lyra": ArrivalPattern(
        per_hour=140.0,
        median_per_hour=130.0,
        most_per_hour=600.0,
        peak_over_trough=3.0,
        carry_over=0.5,
        source="Lyra (EuroSys 2023), section 7.1: 50,390 jobs in 15 days; when they come is chosen",
    ),
    "ones": ArrivalPattern(
        per_hour=105.0,
        median_per_hour=105.0,
        most_per_hour=inf,
        peak_over_trough=1.0,
        carry_over=0.0,
        source="no trace: Poisson, chosen for a load of 0.8 on 64 V100; ONES (SC 2021) publishes no arrivals",
    ),
    "ones-usual-batch": ArrivalPattern(
        per_hour=95.0,
        median_per_hour=95.0,
        most_per_hour=inf,
        peak_over_trough=1.0,
        carry_over=0.0,
        source="no trace: Poisson, calibrated to the queuing time of Tiresias in ONES (SC 2021), section 4.2",
    ),
}


def arrival_times_s(pattern: ArrivalPattern, jobs: int, hours: float, rng: np.random.Generator) -> FloatArray:
    """(jobs,) ascending whole seconds within the window, which starts at midnight."""
    starts_h = floats(np.arange(ceil(hours)))
    lengths_h = np.minimum(starts_h + 1, hours) - starts_h
    weight = _daily(pattern, starts_h + 0.5) * _bursts(pattern, len(starts_h), rng) * lengths_h
    hour = rng.choice(len(starts_h), size=jobs, p=weight / weight.sum())
    times_h = starts_h[hour] + rng.random(jobs) * lengths_h[hour]
    return np.sort(np.floor(times_h * HOUR_S))


def _daily(pattern: ArrivalPattern, hour: FloatArray) -> FloatArray:
    """A cosine that peaks at 14:00 (chosen: Venus is busiest from 14:00 to 18:00)."""
    swing = (pattern.peak_over_trough - 1) / (pattern.peak_over_trough + 1)
    return np.asarray(1 + swing * np.cos(2 * pi * (hour - 14) / 24))


def _bursts(pattern: ArrivalPattern, hours: int, rng: np.random.Generator) -> FloatArray:
    """(hours,) factors of mean 1, before the largest are cut."""
    normal = rng.standard_normal(hours)
    state = np.empty(hours)
    state[0] = normal[0]
    keep, fresh = pattern.carry_over, sqrt(1 - pattern.carry_over**2)
    for hour in range(1, hours):  # each hour depends on the one before
        state[hour] = keep * state[hour - 1] + fresh * normal[hour]
    sigma = pattern.burst_sigma
    largest = pattern.most_per_hour / pattern.per_hour
    return np.minimum(np.exp(sigma * state - sigma**2 / 2), largest)
