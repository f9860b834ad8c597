"""A profiled model: what a step costs and is worth, and that as the truth of jobs on one cluster."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from stretto.model import Cluster, InputError, IntArray, MeasuredSpeeds, TrainingLimits
from stretto.model.arrays import FloatArray, floats, frozen
from stretto.sim.settings import Fidelity
from stretto.sim.truth.profile_facts import ModelFacts
from stretto.sim.truth.profile_files import ValidationCurves, read_placements, read_scalability
from stretto.sim.truth.step_times import Placement, StepTimes, consolidated, step_times


@dataclass(frozen=True, eq=False)
class ProfiledModel:
    """The truth about one model: speed by GPU type and placement, progress by batch size and epoch.

    Progress counts iterations at the initial batch size. A GPU type's files are read when it is first asked
    about; asking again for the same thing is one dictionary look-up.
    """

    name: str
    facts: ModelFacts
    curves: ValidationCurves
    files: Mapping[str, tuple[Path, Path | None]]  # GPU type -> placements and scalability file
    _types: dict[str, StepTimes] = field(default_factory=dict, init=False, repr=False)
    _steps: dict[tuple[str, Placement, float], tuple[float, float]] = field(
        default_factory=dict, init=False, repr=False
    )
    _stats: dict[tuple[float, int], tuple[float, float]] = field(default_factory=dict, init=False, repr=False)
    _gains: dict[tuple[float, int], float] = field(default_factory=dict, init=False, repr=False)
    _largest: dict[tuple[str, int], int] = field(default_factory=dict, init=False, repr=False)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """GPU types it was profiled on, by name."""
        return tuple(sorted(self.files))

    @cached_property
    def init_batch(self) -> int:
        """The smallest total batch size validated; progress is counted in iterations at this size."""
        return int(self.curves.batches[0])

    @cached_property
    def max_batch(self) -> int:
        """The largest total batch size validated."""
        return int(self.curves.batches[-1])

    @cached_property
    def epochs(self) -> int:
        """How many epochs a job runs; it ends with the last one."""
        return int(self.curves.progress.shape[1])

    @cached_property
    def epoch_end_progress(self) -> FloatArray:
        """(epochs,) progress at which each epoch ends: the least over the batch sizes; read-only."""
        return frozen(self.curves.progress.min(axis=0))

    @cached_property
    def total_progress(self) -> float:
        """Progress at which a job is complete."""
        return float(self.curves.progress[:, -1].min())

    def on(self, gpu_type: str) -> StepTimes:
        """What was measured on one GPU type. Raises InputError for a type without profiles."""
        found = self._types.get(gpu_type)
        return self._read_type(gpu_type) if found is None else found

    def replica_gpus(self, gpu_type: str) -> int:
        """GPUs of one data-parallel replica: 1, or the stages of its pipeline."""
        return self.on(gpu_type).replica_gpus

    def min_local(self, gpu_type: str) -> int:
        """The smallest local batch (samples per replica and pass) profiled."""
        return self.on(gpu_type).min_local

    def max_local(self, gpu_type: str) -> int:
        """The largest local batch that fits into a GPU's memory."""
        return self.on(gpu_type).max_local

    def largest_local(self, gpu_type: str, replicas: int) -> int:
        """The largest local batch profiled on that many replicas: `StepTimes.largest_local`."""
        key = (gpu_type, replicas)
        found = self._largest.get(key)
        if found is None:
            found = self._largest[key] = self.on(gpu_type).largest_local(replicas)
        return found

    def single_gpu_samples_per_s(self, gpu_type: str) -> float:
        """Throughput of one replica alone, before the slow-down; NaN where that was not measured."""
        return self.on(gpu_type).replica_samples_per_s

    def step(self, gpu_type: str, placement: Placement, local_batch: float) -> tuple[float, float]:
        """(step_s, sync_s): a synchronised step, and the part of it that synchronises; no slow-down."""
        key = (gpu_type, placement, local_batch)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self.on(gpu_type).step(placement, local_batch)
        return found

    def iteration_s(
        self, gpu_type: str, placement: Placement, local_batch: float, accumulation: int = 0
    ) -> float:
        """Seconds per optimiser iteration: step + accumulation (step - sync); no slow-down."""
        step_s, sync_s = self.step(gpu_type, placement, local_batch)
        return step_s + accumulation * (step_s - sync_s)

    def throughput_table(
        self, gpu_type: str, gpus: Sequence[int], gpus_per_node: int, batch: int
    ) -> FloatArray:
        """(len(gpus),) iterations/s at a fixed total batch on full nodes and a remainder; no slow-down.

        Gradients are accumulated as often as memory requires; local batches below the smallest profiled take
        as long as that. NaN where the job cannot run: a part of a
        replica, fewer samples than replicas, or more GPUs than were profiled on this type.
        """
        return floats([self._iterations_per_s(gpu_type, count, gpus_per_node, batch) for count in gpus])

    def split_batch(self, gpu_type: str, replicas: int, batch: int) -> tuple[int, int]:
        """(local batch, accumulation) of a fixed total batch: as few passes as fit into memory.

        Rounded up, so that replicas x local batch x (accumulation + 1) may exceed `batch` a little.
        """
        per_replica = -(-batch // replicas)
        accumulation = -(-per_replica // self.max_local(gpu_type)) - 1
        return -(-per_replica // (accumulation + 1)), accumulation

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """(sqr, var) of the gradient in an epoch from 0, linear in the batch between validated sizes.

        Beyond the first and last size or epoch, the values there.
        """
        key = (batch, epoch)
        stats = self._stats.get(key)
        if stats is None:
            stats = self._stats[key] = self._interpolated_stats(batch, epoch)
        return stats

    def gain(self, batch: float, epoch: int) -> float:
        """Progress of one iteration at a total batch size, in iterations at the initial batch size.

        gain = (var + sqr) / (var / scale + sqr), scale = batch / init_batch   Pollux (OSDI 2021), section 3.1
        """
        key = (batch, epoch)
        gain = self._gains.get(key)
        if gain is None:
            sqr, var = self.grad_stats(batch, epoch)
            noise_left = var * self.init_batch / batch + sqr
            gain = self._gains[key] = (var + sqr) / noise_left if noise_left > 0.0 else 1.0
        return gain

    def progress_per_s(
        self, gpu_type: str, placement: Placement, local_batch: int, accumulation: int, epoch: int
    ) -> float:
        """Progress per second on a placement, after the slow-down."""
        replicas = sum(placement) // self.replica_gpus(gpu_type)
        batch = replicas * local_batch * (accumulation + 1)
        iteration_s = self.iteration_s(gpu_type, placement, local_batch, accumulation)
        return self.gain(batch, epoch) / iteration_s / self.facts.slowdown

    def _read_type(self, gpu_type: str) -> StepTimes:
        if gpu_type not in self.files:
            profiled_types = ", ".join(self.gpu_types)
            raise InputError(
                f"model {self.name}: no profile on gpu type {gpu_type!r}, expected one of {profiled_types}"
            )
        placements, scalability = self.files[gpu_type]
        sync_in_step = self.facts.pipeline is None
        self._types[gpu_type] = step_times(
            gpu_type,
            self.facts,
            read_placements(placements, sync_in_step),
            read_scalability(scalability, sync_in_step) if scalability is not None else None,
        )
        return self._types[gpu_type]

    def _iterations_per_s(self, gpu_type: str, gpus: int, gpus_per_node: int, batch: int) -> float:
        replicas, part = divmod(gpus, self.replica_gpus(gpu_type))
        if gpus < 1 or part or replicas > batch or gpus > self.on(gpu_type).most_gpus:
            return math.nan
        local_batch, accumulation = self.split_batch(gpu_type, replicas, batch)
        return 1.0 / self.iteration_s(gpu_type, consolidated(gpus, gpus_per_node), local_batch, accumulation)

    def _interpolated_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        row = min(max(epoch, 0), self.epochs - 1)
        curves = self.curves
        return (
            float(np.interp(batch, curves.batches, curves.grad_sqr[:, row])),
            float(np.interp(batch, curves.batches, curves.grad_var[:, row])),
        )


# ── a profiled model as the truth of training jobs on one cluster: GPU types by index instead of by name ────


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
