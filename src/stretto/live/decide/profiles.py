"""What short runs on one GPU of each type tell of a job before it starts, as a report says it.

`{"init_batch", "max_batch", "restart_s", "reach_gpus", "accumulates", "types": {NAME: {"min_local",
"max_local", "replica_gpus", "single_per_s", "over": {NAME: ratio}}}}`: samples per second of one replica at
its largest local batch, and how many times as fast as on another type it is at a batch that fits both.
"""

import json
from functools import lru_cache
from math import nan

import numpy as np

from stretto.model import TrainingLimits, frozen, ints


@lru_cache(maxsize=4096)
def limits_in(text: str, types: tuple[str, ...]) -> TrainingLimits:
    """The limits that a profile (its JSON) states; a type of which it says nothing runs nothing.

    Equal profiles give one object, since what is believed of a job is remembered by it.
    """
    said = json.loads(text)
    rows = [said["types"].get(name, {}) for name in types]
    ratio = [[row.get("over", {}).get(name, nan) for name in types] for row in rows]
    return TrainingLimits(
        init_batch=int(said["init_batch"]),
        max_batch=int(said["max_batch"]),
        min_local=ints([int(row.get("min_local", 0)) for row in rows]),
        max_local=ints([int(row.get("max_local", 0)) for row in rows]),
        single_per_s=frozen(np.array([_number(row.get("single_per_s")) for row in rows])),
        replica_gpus=ints([max(int(row.get("replica_gpus", 1)), 1) for row in rows]),
        restart_s=float(said["restart_s"]),
        reach_gpus=int(said["reach_gpus"]),
        single_ratio=frozen(np.array(ratio)) if any(row.get("over") for row in rows) else None,
        accumulates=bool(said.get("accumulates", True)),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else nan
