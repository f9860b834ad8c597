"""Tiresias: least attained service in a few queues, with or without a distribution of service."""

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    JobTable,
    Memory,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    Triggers,
    View,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew
from stretto.settings import CheckedSettings, setting

SLACK = 1e-3  # GPU-seconds, and seconds; chosen: a timer that rings a rounding error early has rung


@dataclass(frozen=True, eq=False)
class LastSeen:
    """The jobs that were active at the last decision, to know the service of those that have gone since."""

    at_s: float = 0.0
    ids: tuple[JobId, ...] = ()
    attained_gpu_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    gpus: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # given then


@dataclass(frozen=True, eq=False)
class Remembered:
    """What Tiresias keeps from one decision to the next, where a setting asks for it."""

    promoted: tuple[tuple[JobId, float, float], ...] = ()  # (job, its GPU-s and its seconds of running then)
    last: LastSeen = field(default_factory=LastSeen)
    services_gpu_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # of ended jobs, oldest first


@dataclass(frozen=True)
class Tiresias(CheckedSettings, space="policy"):
    """Serve first the jobs that have had the least GPU time, in a few coarse queues, stopping others.

    Tiresias (Gu et al., NSDI 2019), sections 3.2 and 3.3: discretised two-dimensional LAS. A job moves to
    the next queue when its GPU-seconds reach that queue's bound. Within a queue, jobs that have run before
    come in the order in which they first started, then the others by submission. With `gittins` they come
    first by decreasing Gittins index over the services of earlier jobs. What does not fit is skipped.

    Deviation: no skew-based consolidation; the paper's profile of tensor sizes is not known here.
    """

    # GPU-seconds where a queue ends; as in Lucid
    queue_bounds_gpu_s: tuple[float, ...] = setting((18_000.0,), above=0, increasing=True)
    # back to the first queue after waiting this times its run time; 0: never
    starvation_factor: float = setting(0.0, at_least=0)
    gittins: bool = False  # 2D-Gittins instead of 2D-LAS within a queue
    gittins_supremum: bool = False  # index over every horizon instead of to the end of the queue
    # GPU-seconds of past jobs; empty: learned
    service_samples_gpu_s: tuple[float, ...] = setting((), at_least=0)
    # learned services that are kept, the latest; chosen: a steady quantile
    most_samples: int = setting(1_000, at_least=1)
    # seconds between additional decisions, for worlds with a clock tick
    round_s: float | None = setting(None, above=0)

    name: ClassVar[str] = "tiresias"
    views: ClassVar[frozenset[View]] = frozenset({View.PROGRESS})
    placer: ClassVar[str] = "one-node-or-spread"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Tiresias (NSDI 2019)",
        order="least service, in queues; among those that never started, fair share",
        starvation="unbounded by default: the last queue waits for the first; starvation_factor bounds it",
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, at the next crossing of a bound, and at rounds if wanted."""
        if self.round_s is None:
            return ON_CHANGE
        return Triggers(ON_CHANGE.on | {Trigger.ROUND}, self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by queue, then by index, then by first start, then by submission."""
        jobs = snapshot.jobs
        remembered = snapshot.memory if isinstance(snapshot.memory, Remembered) else Remembered()
        remembered = self._promote_starving(snapshot, remembered)
        remembered = self._learn_services(snapshot, remembered)

        served_gpu_s, run_s = _since_promotion(jobs, remembered)
        queue = np.searchsorted(np.array(self.queue_bounds_gpu_s), served_gpu_s + SLACK, side="right")
        first_start_s = np.nan_to_num(jobs.progress.first_start_s, nan=inf)
        keys = [first_start_s, queue]
        if self.gittins:
            keys.insert(1, -self._index(served_gpu_s, queue, remembered))
        shares = admit_anew(snapshot, np.lexsort(keys))

        return replace(
            shares,
            memory=self._to_remember(snapshot, shares, remembered),
            wake_s=self._next_crossing_s(snapshot, shares, served_gpu_s, run_s, queue),
        )

    def _index(self, served_gpu_s: FloatArray, queue: IntArray, remembered: Remembered) -> FloatArray:
        samples = remembered.services_gpu_s if self._learns else np.array(self.service_samples_gpu_s)
        if self.gittins_supremum:
            return gittins_index(samples, served_gpu_s)
        ends = np.array((*self.queue_bounds_gpu_s, inf))
        return gittins_index_within(samples, served_gpu_s, ends[queue] - served_gpu_s)

    def _next_crossing_s(
        self,
        snapshot: Snapshot,
        shares: Shares,
        served_gpu_s: FloatArray,
        run_s: FloatArray,
        queue: IntArray,
    ) -> float | None:
        """When the next job leaves its queue by itself; None if that would change nothing or never happens.

        Demotion: (bound - attained) / GPUs from now. It frees GPUs only for a job that waits.
        """
        waits = (shares.gpus == 0) & (shares.why.code > 0)
        if not waits.any():
            return None
        ends = np.array((*self.queue_bounds_gpu_s, inf))
        runs = shares.gpus > 0
        # Service grows by one GPU-second a second for each GPU held.
        after_s = ((ends[queue[runs]] - served_gpu_s[runs]) / shares.gpus[runs]).min(initial=inf)
        if self.starvation_factor > 0:
            starving = waits & (queue > 0)
            until_s = self.starvation_factor * run_s[starving] - _pending_s(snapshot)[starving]
            after_s = min(after_s, max(until_s.min(initial=inf), SLACK))
        return float(snapshot.now_s + after_s) if isfinite(after_s) else None

    def _promote_starving(self, snapshot: Snapshot, remembered: Remembered) -> Remembered:
        """Those that have waited `starvation_factor` times as long as they ran start afresh."""
        if self.starvation_factor == 0:
            return remembered
        jobs = snapshot.jobs
        served_gpu_s, run_s = _since_promotion(jobs, remembered)
        waited = (jobs.held_gpus == 0) & (_pending_s(snapshot) + SLACK >= self.starvation_factor * run_s)
        demoted = served_gpu_s + SLACK >= min(self.queue_bounds_gpu_s, default=inf)
        active = set(jobs.ids)
        promoted = {entry[0]: entry for entry in remembered.promoted if entry[0] in active}
        for row in np.flatnonzero(waited & demoted).tolist():
            job = jobs.ids[row]
            attained_gpu_s, executed_s = jobs.progress.attained_gpu_s[row], jobs.progress.executed_s[row]
            promoted[job] = (job, float(attained_gpu_s), float(executed_s))
        return replace(remembered, promoted=tuple(sorted(promoted.values())))

    def _learn_services(self, snapshot: Snapshot, remembered: Remembered) -> Remembered:
        """Take the jobs that have gone for finished: their service is what they had, and held since."""
        last = remembered.last
        if not self._learns or not last.ids:
            return remembered
        active = set(snapshot.jobs.ids)
        gone = np.array([job not in active for job in last.ids])
        if not gone.any():
            return remembered
        held_gpu_s = last.gpus[gone] * (snapshot.now_s - last.at_s)
        services = np.concatenate((remembered.services_gpu_s, last.attained_gpu_s[gone] + held_gpu_s))
        return replace(remembered, services_gpu_s=services[-self.most_samples :])

    @property
    def _learns(self) -> bool:
        return self.gittins and not self.service_samples_gpu_s

    def _to_remember(self, snapshot: Snapshot, shares: Shares, remembered: Remembered) -> Memory:
        if self._learns:
            jobs = snapshot.jobs
            last = LastSeen(snapshot.now_s, jobs.ids, jobs.progress.attained_gpu_s.copy(), shares.gpus)
            return replace(remembered, last=last)
        return remembered if self.starvation_factor > 0 else None


