"""Shares said by name, for tests of placers."""

from collections.abc import Mapping, Sequence

import numpy as np

from stretto.model import IntArray, Pinned, Shares, Snapshot, Why, ints
from stretto.model.plan import waiting_for


def shares_of(
    snapshot: Snapshot,
    gpus: Mapping[str, int],
    kind: Mapping[str, int] | None = None,
    nodes: Mapping[str, int] | None = None,
    pinned: Mapping[str, Pinned] | None = None,
    order: Sequence[str] | None = None,
    in_order: bool = False,
) -> Shares:
    """Shares of the jobs named; a job that is not named waits."""
    ids: list[str] = [str(job) for job in snapshot.jobs.ids]

    def column(values: Mapping[str, int] | None, absent: int) -> IntArray:
        return ints([(values or {}).get(job, absent) for job in ids])

    return Shares(
        gpus=column(gpus, 0),
        kind=column(kind, -1),
        nodes=column(nodes, 0),
        why=waiting_for(Why.NO_FREE_GPUS, len(ids)),
        pinned={ids.index(job): pin for job, pin in (pinned or {}).items()},
        order=None if order is None else np.array([ids.index(job) for job in order], dtype=np.int64),
        in_order=in_order,
    )
