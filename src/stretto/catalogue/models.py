"""Reads the built-in catalogue: models by name, and the pace of GPU types."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import nan
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from stretto.errors import InputError
from stretto.estimate.throughput import ThroughputModel, iteration_s
from stretto.model.arrays import FloatArray, IntArray
from stretto.suggestions import did_you_mean


@dataclass(frozen=True, slots=True)
class OnGpu:
    """One model on one GPU type."""

    params: ThroughputModel  # `numpy.asarray` of it is a (7,) array
    min_local: int  # samples on one GPU and pass: the fewest measured
    max_local: int  # the most measured, or what should fit into memory where derived
    derived: bool  # not measured on this GPU type
    source: str  # where the figures come from
    points: int = 0  # steps measured; 0 where derived
    mean_error: float = nan  # of the fitted against the measured time of a step; NaN where derived
    worst_error: float = nan
    across_nodes: bool = True  # whether steps on several nodes were measured, here or where derived from


@dataclass(frozen=True)
class CatalogueModel:
    """A model that one can train without bringing figures of one's own."""

    name: str
    about: str
    aliases: tuple[str, ...]  # what traces and profiles call it
    size_class: str  # S, M, L or XL: below 1, 10 or 100 GPU-hours, or more
    init_batch: int  # total samples a step that its owner would begin with
    max_batch: int  # beyond which nobody has shown that it still learns
    noise_start: float  # gradient noise scale in samples, at the start of training
    noise_end: float  # at its end
    noise_source: str
    steps: int  # a whole training, in steps at init_batch
    steps_source: str
    restart_s: float  # to stop with a checkpoint and to start again
    gpu_types: Mapping[str, OnGpu]

    def on(self, gpu_type: str) -> OnGpu:
        """What is known on a GPU type. Raises InputError for one that the catalogue does not have."""
        found = self.gpu_types.get(gpu_type)
        if found is None:
            hint = did_you_mean(gpu_type, self.gpu_types)
            raise InputError(f"model {self.name}: the catalogue has no gpu type {gpu_type!r}, {hint}")
        return found

    def noise_scale(self, fraction: npt.ArrayLike) -> FloatArray:
        """The gradient noise scale, in samples, when this fraction of the training is done."""
        done = np.clip(fraction, 0.0, 1.0)
        return np.asarray(self.noise_start ** (1 - done) * self.noise_end**done)


@dataclass(frozen=True, slots=True)
class CatalogueGpu:
    """One GPU type of the catalogue."""

    name: str
    memory_gb: float
    speed: float  # one GPU training ResNet-50 on ImageNet, the fastest type = 1
    source: str


def read_catalogue() -> Mapping[str, CatalogueModel]:
    """The built-in models by name, in the order of the file."""
    return _catalogue()[0]


def read_gpus() -> Mapping[str, CatalogueGpu]:
    """The GPU types of the catalogue by name."""
    return _catalogue()[1]


def find_model(name: str) -> CatalogueModel:
    """The model of that name or alias. Raises InputError for an unknown one."""
    models = read_catalogue()
    for model in models.values():
        if name == model.name or name in model.aliases:
            return model
    known = [word for model in models.values() for word in (model.name, *model.aliases)]
    raise InputError(f"unknown model {name!r}, {did_you_mean(name, known)}")


NEAREST = {  # chosen: of those that the catalogue has, the one whose ratio of work to parameters is closest
    "alexnet": "vgg16",
    "mobilenet_v2": "resnet18-cifar10",
    "mobilenetv2": "resnet18-cifar10",
    "gnmt16": "transformer",
    "googlenet": "inception3",
    "resnet101": "resnet50-imagenet",
    "resnet152": "resnet50-imagenet",
}


def nearest_model(name: str) -> CatalogueModel:
    """The model of that name, else the one that resembles it most. Raises InputError where none does."""
    return find_model(NEAREST.get(name.lower(), name))


def has_nearest(name: str) -> bool:
    """Whether the catalogue has the model, or one that resembles it."""
    wanted = NEAREST.get(name.lower(), name)
    return any(wanted == model.name or wanted in model.aliases for model in read_catalogue().values())


@cache
def _catalogue() -> tuple[Mapping[str, CatalogueModel], Mapping[str, CatalogueGpu]]:
    text = files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    models = {name: _model(name, entry) for name, entry in content["models"].items()}
    gpus = {name: CatalogueGpu(name, **entry) for name, entry in content["gpu_types"].items()}
    return MappingProxyType(models), MappingProxyType(gpus)


def _model(name: str, entry: Mapping[str, Any]) -> CatalogueModel:
    noise = entry["noise"]
    return CatalogueModel(
        name=name,
        about=entry["about"],
        aliases=tuple(entry["aliases"]),
        size_class=entry["size_class"],
        init_batch=entry["init_batch"],
        max_batch=entry["max_batch"],
        noise_start=noise["start"],
        noise_end=noise["end"],
        noise_source=noise["source"],
        steps=entry["steps"],
        steps_source=entry["steps_source"],
        restart_s=entry["restart_s"],
        gpu_types=MappingProxyType({gpu_type: _on(on) for gpu_type, on in entry["gpu_types"].items()}),
    )


def _on(entry: Mapping[str, Any]) -> OnGpu:
    params = ThroughputModel(*(entry[field] for field in ThroughputModel._fields))
    rest = {name: value for name, value in entry.items() if name not in ThroughputModel._fields}
    return OnGpu(params, **rest)


# ── how long a whole training takes ───────────────────────────────────────────────────────────────


PHASES = np.linspace(0.05, 0.95, 10)  # of the training, over which the noise scale is averaged


def runtimes_s(
    model: CatalogueModel, gpu_type: str, gpus_per_node: int, gpus: IntArray, batches: IntArray
) -> FloatArray:
    """(gpus, batches) seconds of a whole training on full nodes; infinite where the batch does not split.

    Gradients are accumulated as often as memory requires. A GPU gets no fewer samples than were measured.
    """
    on = model.on(gpu_type)
    local = np.ceil(batches[None, :] / gpus[:, None])
    accumulation = np.ceil(local / on.max_local) - 1
    local = np.ceil(local / (accumulation + 1))
    nodes = np.ceil(gpus[:, None] / gpus_per_node)
    step_s = iteration_s(on.params, nodes, gpus[:, None], local, accumulation)
    noise = model.noise_scale(PHASES)
    gain = (noise / model.init_batch + 1) / (noise / batches[:, None] + 1)
    runtime_s = model.steps * (1 / gain).mean(axis=1) * step_s
    return np.where(local >= on.min_local, runtime_s, np.inf)
