"""Who lends nodes in the simulated world, and how much of them they use themselves."""

from dataclasses import dataclass
from math import nan

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, LenderState

SETTLE_S = 300.0  # how often loans are settled, unless a rule says otherwise; Lyra, section 7.1
ROUNDING = 1e-9  # of periods and servers: what lies so close to a whole number is that number


@dataclass(frozen=True, eq=False)
class SimulatedLender:
    """A lender whose own use is known beforehand to the world, and to nobody else."""

    name: str
    nodes: IntArray  # (servers,) indices into the cluster's nodes
    headroom: float  # share of its servers that it never lends
    period_s: float  # of `demand`
    demand: FloatArray  # (periods,) share of its servers in use; after the last everything stays as it is
    source: str = ""  # where the demand comes from, in words

    def at(self, now_s: float) -> int:
        """The index of the period that a moment lies in."""
        return min(int(now_s / self.period_s + ROUNDING), len(self.demand) - 1)

    def state(
        self, now_s: float, foresight: bool, ahead_s: float | None = None, up: BoolArray | None = None
    ) -> LenderState:
        """What it shows of itself; with foresight also what comes: the most of the next `ahead_s`.

        ahead_s: None for a period of its own. up: (nodes,) those that have not failed, None for all; what
        failed ones served falls to the others.
        """
        here = self.at(now_s)
        until = self.at(now_s + (self.period_s if ahead_s is None else ahead_s))
        shown = self.demand[: (until if foresight else here) + 1]
        nodes = self.nodes
        if up is not None:
            nodes = nodes[up[nodes]]
            shown = np.minimum(shown * (len(self.nodes) / max(len(nodes), 1)), 1.0)
        coming = float(shown[here:].max()) if foresight else nan
        return LenderState(self.name, nodes, self.headroom, self.period_s, shown[: here + 1], coming)

    def servers_needed(self) -> IntArray:
        """(periods,) servers that it uses itself."""
        return np.ceil(self.demand * len(self.nodes) - ROUNDING).astype(np.int64)

    def next_change_s(self, now_s: float) -> float:
        """The start of the next period; infinite after the last."""
        after = int(now_s / self.period_s + ROUNDING) + 1
        return after * self.period_s if after < len(self.demand) else float("inf")


def shortfall_server_s(
    lender: SimulatedLender, at_s: FloatArray, on_loan: IntArray, until_s: float, from_s: float = 0.0
) -> float:
    """Server-seconds within [from_s, until_s] that a lender wanted for itself while they were on loan.

    at_s, on_loan: (changes,) from when on how many of its servers were on loan.
    """
    periods_s = np.arange(len(lender.demand)) * lender.period_s
    edges_s = np.unique(np.concatenate([at_s, periods_s, [from_s, until_s]]))
    edges_s = edges_s[(edges_s >= from_s) & (edges_s <= until_s)]
    begins_s, lasts_s = edges_s[:-1], np.diff(edges_s)
    needed = lender.servers_needed()[[lender.at(begin) for begin in begins_s.tolist()]]
    lent = np.concatenate([[0], on_loan])[np.searchsorted(at_s, begins_s, side="right")]
    return float((np.maximum(needed + lent - len(lender.nodes), 0) * lasts_s).sum())
