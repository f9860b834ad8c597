"""Speeds that were measured beforehand, looked up for configurations: one row of a matrix of speeds."""

from functools import lru_cache

import numpy as np

from stretto.model import Configurations, FloatArray, MeasuredSpeeds, frozen


@lru_cache(maxsize=65_536)
def table_row(table: MeasuredSpeeds, configurations: Configurations, per_node: tuple[int, ...]) -> FloatArray:
    """(configs,) a table at every configuration; nodes beyond the fewest possible count as spread."""
    gpus = np.minimum(configurations.gpus, table.per_s.shape[1] - 1)
    fewest = -(-configurations.gpus // np.array(per_node)[configurations.kind])
    consolidated = table.per_s[configurations.kind, gpus]
    spread = table.spread_per_s[configurations.kind, gpus]
    per_s = np.where(configurations.nodes > fewest, spread, consolidated)
    return frozen(np.where(configurations.gpus < table.per_s.shape[1], per_s, np.nan))


def requested_row(table: MeasuredSpeeds, gpus: int) -> FloatArray:
    """(types,) speed on exactly so many GPUs."""
    return table.per_s[:, gpus] if gpus < table.per_s.shape[1] else np.full(len(table.per_s), np.nan)
