"""What the profile files do not say: names of GPU types, delays, calibration, pipelines. Table data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# File suffix of a GPU type in Sia's published profiles -> the name used everywhere else here.
# A suffix that is not listed names its own type, so that anyone may add a type by adding files.
GPU_TYPE_OF_SUFFIX: Mapping[str, str] = {
    "aws": "t4",
    "dgx-ext": "a100",
    "rtx": "rtx2080ti",
    "quad": "quad",
    "azure": "v100",
    "dgx": "dgx",
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A replica that is a pipeline over several GPUs (Sia, SOSP 2023, sections 3.4 and 5.3).

    One pass feeds `micro_batches` micro-batches through `stages` stages, GPipe-wise, forward and backward.
    With t the profiled forward time of one stage for one micro-batch,

        T_iter = 3 (stages - 1 + micro_batches) t + T_sync

    The factor 3 (a backward pass costs two forward passes) is that of the published simulator.
    """

    stages: Mapping[str, int]  # GPUs per replica, by GPU type; other types cannot run the model
    micro_batches: int = 48  # per replica and pass; Sia, section 5.3


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Constants of one model in the simulated world.

    For the models of `PUBLISHED_FACTS` all figures are those of the simulator that Sia's authors published
    (github.com/siasosp23/artifacts), except where a comment says otherwise. The defaults serve models of
    one's own: Pollux's 30 s for a restart (OSDI 2021, section 5.3), and no calibration.
    """

    restart_s: float = 30.0  # what a start or restart costs in the simulated world
    assumed_restart_s: float = 30.0  # what a policy that charges for restarts believes it costs
    slowdown: float = 1.0  # divides progress per second; fitted by Sia's authors to their physical cluster
    # Samples per replica that fit, where not as profiled
    max_local: Mapping[str, int] = field(default_factory=dict)
    pipeline: Pipeline | None = None  # None: a replica is one GPU


PUBLISHED_FACTS: Mapping[str, ModelFacts] = {
    "cifar10": ModelFacts(restart_s=50.0, assumed_restart_s=30.0, slowdown=1.8),
    "bert": ModelFacts(restart_s=120.0, assumed_restart_s=120.0, slowdown=1.2),
    # 80 was profiled on rtx, but the published simulator never lets the job use more than 57.
    "deepspeech2": ModelFacts(
        restart_s=25.0, assumed_restart_s=25.0, slowdown=1.2, max_local={"rtx2080ti": 57}
    ),
    "yolov3": ModelFacts(restart_s=80.0, assumed_restart_s=45.0, slowdown=1.2),
    "imagenet": ModelFacts(restart_s=250.0, assumed_restart_s=250.0, slowdown=1.2),
    "ncf": ModelFacts(restart_s=15.0, assumed_restart_s=30.0, slowdown=1.5),
    # Stages: Sia, section 5.3.
    "gpt_pmp": ModelFacts(
        restart_s=30.0, assumed_restart_s=30.0, slowdown=1.0, pipeline=Pipeline({"rtx2080ti": 8, "a100": 2})
    ),
}


def facts_of(model: str) -> ModelFacts:
    """The published constants of `model`, or the defaults for a model that Sia's authors did not profile."""
    return PUBLISHED_FACTS.get(model, ModelFacts())
