"""Sia's ways of estimating, made again at a small scale."""

import pytest

from stretto.experiments.reproduction import Request
from stretto.experiments.sia.settings import MODES, figure10, figure11, modes


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


@pytest.mark.heavy
def test_figure_11_says_what_sizes_and_batches_are_worth() -> None:
    _, rows, _ = figure11(Request(None, scale=0.02, workers=1))
    values = {(row.row, row.metric): row.ours for row in rows}
    assert values["0% strong-scaling", "avg_jct_h"] == 1.0
    rigid, strong = values["100% rigid", "avg_jct_h"], values["100% strong-scaling", "avg_jct_h"]
    assert rigid is not None
    assert strong is not None
    assert values["sizes beside types alone", "avg_jct_reduction"] == pytest.approx(1 - strong / rigid)
    assert values["batches beside sizes", "avg_jct_reduction"] == pytest.approx(1 - 1 / strong)


@pytest.mark.heavy
def test_figure_10_varies_the_power_and_the_rounds() -> None:
    _, rows, _ = figure10(Request(None, scale=0.02, workers=1))
    jct_h = {row.row: row.ours for row in rows if row.metric == "avg_jct_h"}
    assert [*jct_h] == ["p -1", "p -0.5", "p 0.5", "p 1", "rounds of 30 s", "rounds of 300 s"]
    assert len({*jct_h.values()}) > 3
    assert [row.paper for row in rows if row.metric == "avg_jct_increase"] == [0.12, 0.0]
