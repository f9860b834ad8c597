"""Jobs as in the scenarios of Lyra (EuroSys 2023, sections 2 and 7.1): fungible, elastic, heterogeneous."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stretto.model import Adaptivity, BoolArray, InputError
from stretto.traces.workload import Workload

FAMILIES = ("bert-squad", "gnmt16", "resnet50-imagenet", "vgg16")  # models that scale well; section 2.2


@dataclass(frozen=True)
class LyraScenario:
    """Parameters; the usual ones are the scenario Basic. Shares are of the jobs; draws are seeded."""

    fungible: float = 0.21  # run on any GPU type, one at a time; section 2.1
    elastic: float = 0.05  # have a range; the jobs of the elastic families first; section 2.2
    heterogeneous: float = 0.0  # run on several types at once; 0.1 in Advanced; section 7.1
    checkpoints: float = 0.0  # keep their progress when they are stopped; section 7.3: none
    tuned: bool = False  # elastic jobs may choose their batch sizes too; section 7.4
    range: float = 2.0  # most over fewest GPUs of an elastic job; section 7.1, where nothing else is said
    own_type: str = "v100"  # of the training cluster
    lent_type: str = "t4"  # of the servers on loan
    keep: Literal["all", "fungible", "others"] = "all"  # a part of the jobs, as queued for one cluster
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("fungible", "elastic", "heterogeneous", "checkpoints"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe lyra: {name} must be from 0 to 1, got {getattr(self, name)}")
        if not self.range >= 1:
            raise InputError(f"recipe lyra: range must be >= 1, got {self.range:g}")


def prepare(workload: Workload, parameters: LyraScenario) -> Workload:
    """The jobs of a scenario: what each asked for is its base demand, and its most is `range` times that.

    A job that is neither fungible nor heterogeneous accepts the training cluster's type only. Growing shares
    keep the jobs that smaller ones had, so that scenarios can be compared job by job. With `keep`, fungible
    jobs accept the lent type only: they are queued for the other cluster (opportunistic scheduling).
    """
    jobs = len(workload.jobs)
    draw = np.random.default_rng([parameters.seed, 53])
    fungible, heterogeneous, checkpoints, at_random = (draw.permutation(jobs) / jobs for _ in range(4))
    family = np.array([job.model in FAMILIES for job in workload.jobs], dtype=np.bool_)
    turn = (
        np.argsort(np.argsort(np.where(family, -1.0, 0.0) + at_random, kind="stable"), kind="stable") / jobs
    )
    is_fungible, is_mixed = fungible < parameters.fungible, heterogeneous < parameters.heterogeneous
    is_elastic, keeps = turn < parameters.elastic, checkpoints < parameters.checkpoints
    elastic = Adaptivity.ADAPTIVE if parameters.tuned else Adaptivity.STRONG_SCALING
    made = []
    for row, job in enumerate(workload.jobs):
        most = int(parameters.range * job.gpus) // job.gpus_per_worker * job.gpus_per_worker
        if parameters.keep == "fungible":
            accepts: tuple[str, ...] = (parameters.lent_type,)
        else:
            accepts = () if is_fungible[row] or is_mixed[row] else (parameters.own_type,)
        made.append(
            replace(
                job,
                gpu_types=accepts,
                adaptivity=elastic if is_elastic[row] else Adaptivity.RIGID,
                min_gpus=job.gpus,
                max_gpus=max(most, job.gpus) if is_elastic[row] else job.gpus,
                heterogeneous=bool(is_mixed[row]),
                checkpoints=bool(keeps[row]),
            )
        )
    rows = np.flatnonzero(_kept(parameters, is_fungible)).tolist()
    added = (
        f"for Lyra: {int(is_fungible.sum())} fungible, {int(is_elastic.sum())} elastic, "
        f"{int(is_mixed.sum())} heterogeneous jobs, {int(keeps.sum())} with checkpoints"
    )
    if parameters.keep != "all":
        added += f"; of all, {len(rows)} kept ({parameters.keep})"
    return replace(
        workload,
        jobs=[made[row] for row in rows],
        truths=[workload.truths[row] for row in rows],
        source="; ".join(filter(None, (workload.source, added))),
    )


def _kept(parameters: LyraScenario, fungible: BoolArray) -> BoolArray:
    if parameters.keep == "all":
        return np.ones_like(fungible)
    return fungible if parameters.keep == "fungible" else ~fungible
