"""How noisy the gradients are, and what a larger batch is therefore worth.

|µ|² is the squared norm of the true gradient, σ² the variance of a mini-batch gradient of M0 samples, summed
over its components. Pollux (Qiao et al., OSDI 2021), section 3.1; McCandlish et al. (2018), appendix A.1.
"""

from dataclasses import dataclass
from math import isfinite, nan

SMOOTHING = (
    0.999  # weight of the past for each batch of M0 samples that has passed since; chosen, as Pollux's code
)
LEAST_SMOOTHING = 0.98  # chosen: where few steps are measured, about fifty measurements still count


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement; unbiased, so that either may be negative."""

    sqr: float  # |µ|²
    var: float  # variance of a gradient of `size` samples
    size: float  # samples

    @property
    def is_usable(self) -> bool:
        """False after an overflow, which mixed precision meets now and then."""
        return isfinite(self.sqr) and isfinite(self.var)


def between(sum_of_sqr: float, sqr_of_mean: float, count: int, size: float) -> Sample:
    """From `count` >= 2 gradients of `size` samples each: Σ|g_i|² and |ḡ|² say all.

    σ̂² = (Σ|g_i|² - n|ḡ|²)/(n-1) and |µ̂|² = |ḡ|² - σ̂²/n.
    """
    var = (sum_of_sqr - count * sqr_of_mean) / (count - 1)
    return Sample(sqr_of_mean - var / count, var, size)


def differenced(sqr_before: float, sqr_now: float, product: float, size: float) -> Sample:
    """From the gradients of two steps in a row, with their inner product: one worker with one micro-batch.

    The two are taken as drawn at the same parameters, so that this is `between` with n = 2. The step between
    them makes |µ|² a little too small and σ² a little too large, by the order of the learning rate.
    """
    return between(sqr_before + sqr_now, (sqr_before + sqr_now + 2 * product) / 4, 2, size)


@dataclass(frozen=True, slots=True)
class Noise:
    """What the measurements say together: means that forget slowly."""

    sqr_sum: float = 0.0
    var_sum: float = 0.0  # of a gradient of M0 samples
    weight: float = 0.0  # of all measurements; 0 before the first

    def with_sample(self, sample: Sample, initial: int, batches: float) -> "Noise":
        """These and one more, `batches` batches of M0 = `initial` samples after the last one."""
        if not sample.is_usable:
            return self
        keep = max(LEAST_SMOOTHING, SMOOTHING ** max(1.0, batches))
        return Noise(
            keep * self.sqr_sum + (1 - keep) * sample.sqr,
            keep * self.var_sum + (1 - keep) * sample.var * sample.size / initial,
            keep * self.weight + (1 - keep),
        )

    @property
    def sqr(self) -> float:
        """|µ|², at least 0; NaN before the first measurement."""
        return max(0.0, self.sqr_sum / self.weight) if self.weight else nan

    @property
    def var(self) -> float:
        """σ² of M0 samples, at least 0; NaN before the first measurement."""
        return max(0.0, self.var_sum / self.weight) if self.weight else nan

    def gain(self, scale: float) -> float:
        """What a step of `scale` times M0 samples is worth in steps of M0: (σ² + |µ|²)/(σ²/k + |µ|²).

        1 while nothing is known, or where gradient and noise are both 0.
        """
        if not self.weight:
            return 1.0
        below = self.var / scale + self.sqr
        if below <= 0.0:
            return 1.0
        return (self.var + self.sqr) / below
