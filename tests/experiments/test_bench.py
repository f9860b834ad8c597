import json

import pytest

from stretto.experiments.bench import bench_solver

pytestmark = pytest.mark.processes


def test_it_puts_the_fast_and_the_exact_answer_side_by_side() -> None:
    figures = bench_solver(20, 64, 3, seed=1)
    assert figures["exact_value"] == pytest.approx(figures["fast_value"], rel=1e-5)
    assert figures["gap"] == 0.0
    assert figures["bound"] == figures["fast_value"]
    assert json.loads(json.dumps(figures)) == figures


def test_it_ends_an_exact_run_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.experiments.bench.EXACT_LIMIT_S", 0.001)
    figures = bench_solver(5, 24, 3, seed=1)
    assert (figures["exact_s"], figures["exact_value"]) == (None, None)
    assert figures["fast_value"] is not None
