"""A model that only infers, as the simulated world runs it: no backward pass, and nothing to synchronise.

Each replica takes batches of its own, so that replicas do not wait for each other. Sia (SOSP 2023), section
3.4: throughput is the goodput.
"""

from dataclasses import dataclass, replace
from math import isnan

import numpy as np

from stretto.estimate.efficiency import NOISE_OF_INFERENCE
from stretto.estimate.throughput import FORWARD_AND_BACKWARD
from stretto.model import Cluster, InputError, Job, MeasuredSpeeds, TrainingLimits, frozen
from stretto.sim.truth.step_times import consolidated
from stretto.sim.truth.training import TrainingTruth


@dataclass(frozen=True, eq=False)
class InferenceTruth:
    """Passes forward of a model that is otherwise trained. Progress counts in batches of one replica."""

    trained: TrainingTruth
    per_node: tuple[int, ...]  # GPUs of a node, by kind
    limits: TrainingLimits
    epoch_ends: tuple[float, ...]  # one: all items are done
    restart_s: float
    slowdown: float

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of one batch on every replica, 0 for synchronising)."""
        alone = consolidated(int(self.limits.replica_gpus[kind]), self.per_node[kind])
        step_s, sync_s = self.trained.step(kind, alone, local_batch)
        return (step_s - sync_s) / FORWARD_AND_BACKWARD, 0.0

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """Such that every item counts the same, however many go together."""
        return NOISE_OF_INFERENCE

    def most_local(self, kind: int, replicas: int) -> int:
        """The batch of one replica."""
        return int(self.limits.max_local[kind])

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds until all items are done on consolidated GPUs; empty where it cannot run."""
        per_s = self._batches_per_s(kind, gpus)
        return (self.epoch_ends[-1] * self.slowdown / per_s,) if per_s > 0 else ()

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps of `batch` items per second on 1 to `most_gpus` consolidated GPUs, by type."""
        scale = self.limits.init_batch / batch / self.slowdown
        per_s = np.full((len(self.per_node), most_gpus + 1), np.nan)
        for kind in range(len(self.per_node)):
            for gpus in range(1, most_gpus + 1):
                per_s[kind, gpus] = self._batches_per_s(kind, gpus) * scale
        return MeasuredSpeeds(frozen(per_s), frozen(per_s))

    def _batches_per_s(self, kind: int, gpus: int) -> float:
        """Of all replicas; NaN where that is no whole number of them, or the model does not run there."""
        replicas, part = divmod(gpus, int(self.limits.replica_gpus[kind]))
        if part or not replicas or not self.limits.max_local[kind]:
            return float("nan")
        return replicas / self.step(kind, (gpus,), self.limits.init_batch)[0]


def inference_truth(job: Job, steps: float, trained: TrainingTruth, cluster: Cluster) -> InferenceTruth:
    """What a job does that passes `steps` batches of `batch_size` items forward, its share on each GPU.

    A share that does not fit on one of the types is as large as fits. Raises InputError where the trace does
    not say how many items there are.
    """
    if isnan(steps) or not job.batch_size:
        raise InputError(
            f"job {job.id}: batch-inference: expected steps and batch_size, whose product is the number of"
            f" items, got {'nothing' if isnan(steps) else f'{steps:g}'} and {job.batch_size or 'nothing'}"
        )
    runs, limits = trained.limits.max_local > 0, trained.limits
    share = -(-job.batch_size * limits.replica_gpus[runs].max() // job.gpus)
    local = int(min(share, limits.max_local[runs].min()))
    batches = steps * job.batch_size / local
    made = InferenceTruth(
        trained=trained,
        per_node=tuple(cluster.gpus_per_node.tolist()),
        limits=replace(
            limits,
            init_batch=local,
            max_batch=local * int(cluster.capacity.max()),
            min_local=np.where(runs, local, 0),
            max_local=np.where(runs, local, 0),
            reach_gpus=int(cluster.capacity.max()),
        ),
        epoch_ends=(batches,),
        restart_s=trained.restart_s,
        slowdown=trained.slowdown,
    )
    alone_s = [made.step(kind, (), local)[0] if runs[kind] else np.nan for kind in range(len(runs))]
    single_per_s = local / np.array(alone_s)
    told = replace(
        made.limits,
        single_per_s=frozen(single_per_s),
        single_ratio=frozen(single_per_s[:, None] / single_per_s[None, :]),
    )
    return replace(made, limits=told)
