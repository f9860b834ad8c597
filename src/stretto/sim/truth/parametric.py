"""A model of the built-in catalogue as the truth of training jobs: formulas instead of tables."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from stretto.catalogue import CatalogueModel, find_model
from stretto.estimate.throughput import ThroughputModel, grad_s, overlapped_s, sync_s
from stretto.model import Cluster, FloatArray, InputError, IntArray, MeasuredSpeeds, TrainingLimits, frozen
from stretto.traces.learning import LearningCurve

STAGES = 50  # chosen: parts of a training, in each of which the noise scale stays; like epochs


@dataclass(frozen=True, eq=False)
class ParametricTruth:
    """The throughput model of Pollux with known parameters, and a noise scale that grows with progress.

    Gradient statistics are told as |µ|² = 1 and σ² = φ / M0: only their ratio matters.
    """

    models: tuple[ThroughputModel | None, ...]  # by kind; None where the catalogue has no figures
    per_node: tuple[int, ...]  # GPUs of a node, by kind
    noise: tuple[float, ...]  # φ / M0, by stage
    limits: TrainingLimits
    epoch_ends: tuple[float, ...]
    restart_s: float
    slowdown: float = 1.0

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of one synchronised step, seconds of it spent synchronising)."""
        model = self.models[kind]
        assert model is not None, "jobs are placed on types that they can run on"
        alone = grad_s(model, local_batch)
        step_s = float(overlapped_s(alone, sync_s(model, len(shape), sum(shape)), model.gamma))
        return step_s, step_s - float(alone)

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """(squared norm of the gradient, its variance at the initial batch) during a stage."""
        return 1.0, self.noise[min(epoch, len(self.noise) - 1)]

    def most_local(self, kind: int, replicas: int) -> int:
        """The largest local batch that fits."""
        return int(self.limits.max_local[kind])

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to each stage's end on consolidated GPUs at a fixed batch; empty where it cannot run."""
        per_s = self._steps_per_s(kind, gpus, batch)
        if not per_s > 0:
            return ()
        scale = batch / self.limits.init_batch
        starts = (0.0, *self.epoch_ends[:-1])
        return tuple(
            accumulate(
                (end - start) * (noise / scale + 1) / (noise + 1) / per_s
                for start, end, noise in zip(starts, self.epoch_ends, self.noise, strict=True)
            )
        )

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps per second at a fixed batch on 1 to `most_gpus` consolidated GPUs, by type."""
        per_s = np.full((len(self.models), most_gpus + 1), np.nan)
        for kind in range(len(self.models)):
            for gpus in range(1, most_gpus + 1):
                per_s[kind, gpus] = self._steps_per_s(kind, gpus, batch)
        return MeasuredSpeeds(frozen(per_s), frozen(per_s))

    def _steps_per_s(self, kind: int, gpus: int, batch: int) -> float:
        """At a fixed total batch on consolidated GPUs; NaN where it cannot run."""
        model = self.models[kind]
        if model is None or not 1 <= gpus <= batch:
            return float("nan")
        share = -(-batch // gpus)
        accumulation = -(-share // int(self.limits.max_local[kind])) - 1
        full, rest = divmod(gpus, self.per_node[kind])
        shape = (self.per_node[kind],) * full + ((rest,) if rest else ())
        step_s, sync = self.step(kind, shape, -(-share // (accumulation + 1)))
        return 1.0 / (step_s + accumulation * (step_s - sync))


def parametric_truth(name: str, cluster: Cluster, learning: LearningCurve | None = None) -> ParametricTruth:
    """The truth of a catalogue model on a cluster; InputError for an unknown model or none of its types.

    It trains as long as its owner does in the catalogue, or the epochs of `learning`, at the initial batch.
    """
    model = find_model(name)
    names = [_name_in(model, (gpu_type.name, *gpu_type.aliases)) for gpu_type in cluster.types]
    if not any(names):
        raise InputError(
            f"model {model.name}: the catalogue has figures on {list(model.gpu_types)}, "
            f"expected one of the cluster's types {list(cluster.type_names)}"
        )
    on = [model.on(gpu_type) if gpu_type else None for gpu_type in names]
    params = tuple(figures.params if figures is not None else None for figures in on)
    min_local = np.array([figures.min_local if figures is not None else 0 for figures in on], dtype=np.int64)
    max_local = np.array([figures.max_local if figures is not None else 0 for figures in on], dtype=np.int64)
    limits = TrainingLimits(
        init_batch=model.init_batch,
        max_batch=model.max_batch,
        min_local=frozen(min_local),
        max_local=frozen(max_local),
        single_per_s=frozen(np.array([_single_per_s(p, m) for p, m in zip(params, max_local, strict=True)])),
        single_ratio=frozen(_single_ratio(params, max_local)),
        replica_gpus=frozen(np.ones(len(on), dtype=np.int64)),
        restart_s=model.restart_s,
        reach_gpus=_reach(model.max_batch, min_local),
    )
    stages = learning.epochs if learning is not None else STAGES
    steps = (
        learning.epochs * learning.dataset_samples / model.init_batch if learning is not None else model.steps
    )
    ends = np.linspace(0, steps, stages + 1)
    middle = (np.arange(stages) + 0.5) / stages
    return ParametricTruth(
        models=params,
        per_node=tuple(cluster.gpus_per_node.tolist()),
        noise=tuple((model.noise_scale(middle) / model.init_batch).tolist()),
        limits=limits,
        epoch_ends=tuple(ends[1:].tolist()),
        restart_s=model.restart_s,
    )


def _name_in(model: CatalogueModel, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in model.gpu_types), "")


def _single_per_s(params: ThroughputModel | None, max_local: int) -> float:
    """Samples per second of one GPU at its largest local batch; NaN where it cannot run."""
    return float(max_local / grad_s(params, max_local)) if params is not None else float("nan")


def _single_ratio(params: tuple[ThroughputModel | None, ...], max_local: IntArray) -> FloatArray:
    """(types, types) speed of one GPU on B over that on A at the largest local batch that fits both."""
    ratio = np.full((len(params), len(params)), np.nan)
    for b, on_b in enumerate(params):
        for a, on_a in enumerate(params):
            if on_a is not None and on_b is not None:
                batch = int(min(max_local[a], max_local[b]))
                ratio[b, a] = float(grad_s(on_a, batch) / grad_s(on_b, batch))
    return ratio


def _reach(max_batch: int, min_local: IntArray) -> int:
    """The most GPUs that the largest batch keeps busy."""
    return max_batch // max(int(min_local[min_local > 0].min()), 1)
