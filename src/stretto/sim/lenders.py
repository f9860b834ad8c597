"""Who lends nodes in the simulated world, and how much of them they use themselves."""

from dataclasses import dataclass
from math import nan

import numpy as np

from stretto.model import FloatArray, IntArray, LenderState

ROUNDING = 1e-9  # of periods and servers: what lies so close to a whole number is that number


@dataclass(frozen=True, eq=False)
class SimulatedLender:
    """A lender whose own use is known beforehand to the world, and to nobody else."""

    name: str
    nodes: IntArray  # (servers,) indices into the cluster's nodes
    headroom: float  # share of its servers that it never lends
    period_s: float  # of `demand`
    demand: FloatArray  # (periods,) share of its servers in use; after the last everything stays as it is

    def at(self, now_s: float) -> int:
        """The index of the period that a moment lies in."""
        return min(int(now_s / self.period_s + ROUNDING), len(self.demand) - 1)

    def state(self, now_s: float, foresight: bool) -> LenderState:
        """What it shows of itself; with foresight also what comes: the most of this period and the next."""
        here = self.at(now_s)
        coming = float(self.demand[here : here + 2].max()) if foresight else nan
        seen = self.demand[: here + 1]
        return LenderState(self.name, self.nodes, self.headroom, self.period_s, seen, coming)

    def servers_needed(self) -> IntArray:
        """(periods,) servers that it uses itself."""
        return np.ceil(self.demand * len(self.nodes) - ROUNDING).astype(np.int64)

    def next_change_s(self, now_s: float) -> float:
        """The start of the next period; infinite after the last."""
        after = int(now_s / self.period_s + ROUNDING) + 1
        return after * self.period_s if after < len(self.demand) else float("inf")


def shortfall_server_s(lender: SimulatedLender, at_s: FloatArray, on_loan: IntArray, until_s: float) -> float:
    """Server-seconds that a lender wanted for itself while they were on loan.

    at_s, on_loan: (changes,) from when on how many of its servers were on loan.
    """
    periods_s = np.arange(len(lender.demand)) * lender.period_s
    edges_s = np.unique(np.concatenate([at_s, periods_s, [0.0, until_s]]))
    edges_s = edges_s[edges_s <= until_s]
    begins_s, lasts_s = edges_s[:-1], np.diff(edges_s)
    needed = lender.servers_needed()[[lender.at(begin) for begin in begins_s.tolist()]]
    lent = np.concatenate([[0], on_loan])[np.searchsorted(at_s, begins_s, side="right")]
    return float((np.maximum(needed + lent - len(lender.nodes), 0) * lasts_s).sum())
