"""Jobs that adapt less than they could, as in Sia's figures 1 and 11 (sections 3.4, 5.4 and 5.7)."""

from dataclasses import dataclass, replace

import numpy as np

from stretto.model import Adaptivity, InputError
from stretto.traces.workload import Workload


@dataclass(frozen=True)
class SiaAdaptivity:
    """Parameters. Shares are of the jobs that there are, rounded down; of one seed, more include fewer."""

    rigid: float = 0.0  # share that keeps batch size and GPUs; its type is chosen
    strong_scaling: float = 0.0  # share that keeps the batch size; GPUs and their type are chosen
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("rigid", "strong_scaling"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe sia: {name} must be from 0 to 1, got {getattr(self, name)}")
        if self.rigid + self.strong_scaling > 1:
            raise InputError(
                f"recipe sia: rigid and strong_scaling must be at most 1 together, got {self.rigid:g} and "
                f"{self.strong_scaling:g}"
            )


def prepare(workload: Workload, parameters: SiaAdaptivity) -> Workload:
    """The jobs, some of them limited to the GPUs and the batch size that the trace gives them."""
    count = len(workload.jobs)
    order = np.random.default_rng([parameters.seed, 11]).permutation(count)
    rigid = {*order[: int(parameters.rigid * count)].tolist()}
    strong = {*order[::-1][: int(parameters.strong_scaling * count)].tolist()}
    jobs = [
        replace(job, adaptivity=Adaptivity.RIGID, min_gpus=job.gpus, max_gpus=job.gpus)
        if row in rigid
        else replace(job, adaptivity=Adaptivity.STRONG_SCALING)
        if row in strong
        else job
        for row, job in enumerate(workload.jobs)
    ]
    added = f"limited as Sia limits: {len(rigid)} rigid jobs, {len(strong)} that keep their batch size"
    return replace(workload, jobs=jobs, source="; ".join(filter(None, (workload.source, added))))
