"""Optimus: one GPU for every job, then one more to the job that gains most time from it."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import nnls

from stretto.model import (
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobTable,
    Pinned,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    every,
)
from stretto.policies.common.remaining_time import estimated_steps
from stretto.policies.common.speed_curves import (
    NO_CURVE,
    Curve,
    Sizes,
    kinds_by_room,
    one_gpu_of_each_type,
    reasons_by_range,
    room_beside,
    unstoppable,
)
from stretto.settings import CheckedSettings, setting

MOST_WORK = 1e15  # stands for a job without an end
LINE_SEARCH = 50  # values of β2 tried; chosen
SPEED_SAMPLES = 5  # counts to which a curve is fitted; chosen: a short profiling run
WINDOW = 3  # losses on either side that bound an outlier; chosen


class Remaining(StrEnum):
    """Where the work left of a job is known from."""

    ORACLE = "oracle"
    LOSS = "loss"  # extrapolated from what it reported at the end of every epoch
    ESTIMATE = "estimate"  # from an estimate of its duration, as UniSched's comparison gives it to others


WORK_FROM = {
    Remaining.ORACLE: View.REMAINING_WORK,
    Remaining.LOSS: View.LEARNING,
    Remaining.ESTIMATE: View.ESTIMATED_DURATION,
}


class SpeedFrom(StrEnum):
    """Where speeds are known from."""

    TABLE = "table"
    FIT = "fit"  # the paper's model fitted to a few counts of the table


@dataclass(frozen=True)
class Optimus(CheckedSettings, space="policy"):
    """Give every job a GPU, then each further one to the job whose remaining time it shortens most.

    Optimus (Peng et al., EuroSys 2018), section 4. With Q_j steps left and speed f(g), one more GPU gains

        Q_j / f(g_j) - Q_j / f(g_j + 1)

    seconds; the largest gain wins until none is positive or no GPU is left. First every job gets the fewest
    GPUs on which it runs, by submission. Where a job cannot use one more, the gain of its next possible
    count is divided by the GPUs that it takes. A changed job is placed evenly on as few nodes as can hold
    it, smaller demands first (`pins_over_fewest_nodes`).

    With `remaining` = "loss" the epochs left come from the curve of what a job reported after each epoch
    (`fit_losses`). The worlds here report a metric that rises to 1 at most, so its loss is what is missing to
    1. A job that reports nothing of its training then gets its fewest GPUs and no more.

    Deviations: speeds are those of all-reduce training, where the paper models workers and parameter
    servers. A job keeps its nodes while its count stays; the paper places every job anew every time.

    Cost: a round sorts nothing and looks at the speeds of the jobs that are served only. It takes O(GPUs log
    GPUs) steps, however many jobs wait, and some array operations over all jobs.
    Starvation: none among equals. A job waits only while jobs submitted before it hold what it needs.
    """

    round_s: float = setting(600.0, above=0)  # seconds between decisions [Optimus, section 6]
    remaining: Remaining = Remaining.ORACLE
    speeds: SpeedFrom = SpeedFrom.TABLE
    # factor on gains of jobs with few losses to go by [Optimus]
    unsure: float = setting(0.95, above=0, at_most=1)
    few_losses: int = setting(5, at_least=0)  # epochs below which a job counts as such; chosen
    # of the normalised loss in an epoch; less for some epochs: converged
    least_decrease: float = setting(0.01, above=0, below=1)
    first_guess_epochs: int = setting(50, at_least=0)  # expected of a job that has not reported twice; chosen
    # expected of a job at most, where losses are extrapolated; chosen
    most_epochs: int = setting(1_000, at_least=0)

    name: ClassVar[str] = "optimus"
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Optimus (EuroSys 2018)",
        order="greatest gain of one more GPU; ties by fair share",
        starvation=(
            "bounded by the order of submission: a job waits only while earlier ones hold what it needs"
        ),
        tables_only=True,
    )

    @property
    def views(self) -> frozenset[View]:
        """Measured speeds, and what is left to do or what was reported of the training."""
        return frozenset({View.THROUGHPUT_TABLE, WORK_FROM[self.remaining]})

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: the rest it reads from the tables."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Counts by marginal gain, each on one GPU type."""
        jobs = snapshot.jobs
        kept = unstoppable(jobs)
        left: list[int] = room_beside(snapshot, kept).tolist()
        gpus = np.where(kept, jobs.held_gpus, 0)
        kind = np.where(kept, jobs.held_kind, -1)
        # First a smallest share for every job that fits, then the rest by marginal gain.
        served = self._first_share(snapshot, gpus, kind, left)

        work, sure = self._work(jobs, served)
        growing = {row: grown for row, grown in served.items() if len(grown.gpus) > 1}
        given = by_marginal_gain(growing, work, kind, left, sure)
        for row, count in given.items():
            gpus[row] = count
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=reasons_by_range(snapshot, gpus, left),
            pinned=pins_over_fewest_nodes(snapshot, gpus, kind),
        )

    def _first_share(
        self, snapshot: Snapshot, gpus: IntArray, kind: IntArray, left: list[int]
    ) -> dict[int, Curve]:
        """Give every job the fewest GPUs by submission while there are some; the curves of those served."""
        jobs, sizes = snapshot.jobs, Sizes.of(snapshot)
        served: dict[int, Curve] = {}
        smallest = jobs.min_gpus.tolist()
        for row in np.flatnonzero(gpus == 0).tolist():
            if smallest[row] > max(left):
                if max(left) == 0:
                    break
                continue
            for type_index in kinds_by_room(left, int(jobs.held_kind[row])):
                curve = self._curve(sizes, row, type_index) if smallest[row] <= left[type_index] else NO_CURVE
                if curve.gpus and curve.gpus[0] <= left[type_index]:
                    gpus[row], kind[row] = curve.gpus[0], type_index
                    left[type_index] -= curve.gpus[0]
                    served[row] = curve
                    break
        return served

    def _curve(self, sizes: Sizes, row: int, kind: int) -> Curve:
        curve = sizes.curve(row, kind)
        return fitted_curve(curve) if self.speeds is SpeedFrom.FIT else curve

    def _work(self, jobs: JobTable, rows: Iterable[int]) -> tuple[FloatArray, FloatArray]:
        """(jobs,) steps left, and the factor on gains; of the rows given, 0 and 1 for others."""
        sure = np.ones(len(jobs))
        if self.remaining is Remaining.ORACLE:
            return np.nan_to_num(jobs.remaining_work, nan=0.0, posinf=MOST_WORK), sure
        if self.remaining is Remaining.ESTIMATE:
            return estimated_steps(jobs), sure
        work = np.zeros(len(jobs))
        learning = jobs.learning
        for row in rows:
            history = learning.history[row]
            samples, batch = float(learning.dataset_samples[row]), int(jobs.batch_size[row])
            if not samples > 0 or not batch:
                continue
            # Young jobs: the fit of few losses is unsure, so their gains count less.
            if len(history) < self.few_losses:
                sure[row] = self.unsure
            if len(history) >= 2:
                losses = tuple((1.0 - history).tolist())
                epochs = expected_epochs(losses, self.least_decrease, self.most_epochs)
            else:
                epochs = self.first_guess_epochs
            done = float(np.nan_to_num(learning.samples[row])) / samples
            work[row] = max(epochs - done, 1.0) * samples / batch
        return work, sure


