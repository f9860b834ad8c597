"""A workload: what was asked for, and, hidden from every policy, what will really happen."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import nan

from stretto.model import Job
from stretto.traces.learning import LearningCurve


class Outcome(StrEnum):
    """How a job ended in the trace."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Truth:
    """What a job will really do. NaN or empty: it follows from the profiles or the catalogue of its model."""

    duration_s: float = nan  # from start to end on the GPUs asked for, uninterrupted
    gpu_type: str = ""  # the type on which that was measured; "" = on any, at that type's relative speed 1
    steps: float = nan  # optimiser steps at the submitted batch size, where the trace says
    outcome: Outcome = Outcome.COMPLETED
    learning: LearningCurve | None = None  # what it reports while it trains
    cpus_per_gpu: float = nan  # cores at which it is at its fastest; NaN: cores make no difference


@dataclass(frozen=True, eq=False)
class Workload:
    """Jobs by submission, then id, and the truth of each."""

    name: str
    jobs: Sequence[Job]
    truths: Sequence[Truth]
    source: str = ""  # where it comes from, for people
    synthetic: bool = False  # made, not recorded
    skipped: Sequence[str] = ()  # rows that were left out, and why
