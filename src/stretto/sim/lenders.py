"""Lenders of the simulated world: how much of their nodes they use, and what came of lending (Lyra)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, IntArray, LenderState
from stretto.sim import metrics
from stretto.sim.history import History, Settled

SETTLE_S = 300.0  # how often loans are settled, unless a rule says otherwise; Lyra, section 7.1
ROUNDING = 1e-9  # of periods and servers: what lies so close to a whole number is that number


@dataclass(frozen=True, eq=False)
class SimulatedLender:
    """A lender whose own use is known beforehand to the world, and to nothing else."""

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

        ahead_s: None for a period of its own. up: (nodes,) those that have not failed, None for all. What
        failed ones served falls to the others.
        """
        here = self.at(now_s)
        until = self.at(now_s + (self.period_s if ahead_s is None else ahead_s))
        demand = self.demand[: (until if foresight else here) + 1]
        nodes = self.nodes
        if up is not None:
            nodes = nodes[up[nodes]]
            demand = np.minimum(demand * (len(self.nodes) / max(len(nodes), 1)), 1.0)
        coming = float(demand[here:].max()) if foresight else nan
        return LenderState(self.name, nodes, self.headroom, self.period_s, demand[: here + 1], coming)

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


# ── what came of lending: which job used what, which had to go, what the lender missed ────────────────────


def lending_figures(
    cluster: Cluster, lenders: Sequence[SimulatedLender], history: History, from_s: float, to_s: float
) -> dict[str, float]:
    """Figures of the summary by name, over [from_s, to_s]; NaN without lenders.

    usage_overall: GPU time in use, for training and by lenders themselves / of all GPUs. usage_on_loan: held
    by jobs / on loan. loan_preemption_ratio: jobs stopped / jobs running when nodes were asked back.
    collateral_damage: GPUs vacated beyond the demand / demanded. shortfall: lender servers that it lacked.
    """
    names = ("usage_overall", "usage_on_loan", "loan_preemption_ratio", "collateral_damage")
    if not lenders or not to_s > from_s:
        return dict.fromkeys((*names, "lender_shortfall_server_s"), nan)
    lent = np.unique(np.concatenate([cluster.kind[lender.nodes] for lender in lenders]))
    owned = cluster.kind[[not node.lender for node in cluster.nodes]]
    _, start_s, end_s, kind, gpus = history.columns()
    inside_s = np.maximum(np.minimum(end_s, to_s) - np.maximum(start_s, from_s), 0.0)
    held_gpu_s = np.bincount(kind, inside_s * gpus, len(cluster.types))
    used_gpu_s = sum(_used_gpu_s(cluster, lender, from_s, to_s) for lender in lenders)
    at_s, usable = zip(*history.capacity, strict=True)
    counts = np.array(usable, dtype=np.float64)
    on_loan_gpu_s = metrics.integral(np.array(at_s), counts[:, lent].sum(axis=1), from_s, to_s)
    asked_back = [settlement for settlement in history.settled if settlement.demanded_gpus]
    loans_at_s = np.array([settlement.at_s for settlement in history.settled])
    on_loan = np.array([settlement.on_loan for settlement in history.settled], dtype=np.int64)
    shortfall = shortfall_server_s(lenders[0], loans_at_s, on_loan, to_s, from_s)
    return {
        "usage_overall": metrics.usage(
            float(held_gpu_s.sum()) + used_gpu_s, cluster.total_gpus * (to_s - from_s)
        ),
        # A type that is both lent and owned cannot be told apart here.
        "usage_on_loan": nan
        if np.isin(lent, owned).any()
        else metrics.usage(float(held_gpu_s[lent].sum()), on_loan_gpu_s),
        "loan_preemption_ratio": _preempted(asked_back),
        "collateral_damage": metrics.collateral_damage(*_vacated(asked_back)),
        "lender_shortfall_server_s": shortfall if len(lenders) == 1 else nan,
    }


def _used_gpu_s(cluster: Cluster, lender: SimulatedLender, from_s: float, to_s: float) -> float:
    """GPU time that a lender used itself: of whole servers."""
    per_server = float(cluster.node_gpus[lender.nodes].mean())
    at_s: FloatArray = np.arange(len(lender.demand), dtype=np.float64) * lender.period_s
    needed_gpus = np.asarray(lender.servers_needed() * per_server, dtype=np.float64)
    return metrics.integral(at_s, needed_gpus, from_s, to_s)


def _preempted(asked_back: Sequence[Settled]) -> float:
    running = sum(one.running for one in asked_back)
    return sum(one.preempted for one in asked_back) / running if running else 0.0


def _vacated(asked_back: Sequence[Settled]) -> tuple[FloatArray, FloatArray]:
    vacated = np.array([one.vacated_gpus for one in asked_back], dtype=np.float64)
    return vacated, np.array([one.demanded_gpus for one in asked_back], dtype=np.float64)
