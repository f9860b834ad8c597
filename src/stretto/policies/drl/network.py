"""What a learned sizing policy sees of a job, and the network that rates what may be done with it.

One network of two hidden layers rates every job with the same weights, and with them the choice to stop.
Weights for each place in a list of jobs would, with little training, have learned nothing of most places.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stretto.model import BoolArray, FloatArray, InputError

GROW, SHRINK = 0, 1  # columns of the ratings; the last row stands for stopping, and has the first only
FEATURES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What is known of some jobs. Columns are (…, jobs); scalars of the cluster (…, 1)."""

    held: FloatArray  # GPUs
    more: FloatArray  # GPUs that the next larger count adds; 0: there is none
    waited_s: FloatArray  # since submission, while it has not run
    executed_s: FloatArray
    attained_gpu_s: FloatArray
    efficiency: FloatArray  # speed for each GPU held, over that on the fewest; 1 where it waits
    gain: FloatArray  # speed added for each GPU of the next count, over that on the fewest
    free: FloatArray  # GPUs
    total: FloatArray  # GPUs
    waiting: FloatArray  # jobs that hold nothing, also those that are not shown


def features(seen: Seen) -> FloatArray:
    """(…, jobs + 1, FEATURES): a row for each job, and one for the choice to stop."""
    waits = (seen.held == 0).astype(np.float64)
    share = seen.free / seen.total
    waiting = np.log1p(seen.waiting) / 4
    # Logarithms and fractions bring all features to about 1.
    columns = [
        waits,
        seen.held / seen.total,
        np.log1p(seen.held) / 3,
        seen.more / seen.total,
        np.log1p(seen.waited_s) / 10,
        np.log1p(seen.executed_s) / 10,
        np.log1p(seen.attained_gpu_s) / 12,
        seen.efficiency,
        seen.gain,
        np.broadcast_to(share, seen.held.shape),
        np.broadcast_to(waiting, seen.held.shape),
        np.zeros_like(seen.held),
    ]
    jobs = np.stack(columns, axis=-1)
    stop = np.zeros((*jobs.shape[:-2], 1, FEATURES))
    stop[..., 0, 9], stop[..., 0, 10], stop[..., 0, 11] = share[..., 0], waiting[..., 0], 1.0
    return np.concatenate((jobs, stop), axis=-2)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Weights and biases, layer by layer: FEATURES -> hidden -> hidden -> 2."""

    layers: tuple[FloatArray, ...]  # weight, bias, weight, bias, weight, bias

    def ratings(self, rows: FloatArray) -> FloatArray:
        """(…, rows, 2) logits of growing and of shrinking."""
        first, bias1, second, bias2, last, bias3 = self.layers
        hidden = np.maximum(rows @ first + bias1, 0.0)
        hidden = np.maximum(hidden @ second + bias2, 0.0)
        rated: FloatArray = hidden @ last + bias3
        return rated


def logits(network: Network, rows: FloatArray, may_grow: BoolArray, may_shrink: BoolArray) -> FloatArray:
    """(…, 2 jobs + 1) ratings of growing each, shrinking each, and stopping; -inf where not allowed.

    rows: as of `features`; may_grow, may_shrink: (…, jobs).
    """
    rated = network.ratings(rows)
    grow = np.where(may_grow, rated[..., :-1, GROW], -np.inf)
    shrink = np.where(may_shrink, rated[..., :-1, SHRINK], -np.inf)
    return np.concatenate((grow, shrink, rated[..., -1:, GROW]), axis=-1)


def read_network(path: Path) -> Network:
    """The weights in a file as `write_network` leaves it; InputError for anything else."""
    try:
        with np.load(path) as arrays:
            layers = tuple(np.asarray(arrays[f"layer{index}"], dtype=np.float64) for index in range(6))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: expected the weights of a trained network, got {error}") from error
    if layers[0].ndim != 2 or layers[0].shape[0] != FEATURES or layers[4].shape[-1] != 2:
        raise InputError(f"{path}: expected {FEATURES} features and 2 ratings, got {layers[0].shape}")
    return Network(layers)


def write_network(path: Path, network: Network) -> None:
    """Store the weights, in single precision."""
    arrays = {f"layer{at}": layer.astype(np.float32) for at, layer in enumerate(network.layers)}
    np.savez_compressed(path, allow_pickle=False, **arrays)
