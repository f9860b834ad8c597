"""A seeded family of multiple-choice knapsacks like those of a scheduler, for benchmarks and tests."""

import numpy as np

from stretto.solve.arrays import BoolArray, IntArray
from stretto.solve.program import MultipleChoiceKnapsack

NODE_GPUS = 8  # chosen: the usual server
MOST_NODES_PER_JOB = 64  # chosen, as the sizes below: about 60 columns at 100,000 GPUs of four types
EVERY_COUNT_UP_TO_NODES = 8  # above it only powers of two


def instance(
    jobs: int,
    gpus: int,
    types: int,
    seed: int,
    large_minimum_share: float = 0.4,
    forced_share: float = 0.05,
) -> MultipleChoiceKnapsack:
    """Draw a problem in which `jobs` rows compete for about `gpus` GPUs of `types` types.

    A job is worth its weight times a concave speed-up, times how well each type suits it. Sizes are powers
    of two within a node, then whole nodes. A large minimum (4 GPUs up to 2 nodes) makes a job lumpy: it is
    what separates the best choice from its relaxation. Forced choices take at most half of each type.
    """
    rng = np.random.default_rng(seed)
    capacity = _nodes_per_type(gpus, types) * NODE_GPUS
    kind, size = _configurations(capacity)

    # Worth: weight, how well the type suits, and a concave speed-up.
    weight = rng.lognormal(0.0, 0.5, jobs)
    speed_exponent = rng.uniform(0.5, 0.95, jobs)  # speed-up on g GPUs is g ** exponent
    suits = rng.uniform(0.3, 1.0, (jobs, types))
    value = weight[:, None] * suits[:, kind] * size ** speed_exponent[:, None]

    # Range of sizes, and what is forced.
    is_large = rng.random(jobs) < large_minimum_share
    least = np.where(is_large, rng.choice([4, 8, 16], jobs), 1)
    most = least * 2 ** rng.integers(0, 5, jobs)
    allowed = (size >= least[:, None]) & (size <= most[:, None])
    wants_forced = rng.random(jobs) < forced_share
    forced = _forced_within_half(wants_forced, allowed, size, kind, capacity, rng)
    return MultipleChoiceKnapsack(np.where(allowed, value, -np.inf), allowed, size, kind, capacity, forced)


def _nodes_per_type(gpus: int, types: int) -> IntArray:
    nodes = max(gpus // NODE_GPUS, types)
    return np.array([nodes // types + (t < nodes % types) for t in range(types)], dtype=np.int64)


def _configurations(capacity: IntArray) -> tuple[IntArray, IntArray]:
    """Type and GPUs of each column: by type, then by GPUs."""
    within_node = [2**a for a in range(NODE_GPUS.bit_length())]
    columns: list[tuple[int, int]] = []
    for kind, limit in enumerate(capacity.tolist()):
        most_nodes = min(limit // NODE_GPUS, MOST_NODES_PER_JOB)
        nodes = [n for n in range(2, most_nodes + 1) if n <= EVERY_COUNT_UP_TO_NODES or n & (n - 1) == 0]
        columns += [(kind, count) for count in within_node + [n * NODE_GPUS for n in nodes]]
    kinds, sizes = zip(*columns, strict=True)
    return np.array(kinds, dtype=np.int64), np.array(sizes, dtype=np.int64)


def _forced_within_half(
    wants: BoolArray,
    allowed: BoolArray,
    size: IntArray,
    kind: IntArray,
    capacity: IntArray,
    rng: np.random.Generator,
) -> IntArray:
    forced = np.full(wants.size, -1, dtype=np.int64)
    left = capacity // 2
    for row in np.flatnonzero(wants).tolist():
        fitting = np.flatnonzero(allowed[row] & (size <= left[kind]))
        if fitting.size:
            forced[row] = rng.choice(fitting)
            left[kind[forced[row]]] -= size[forced[row]]
    return forced
