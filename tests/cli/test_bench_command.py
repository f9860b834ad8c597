"""`stretto bench`: the solver beside branch and bound, and where the time of a decision goes."""

import pytest

from .ran import Stretto

STEPS = ("estimate", "value", "solve", "place", "total")


@pytest.mark.processes
def test_the_solver_is_measured_beside_branch_and_bound(stretto: Stretto) -> None:
    figures = stretto("bench", "solver", "--jobs", 12, "--gpus", 32, "--types", 2, "--json").json
    assert figures["fast_s"] > 0
    assert figures["exact_s"] > 0
    assert figures["fast_value"] <= figures["exact_value"] * (1 + 1e-9) <= figures["bound"] * (1 + 1e-8)
    assert figures["gap"] == pytest.approx(
        (figures["bound"] - figures["fast_value"]) / figures["fast_value"], abs=1e-9
    )
    assert len(figures["prices"]) == 2


@pytest.mark.processes
def test_the_solver_s_figures_read_on_a_pipe(stretto: Stretto) -> None:
    rows = stretto("bench", "solver", "--jobs", 6, "--gpus", 16, "--types", 1).table
    assert rows[0] == ["figure", "value"]
    assert {"fast_s", "exact_s", "fast_value", "bound", "gap", "prices"} <= {row[0] for row in rows}


@pytest.mark.parametrize("policy", ["sia", "fifo"])
def test_the_steps_of_decisions_are_measured(policy: str, stretto: Stretto) -> None:
    words = ("bench", "decide", "-c", "sia-hetero-64", "-t", "demo:jobs=8", "-p", policy, "--most", 10)
    figures = stretto(*words, "--json").json
    assert figures["decisions"] == 10
    for step in STEPS:
        assert list(figures[step]) == ["p50_ms", "p95_ms", "max_ms"]
        assert 0 <= figures[step]["p50_ms"] <= figures[step]["p95_ms"] <= figures[step]["max_ms"]
    assert figures["total"]["max_ms"] > 0
    assert figures["solve"]["max_ms"] <= figures["total"]["max_ms"]
    assert [row[0] for row in stretto(*words).table] == ["step", *STEPS]


def test_sia_spends_time_in_the_solver_and_fifo_none(stretto: Stretto) -> None:
    words = ("bench", "decide", "-c", "sia-homo-64", "-t", "demo:jobs=8", "--json")
    sia, fifo = (stretto(*words, "-p", policy).json for policy in ("sia", "fifo"))
    assert sia["solve"]["max_ms"] > 0
    assert fifo["solve"]["max_ms"] == 0
