"""How many GPUs, and for how long: what is published about Philly's jobs, and draws that agree with it.

Figures are those of the table of 82,247 jobs that Sia's authors made of the Philly trace (Jeon et al., ATC
2019). Outcomes are from Helios (Hu et al., SC 2021), since that table has none.
"""

from functools import cache

import numpy as np

from stretto.model.arrays import FloatArray, IntArray, floats, ints
from stretto.traces.workload import Outcome

GPUS = ints([1, 2, 4, 8, 16, 32])
SHARE_OF_JOBS = floats([93.17, 2.21, 2.27, 2.00, 0.24, 0.08])  # %; 0.03 % have other numbers
SHARE_OF_GPU_HOURS = floats([18.1, 3.2, 16.7, 48.4, 11.5, 1.8])  # %
MEAN_DURATION_S = 13_136.0

PROBABILITY = floats([0.0, 0.05, 0.25, 0.50, 0.75, 0.90, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0])
DURATION_S = floats(
    [1, 48, 115, 1_144, 2_932, 11_265, 43_646, 147_809, 254_758, 430_369, 1_186_277, 4_628_226]
)

OUTCOMES = (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED)
SHARE_OF_OUTCOMES = floats([0.624, 0.221, 0.155])  # of the GPU jobs of four clusters


def draw_gpus(jobs: int, most: int, rng: np.random.Generator) -> IntArray:
    """(jobs,) GPUs asked for; numbers above `most` do not occur."""
    fits = most >= GPUS
    share = np.where(fits, SHARE_OF_JOBS, 0.0)
    return ints(rng.choice(GPUS, size=jobs, p=share / share.sum()))


def draw_durations_s(gpus: IntArray, rng: np.random.Generator) -> FloatArray:
    """(jobs,) whole seconds, at least 1. Jobs on many GPUs run longer, such that shares of GPU time agree.

    Of all jobs, durations have the published quantiles, log-linear between them. A job on g GPUs takes the
    quantile at u for u uniform below 1/2, and at 1/2 + (2u - 1)^(1/k) / 2 above: k > 1 moves the longer half
    of the jobs towards the long end. k is solved for each g so that the mean duration is what the shares of
    jobs and GPU hours imply.
    """
    uniform = rng.random(len(gpus))
    power = tilts()[np.searchsorted(GPUS, gpus)]
    return np.maximum(np.floor(_quantile_s(_tilted(uniform, power))), 1.0)


def draw_outcomes(jobs: int, rng: np.random.Generator) -> list[Outcome]:
    """(jobs,) how they end, independently of all else; in the logs, longer jobs are cancelled more often."""
    return [OUTCOMES[index] for index in rng.choice(len(OUTCOMES), size=jobs, p=SHARE_OF_OUTCOMES)]


@cache
def tilts() -> FloatArray:
    """(sizes,) k for each number of GPUs."""
    grid = (np.arange(100_000) + 0.5) / 100_000
    ratio = (SHARE_OF_GPU_HOURS / 100) / (SHARE_OF_JOBS / 100 * GPUS)
    all_gpu_hours = (SHARE_OF_JOBS / 100 * GPUS * ratio).sum()  # 1 but for rounding and rare sizes
    # Mean over jobs of duration is known, so ratio x (GPU time per job) is the mean duration of each size.
    mean_s = MEAN_DURATION_S * ratio / (SHARE_OF_JOBS / 100 * ratio).sum() * all_gpu_hours
    return floats([_power_for(float(mean), grid) for mean in mean_s])


def _power_for(mean_s: float, grid: FloatArray) -> float:
    from scipy.optimize import brentq  # takes a third of a second to import, and only one kind of trace asks

    def excess(log_power: float) -> float:
        return float(_quantile_s(_tilted(grid, np.exp(log_power))).mean()) - mean_s

    return float(np.exp(brentq(excess, -3.0, 5.0)))


def _tilted(uniform: FloatArray, power: FloatArray | float) -> FloatArray:
    upper = np.maximum(2 * uniform - 1, 0.0)
    return np.where(uniform < 0.5, uniform, 0.5 + upper ** (1 / power) / 2)


def _quantile_s(probability: FloatArray) -> FloatArray:
    return np.exp(np.interp(probability, PROBABILITY, np.log(DURATION_S)))
