"""How fast each job would run on each configuration, as far as we believe."""

from dataclasses import dataclass

import numpy as np

from stretto.model.arrays import BoolArray, FloatArray, IntArray
from stretto.model.configurations import Configurations


@dataclass(frozen=True, eq=False)
class Speeds:
    """One matrix, jobs × configurations; rows as in the snapshot.

    `per_s` is goodput (steps of the initial batch per second) where a policy asked for goodput models and
    measured steps per second where it asked for throughput tables; comparable within a row only. NaN where
    the job cannot run so. `requested_per_s` is the same for exactly the GPUs that a job asked for, by type.
    """

    configurations: Configurations
    per_s: FloatArray  # (jobs, configs)
    requested_per_s: FloatArray  # (jobs, types)
    modelled: BoolArray  # (jobs,) something about its speed has been learned
    observed_gpus: IntArray  # (jobs, types) most GPUs on which its speed was observed
    reach_gpus: IntArray  # (jobs,) most GPUs that its batch limits can keep busy


def no_speeds(jobs: int, types: int, configurations: Configurations) -> Speeds:
    """Nothing is believed about anybody."""
    return Speeds(
        configurations=configurations,
        per_s=np.full((jobs, len(configurations)), np.nan),
        requested_per_s=np.full((jobs, types), np.nan),
        modelled=np.zeros(jobs, dtype=np.bool_),
        observed_gpus=np.zeros((jobs, types), dtype=np.int64),
        reach_gpus=np.full(jobs, np.iinfo(np.int64).max),
    )
