"""How the simulated world behaves, as far as a user may choose."""

from dataclasses import dataclass
from enum import StrEnum

from stretto.model import InputError


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


class Scaling(StrEnum):
    """How the speed of a recorded job follows its GPUs."""

    LINEAR = "linear"  # in proportion, within its range
    CATALOGUE = "catalogue"  # as its model in the catalogue does, or the nearest one there


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Fields are set by `--set sim.FIELD=VALUE`."""

    fidelity: Fidelity = Fidelity.PAPER
    batches: Batches = Batches.ADAPTIVE
    restart_s: float = 62.0  # of a recorded job that resumes or moves; mean that Lucid quotes for Tiresias
    resize_s: float | None = None  # of a change of size without stopping (ONES: about 1); None: by a restart
    profiling: Profiling = Profiling.ONE_GPU  # estimate.mode=oracle makes it the oracle's
    profile_s: float = 0.0  # from arrival until a job may start: its profiling run; 0: known beforehand
    profile_gpus: int = 1  # held by nobody else during that run, counted in GPU hours only
    duration_error: float = 0.0  # standard deviation of estimated over true duration, less 1; UniSched
    wrong_durations: float = 0.0  # share of jobs whose estimated duration is off by up to 25 %; Lyra
    checkpoints: bool = True  # a stopped recorded job keeps its progress, unless the job itself says
    start_s: float | None = None  # of a training job that starts again; None: as its model takes
    scaling: Scaling = Scaling.LINEAR
    scaling_loss: float = 0.0  # share of its speed that every worker beyond the fewest lacks; Lyra, table 9
    mixing: float = 0.7  # speed of a job on several GPU types over the sum of its parts; Lyra, section 7.2
    max_idle_rounds: int = 2_000  # decisions in a row that start nobody while jobs wait, before giving up

    def __post_init__(self) -> None:
        """Check the ranges."""
        times = ("restart_s", "resize_s", "start_s", "profile_s")
        others = ("profile_gpus", "duration_error", "wrong_durations")
        at_least = {"max_idle_rounds": 1} | dict.fromkeys((*times, *others), 0)
        for name, least in at_least.items():
            value = least if getattr(self, name) is None else getattr(self, name)
            if not value >= least:
                raise InputError(f"sim.{name} must be >= {least}, got {value:g}")
        if not 0 <= self.scaling_loss < 1:
            raise InputError(f"sim.scaling_loss must be a share below 1, got {self.scaling_loss:g}")
        if not 0 < self.mixing <= 1:
            raise InputError(f"sim.mixing must be a share above 0, got {self.mixing:g}")
