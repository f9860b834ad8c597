"""What it costs that a GPU is taken back by its owner: how often that happens, and what it takes.

Nodes on loan go back when their owner needs them (Lyra, EuroSys 2023, section 4). It is not known
beforehand which and when. How often is read off what each owner has needed so far.
"""

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, LenderState, floats

LONGEST = 50.0  # expected returns within a job's time at which it counts as endless; e^50 is a number


def returns_per_s(lenders: tuple[LenderState, ...], cluster: Cluster, busy: BoolArray) -> FloatArray:
    """(types,) how often a node of a type is taken back, in the mean over its nodes; 0 of own nodes.

    busy: (nodes,) that hold jobs. Idle nodes go back first. So with b busy servers and A on loan, min(A, b)
    stay busy. The rate is by how much that fell, over the time that these servers were busy, over all that is
    known of a lender. The job that is asked about is one of the b.
    """
    nodes = np.bincount(cluster.kind, minlength=len(cluster.types)).astype(np.float64)
    taken = np.zeros_like(nodes)
    for lender in lenders:
        servers = len(lender.nodes)
        on_loan = np.maximum(1.0 - lender.headroom - lender.demand, 0.0) * servers
        stay = np.minimum(on_loan, min(int(busy[lender.nodes].sum()) + 1, servers))
        busy_s, fell = float(stay[:-1].sum()) * lender.period_s, float(np.maximum(-np.diff(stay), 0.0).sum())
        if busy_s > 0:
            by_type = np.bincount(cluster.kind[lender.nodes], minlength=len(nodes))
            taken += by_type * fell / busy_s
    return floats(taken / nodes)


def with_returns_s(
    left_s: FloatArray, done_s: FloatArray, per_s: FloatArray, restart_s: FloatArray
) -> FloatArray:
    """Expected seconds of a job whose GPUs are taken at random moments, `per_s` times a second.

    left_s: seconds left if they never are. done_s: of what is lost with them, already done; NaN where nothing
    is lost, as a job saves its progress. Each time costs `restart_s` more. All shapes broadcast.

    What is saved is done once: T (1 + λ S). Without that a job begins again from nothing each time. From
    there it takes E = (e^(λ (T + D)) - 1) (1 / λ + S). The first try fails with F = 1 - e^(-λ T), and then
    costs S + E more: F / λ + F (S + E).
    """
    saved_s = left_s * (1.0 + per_s * restart_s)
    loses = ~np.isnan(done_s) & (per_s > 0)
    rate = np.where(loses, per_s, 1.0)
    in_all = np.minimum(rate * (left_s + np.nan_to_num(done_s)), LONGEST)
    fails = -np.expm1(-np.minimum(rate * left_s, LONGEST))
    again_s = np.expm1(in_all) * (1.0 / rate + restart_s)
    return np.where(loses, fails / rate + fails * (restart_s + again_s), saved_s)
