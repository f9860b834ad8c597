"""A model that answers requests for a time, as the simulated world runs it.

Requests come evenly, as many a second as were promised. Each worker answers those that wait together, as many
as the latency allows, and does not wait for other workers.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, isnan

import numpy as np

from stretto.estimate.efficiency import NOISE_OF_INFERENCE
from stretto.estimate.serving import KEPT_PER_S, ROUNDING
from stretto.estimate.throughput import FORWARD_AND_BACKWARD
from stretto.model import (
    Cluster,
    Evidence,
    InputError,
    Job,
    MeasuredSpeeds,
    Point,
    ServiceLevel,
    TrainingLimits,
)
from stretto.model.arrays import frozen
from stretto.sim.truth.step_times import consolidated
from stretto.sim.truth.training import TrainingRun, TrainingTruth


@dataclass(frozen=True, eq=False)
class ServingTruth:
    """Passes forward of a model that is otherwise trained. Progress counts in seconds of serving."""

    trained: TrainingTruth
    service_level: ServiceLevel
    per_node: tuple[int, ...]  # GPUs of a node, by kind
    limits: TrainingLimits
    epoch_ends: tuple[float, ...]  # one: for so many seconds it is to serve
    restart_s: float
    slowdown: float

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds in which a worker answers so many requests, 0 for synchronising)."""
        alone = consolidated(int(self.limits.replica_gpus[kind]), self.per_node[kind])
        step_s, sync_s = self.trained.step(kind, alone, local_batch)
        return (step_s - sync_s) * self.slowdown / FORWARD_AND_BACKWARD, 0.0

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """It learns nothing."""
        return NOISE_OF_INFERENCE

    def most_local(self, kind: int, replicas: int) -> int:
        """Requests that a worker can answer together."""
        return int(self.limits.max_local[kind])

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """It serves until its time is over, however many GPUs it has; empty where it cannot run."""
        runs = self.limits.max_local[kind] and gpus >= self.limits.replica_gpus[kind]
        return self.epoch_ends if runs else ()

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """1 where the service level is kept, on 1 to `most_gpus` GPUs of each type, else NaN."""
        fewest = np.array([self.fewest_gpus(kind) for kind in range(len(self.per_node))])
        per_s = frozen(np.where(np.arange(most_gpus + 1) >= fewest[:, None], KEPT_PER_S, np.nan))
        return MeasuredSpeeds(per_s, per_s)

    def fewest_gpus(self, kind: int) -> float:
        """The fewest of a type that keep the service level, as `estimate.serving` says; infinite: none do."""
        batch = self.largest_batch(kind)
        if not batch:
            return inf
        workers = ceil(self.service_level.requests_per_s * self.step(kind, (), batch)[0] / batch - ROUNDING)
        return max(workers, 1) * float(self.limits.replica_gpus[kind])

    def largest_batch(self, kind: int) -> int:
        """The most requests that a worker may answer together; 0: a single one takes too long."""
        return _largest_batch(self, kind)


@lru_cache(maxsize=4096)
def _largest_batch(truth: ServingTruth, kind: int) -> int:
    """By halves: the larger a batch, the longer it takes."""
    fits, too_many = 0, int(truth.limits.max_local[kind]) + 1
    while too_many - fits > 1:
        batch = (fits + too_many) // 2
        if 2 * truth.step(kind, (), batch)[0] <= truth.service_level.latency_s:
            fits = batch
        else:
            too_many = batch
    return fits


