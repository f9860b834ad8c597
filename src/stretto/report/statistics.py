"""How sure is a figure? Intervals over runs or jobs, and comparisons of the same jobs under two policies."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, stdtrit

from stretto.model.arrays import FloatArray

CONFIDENCE = 0.95
Basis = Literal["traces", "seeds", "jobs", "none"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the interval that holds it with 95 % confidence, NaN where nothing can be said."""

    value: float
    low: float
    high: float
    basis: Basis  # what varied: the interval says nothing about anything else
    count: int  # traces, seeds or jobs behind it

    @property
    def half_width(self) -> float:
        """Half the interval's width; NaN without one."""
        return (self.high - self.low) / 2


def exactly(value: float) -> Estimate:
    """A figure of which there is only one observation."""
    return Estimate(value, np.nan, np.nan, "none", 1)


def student(values: FloatArray, basis: Basis) -> Estimate:
    """Mean and Student's t interval over the finite values; no interval below two of them."""
    known = values[np.isfinite(values)]
    if known.size < 2:
        return exactly(float(known[0]) if known.size else np.nan)
    mean = float(known.mean())
    reach = float(stdtrit(known.size - 1, 0.5 + CONFIDENCE / 2)) * float(known.std(ddof=1)) / known.size**0.5
    return Estimate(mean, mean - reach, mean + reach, basis, int(known.size))


def student_ratio(above: FloatArray, below: FloatArray, basis: Basis) -> Estimate:
    """Ratio of two means over the same replicates, and its interval.

    The ratio estimator of survey sampling: Student's t on the residuals (above - R below) / mean(below). So
    what makes a replicate hard for both cancels. R is what a reader gets by dividing the two means.
    """
    both = np.isfinite(above) & np.isfinite(below)
    above, below = above[both], below[both]
    if not above.size or below.mean() <= 0:
        return exactly(np.nan)
    ratio = float(above.mean() / below.mean())
    spread = student((above - ratio * below) / below.mean(), basis)
    if spread.basis == "none":
        return exactly(ratio)
    reach = spread.half_width
    return Estimate(ratio, max(0.0, ratio - reach), ratio + reach, basis, spread.count)


def resampled_means(columns: FloatArray, draws: int = 0, seed: int = 0) -> FloatArray:
    """(draws, columns) means of `columns` (jobs, columns) over jobs drawn with replacement.

    All columns of one draw use the same jobs, so that differences between columns keep their pairing.
    `draws` of 0 takes 2,000, and fewer where there are so many jobs that the interval is steady anyway.
    """
    jobs = columns.shape[0]
    rng = np.random.default_rng(seed)
    draws = draws or int(np.clip(2e7 // max(jobs, 1), 200, 2_000))
    weights = (np.bincount(rng.integers(jobs, size=jobs), minlength=jobs) for _ in range(draws))
    return np.asarray(np.array([weight @ columns for weight in weights]) / jobs)


def bootstrap_mean(values: FloatArray) -> Estimate:
    """Mean and percentile bootstrap interval over jobs, of the finite values."""
    known = values[np.isfinite(values)]
    if known.size < 2:
        return exactly(float(known.mean()) if known.size else np.nan)
    low, high = np.quantile(resampled_means(known[:, None])[:, 0], _tails())
    return Estimate(float(known.mean()), float(low), float(high), "jobs", int(known.size))


def bootstrap_ratio(above: FloatArray, below: FloatArray) -> Estimate:
    """Ratio of two means over the same jobs, with a paired bootstrap interval over jobs."""
    both = np.isfinite(above) & np.isfinite(below)
    if not both.any() or below[both].mean() == 0:
        return exactly(np.nan)
    ratio = float(above[both].mean() / below[both].mean())
    if both.sum() < 2:
        return exactly(ratio)
    means = resampled_means(np.column_stack([above[both], below[both]]))
    low, high = np.quantile(means[:, 0] / np.where(means[:, 1] > 0, means[:, 1], np.nan), _tails())
    return Estimate(ratio, float(low), float(high), "jobs", int(both.sum()))


@dataclass(frozen=True, slots=True)
class Paired:
    """The same jobs under two policies, `ours` against `other`."""

    jobs: int  # that completed under both
    median_ratio: float  # of other over ours: above 1 the other is slower
    faster: float  # share of jobs that ours finished sooner
    slower: float  # share that ours finished later; the rest took the same time
    p_value: float  # one-sided Wilcoxon signed-rank, "ours is smaller"; NaN where all are equal


def paired(ours: FloatArray, other: FloatArray) -> Paired:
    """Compare job by job; a job counts as equal within a millionth."""
    both = np.isfinite(ours) & np.isfinite(other) & (ours > 0)
    ours, other = ours[both], other[both]
    if not ours.size:
        return Paired(0, np.nan, np.nan, np.nan, np.nan)
    difference = np.where(np.isclose(ours, other, rtol=1e-6, atol=0), 0.0, ours - other)
    return Paired(
        jobs=int(ours.size),
        median_ratio=float(np.median(other / ours)),
        faster=float((difference < 0).mean()),
        slower=float((difference > 0).mean()),
        p_value=signed_rank_p(difference),
    )


def signed_rank_p(difference: FloatArray) -> float:
    """One-sided p of Wilcoxon's signed-rank test that `difference` is centred below 0.

    Zeros are dropped, ties share their mean rank, and the normal approximation with tie correction is used
    whatever the size. Below about ten jobs it is rough.
    """
    moved = difference[difference != 0]
    if not moved.size:
        return float("nan")
    _, where, many = np.unique(np.abs(moved), return_inverse=True, return_counts=True)
    last = np.cumsum(many)
    ranks = (last - (many - 1) / 2)[where]
    n = moved.size
    expected = n * (n + 1) / 4
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((many**3 - many).sum()) / 48
    return float(ndtr((float(ranks[moved > 0].sum()) - expected) / variance**0.5))


def binned_mean(times_s: FloatArray, values: FloatArray, edges_s: FloatArray) -> FloatArray:
    """(bins, columns) time-weighted means of step series `values` (points, columns) between `edges_s`.

    A value holds from its time until the next; before the first and after the last there is 0.
    """
    if times_s.size < 2:
        return np.zeros((edges_s.size - 1, values.shape[1]))
    weighted = values[:-1] * np.diff(times_s)[:, None]
    area = np.vstack([np.zeros((1, values.shape[1])), np.cumsum(weighted, axis=0)])
    at_edges = np.column_stack([np.interp(edges_s, times_s, column) for column in area.T])
    width = np.diff(edges_s)[:, None]
    return np.divide(
        np.diff(at_edges, axis=0), width, out=np.zeros((width.size, values.shape[1])), where=width > 0
    )


def _tails() -> tuple[float, float]:
    return (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