@dataclass(frozen=True)
class TiresiasGittins(Tiresias):
    """Serve first, queue by queue, the jobs that are likeliest to finish soon for their GPU time.

    Tiresias-G: 2D-Gittins over the services of earlier jobs, given or learned.
    """

    gittins: bool = True

    name: ClassVar[str] = "tiresias-gittins"


def _since_promotion(jobs: JobTable, remembered: Remembered) -> tuple[FloatArray, FloatArray]:
    """(jobs,) GPU-seconds attained and seconds run, each since the last promotion."""
    attained_gpu_s, executed_s = jobs.progress.attained_gpu_s, jobs.progress.executed_s
    if not remembered.promoted:
        return attained_gpu_s, executed_s
    at_promotion = {job: (gpu_s, run_s) for job, gpu_s, run_s in remembered.promoted}
    forgiven = np.array([at_promotion.get(job, (0.0, 0.0)) for job in jobs.ids])
    return attained_gpu_s - forgiven[:, 0], executed_s - forgiven[:, 1]


def _pending_s(snapshot: Snapshot) -> FloatArray:
    """(jobs,) seconds since each job last ran: 0 where it runs, -inf where it never did."""
    jobs = snapshot.jobs
    last_stop_s = np.nan_to_num(jobs.progress.last_stop_s, nan=inf)
    return np.where(jobs.held_gpus > 0, 0.0, snapshot.now_s - last_stop_s)


# The Gittins index of a job that has had some service, from samples of how much others needed in all.


def gittins_index_within(samples: FloatArray, attained: FloatArray, horizon: FloatArray) -> FloatArray:
    """(jobs,) chance of finishing within `horizon` per expected service spent on trying.

    G(a; D) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]     Tiresias (NSDI 2019), section 3.2.2

    samples: (samples,) total services S. attained: (jobs,) a. horizon: (jobs,) D > 0, may be infinite.
    Zero where no sample exceeds a.
    """
    return _index_until(np.sort(samples), attained, attained + horizon, horizon)


def gittins_index(samples: FloatArray, attained: FloatArray) -> FloatArray:
    """(jobs,) the largest index over every horizon; it is reached where a sample ends."""
    services = np.sort(samples)
    ends = np.unique(samples)
    shape = (len(attained), len(ends))
    horizon = np.maximum(ends - attained[:, None], 0.0)
    index = _index_until(
        services, np.repeat(attained, len(ends)), np.broadcast_to(ends, shape).ravel(), horizon.ravel()
    )
    best: FloatArray = index.reshape(shape).max(axis=1, initial=0.0)
    return best


def _index_until(
    services: FloatArray, attained: FloatArray, end: FloatArray, horizon: FloatArray
) -> FloatArray:
    """(jobs,) G(a; D) for services in order; end: a + D, given because sums of differences are rounded."""
    total = np.concatenate(([0.0], services.cumsum()))
    beyond = np.searchsorted(services, attained, side="right")
    within = np.maximum(np.searchsorted(services, end, side="right"), beyond)
    finishing = within - beyond
    longer = len(services) - within
    spent = total[within] - total[beyond] - attained * finishing
    spent = spent + longer * np.where(longer > 0, horizon, 0.0)
    index: FloatArray = np.divide(finishing, spent, out=np.zeros(len(attained)), where=spent > 0)
    return index