def by_marginal_gain(
    curves: dict[int, Curve], work: FloatArray, kind: IntArray, left: list[int], factor: FloatArray
) -> dict[int, int]:
    """The count of every job that has a curve and the first count of it. What they get is taken from `left`.

    work, kind, factor: (jobs,) steps left, GPU type, and what a job's gains are multiplied by. Equal gains go
    to the job submitted first.
    """

    def offer(row: int, index: int) -> tuple[float, int, int] | None:
        """Gain a GPU of going on to the next count."""
        curve = curves[row]
        if index + 1 >= len(curve.gpus):
            return None
        more = curve.gpus[index + 1] - curve.gpus[index]
        gain = float(work[row] * factor[row]) * (1 / curve.per_s[index] - 1 / curve.per_s[index + 1]) / more
        return (-gain, row, index) if gain > 0 else None

    # Each job starts on its first count and offers its next one; the largest gain is taken, again and again.
    count = {row: curve.gpus[0] for row, curve in curves.items()}
    offers = [first for row in curves if (first := offer(row, 0)) is not None]
    heapq.heapify(offers)
    while offers and any(left):
        _, row, index = heapq.heappop(offers)
        curve = curves[row]
        more = curve.gpus[index + 1] - curve.gpus[index]
        # GPUs only become fewer, so an offer that does not fit now is dropped for good.
        if more > left[kind[row]]:
            continue
        left[kind[row]] -= more
        count[row] = curve.gpus[index + 1]
        following = offer(row, index + 1)
        if following is not None:
            heapq.heappush(offers, following)
    return count


