"""Why each job waits, in words, put together from several who say so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, IntArray, Reasons, Snapshot, Why


@dataclass(frozen=True, eq=False)
class Evidence(Mapping[int, str]):
    """What is said of each row, put in words when somebody reads it: thousands may wait."""

    where: Mapping[int, tuple[Mapping[int, str], int]]  # by row: who says it, and the row under which

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        words, at = self.where[row]
        return words[at]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.where)

    def __len__(self) -> int:
        """How many these are."""
        return len(self.where)


def too_large_for_a_part(code: IntArray, snapshot: Snapshot) -> BoolArray:
    """(jobs,) that a policy calls too large although the whole cluster has as many GPUs: it saw a part of it.

    code: values of Why, by row of the snapshot.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    asked = jobs.gpus[:, None] * cluster.stand_ins
    fits = (jobs.allowed_kinds & (asked <= cluster.capacity)).any(axis=1)
    found: BoolArray = (code == int(Why.TOO_LARGE)) & fits
    return found


def seen_from_the_whole(why: Reasons, snapshot: Snapshot) -> Reasons:
    """The reasons of a policy that saw a part of the cluster: what others hold of it may come free."""
    waits = too_large_for_a_part(why.code, snapshot)
    if not waits.any():
        return why
    code = np.where(waits, int(Why.NO_FREE_GPUS), why.code)
    return Reasons(code, Evidence({row: (why.evidence, row) for row in why.evidence if not waits[row]}))
