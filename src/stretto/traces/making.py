"""What to make: the parameters of a made workload, and the checks on them."""

from dataclasses import dataclass
from math import inf

import numpy as np

from stretto.model import Cluster, InputError
from stretto.suggestions import did_you_mean
from stretto.traces.arrivals import PATTERNS
from stretto.traces.workload import reach_of

MODEL_SETS = ("sia", "all")
MOST_JOBS = 10_000_000  # chosen: a slip should not fill the memory


@dataclass(frozen=True)
class Making:
    """Parameters of a made workload. Equal ones give equal workloads."""

    jobs: int = 0  # 0: as many as the arrivals bring in that many hours
    hours: float = 24.0  # window of submissions, from midnight
    seed: int = 0
    arrivals: str = "philly"  # one of PATTERNS
    models: str = "sia"  # "sia": the five models of its table 2; "all": the whole catalogue
    rigid: float = 0.0  # share of the jobs that keep GPUs and batch size
    strong_scaling: float = 0.0  # share of the jobs that keep the batch size only
    cluster: Cluster | None = None  # no job asks for more than fits there

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value, choices in (
            ("arrivals", self.arrivals, tuple(PATTERNS)),
            ("models", self.models, MODEL_SETS),
        ):
            if value not in choices:
                raise InputError(f"unknown {name} {value!r}, {did_you_mean(value, choices)}")
        for name, number, most in (
            ("jobs", self.jobs, MOST_JOBS),
            ("seed", self.seed, inf),
            ("rigid", self.rigid, 1.0),
            ("strong_scaling", self.strong_scaling, 1.0 - self.rigid),
        ):
            if not 0 <= number <= most:
                raise InputError(f"{name} must lie between 0 and {most:g}, got {number}")
        if not 0 < self.hours < inf:
            raise InputError(f"hours must be a number > 0, got {self.hours}")

    @property
    def count(self) -> int:
        """How many jobs, at least one."""
        return self.jobs or max(round(PATTERNS[self.arrivals].per_hour * self.hours), 1)

    def stream(self, purpose: int) -> np.random.Generator:
        """A generator for one purpose, so that what is drawn for another does not shift it."""
        return np.random.default_rng([self.seed, purpose])

    @property
    def most_gpus(self) -> int:
        """GPUs of the largest type that one job can have; unlimited without a cluster."""
        if self.cluster is None:
            return 2**31 - 1
        return max(reach_of(self.cluster))