# Optimus' two models: how many epochs are left, and how fast a job is on g GPUs.
#
# Optimus (Peng et al., EuroSys 2018), section 3. Both are fitted by non-negative least squares.


class LossCurve(NamedTuple):
    """loss(k) = 1 / (β0 k + β1) + β2 after k epochs, as parts of the largest loss seen."""

    decay: float  # β0
    start: float  # β1
    floor: float  # β2
    unit: float  # the largest loss

    def at(self, epoch: FloatArray) -> FloatArray:
        """Losses, in parts of `unit`."""
        return 1.0 / np.maximum(self.decay * epoch + self.start, 1e-12) + self.floor


def fit_losses(losses: FloatArray) -> LossCurve:
    """The curve through the losses after epochs 1, 2, …; at least two are needed.

    β2 by line search below the smallest loss; β0 and β1 for each by non-negative least squares on
    1 / (loss - β2). The best is that with the least squared error of the loss itself.
    """
    unit = float(np.abs(losses).max()) or 1.0
    seen = _without_outliers(losses / unit)
    epoch = np.arange(1, len(seen) + 1, dtype=np.float64)
    terms = np.stack((epoch, np.ones_like(epoch)), axis=1)
    best, least = LossCurve(0.0, 1.0, 0.0, unit), np.inf
    for floor in np.linspace(0.0, max(float(seen.min()), 0.0), LINE_SEARCH, endpoint=False).tolist():
        (decay, start), _ = nnls(terms, 1.0 / np.maximum(seen - floor, 1e-9))
        if decay + start <= 0:
            continue
        tried = LossCurve(float(decay), float(start), floor, unit)
        error = float(((tried.at(epoch) - seen) ** 2).sum())
        if error < least:
            best, least = tried, error
    return best


def epochs_to_converge(curve: LossCurve, least_decrease: float, most: int, patience: int = 3) -> int:
    """The first epoch from which on the loss falls by less than that in each of `patience` epochs."""
    loss = curve.at(np.arange(1, most + patience + 1, dtype=np.float64))
    slow = loss[:-1] - loss[1:] < least_decrease
    lasting = np.convolve(slow, np.ones(patience), mode="valid") >= patience
    return int(lasting.argmax()) + 1 if lasting.any() else most


@lru_cache(maxsize=16_384)
def expected_epochs(losses: tuple[float, ...], least_decrease: float, most: int) -> int:
    """In how many epochs a job with these losses so far converges."""
    return epochs_to_converge(fit_losses(np.array(losses)), least_decrease, most)


def _without_outliers(seen: FloatArray) -> FloatArray:
    """Each loss brought between the least and the largest of its neighbours."""
    bounded = seen.copy()
    for at in range(1, len(seen) - 1):
        around = np.delete(seen[max(at - WINDOW, 0) : at + WINDOW + 1], min(at, WINDOW))
        bounded[at] = np.clip(seen[at], around.min(), around.max())
    return bounded


