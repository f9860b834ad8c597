"""A profiled model as the truth of training jobs on one cluster: GPU types by index instead of by name."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from stretto.model import Cluster, FloatArray, InputError, IntArray, MeasuredSpeeds, TrainingLimits, frozen
from stretto.sim.settings import Fidelity
from stretto.sim.truth.profiled_model import ProfiledModel


@dataclass(frozen=True, eq=False)
class ProfiledTruth:
    """What a profiled model really does on a cluster's GPU types."""

    model: ProfiledModel
    types: tuple[str, ...]  # by kind; "" where the model has no profile
    per_node: tuple[int, ...]  # GPUs of a node, by kind
    limits: TrainingLimits  # of the job's own batch choice
    epoch_ends: tuple[float, ...]
    restart_s: float
    slowdown: float

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of one synchronised step, seconds of it spent synchronising)."""
        return self.model.step(self.types[kind], shape, local_batch)

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """(squared norm of the gradient, its variance at the initial batch) during an epoch."""
        return self.model.grad_stats(batch, epoch)

    def most_local(self, kind: int, replicas: int) -> int:
        """The largest local batch profiled with so many replicas."""
        return self.model.largest_local(self.types[kind], replicas)

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to each epoch's end on consolidated GPUs at a fixed batch; empty where it cannot run."""
        name = self.types[kind]
        if not name:
            return ()
        per_s = float(self.model.throughput_table(name, [gpus], self.per_node[kind], batch)[0])
        if not per_s > 0:
            return ()
        starts = (0.0, *self.epoch_ends[:-1])
        return tuple(
            accumulate(
                (end - start) * self.slowdown / (per_s * self.model.gain(batch, epoch))
                for epoch, (start, end) in enumerate(zip(starts, self.epoch_ends, strict=True))
            )
        )

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps per second at a fixed batch on 1 to `most_gpus` consolidated GPUs, by type."""
        per_s = np.full((len(self.types), most_gpus + 1), np.nan)
        for kind, name in enumerate(self.types):
            if name:
                gpus = range(1, most_gpus + 1)
                per_s[kind, 1:] = self.model.throughput_table(name, gpus, self.per_node[kind], batch)
        per_s /= self.slowdown
        return MeasuredSpeeds(frozen(per_s), frozen(per_s))


def profiled_truth(model: ProfiledModel, cluster: Cluster, fidelity: Fidelity) -> ProfiledTruth:
    """The truth of a profiled model on a cluster; InputError where it was profiled on none of its types."""
    types = tuple(_profiled_name(model, names) for names in _names(cluster))
    if not any(types):
        raise InputError(
            f"model {model.name}: profiled on {list(model.gpu_types)}, "
            f"expected one of the cluster's types {list(cluster.type_names)}"
        )
    single_per_s = np.array([model.single_gpu_samples_per_s(name) if name else np.nan for name in types])
    limits = TrainingLimits(
        init_batch=model.init_batch,
        max_batch=model.max_batch,
        min_local=_column(types, model.min_local),
        max_local=_column(types, model.max_local),
        single_per_s=frozen(single_per_s),
        single_ratio=None if fidelity is Fidelity.ARTIFACT else frozen(_single_ratio(model, types)),
        replica_gpus=np.maximum(_column(types, model.replica_gpus), 1),
        restart_s=model.facts.assumed_restart_s,
        reach_gpus=model.max_batch // min(model.min_local(name) for name in types if name),
    )
    return ProfiledTruth(
        model=model,
        types=types,
        per_node=tuple(cluster.gpus_per_node.tolist()),
        limits=limits,
        epoch_ends=tuple(model.epoch_end_progress.tolist()),
        restart_s=model.facts.restart_s,
        slowdown=model.facts.slowdown if fidelity is Fidelity.ARTIFACT else 1.0,
    )


def _single_ratio(model: ProfiledModel, types: tuple[str, ...]) -> FloatArray:
    """(types, types) speed of one replica on B over that on A at the largest local batch that fits both."""
    ratio = np.full((len(types), len(types)), np.nan)
    for b, on_b in enumerate(types):
        for a, on_a in enumerate(types):
            if on_a and on_b:
                batch = min(model.max_local(on_a), model.max_local(on_b))
                ratio[b, a] = _replica_s(model, on_a, batch) / _replica_s(model, on_b, batch)
    return ratio


def _replica_s(model: ProfiledModel, name: str, local_batch: int) -> float:
    """Seconds of a step of one replica alone."""
    return model.step(name, (model.replica_gpus(name),), local_batch)[0]


def _names(cluster: Cluster) -> list[tuple[str, ...]]:
    return [(gpu_type.name, *gpu_type.aliases) for gpu_type in cluster.types]


def _profiled_name(model: ProfiledModel, names: tuple[str, ...]) -> str:
    for name in names:
        if name in model.gpu_types and _replica_runs(model, name):
            return name
    return ""


def _replica_runs(model: ProfiledModel, name: str) -> bool:
    return model.facts.pipeline is None or name in model.facts.pipeline.stages


def _column(types: tuple[str, ...], figure: Callable[[str], int]) -> IntArray:
    return frozen(np.array([figure(name) if name else 0 for name in types], dtype=np.int64))
