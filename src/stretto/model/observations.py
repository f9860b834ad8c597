"""What has been measured of one job's speed on one GPU type."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Point(NamedTuple):
    """One measured operating point."""

    nodes: int
    gpus: int
    local_batch: int  # samples on each GPU in one forward and backward pass
    grad_s: float  # one pass without synchronisation
    step_s: float  # one pass with it


@dataclass(frozen=True, slots=True)
class Observations:
    """Distinct operating points with their times: a value, equal and hashed by content.

    The points are kept sorted, so that the order of measuring does not matter. The hash is computed once:
    observations are keys of memo tables on a hot path.
    """

    points: tuple[Point, ...] = ()
    seen: frozenset[tuple[int, int, int]] = field(default=frozenset(), compare=False, repr=False)
    hashed: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Sort, index and hash."""
        object.__setattr__(self, "points", tuple(sorted(self.points)))
        object.__setattr__(self, "seen", frozenset(point[:3] for point in self.points))
        object.__setattr__(self, "hashed", hash(self.points))

    def __hash__(self) -> int:
        """Of the content."""
        return self.hashed

    def __len__(self) -> int:
        """The number of distinct operating points."""
        return len(self.points)

    def with_point(self, point: Point) -> "Observations":
        """These and one more; the same object where that operating point was seen before."""
        if point[:3] in self.seen:
            return self
        return Observations((*self.points, point))

    @property
    def largest_gpus(self) -> int:
        """Most GPUs on which anything was measured; 0 before the first point."""
        return max((point.gpus for point in self.points), default=0)


NOTHING_OBSERVED = Observations()
