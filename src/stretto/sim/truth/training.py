"""A training job as the simulated world runs it: epochs, batch sizes, restarts, what it lets others see."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf, nan
from typing import Protocol

import numpy as np

from stretto.estimate.efficiency import GradientNoise, gain
from stretto.estimate.fit import fit
from stretto.estimate.goodput import BatchLimits, best_batch
from stretto.estimate.published_fit import published_fit
from stretto.estimate.throughput import ThroughputModel
from stretto.model import (
    NOTHING_OBSERVED,
    Cluster,
    Evidence,
    MeasuredSpeeds,
    Observations,
    Point,
    TrainingLimits,
    powers_and_whole_nodes,
)
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.truth.measured_speeds import EXACTLY, Measuring
from stretto.sim.truth.model_knowledge import ModelKnowledge


class TrainingTruth(Hashable, Protocol):
    """What a model really does on this cluster's GPU types. Policies never see it."""

    @property
    def limits(self) -> TrainingLimits:
        """Of the job's own batch choice."""

    @property
    def epoch_ends(self) -> tuple[float, ...]:
        """Cumulative progress at the end of each epoch, in steps of the initial batch."""

    @property
    def restart_s(self) -> float:
        """From being given GPUs to the first step."""

    @property
    def slowdown(self) -> float:
        """Divides progress."""

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of one synchronised step, seconds of it spent synchronising)."""

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """(squared norm of the gradient, its variance at the initial batch) during an epoch."""

    def most_local(self, kind: int, replicas: int) -> int:
        """The largest local batch known to fit with so many replicas."""

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to each epoch's end on consolidated GPUs at a fixed batch; empty where it cannot run."""

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps per second at a fixed batch on 1 to `most_gpus` consolidated GPUs, by type."""


@dataclass(slots=True)
class TrainingRun:
    """One job's true state. Advanced by the world, a segment at a time."""

    truth: TrainingTruth
    visible: TrainingLimits  # what schedulers are told
    fixed_batch: int  # 0: chooses its own
    settings: SimSettings
    foreseen: tuple[Observations, ...] = ()  # its true speeds, where schedulers are shown them beforehand
    of_model: ModelKnowledge | None = None  # shared with other jobs of its model; None: each learns alone
    measuring: Measuring = EXACTLY
    now_s: float = 0.0
    epoch: int = 0
    progress: float = 0.0
    kind: int = -1
    shape: tuple[int, ...] = ()
    local_batch: int = 0
    accumulation: int = 0
    samples: float = 0.0  # processed so far
    # Copies of the model that train side by side on what it holds.
    replicas: int = field(default=0, init=False)
    dictated: tuple[int, ...] = ()  # samples on each GPU, where the policy chose them
    countdown_s: float = 0.0  # until the first step after a start
    reach: float = 1.0  # its speed over that within one domain of each level of the network
    starts: int = 0
    completed_s: float = nan
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        """Nothing has been seen of it yet, but what is foreseen."""
        if self.shape:
            self.replicas = self.replicas_on(self.kind, self.shape)
        if self.foreseen:
            noise = self.truth.grad_stats(self.truth.limits.init_batch, 0)
            self.evidence = Evidence(self.visible, self.foreseen, *noise, fixed_batch=self.fixed_batch)
            return
        types = len(self.truth.limits.min_local)
        self.evidence = Evidence(
            self.visible, (NOTHING_OBSERVED,) * types, nan, nan, fixed_batch=self.fixed_batch
        )

    def learn_of_model(self) -> None:
        """Take over what others of its model have shown in the meantime."""
        evidence = self.evidence
        assert evidence is not None
        if self.of_model is not None:
            self.evidence = self.of_model.shown_to(evidence, self.epoch)

    def replicas_on(self, kind: int, shape: tuple[int, ...]) -> int:
        """Copies of the model for which so many GPUs of a type on each node are enough.

        One takes several GPUs in hybrid parallel jobs.
        """
        return sum(shape) // int(self.truth.limits.replica_gpus[kind])

    @property
    def done(self) -> bool:
        """All epochs are finished."""
        return self.epoch >= len(self.truth.epoch_ends)

    def give(
        self, kind: int, shape: tuple[int, ...], moved: bool, now_s: float, local_batch: tuple[int, ...] = ()
    ) -> bool:
        """Change its GPUs at `now_s` (no shape: take them away); whether that restarts it.

        local_batch: samples on each GPU, where the policy chooses them.

        In the artifact's world a job restarts when its shape or GPU type changes; another node of the same
        shape is free. Otherwise any change of nodes restarts it too. Where the settings give the cost of a
        resize, a running job that stays on its GPU type changes without stopping.
        """
        self.now_s = now_s
        if not shape:
            self.kind, self.shape, self.replicas = -1, (), 0
            return False
        same = kind == self.kind and shape == self.shape
        retuned, self.dictated = local_batch != self.dictated, local_batch
        if same and not (moved and self.settings.fidelity is Fidelity.PAPER):
            if retuned:
                self.countdown_s += self.settings.resize_s or 0.0
                self._choose_batch()
            return False
        resized = kind == self.kind and bool(self.shape) and self.settings.resize_s is not None
        self.kind, self.shape, self.replicas = kind, shape, self.replicas_on(kind, shape)
        if resized:
            self.countdown_s += self.settings.resize_s or 0.0
            self._choose_batch()
            return False
        start_s = self.settings.start_s
        self.countdown_s = self.truth.restart_s if start_s is None else start_s
        self.starts += 1
        self._choose_batch()
        return True

    def advance(self, to_s: float) -> None:
        """Run from where it stands to `to_s`, crossing epochs on the way."""
        left_s = to_s - self.now_s
        self.now_s = to_s
        if not self.shape or left_s <= 0 or self.done:
            return
        delay_s = min(self.countdown_s, left_s)
        self.countdown_s -= delay_s
        left_s -= delay_s
        whole_seconds = self.settings.fidelity is Fidelity.ARTIFACT
        while left_s > 0 and not self.done:
            step_s, sync_s = self._step()
            batch = self._batch
            rate = self._observe_and_rate(step_s, sync_s, batch)
            needed = self.truth.epoch_ends[self.epoch] - self.progress
            begun_s = left_s
            samples_per_s = batch / self._iteration_s(step_s, sync_s)
            if rate * left_s < needed:
                self.progress += rate * left_s
                left_s = 0.0
            else:
                spent_s = min(float(round(needed / rate)) if whole_seconds else needed / rate, left_s)
                left_s -= spent_s
                self.progress = self.truth.epoch_ends[self.epoch]
                self.epoch += 1
                if self.done:
                    self.completed_s = to_s - left_s
            self.samples += samples_per_s * (begun_s - left_s)
            self._choose_batch()

    def next_epoch_s(self) -> float:
        """When the current epoch ends if nothing changes; infinite while it holds no GPUs."""
        if not self.shape or self.done:
            return inf
        rate = self._rate(*self._step(), self._batch)
        wait_s = (self.truth.epoch_ends[self.epoch] - self.progress) / rate
        if self.settings.fidelity is Fidelity.ARTIFACT:
            wait_s = float(ceil(wait_s))  # the step in which the artifact would see it
        return self.now_s + self.countdown_s + max(wait_s, 1e-6)

    def left_s(self) -> float:
        """Seconds until its end at its present pace; infinite while it holds no GPUs or has ended."""
        if not self.shape or self.done:
            return inf
        ends = self.truth.epoch_ends
        to_epoch_end = max(ends[self.epoch] - self.progress, 1e-9)
        return (self.next_epoch_s() - self.now_s) * (ends[-1] - self.progress) / to_epoch_end

    def _step(self) -> tuple[float, float]:
        """(seconds of one synchronised step, seconds of it spent synchronising) at the present batch."""
        return self.truth.step(self.kind, self.shape, self.local_batch)

    @property
    def _batch(self) -> int:
        """Samples of one iteration."""
        if self._is_uneven:
            return sum(self.dictated)
        return self.replicas * self.local_batch * (self.accumulation + 1)

    @property
    def _is_uneven(self) -> bool:
        """Whether the policy gave replicas batches that differ by more than one sample."""
        return bool(self.dictated) and max(self.dictated) - min(self.dictated) > 1

    def _iteration_s(self, step_s: float, sync_s: float) -> float:
        return (step_s + self.accumulation * (step_s - sync_s)) * self.truth.slowdown / self.reach

    def _rate(self, step_s: float, sync_s: float, batch: int) -> float:
        """Progress per second at the present batch: gain / iteration time / slow-down."""
        grad_sqr, grad_var = self.truth.grad_stats(batch, self.epoch)
        scale = batch / self.truth.limits.init_batch
        noise = grad_var / scale + grad_sqr
        gain = (grad_var + grad_sqr) / noise if noise > 0 else 1.0
        iteration_s = step_s + self.accumulation * (step_s - sync_s)
        return gain / iteration_s / self.truth.slowdown * self.reach

    def _observe_and_rate(self, step_s: float, sync_s: float, batch: int) -> float:
        """Record what this segment shows, and return its progress per second."""
        grad_sqr, grad_var = self.truth.grad_stats(batch, self.epoch)
        before = self.evidence
        assert before is not None
        observed = before.observed
        of_type = observed[self.kind]
        if not self.foreseen:
            point = self.measuring.seen(
                self.kind, Point(len(self.shape), self.replicas, self.local_batch, step_s - sync_s, step_s)
            )
            if self.of_model is not None:
                of_type = self.of_model.with_point(self.kind, point)
                self.of_model.tell_noise(self.epoch, grad_sqr, grad_var)
            else:
                of_type = of_type.with_point(point)
        if of_type is not observed[self.kind] or grad_sqr != before.grad_sqr or grad_var != before.grad_var:
            observed = (*observed[: self.kind], of_type, *observed[self.kind + 1 :])
            self.evidence = Evidence(before.limits, observed, grad_sqr, grad_var, before.fixed_batch)
        return self._rate(step_s, sync_s, batch)

    def _choose_batch(self) -> None:
        """Re-choose local batch and accumulation for the GPUs held, as the job's own agent would."""
        if not self.shape or self.done:
            return
        self.learn_of_model()
        evidence = self.evidence
        assert evidence is not None
        replicas = self.replicas
        limits = self.truth.limits
        most_local = int(limits.max_local[self.kind])
        if self.dictated:
            # All wait for the replica with the largest part.
            each = max(1, len(self.dictated) // replicas)
            parts = [sum(self.dictated[i : i + each]) for i in range(0, len(self.dictated), each)]
            total = max(parts) * replicas if self._is_uneven else sum(self.dictated)
            self.local_batch, self.accumulation = split(total, replicas, most_local)
            return
        if self.fixed_batch:
            self.local_batch, self.accumulation = split(self.fixed_batch, replicas, most_local)
            return
        observed = evidence.observed[self.kind]
        if not observed:
            batch = max(limits.init_batch, int(limits.min_local[self.kind]) * replicas)
            self.local_batch, self.accumulation = split(batch, replicas, most_local, limits.init_batch)
        else:
            self.local_batch, self.accumulation = _best_split(
                published_fit(observed) if self.settings.fidelity is Fidelity.ARTIFACT else fit(observed),
                evidence.grad_sqr,
                evidence.grad_var,
                limits,
                self.kind,
                len(self.shape),
                replicas,
            )
        fits = self.truth.most_local(self.kind, replicas)
        cap = limits.max_batch // (replicas * (self.accumulation + 1))
        self.local_batch = max(1, min(self.local_batch, fits, cap))


def split(batch: int, replicas: int, most_local: int, init_batch: int = 0) -> tuple[int, int]:
    """(local batch, accumulation) of a total batch: as few passes as memory allows."""
    share = ceil(batch / replicas)
    accumulation = ceil(share / most_local) - 1
    if init_batch and replicas == 1 and batch > init_batch:
        accumulation = max(accumulation, 1)  # a single replica needs two passes to measure gradient noise
    return ceil(share / (accumulation + 1)), accumulation


@lru_cache(maxsize=65_536)
def _best_split(
    model: ThroughputModel,
    grad_sqr: float,
    grad_var: float,
    limits: TrainingLimits,
    kind: int,
    nodes: int,
    replicas: int,
) -> tuple[int, int]:
    """(local batch, accumulation) of most goodput by the job's own model of this GPU type."""
    best = best_batch(
        model,
        GradientNoise(grad_sqr, grad_var),
        BatchLimits(
            limits.init_batch, limits.max_batch, int(limits.min_local[kind]), int(limits.max_local[kind])
        ),
        nodes,
        replicas,
    )
    return best.local_batch, best.accumulation


# ── what an oracle would know before a job starts ─────────────────────────────────────────────────


BATCHES = 4  # chosen: local batches shown for each placement, spaced geometrically


def true_observations(truth: TrainingTruth, cluster: Cluster) -> tuple[Observations, ...]:
    """By GPU type: exact times on Sia's bundles of GPUs, whole nodes by powers of two and all of them.

    Nothing where the model does not run on a type. For the mode *oracle* of Sia (SOSP 2023), section 5.7;
    what an estimator makes of them is still a fit of the throughput model.
    """
    return tuple(_on_type(truth, cluster, kind) for kind in range(len(cluster.types)))


def _on_type(truth: TrainingTruth, cluster: Cluster, kind: int) -> Observations:
    limits = truth.limits
    if not limits.max_local[kind]:
        return NOTHING_OBSERVED
    bundles = powers_and_whole_nodes(cluster)
    of_kind = np.flatnonzero(bundles.kind == kind).tolist()
    points = []
    for column in of_kind:
        nodes, gpus = int(bundles.nodes[column]), int(bundles.gpus[column])
        replicas, part = divmod(gpus, int(limits.replica_gpus[kind]))
        fits = replicas * int(limits.min_local[kind]) <= limits.max_batch
        is_round = nodes & (nodes - 1) == 0 or column == of_kind[-1]
        if replicas and not part and fits and is_round:
            shape = (gpus // nodes,) * nodes
            for local in _local_batches(truth, kind, replicas):
                step_s, sync_s = truth.step(kind, shape, local)
                points.append(Point(nodes, replicas, local, step_s - sync_s, step_s))
    return Observations(tuple(points))


def _local_batches(truth: TrainingTruth, kind: int, replicas: int) -> list[int]:
    """From the smallest local batch to the largest that fits and stays within the largest total batch."""
    limits = truth.limits
    least = int(limits.min_local[kind])
    most = max(min(truth.most_local(kind, replicas), ceil(limits.max_batch / replicas)), least)
    return sorted({round(batch) for batch in np.geomspace(least, most, BATCHES).tolist()})


@lru_cache(maxsize=65_536)
def steps_left(truth: TrainingTruth, fixed_batch: int, epoch: int) -> float:
    """Steps from the start of an epoch to the end of the training: of a fixed batch, or (0) the initial."""
    starts = (0.0, *truth.epoch_ends[:-1])
    return sum(
        (truth.epoch_ends[index] - starts[index]) / step_gain(truth, fixed_batch, index)
        for index in range(epoch, len(truth.epoch_ends))
    )


def step_gain(truth: TrainingTruth, fixed_batch: int, epoch: int) -> float:
    """Progress of one step at a fixed batch, in steps of the initial one; 1 where no batch is fixed."""
    if not fixed_batch:
        return 1.0
    grad_sqr, grad_var = truth.grad_stats(fixed_batch, epoch)
    return float(gain(fixed_batch, truth.limits.init_batch, grad_var, grad_sqr))
