"""Which batch size makes the most of some GPUs, and how fast is the job then?

    goodput(K, N, m, s) = X(K, N, m, s) eff(M) = M0 gain(M) / T_iter,    M = K m (s + 1)

in samples of the initial batch M0 per second. Pollux (OSDI 2021), section 3. The search is that of its
published code: 50 total batches B, geometrically spaced between max(M0, m_min K) and the largest allowed,
each split evenly,

    ℓ = B/K,    s = ⌈ℓ/m_max⌉ - 1,    m = ⌈ℓ/(s + 1)⌉

so that the batch that is run may exceed B by rounding. On one GPU s ≥ 1 wherever ℓ > M0, as a single
gradient does not show its noise. Without accumulation s = 0, and a single GPU keeps to M0. Splits outside
[m_min, m_max] are not taken. Of equally good batches, the smallest.

**Deviation**: where m_min K is above the largest batch allowed there is nothing to try and goodput is 0. The
published code then tries m_min K; to have that, raise `max_batch` to it.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stretto.estimate.efficiency import GradientNoise
from stretto.estimate.throughput import (
    NO_SYNC_S,
    Parameters,
    ThroughputModel,
    iteration_s,
    overlapped_s,
    sync_s,
)
from stretto.model import BatchChoice
from stretto.model.arrays import BoolArray, FloatArray, IntArray

CANDIDATES = 50  # Pollux's published code
ROUNDING = 1e-8  # by which a quotient may exceed an integer and count as it; Pollux's published code
CELLS_AT_ONCE = 128  # measured: arrays (cells, candidates) of 50 kB stay in cache and off the page tables
MIXING = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: nearby numbers fall far apart
SPLITS_AT_ONCE = 8_192  # chosen: candidates of so many cells are 10 MB at most
SPLITS_REMEMBERED = 4_096  # chosen: about 2 kB each

_SPACING = np.linspace(0.0, 1.0, CANDIDATES)


class BatchLimits(NamedTuple):
    """What a job's batch must keep to: integers for one placement, else whatever broadcasts."""

    init_batch: npt.ArrayLike  # M0, total samples that the user tuned for
    max_batch: npt.ArrayLike  # total samples
    min_local: npt.ArrayLike  # samples on each GPU in one pass, at least 1
    max_local: npt.ArrayLike  # samples on each GPU in one pass; 0: does not run here


class BatchChoices(NamedTuple):
    """The same for many placements, each field (rows, cols)."""

    goodput: FloatArray
    total_batch: IntArray
    local_batch: IntArray
    accumulation: IntArray


class Splits(NamedTuple):
    """Candidates for the batch of a cell, each field (cells, candidates)."""

    total: FloatArray  # M, samples
    local: FloatArray  # m, samples on each GPU in one pass
    passes: FloatArray  # s + 1
    taken: BoolArray  # whether it keeps to the limits


def best_batches(
    params: npt.ArrayLike,
    noise: tuple[npt.ArrayLike, npt.ArrayLike],
    limits: BatchLimits,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    *,
    accumulates: bool = True,
    wanted: BoolArray | None = None,
) -> BatchChoices:
    """The best batch of every job (row) on every placement (column).

    params broadcasts to (rows, cols, 7): (rows, 1, 7) for columns of one GPU type, (rows, cols, 7) for
    columns of several. The other arguments broadcast to (rows, cols). noise is (|µ|², σ²); where it is NaN
    no batch is worth more iterations than M0. Cells outside `wanted` come out as 0. Takes a few MB beside
    arrays of the size of the result, however many rows.
    """
    p = np.asarray(params, dtype=np.float64)
    inputs = (p[..., 0], p[..., 1], p[..., 6], sync_s(p, nodes, gpus), *noise, gpus, *limits)
    shape = np.broadcast_shapes(*(np.shape(array) for array in inputs))
    cells = np.empty((len(inputs), *shape))
    for field, array in zip(cells, inputs, strict=True):
        field[...] = array
    _, _, _, _, _, _, count, init_batch, max_batch, min_local, max_local = cells
    # Cells that no batch fits are left out before the search, which is what takes time.
    within = np.maximum(init_batch, min_local * count) <= max_batch
    possible = within & (count >= 1) & (min_local <= max_local)
    where = np.flatnonzero(possible if wanted is None else possible & wanted)

    cells = cells.reshape(len(inputs), -1)
    best = np.zeros((4, cells.shape[1]))
    # In parts, so that the candidates of all cells never stand in memory at once.
    for first in range(0, len(where), SPLITS_AT_ONCE):
        part = where[first : first + SPLITS_AT_ONCE]
        best[:, part] = _best_of(cells[:, part], accumulates)
    goodput, total, local, accumulation = best.reshape(4, *shape)
    return BatchChoices(
        goodput, total.astype(np.int64), local.astype(np.int64), accumulation.astype(np.int64)
    )


