"""How much is one sample worth at another batch size?

The statistical efficiency of large batches from the noise of the gradient. M0 is the batch that the user
tuned for. `grad_sqr` = |µ|² is the squared norm of the true gradient. `grad_var` = σ² is the variance of a
gradient averaged over M0 samples. Then

    φ = M0 σ² / |µ|²                                   the noise scale
    gain(M) = (σ² + |µ|²) / (σ² M0/M + |µ|²)           iterations of M0 that one iteration of M is worth
    eff(M)  = gain(M) M0/M = (φ + M0) / (φ + M)        the same per sample

Pollux (OSDI 2021), section 3.1; gain: AdaScale SGD (Johnson et al., ICML 2020).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stretto.errors import InputError
from stretto.model.arrays import FloatArray


class GradientNoise(NamedTuple):
    """What gradients of one job have shown, at its initial batch size."""

    sqr: float  # |µ|², squared norm of the true gradient
    var: float  # σ², variance of the gradient of M0 samples


# Of a job that only infers: to noise without end every item counts the same, so that goodput is throughput
# (Sia, SOSP 2023, section 3.4).
NOISE_OF_INFERENCE = GradientNoise(sqr=0.0, var=1.0)


def noise_scale(init_batch: npt.ArrayLike, grad_var: npt.ArrayLike, grad_sqr: npt.ArrayLike) -> FloatArray:
    """φ in samples; infinite where the true gradient vanishes."""
    batch, var, sqr = (np.asarray(a, dtype=np.float64) for a in (init_batch, grad_var, grad_sqr))
    return np.where(sqr > 0, batch * var / np.where(sqr > 0, sqr, 1.0), np.inf)


def gain(
    total_batch: npt.ArrayLike, init_batch: npt.ArrayLike, grad_var: npt.ArrayLike, grad_sqr: npt.ArrayLike
) -> FloatArray:
    """Iterations of the initial batch that one of `total_batch` is worth; 1 where nothing can be said.

    Nothing can be said where the denominator is not positive (estimates of |µ|² may be negative).
    """
    var, sqr = np.asarray(grad_var, dtype=np.float64), np.asarray(grad_sqr, dtype=np.float64)
    remaining = var * np.asarray(init_batch) / np.asarray(total_batch) + sqr
    known = remaining > 0
    return np.where(known, (var + sqr) / np.where(known, remaining, 1.0), 1.0)


def efficiency(
    total_batch: npt.ArrayLike, init_batch: npt.ArrayLike, grad_var: npt.ArrayLike, grad_sqr: npt.ArrayLike
) -> FloatArray:
    """Worth of a sample in a batch of `total_batch`, in samples of the initial batch."""
    worth = gain(total_batch, init_batch, grad_var, grad_sqr)
    return np.asarray(worth * np.asarray(init_batch) / np.asarray(total_batch))


def noise_of_gradients(
    norms_sqr: Sequence[float], mean_norm_sqr: float, samples_each: int, init_batch: int
) -> GradientNoise:
    """Unbiased estimates from the gradients of one step.

    norms_sqr: |g_i|² of n ≥ 2 gradients (one per replica and accumulation pass), each averaged over
    `samples_each` samples; mean_norm_sqr: |ḡ|² of their mean. With Σ|g_i - ḡ|² = Σ|g_i|² - n|ḡ|²,

        σ_m² = Σ|g_i - ḡ|² / (n - 1),   |µ|² = |ḡ|² - σ_m²/n,   σ² = σ_m² m/M0

    `sqr` may come out negative. Raises `InputError` for fewer than two gradients.
    """
    count = len(norms_sqr)
    if count < 2:
        raise InputError(f"gradient noise needs at least 2 gradients, got {count}")
    scatter = max(sum(norms_sqr) - count * mean_norm_sqr, 0.0) / (count - 1)
    return GradientNoise(sqr=mean_norm_sqr - scatter / count, var=scatter * samples_each / init_batch)


def noise_of_successive(
    before_sqr: float, now_sqr: float, difference_sqr: float, samples_each: int, init_batch: int
) -> GradientNoise:
    """The same for one GPU without accumulation, from the gradients of two successive steps.

    |g|², |g'|² and |g - g'|²: the two serve as replicas, as though the weights had not moved between them.
    """
    both = before_sqr + now_sqr
    return noise_of_gradients(
        (before_sqr, now_sqr), (2 * both - difference_sqr) / 4, samples_each, init_batch
    )


def smoothed(
    before: GradientNoise, now: GradientNoise, weight_before: float, scale: float, decay: float = 0.999
) -> tuple[GradientNoise, float]:
    """Exponential average of noise estimates, and the weight to pass next time (start with 0).

    `scale` = M/M0: a step of k initial batches forgets like k steps of one (`decay` each: chosen, after
    Pollux's published code). The weight removes the bias of starting from nothing.
    """
    keep = decay**scale
    weight = keep * weight_before + (1 - keep)
    part = (1 - keep) / weight
    return GradientNoise(
        sqr=before.sqr + part * (now.sqr - before.sqr), var=before.var + part * (now.var - before.var)
    ), weight