@dataclass(slots=True)
class ServingRun(TrainingRun):
    """One job that serves. Time passes whether it keeps its service level or not."""

    kept_s: float = 0.0  # of the time so far, for how long it has kept its service level

    @property
    def keeps(self) -> bool:
        """Whether it does on the GPUs that it holds."""
        assert isinstance(self.truth, ServingTruth)
        return bool(self.shape) and sum(self.shape) >= self.truth.fewest_gpus(self.kind)

    def advance(self, to_s: float) -> None:
        """Serve from where it stands to `to_s`."""
        left_s = to_s - self.now_s
        self.now_s = to_s
        if not self.shape or left_s <= 0 or self.done:
            return
        delay_s = min(self.countdown_s, left_s)
        self.countdown_s -= delay_s
        served_s = min(left_s - delay_s, self.truth.epoch_ends[-1] - self.progress)
        if served_s <= 0:
            return
        assert isinstance(self.truth, ServingTruth)
        self._observe()
        self.progress += served_s
        self.samples += served_s * self.truth.service_level.requests_per_s
        if self.keeps:
            self.kept_s += served_s
        if self.progress >= self.truth.epoch_ends[-1]:
            self.epoch, self.completed_s = 1, to_s - (left_s - delay_s - served_s)

    def next_epoch_s(self) -> float:
        """When its time is over if nothing changes; infinite while it holds no GPUs."""
        if not self.shape or self.done:
            return inf
        return self.now_s + self.countdown_s + max(self.truth.epoch_ends[-1] - self.progress, 1e-6)

    def _observe(self) -> None:
        """Record how long batches take: of one request, of as many as it may answer together, of one more."""
        before, truth = self.evidence, self.truth
        assert before is not None
        assert isinstance(truth, ServingTruth)
        of_type = before.observed[self.kind]
        largest = truth.largest_batch(self.kind)
        for batch in sorted({1, max(largest, 1), min(largest + 1, int(truth.limits.max_local[self.kind]))}):
            batch_s, _ = truth.step(self.kind, (), batch)
            of_type = of_type.with_point(Point(len(self.shape), self.replicas, batch, batch_s, batch_s))
        if of_type is not before.observed[self.kind]:
            observed = (*before.observed[: self.kind], of_type, *before.observed[self.kind + 1 :])
            self.evidence = Evidence(before.limits, observed, before.grad_sqr, before.grad_var)

    def _choose_batch(self) -> None:
        """The most that its workers answer together."""
        if self.shape:
            assert isinstance(self.truth, ServingTruth)
            self.local_batch, self.accumulation = max(self.truth.largest_batch(self.kind), 1), 0


def serving_truth(
    job: Job, duration_s: float, trained: TrainingTruth, cluster: Cluster, must_keep: bool = True
) -> ServingTruth:
    """What a job does that serves for so long, its share of `batch_size` together on each worker.

    Without a `batch_size` it is as many as fit on a GPU. Raises InputError where the trace does not say for
    how long. With `must_keep` it does so, too, where nothing that the job may have keeps its service level.
    """
    if isnan(duration_s):
        raise InputError(
            f"job {job.id}: serving: expected duration_s, for how long it is to serve, got nothing"
        )
    runs, limits = trained.limits.max_local > 0, trained.limits
    together = limits.max_local
    if job.batch_size:
        share = -(-job.batch_size * limits.replica_gpus[runs].max() // job.gpus)
        together = np.minimum(together, share)
    together = np.where(runs, together, 0)
    level = ServiceLevel(job.latency_s, job.requests_per_s)
    truth = ServingTruth(
        trained=trained,
        service_level=level,
        per_node=tuple(cluster.gpus_per_node.tolist()),
        limits=TrainingLimits(
            init_batch=1,
            max_batch=int(together.max()) * int(cluster.capacity.max()),
            min_local=np.where(runs, 1, 0),
            max_local=together,
            single_per_s=np.full(len(runs), np.nan),
            replica_gpus=limits.replica_gpus,
            restart_s=limits.restart_s,
            reach_gpus=int(cluster.capacity.max()),
            service_level=level,
        ),
        epoch_ends=(duration_s,),
        restart_s=trained.restart_s,
        slowdown=trained.slowdown,
    )
    if must_keep:
        _check_it_can_be_kept(job, truth, cluster)
    return truth


def _check_it_can_be_kept(job: Job, truth: ServingTruth, cluster: Cluster) -> None:
    accepted = [cluster.type_index(name) for name in job.gpu_types] or range(len(cluster.types))
    for kind in accepted:
        if truth.fewest_gpus(kind) <= min(job.max_gpus, int(cluster.capacity[kind])):
            return
    raise InputError(
        f"job {job.id}: latency_s and requests_per_s must be what some GPUs in its range keep on"
        f" {cluster.name}, got {job.latency_s:g} and {job.requests_per_s:g}"
    )
