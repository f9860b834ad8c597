"""How fast would each job run on every count, and which counts may it have? Columns for `evolution`.

X_j(B, c) of ONES (SC 2021), equation 5, for the batch that goes with a count: B = min(R, c b), with R the
limit of the job and b the samples that fit on a GPU. Predicted by the throughput model fitted to what the
job has shown; before that, as c GPUs of the profiled one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.estimate import fit_many, iteration_s
from stretto.model import (
    BoolArray,
    Evidence,
    FloatArray,
    IntArray,
    MeasuredSpeeds,
    Observations,
    TrainingLimits,
)

UNIT = np.ones(7)  # stands for a throughput model where there is none


@dataclass(frozen=True, eq=False)
class Batches:
    """What is known of the jobs that take part, on the type to which each keeps; columns are (jobs,)."""

    init: IntArray  # samples in all that its owner tuned for
    largest: IntArray  # samples in all that may be considered
    max_local: IntArray  # samples that fit on a GPU
    fixed: BoolArray  # the batch is `init` on any count
    start: IntArray  # GPUs on which a job with a fixed batch starts
    params: FloatArray  # (jobs, 7) throughput models
    modelled: BoolArray  # whether there is one
    single_per_s: FloatArray  # samples/s on one GPU
    table: FloatArray  # (jobs, gpus + 1) speeds of jobs of which only a table is known; NaN: the others

    def total(self, limit: IntArray, gpus: IntArray) -> IntArray:
        """(jobs, gpus + 1) B, samples in all on every count, at least one on each GPU."""
        most = np.minimum(limit[:, None], gpus * self.max_local[:, None])
        return np.where(self.fixed[:, None], self.init[:, None], np.maximum(most, gpus))

    def cost(self, total: IntArray, gpus: IntArray) -> FloatArray:
        """(jobs, 2, gpus + 1) φ = c/X, GPU-seconds a sample, on one node and on several; 0 at 0 GPUs."""
        count = np.maximum(gpus, 1)
        local = total / count
        passes = np.ceil(local / np.maximum(self.max_local[:, None], 1))
        params = self.params[:, None]
        alone = total / (self.single_per_s[:, None] * count)
        cost = np.zeros((len(self.init), 2, len(gpus)))
        for spread in (0, 1):
            step = iteration_s(params, 1 + spread, count, local / np.maximum(passes, 1), passes - 1)
            seconds = np.where(self.modelled[:, None], step, alone)
            seconds = np.where(np.isnan(self.table), seconds, total / self.table)
            cost[:, spread] = np.where(gpus > 0, gpus * seconds / np.maximum(total, 1), 0.0)
        return cost

    def least_limit(self, least_gpus: IntArray) -> IntArray:
        """The limit of a job that starts: what fits on one GPU, or on the fewest that it may hold."""
        fits = np.minimum(self.init, least_gpus * self.max_local)
        return np.where(self.fixed, self.init, np.maximum(fits, least_gpus))

    def most_limit(self, gpus: IntArray) -> IntArray:
        """What fits on all `gpus` (jobs,) of its type, within what its owner allows."""
        return np.where(self.fixed, self.init, np.minimum(gpus * self.max_local, self.largest))


def batches_of(
    evidence: Sequence[Evidence | None],
    tables: Sequence[MeasuredSpeeds | None],
    asked_gpus: IntArray,
    home: IntArray,
    most_gpus: int,
) -> Batches:
    """The columns of these jobs; a job without evidence has its table measured in what it was asked for."""
    columns = [
        _from_evidence(one, kind, asked) if one is not None else (asked, asked, 1, True, asked, (), 1.0)
        for one, kind, asked in zip(evidence, home.tolist(), asked_gpus.tolist(), strict=True)
    ]
    init, largest, high, fixed, start, seen, single = (
        list(column) for column in (zip(*columns, strict=True) if columns else [()] * 7)
    )
    # All models are fitted in one call, which is faster than one after the other.
    known = [observed for observed in seen if observed]
    models = iter(fit_many(known))
    table = np.full((len(columns), most_gpus + 1), np.nan)
    for row, one in enumerate(evidence):
        if one is None:
            table[row] = _looked_up(tables[row], int(home[row]), int(asked_gpus[row]), most_gpus)
    return Batches(
        init=np.array(init, dtype=np.int64),
        largest=np.array(largest, dtype=np.int64),
        max_local=np.array(high, dtype=np.int64),
        fixed=np.array(fixed, dtype=np.bool_),
        start=np.array(start, dtype=np.int64),
        params=np.array([next(models) if one else UNIT for one in seen], dtype=np.float64).reshape(-1, 7),
        modelled=np.array([bool(one) for one in seen], dtype=np.bool_),
        single_per_s=np.array(single, dtype=np.float64),
        table=table,
    )


def runs_on(one: Evidence | None, table: MeasuredSpeeds | None) -> BoolArray:
    """(types,) whether a job can run there."""
    if one is not None:
        return np.asarray(one.limits.max_local > 0)
    assert table is not None
    return np.asarray(np.isfinite(table.per_s).any(axis=1))


Column = tuple[int, int, int, bool, int, Observations | tuple[()], float]


def _from_evidence(one: Evidence, kind: int, asked: int) -> Column:
    limits, replica = one.limits, int(one.limits.replica_gpus[kind])
    high = max(int(limits.max_local[kind]), 1)
    batch = one.fixed_batch or limits.init_batch
    fixed = one.fixed_batch > 0 or replica > 1
    start = -(-batch // high) * replica
    return (
        batch,
        max(limits.max_batch, limits.init_batch),
        high,
        fixed,
        min(start, asked) if fixed else start,
        one.observed[kind] if replica == 1 else (),
        _single(limits, kind) / replica,
    )


def _single(limits: TrainingLimits, kind: int) -> float:
    """Samples per second of one replica; types alike where nothing was profiled."""
    per_s = float(limits.single_per_s[kind])
    return per_s if per_s > 0 else 1.0


def _looked_up(table: MeasuredSpeeds | None, kind: int, asked: int, most_gpus: int) -> FloatArray:
    """(gpus + 1,) speeds relative to one GPU of what was asked for; infinitely slow where it cannot run."""
    assert table is not None, "a job without evidence has a table"
    speeds = np.full(most_gpus + 1, 1e-9)
    width = min(most_gpus + 1, table.per_s.shape[1])
    known = table.per_s[kind, :width]
    speeds[:width] = np.where(known > 0, known, 1e-9)
    reference = table.per_s[kind, asked] if asked < table.per_s.shape[1] else np.nan
    return np.asarray(speeds * asked / reference if reference > 0 else speeds)
