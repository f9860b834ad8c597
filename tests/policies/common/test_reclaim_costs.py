"""What it costs that lent nodes may be taken back, against drawing many such jobs."""

import numpy as np
import pytest

from stretto.model import Cluster, GpuType, LenderState, Node, NodeId
from stretto.policies.common.reclaim_costs import returns_per_s, with_returns_s

OWN, LENT = GpuType("own"), GpuType("lent")
NODES = [Node(NodeId(f"o{i}"), "own", 8) for i in range(2)] + [
    Node(NodeId(f"l{i}"), "lent", 8, lender="inference") for i in range(4)
]
CLUSTER = Cluster("two owners", (OWN, LENT), tuple(NODES))


def lender(demand: list[float], headroom: float = 0.0) -> LenderState:
    return LenderState("inference", np.arange(2, 6), headroom, 300.0, np.array(demand), np.nan)


IDLE = np.zeros(6, dtype=np.bool_)
ALL_BUSY = np.ones(6, dtype=np.bool_)


def test_own_nodes_are_never_taken_and_lent_ones_as_often_as_the_need_grew() -> None:
    """Two of four servers are on loan for three periods; then the lender needs one more: one in six."""
    per_s = returns_per_s((lender([0.5, 0.5, 0.5, 0.75]),), CLUSTER, ALL_BUSY)
    assert per_s[0] == 0.0
    assert per_s[1] == pytest.approx(1.0 / (6 * 300.0))


def test_idle_nodes_go_back_first() -> None:
    """With one server in use, that there are two or one on loan is the same to it; then none is left."""
    per_s = returns_per_s((lender([0.5, 0.75, 0.75, 1.0]),), CLUSTER, IDLE)
    assert per_s[1] == pytest.approx(1.0 / (3 * 300.0))
    assert returns_per_s((lender([0.5, 0.75, 0.5, 0.75]),), CLUSTER, IDLE)[1] == 0.0


def test_a_need_that_only_falls_takes_nothing_back() -> None:
    assert returns_per_s((lender([1.0, 0.5, 0.25]),), CLUSTER, ALL_BUSY).tolist() == [0.0, 0.0]


def test_a_lender_that_never_lent_has_no_rate() -> None:
    assert returns_per_s((lender([1.0, 1.0]),), CLUSTER, ALL_BUSY).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("done_s", [0.0, 400.0])
def test_a_job_that_saves_nothing_takes_as_long_as_such_jobs_do(done_s: float) -> None:
    left_s, per_s, restart_s = 600.0, 1 / 900.0, 60.0
    draw = np.random.default_rng(5)
    times = []
    for _ in range(20_000):
        took, need = 0.0, left_s
        while (fails := draw.exponential(1 / per_s)) < need:
            took, need = took + fails + restart_s, left_s + done_s
        times.append(took + need)
    expected = with_returns_s(np.array(left_s), np.array(done_s), np.array(per_s), np.array(restart_s))
    assert float(expected) == pytest.approx(np.mean(times), rel=0.02)


def test_a_job_that_saves_its_progress_only_starts_again() -> None:
    expected = with_returns_s(np.array(600.0), np.array(np.nan), np.array(1 / 900.0), np.array(60.0))
    assert float(expected) == pytest.approx(600.0 + 40.0)


def test_where_nothing_is_taken_nothing_changes_and_what_never_ends_is_a_number() -> None:
    left_s = np.array([600.0, 1e9])
    assert with_returns_s(left_s, np.zeros(2), np.zeros(2), np.full(2, 60.0)).tolist() == left_s.tolist()
    assert np.isfinite(with_returns_s(left_s, np.zeros(2), np.full(2, 0.1), np.full(2, 60.0))).all()
