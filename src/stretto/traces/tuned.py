"""What an owner who has tuned a job would ask for: GPUs and batch size that use neither too few nor too many.

TunedJobs of Sia (SOSP 2023), section 4.3: of all (batch size, GPUs) those whose runtime is 50 to 80 % of the
ideal speed-up over one GPU with its best batch size; one of them at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.catalogue import CatalogueModel, runtimes_s
from stretto.model.arrays import ints

LEAST, MOST = 0.5, 0.8  # of the ideal speed-up
MOST_GPUS_HETERO = 16  # Sia: no more GPUs than this on mixed clusters
MOST_GPUS_HOMO = 64  # and than this on uniform ones


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
