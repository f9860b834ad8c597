"""How long a whole training takes on some GPUs with a fixed batch size."""

import numpy as np

from stretto.catalogue.models import CatalogueModel
from stretto.estimate.throughput import iteration_s
from stretto.model.arrays import FloatArray, IntArray

PHASES = np.linspace(0.05, 0.95, 10)  # of the training, over which the noise scale is averaged


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
    noise = model.noise_scale(PHASES)
    gain = (noise / model.init_batch + 1) / (noise / batches[:, None] + 1)
    runtime_s = model.steps * (1 / gain).mean(axis=1) * step_s
    return np.where(local >= on.min_local, runtime_s, np.inf)
