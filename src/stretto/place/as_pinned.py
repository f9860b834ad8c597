"""Where the policy says, and nowhere else."""

from dataclasses import dataclass

from stretto.model import Placement, Shares, Snapshot
from stretto.place.consolidate import on_any_nodes, on_fewest_nodes
from stretto.place.fill import fill


@dataclass(frozen=True)
class AsPinned:
    """For policies that choose nodes themselves (Pollux, ONES).

    A share without a pin is placed as by Relaxed.
    """

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every pin, then every other share for which the GPUs are there."""
        return fill(snapshot, shares, (on_fewest_nodes, on_any_nodes))
