"""What came of lending: who used what, who had to go, what the lender missed (Lyra, sections 7.1 to 7.3)."""

from collections.abc import Sequence
from math import nan

import numpy as np

from stretto.model import Cluster, FloatArray
from stretto.sim import metrics
from stretto.sim.history import History, Settled
from stretto.sim.lenders import SimulatedLender, shortfall_server_s


def lending_figures(
    cluster: Cluster, lenders: Sequence[SimulatedLender], history: History, from_s: float, to_s: float
) -> dict[str, float]:
    """Figures of the summary by name, over [from_s, to_s]; NaN where nobody lends.

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
    asked_back = [one for one in history.settled if one.demanded_gpus]
    loans_at_s = np.array([one.at_s for one in history.settled])
    on_loan = np.array([one.on_loan for one in history.settled], dtype=np.int64)
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
