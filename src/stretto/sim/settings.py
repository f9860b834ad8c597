"""How the simulated world behaves, as far as a user may choose."""

from dataclasses import dataclass
from enum import StrEnum

from stretto.settings import CheckedSettings, setting


class Fidelity(StrEnum):
    """Whose rules the clock and the physics follow where Sia's paper and its simulator differ."""

    ARTIFACT = "artifact"  # as Sia's published simulator
    PAPER = "paper"  # as the paper says, or plain physics where it is silent


class Batches(StrEnum):
    """What chooses batch sizes."""

    ADAPTIVE = "adaptive"  # each job, for most goodput, whenever something changes
    TUNED = "tuned"  # nothing: a job keeps the batch size it was submitted with


class Profiling(StrEnum):
    """What schedulers are shown of a training job before it has run."""

    ONE_GPU = "one-gpu"  # the speed of one replica on each GPU type
    ORACLE = "oracle"  # its true step times on every type, and the noise of its gradients


class Learning(StrEnum):
    """For which jobs the evidence of a training job counts."""

    JOB = "job"  # for itself alone, as in Sia's published simulator
    MODEL = "model"  # for jobs of its model that run beside it or come later, as on the live service


class Knowledge(StrEnum):
    """What schedulers are shown of the length of jobs, and of what a stop and a start take."""

    TRUE = "true"  # the truth, from the submission on
    LIVE = "live"  # what the live service knows: what owners state, and what trainings tell once they train


class Scaling(StrEnum):
    """How the speed of a recorded job follows its GPUs."""

    LINEAR = "linear"  # in proportion, within its range
    CATALOGUE = "catalogue"  # as its model in the catalogue does, or the nearest one there


class FairShare(StrEnum):
    """On which GPUs a job is simulated alone where its share of the cluster is no whole number of them."""

    BETWEEN = "between"  # between what it takes on one fewer and on one more, as in Sia's published simulator
    WHOLE = "whole"  # on one fewer


@dataclass(frozen=True, slots=True)
class SimSettings(CheckedSettings, space="sim"):
    """Fields are set by `--set sim.FIELD=VALUE`."""

    fidelity: Fidelity = Fidelity.PAPER
    batches: Batches = Batches.ADAPTIVE
    # of a recorded job that resumes or moves; mean that Lucid quotes for Tiresias
    restart_s: float = setting(62.0, at_least=0)
    # more for every further GPU that such a job resumes on
    restart_per_gpu_s: float = setting(0.0, at_least=0)
    # of a change of size without stopping (ONES: about 1); None: by a restart
    resize_s: float | None = setting(None, at_least=0)
    profiling: Profiling = Profiling.ONE_GPU  # estimate.mode=oracle makes it the oracle's
    learning: Learning = Learning.JOB  # estimate.share=model makes it the model's
    # of how much is left of a job; live: nothing of a training that has not begun
    knowledge: Knowledge = Knowledge.TRUE
    profiling_trains: bool = True  # what a policy's profiling run trains counts, as on the live service
    # from arrival until a job may start: its profiling run; 0: known beforehand
    profile_s: float = setting(0.0, at_least=0)
    # held by no other job during that run, counted in GPU hours only
    profile_gpus: int = setting(1, at_least=0)
    # standard deviation of estimated over true duration, less 1; UniSched
    duration_error: float = setting(0.0, at_least=0)
    # share of jobs whose estimated duration is off by up to 25 %; Lyra
    wrong_durations: float = setting(0.0, at_least=0)
    # standard deviation of the work that is said to be left over what truly is, less 1
    work_error: float = setting(0.0, at_least=0)
    # share of jobs that are said to be a tenth as long as they are, in work and in time
    liars: float = setting(0.0, at_least=0, at_most=1)
    # standard deviation of a measured step of a training job over the true one, less 1; equal for a model
    speed_error: float = setting(0.0, at_least=0)
    checkpoints: bool = True  # a stopped recorded job keeps its progress, unless the job itself says
    # of a training job that starts again; None: as its model takes
    start_s: float | None = setting(None, at_least=0)
    scaling: Scaling = Scaling.LINEAR
    fair_share: FairShare = FairShare.BETWEEN
    # share of its speed that every worker beyond the fewest lacks; Lyra, section 7.2
    scaling_loss: float = setting(0.0, at_least=0, below=1)
    # share of its speed that a job lacks for each level of the topology on which it is in several domains
    crossing_loss: float = setting(0.0, at_least=0, below=1)
    # speed of a job on several GPU types over the sum of its parts; Lyra, section 7.2
    mixing: float = setting(0.7, above=0, at_most=1)
    # decisions in a row that start none while jobs wait, before giving up
    max_idle_rounds: int = setting(2_000, at_least=1)
