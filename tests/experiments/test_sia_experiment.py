"""Sia's ways of estimating, made again at a small scale."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from stretto.experiments.reproduction import Request
from stretto.experiments.sia.comparison import table3
from stretto.experiments.sia.settings import MODES, figure10, figure11, modes
from stretto.experiments.spec import RunSpec, run_spec
from stretto.sim.result import Result

TOOK_MS = {"sia": [1.0, 2.0, 30.0], "pollux": [2_000.0, 2_300.0, 9_000.0], "gavel": [4.0, 5.0, 6.0]}


@cache
def quickest(trace: str) -> Result:
    """The first jobs of a trace under the policy that is quickest to simulate."""
    return run_spec(RunSpec("sia-hetero-64", trace, "fifo", window=0.05))


@dataclass(frozen=True)
class Timed(Request):
    """Decides in the times above."""

    def run(self, specs: Sequence[RunSpec], workers: int | None = None) -> list[Result]:
        return [replace(quickest(spec.trace), decision_ms=np.array(TOOK_MS[spec.policy])) for spec in specs]


@pytest.mark.slow
def test_table_3_has_decision_times_on_helios_below_or_above_the_papers() -> None:
    rows = {(row.row, row.metric): row for row in table3(Timed(None, scale=0.05))[1]}
    medians = {policy: rows[f"helios/{policy}", "policy_ms_p50"] for policy in TOOK_MS}
    assert {policy: row.ours for policy, row in medians.items()} == {
        "sia": 2.0,
        "pollux": 2_300.0,
        "gavel": 5.0,
    }
    assert {policy: row.paper for policy, row in medians.items()} == {"sia": 96, "pollux": 2_200, "gavel": 13}
    assert {row.bound for row in medians.values()} == {"at most"}
    assert rows["helios/pollux", "policy_ms_p95"].paper == 4_800
    assert ("philly/pollux", "policy_ms_p50") not in rows, "the paper has none of it"


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


@pytest.mark.long
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
