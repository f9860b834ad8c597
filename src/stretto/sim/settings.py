"""How the simulated world behaves, as far as a user may choose."""

from dataclasses import dataclass
from enum import StrEnum


class Fidelity(StrEnum):
    """Whose rules the clock and the physics follow where Sia's paper and its simulator differ."""

    ARTIFACT = "artifact"  # as Sia's published simulator
    PAPER = "paper"  # as the paper says, or plain physics where it is silent


class Batches(StrEnum):
    """Who chooses batch sizes."""

    ADAPTIVE = "adaptive"  # each job, for most goodput, whenever something changes
    TUNED = "tuned"  # nobody: a job keeps the batch size it was submitted with


class Profiling(StrEnum):
    """What schedulers are shown of a training job before it has run."""

    ONE_GPU = "one-gpu"  # the speed of one replica on each GPU type
    ORACLE = "oracle"  # its true step times on every type, and the noise of its gradients


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Fields are set by `--set sim.FIELD=VALUE`."""

    fidelity: Fidelity = Fidelity.PAPER
    batches: Batches = Batches.ADAPTIVE
    restart_s: float = (
        62.0  # of a recorded job that resumes or is resized; mean that Lucid quotes for Tiresias
    )
    profiling: Profiling = Profiling.ONE_GPU  # estimate.mode=oracle makes it the oracle's
    profile_s: float = 0.0  # from arrival until a job may start: its profiling run; 0: known beforehand
    profile_gpus: int = 1  # held by nobody else during that run, counted in GPU hours only
    checkpoints: bool = True  # a stopped recorded job keeps its progress
    max_idle_rounds: int = 2_000  # decisions in a row that start nobody while jobs wait, before giving up
