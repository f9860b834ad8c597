"""How many GPUs some jobs hold together, which is asked all the time."""

from dataclasses import dataclass, field

import numpy as np

from stretto.model import BoolArray, IntArray, JobId, Placement, Why

ANY = -1  # of every type


@dataclass
class Limit:
    """Some jobs hold at most so many GPUs together."""

    rows: BoolArray  # (jobs,)
    kind: int  # GPUs of this type; ANY: of all
    most: int
    why: Why
    evidence: str
    queue: str = ""
    staying: int = 0  # GPUs of jobs that are in no row: they count beside, and nobody can take them
    ever: int | None = None  # GPUs that a job of the queue could have at best; None: as many as it needs
    summed: tuple[Placement, int] | None = field(default=None, init=False)  # GPUs that its rows last held


@dataclass
class Holdings:
    """Remembers what it counted of the last placement. row_of: of every job."""

    row_of: dict[JobId, int]
    _known: tuple[Placement, IntArray, IntArray] | None = None

    def columns(self, placement: Placement) -> tuple[IntArray, IntArray]:
        """(jobs,) GPUs that a placement gives each job, and their type; remembered of the last placement."""
        if self._known is not None and self._known[0] is placement:
            return self._known[1:]
        touched = None if self._known is None else placement.touched_since(self._known[0])
        if self._known is None or touched is None:
            touched = tuple(placement)
            gpus, kind = np.zeros(len(self.row_of), dtype=np.int64), np.full(len(self.row_of), ANY)
        else:
            gpus, kind = self._known[1].copy(), self._known[2].copy()
        for name in touched:
            row, held = self.row_of.get(name), placement.get(name)
            if row is not None:
                gpus[row], kind[row] = (held.gpus, held.kind) if held is not None else (0, ANY)
        self._known = placement, gpus, kind
        return gpus, kind

    def holding(self, limit: Limit, placement: Placement) -> IntArray:
        """Rows of those that are limited and hold GPUs of the type."""
        gpus, kind = self.columns(placement)
        holds = limit.rows & (gpus > 0)
        return np.flatnonzero(holds if limit.kind == ANY else holds & (kind == limit.kind))

    def total(self, limit: Limit, placement: Placement) -> int:
        """GPUs that those who are limited hold; asked for every job that has to wait, it is remembered."""
        if limit.summed is None or limit.summed[0] is not placement:
            held = int(self.columns(placement)[0][self.holding(limit, placement)].sum())
            limit.summed = placement, held
        return limit.summed[1]
