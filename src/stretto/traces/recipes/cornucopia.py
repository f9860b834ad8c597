"""Interactive and batch jobs, elastic and not, as in Cornucopia (sections 5.1, 5.5 and 5.6)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isnan

import numpy as np

from stretto.model import Adaptivity, BoolArray, InputError, IntArray, Kind
from stretto.traces.workload import Outcome, Truth, Workload

CLASSES = ((2, 4), (5, 8), (9, None))  # GPUs asked for, first and last of each class; section 5.6
ROUNDING = 1e-9  # a share of a count that is whole but for the last bit


class Labels(StrEnum):
    """What makes a job interactive."""

    DURATION = "duration"  # a short run time: the rule that gives the counts of the paper's table 3
    OUTCOME = "outcome"  # cancelled, or failed soon: the rule of the paper's text


@dataclass(frozen=True)
class Cornucopia:
    """Parameters. Shares are of the jobs that there are, rounded down; draws are seeded."""

    labels: Labels = Labels.DURATION
    interactive_s: float = 1_800.0  # interactive up to this duration; measured on table 3
    failed_s: float = 600.0  # by outcome: interactive where it failed within; Philly's, Helios's is 1,200
    mislabelled: float = 0.0  # share of batch jobs that call themselves interactive; section 5.5
    nonelastic: float = 0.0  # share of each class of jobs with several GPUs that is not elastic; section 5.6
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("mislabelled", "nonelastic"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe cornucopia: {name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("interactive_s", "failed_s"):
            if getattr(self, name) < 0:
                raise InputError(f"recipe cornucopia: {name} must be >= 0, got {getattr(self, name)}")


def prepare(workload: Workload, parameters: Cornucopia) -> Workload:
    """The jobs with labels, ranges of 1 to 2R GPUs at their own batch size, and no deadlines.

    The paper gives deadline-aware baselines infinite deadlines. InputError for a workload that does not say
    how long jobs run.
    """
    truly = _interactive(workload.truths, parameters)
    draw = np.random.default_rng([parameters.seed, 5])
    wrong = _some(np.flatnonzero(~truly), parameters.mislabelled, draw)
    interactive = truly.copy()
    interactive[wrong] = True
    gpus = np.array([job.gpus for job in workload.jobs])
    fixed = np.zeros(len(gpus), dtype=np.bool_)
    for least, most in CLASSES:
        of_class = np.flatnonzero((gpus >= least) & (gpus <= (most or gpus.max())))
        fixed[_some(of_class, parameters.nonelastic, draw)] = True
    jobs = [
        replace(
            job,
            kind=Kind.INTERACTIVE if is_interactive else Kind.BATCH,
            adaptivity=Adaptivity.RIGID if is_fixed else Adaptivity.STRONG_SCALING,
            min_gpus=job.gpus if is_fixed else job.gpus_per_worker,
            max_gpus=job.gpus if is_fixed else 2 * job.gpus,
            rewards=(),
        )
        for job, is_interactive, is_fixed in zip(
            workload.jobs, interactive.tolist(), fixed.tolist(), strict=True
        )
    ]
    added = (
        f"labelled for Cornucopia by {parameters.labels.value}: {int(interactive.sum())} interactive jobs, "
        f"{len(wrong)} of them wrongly, {int(fixed.sum())} not elastic"
    )
    return replace(workload, jobs=jobs, source="; ".join(filter(None, (workload.source, added))))


def _interactive(truths: Sequence[Truth], parameters: Cornucopia) -> BoolArray:
    """(jobs,) which really are."""
    if any(isnan(truth.duration_s) for truth in truths):
        raise InputError("recipe cornucopia: expected a trace that says how long every job runs")
    duration_s = np.array([truth.duration_s for truth in truths])
    if parameters.labels is Labels.DURATION:
        return duration_s <= parameters.interactive_s
    cancelled = np.array([truth.outcome is Outcome.CANCELLED for truth in truths], dtype=np.bool_)
    failed = np.array([truth.outcome is Outcome.FAILED for truth in truths], dtype=np.bool_)
    return cancelled | (failed & (duration_s < parameters.failed_s))


def _some(among: IntArray, share: float, draw: np.random.Generator) -> IntArray:
    """A share of these positions, drawn without repetition."""
    count = int(share * len(among) + ROUNDING)
    return np.sort(draw.choice(among, count, replace=False)) if count else among[:0]