def seconds_per_step(gpus: FloatArray, step_s: FloatArray) -> FloatArray:
    """θ0, θ1, θ2 ≥ 0 of step_s(g) = θ0 / g + θ1 + θ2 g, fitted to steps seen on some counts.

    The all-reduce form of the paper's synchronous model: computing shrinks with g, synchronising grows.
    """
    terms = np.stack((1.0 / gpus, np.ones_like(gpus), gpus), axis=1)
    weight = 1.0 / step_s  # relative errors count, not seconds
    solution, _ = nnls(terms * weight[:, None], step_s * weight)
    return np.asarray(solution, dtype=np.float64)


@lru_cache(maxsize=65_536)
def fitted_curve(curve: Curve) -> Curve:
    """The same counts at the speeds of a model fitted to a few of them, spread geometrically."""
    if len(curve.gpus) < 2:
        return curve
    spread = np.geomspace(1, len(curve.gpus), min(SPEED_SAMPLES, len(curve.gpus)))
    sampled = np.unique(np.round(spread).astype(np.int64)) - 1
    gpus, per_s = np.array(curve.gpus, dtype=np.float64), np.array(curve.per_s)
    theta = seconds_per_step(gpus[sampled], 1.0 / per_s[sampled])
    step_s = theta[0] / gpus + theta[1] + theta[2] * gpus
    return Curve(curve.gpus, tuple((1.0 / step_s).tolist()))


# Optimus' placement: evenly on as few nodes as can hold a job, smaller demands first.


def even_counts(free: Sequence[int], gpus: int, most_nodes: int) -> tuple[int, ...]:
    """How many GPUs on each of the nodes with most of them free, in that order; empty where it cannot be.

    free: by node, decreasing. The fewest nodes k on which `gpus` lie evenly, as k counts that differ by one
    at most.
    """
    for nodes in range(1, min(len(free), gpus, most_nodes) + 1):
        each, larger = divmod(gpus, nodes)
        counts = (each + 1,) * larger + (each,) * (nodes - larger)
        if all(count <= there for count, there in zip(counts, free, strict=False)):
            return counts
    return ()


def pins_over_fewest_nodes(snapshot: Snapshot, gpus: IntArray, kind: IntArray) -> dict[int, Pinned]:
    """Where the jobs go whose share is not what they hold. One that cannot lie evenly is left to the placer.

    gpus, kind: (jobs,). Jobs by increasing demand, each on the nodes with most GPUs free then.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    changed = (gpus != jobs.held_gpus) | (kind != jobs.held_kind)
    free = np.where(snapshot.usable, snapshot.placement.free, 0)
    # Whatever changes lets go of its GPUs first.
    for row in np.flatnonzero(changed & (jobs.held_gpus > 0)).tolist():
        allocation = snapshot.placement[jobs.ids[row]]
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            free[node] += mask.bit_count() if snapshot.usable[node] else 0
    moving = np.flatnonzero(changed & (gpus > 0))
    pinned: dict[int, Pinned] = {}
    for row in moving[np.argsort(gpus[moving], kind="stable")].tolist():
        # Even counts over as few nodes as possible, the roomiest first.
        of_kind = np.flatnonzero(cluster.kind == kind[row])
        roomiest = of_kind[np.argsort(-free[of_kind], kind="stable")]
        most_nodes = cluster.types[int(kind[row])].max_nodes_per_job or len(roomiest)
        counts = even_counts(free[roomiest].tolist(), int(gpus[row]), most_nodes)
        if counts:
            where = sorted(zip(roomiest.tolist(), counts, strict=False))
            pinned[row] = Pinned(tuple(node for node, _ in where), tuple(count for _, count in where))
            free[[node for node, _ in where]] -= [count for _, count in where]
    return pinned