def best_batch(
    model: ThroughputModel,
    noise: GradientNoise,
    limits: BatchLimits,
    nodes: int,
    gpus: int,
    *,
    accumulates: bool = True,
) -> BatchChoice:
    """`best_batches` for one job on one placement; the splits of a batch are remembered."""
    total, local, passes = _splits_within(limits, gpus, accumulates)
    if not len(total):
        return BatchChoice(0.0, 0, 0, 0)
    grad = model.alpha_c + model.beta_c * local
    step = _step_s(grad, _sync_of(model, nodes, gpus), model.gamma)
    value = _worth(total, *noise, float(np.asarray(limits.init_batch))) / ((passes - 1) * grad + step)
    pick = int(value.argmax())
    return BatchChoice(float(value[pick]), int(total[pick]), int(local[pick]), int(passes[pick]) - 1)


def fixed_batches(
    params: Parameters, limits: BatchLimits, nodes: npt.ArrayLike, gpus: npt.ArrayLike
) -> BatchChoices:
    """The only choice of jobs whose total batch is fixed to `init_batch`: how to split it.

    params broadcasts to (rows, cols, 7), the rest to (rows, cols). `goodput` is the throughput in samples/s:
    the efficiency of a fixed batch is constant. The last GPU takes what remains; T_iter is that of a GPU
    with ⌈M/(K (s + 1))⌉ samples. 0 where that is outside the local limits or `max_batch` is exceeded.
    """
    total, max_batch, min_local, max_local = (np.asarray(column) for column in limits)
    count = np.asarray(gpus)
    # As few passes as fit into memory, each GPU with an equal part of the batch.
    fits = (count >= 1) & (max_local >= 1)
    per_gpu = -(-total // np.maximum(count, 1))
    passes = -(-per_gpu // np.maximum(max_local, 1))
    local = -(-per_gpu // np.maximum(passes, 1))
    fits = fits & (local >= min_local) & (local <= max_local) & (total <= max_batch)
    per_s = np.where(fits, total / iteration_s(params, nodes, gpus, local, passes - 1), 0.0)
    chosen = (
        np.where(np.broadcast_to(fits, per_s.shape), column, 0) for column in (total, local, passes - 1)
    )
    return BatchChoices(per_s, *chosen)


def _best_of(cells: FloatArray, accumulates: bool) -> FloatArray:
    """(4, cells) goodput, M, m and s, where some batch is possible."""
    # How a batch can be split depends on few of the inputs, in which many cells agree.
    kinds, which = _alike(cells[6:])
    parts = [
        _splits(*cells[6:, kinds[first : first + CELLS_AT_ONCE], None], accumulates=accumulates)
        for first in range(0, len(kinds), CELLS_AT_ONCE)
    ]
    total, local, passes, taken = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    best = np.empty((4, cells.shape[1]))
    for first in range(0, cells.shape[1], CELLS_AT_ONCE):
        part = slice(first, first + CELLS_AT_ONCE)
        of_part = which[part]
        splits = Splits(total[of_part], local[of_part], passes[of_part], taken[of_part])
        best[:, part] = _search(cells[:, part], splits)
    return best


def _alike(inputs: FloatArray) -> tuple[IntArray, IntArray]:
    """Of columns that agree in every row the first, and (columns,) which of these each agrees with.

    Columns whose sums (of whole numbers, and modulo 2^64) are equal though they differ stand for themselves.
    """
    bits = inputs.view(np.uint64)
    mixed = np.zeros(inputs.shape[1], dtype=np.uint64)
    for row in bits:
        mixed = (mixed ^ row) * MIXING
        mixed ^= mixed >> np.uint64(29)  # small numbers differ in their high bits only
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    if (bits[:, first[which]] != bits).any():
        every = np.arange(inputs.shape[1])
        return every, every
    return first, which


def _search(cells: FloatArray, splits: Splits) -> tuple[FloatArray, ...]:
    """Goodput, M, m and s, each (cells,), where some batch is possible."""
    alpha, beta, gamma, sync, sqr, var, _, init_batch = cells[:8, :, None]
    total, local, passes, taken = splits
    grad = alpha + beta * local
    iteration = _step_s(grad, sync, gamma)
    iteration += (passes - 1) * grad
    value = _worth(total, sqr, var, init_batch)
    value /= iteration
    value *= taken
    pick = value.argmax(axis=1)
    every = np.arange(len(pick))
    best = value[every, pick]
    is_possible = best > 0
    return best, *(column[every, pick] * is_possible for column in (total, local, passes - 1))


def _splits(
    gpus: FloatArray,
    init_batch: FloatArray,
    max_batch: FloatArray,
    min_local: FloatArray,
    max_local: FloatArray,
    *,
    accumulates: bool,
) -> Splits:
    """The candidates of each cell; arguments are (cells, 1)."""
    # Candidates are spaced evenly in the logarithm between the least and the most batch.
    least = np.maximum(init_batch, min_local * gpus)
    share = (least / gpus) * np.exp(np.log(max_batch / least) * _SPACING)
    alone = np.flatnonzero(gpus[:, 0] == 1)
    if accumulates:
        passes = np.maximum(np.ceil(share / max_local - ROUNDING), 1.0)
        # One GPU measures gradient noise only where a step has at least two passes.
        passes[alone] = np.maximum(passes[alone], 1 + (share[alone] > init_batch[alone] + ROUNDING))
    else:
        passes = np.ones_like(share)
        share[alone] = init_batch[alone]
    local = np.ceil(share / passes - ROUNDING)
    return Splits(gpus * local * passes, local, passes, (local >= min_local) & (local <= max_local))


@lru_cache(maxsize=SPLITS_REMEMBERED)
def _splits_within(
    limits: BatchLimits, gpus: int, accumulates: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """M, m and s + 1 of the distinct candidates that may be taken on `gpus` GPUs, smallest first."""
    init_batch, max_batch, min_local, max_local = np.array(limits, dtype=np.float64).tolist()
    if gpus < 1 or min_local > max_local or max(init_batch, min_local * gpus) > max_batch:
        return np.empty(0), np.empty(0), np.empty(0)
    columns = (np.array([[bound]]) for bound in (float(gpus), init_batch, max_batch, min_local, max_local))
    total, local, passes, taken = _splits(*columns, accumulates=accumulates)
    rows = dict.fromkeys(zip(total[taken], local[taken], passes[taken], strict=True))  # the first of equals
    distinct = np.array(list(rows), dtype=np.float64).reshape(len(rows), 3)
    return distinct[:, 0].copy(), distinct[:, 1].copy(), distinct[:, 2].copy()


def _worth(
    total: FloatArray, sqr: FloatArray | float, var: FloatArray | float, init_batch: FloatArray | float
) -> FloatArray:
    """M0 gain(M), with `efficiency.gain`: 1 where nothing can be said."""
    remaining = sqr + var * (init_batch / total)
    known = remaining > 0  # false for NaN
    if not known.all():
        var, sqr = np.where(known, var, 0.0), np.where(known, sqr, 1.0)
        remaining = np.where(known, remaining, 1.0)
    return np.asarray(init_batch * (var + sqr) / remaining)  # one formula: rounding must not depend on others


def _step_s(grad: FloatArray, sync: FloatArray | float, gamma: FloatArray | float) -> FloatArray:
    """As `throughput.step_s`, but powers are taken only where γ is not 1, as it often is."""
    if not isinstance(gamma, np.ndarray):
        return grad + sync if gamma == 1 else overlapped_s(grad, sync, gamma)
    step: FloatArray = grad + sync
    partly = np.flatnonzero(gamma[:, 0] != 1)
    if len(partly):
        step[partly] = overlapped_s(grad[partly], np.asarray(sync)[partly], gamma[partly])
    return step


def _sync_of(model: ThroughputModel, nodes: int, gpus: int) -> float:
    """`throughput.sync_s` in plain numbers."""
    if gpus < 2:
        return NO_SYNC_S
    if nodes > 1:
        return model.alpha_n + model.beta_n * (gpus - 2)
    return model.alpha_l + model.beta_l * (gpus - 2)
