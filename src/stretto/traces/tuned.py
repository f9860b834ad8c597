"""What an owner who has tuned a job would ask for: GPUs and batch size that use neither too few nor too many.

TunedJobs of Sia (SOSP 2023), section 4.3: of all (batch size, GPUs) those whose runtime is 50 to 80 % of the
ideal speed-up over one GPU with its best batch size; one of them at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.catalogue import CatalogueModel
from stretto.estimate.throughput import iteration_s
from stretto.model.arrays import FloatArray, IntArray, ints

LEAST, MOST = 0.5, 0.8  # of the ideal speed-up
MOST_GPUS_HETERO = 16  # Sia: no more GPUs than this on mixed clusters
MOST_GPUS_HOMO = 64  # and than this on uniform ones
_PHASES = np.linspace(0.05, 0.95, 10)  # of the training, over which the noise scale is averaged


@dataclass(frozen=True)
class Request:
    """What one may ask for, and what comes of it."""

    gpus: int
    batch_size: int
    runtime_s: float  # of a whole training
    share_of_ideal: float  # speed-up over one GPU at its best batch size, per GPU


def requests(model: CatalogueModel, gpu_type: str, gpus_per_node: int, most_gpus: int) -> Sequence[Request]:
    """Every even number of GPUs with every batch size (a power of two times the initial one) that can run."""
    doublings = int(np.log2(model.max_batch / model.init_batch))
    batches = model.init_batch * 2 ** np.arange(doublings + 1)
    alone_s = float(runtimes_s(model, gpu_type, gpus_per_node, ints([1]), batches).min())
    counts = np.arange(2, most_gpus + 1, 2)
    table = runtimes_s(model, gpu_type, gpus_per_node, counts, batches)
    return [
        Request(int(count), int(batch), float(runtime_s), float(alone_s / runtime_s / count))
        for count, row in zip(counts, table, strict=True)
        for batch, runtime_s in zip(batches, row, strict=True)
        if np.isfinite(runtime_s)
    ]


def draw_request(found: Sequence[Request], rng: np.random.Generator) -> Request:
    """One of those within the limits at random; where there is none, the one nearest to them."""
    within = [one for one in found if LEAST <= one.share_of_ideal <= MOST]
    if within:
        return within[int(rng.integers(len(within)))]
    middle = (LEAST + MOST) / 2
    return min(found, key=lambda one: (abs(one.share_of_ideal - middle), one.gpus, one.batch_size))


def runtimes_s(
    model: CatalogueModel, gpu_type: str, gpus_per_node: int, gpus: IntArray, batches: IntArray
) -> FloatArray:
    """(gpus, batches) seconds of a whole training on full nodes; infinite where the batch does not split.

    Gradients are accumulated as often as memory requires. A GPU gets no fewer samples than were measured.
    """
    on = model.on(gpu_type)
    local = np.ceil(batches[None, :] / gpus[:, None])
    accumulation = np.ceil(local / on.max_local) - 1
    local = np.ceil(local / (accumulation + 1))
    nodes = np.ceil(gpus[:, None] / gpus_per_node)
    step_s = iteration_s(on.params, nodes, gpus[:, None], local, accumulation)
    noise = model.noise_scale(_PHASES)
    gain = (noise / model.init_batch + 1) / (noise / batches[:, None] + 1)
    runtime_s = model.steps * (1 / gain).mean(axis=1) * step_s
    return np.where(local >= on.min_local, runtime_s, np.inf)
