"""Optimus: one GPU for everybody, then one more to whoever gains most time from it."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobTable,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    every,
)
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
from stretto.policies.optimus.models import expected_epochs, fitted_curve
from stretto.policies.optimus.nodes import pins_over_fewest_nodes
from stretto.settings import CheckedSettings, setting

MOST_WORK = 1e15  # stands for a job without an end


class Remaining(StrEnum):
    """Where the work left of a job is known from."""

    ORACLE = "oracle"
    LOSS = "loss"  # extrapolated from what it reported at the end of every epoch


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
    count is divided by the GPUs that it takes. Whoever changed is placed evenly on as few nodes as can hold
    it, smaller demands first (`nodes`).

    With `remaining` = "loss" the epochs left come from the curve of what a job reported after each epoch
    (`models`); as the worlds here report a metric that rises to 1 at most, its loss is what is missing
    to 1. A job that reports nothing of its training then gets its fewest GPUs and no more.

    Deviations: speeds are those of all-reduce training, where the paper models workers and parameter
    servers. A job keeps its nodes while its count stays; the paper places everybody anew every time.

    Cost: a round sorts nothing and looks at the speeds of the jobs that are served only; it takes
    O(GPUs log GPUs) steps, however many jobs wait, and some array operations over all jobs.
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
        work = View.REMAINING_WORK if self.remaining is Remaining.ORACLE else View.LEARNING
        return frozenset({View.THROUGHPUT_TABLE, work})

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
        """Give everybody the fewest GPUs by submission while there are some; the curves of who got them."""
        jobs, sizes = snapshot.jobs, Sizes.of(snapshot)
        served: dict[int, Curve] = {}
        smallest = jobs.min_gpus.tolist()
        for row in np.flatnonzero(gpus == 0).tolist():
            if smallest[row] > max(left):
                if max(left) == 0:
                    break
                continue
            for at in kinds_by_room(left, int(jobs.held_kind[row])):
                curve = self._curve(sizes, row, at) if smallest[row] <= left[at] else NO_CURVE
                if curve.gpus and curve.gpus[0] <= left[at]:
                    gpus[row], kind[row] = curve.gpus[0], at
                    left[at] -= curve.gpus[0]
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

    def offer(row: int, at: int) -> tuple[float, int, int] | None:
        """Gain a GPU of going on to the next count."""
        curve = curves[row]
        if at + 1 >= len(curve.gpus):
            return None
        more = curve.gpus[at + 1] - curve.gpus[at]
        gain = float(work[row] * factor[row]) * (1 / curve.per_s[at] - 1 / curve.per_s[at + 1]) / more
        return (-gain, row, at) if gain > 0 else None

    # Each job starts on its first count and offers its next one; the largest gain is taken, again and again.
    count = {row: curve.gpus[0] for row, curve in curves.items()}
    offers = [one for row in curves if (one := offer(row, 0)) is not None]
    heapq.heapify(offers)
    while offers and any(left):
        _, row, at = heapq.heappop(offers)
        curve = curves[row]
        more = curve.gpus[at + 1] - curve.gpus[at]
        # GPUs only become fewer, so an offer that does not fit now is dropped for good.
        if more > left[kind[row]]:
            continue
        left[kind[row]] -= more
        count[row] = curve.gpus[at + 1]
        following = offer(row, at + 1)
        if following is not None:
            heapq.heappush(offers, following)
    return count
