"""Sia's ways of estimating, made again at a small scale."""

import pytest

from stretto.experiments.reproduction import Request
from stretto.experiments.sia import MODES, modes


@pytest.mark.heavy
def test_bootstrapped_estimates_stand_beside_true_and_unprofiled_ones() -> None:
    inputs, rows, _ = modes(Request(None, scale=0.02, workers=1))
    jct_h = {row.row: row.ours for row in rows if row.metric == "avg_jct_h"}
    assert tuple(jct_h) == MODES
    oracle, bootstrap, no_prof = (jct_h[mode] for mode in MODES)
    assert oracle
    assert bootstrap
    assert no_prof
    assert len({oracle, bootstrap, no_prof}) == 3  # each mode decides by other estimates
    papers = {row.metric: row.paper for row in rows[-2:]}
    assert papers == {"avg_jct_increase": 0.08, "avg_jct_reduction": 0.30}
    ours = {row.metric: row.ours for row in rows[-2:]}
    assert ours["avg_jct_increase"] == pytest.approx(bootstrap / oracle - 1)
    assert ours["avg_jct_reduction"] == pytest.approx(1 - bootstrap / no_prof)
    assert not any(source.real for source in inputs)
