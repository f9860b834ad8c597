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


STEADY = ("bench", "decide", "--jobs", 30, "--gpus", 96, "--rounds", 7)


@pytest.mark.slow
def test_decisions_about_a_steady_state_are_measured(stretto: Stretto) -> None:
    figures = stretto(*STEADY, "--json").json
    assert (figures["jobs"], figures["gpus"], figures["churn"], figures["decisions"]) == (30, 96, "usual", 2)
    for step in (*STEPS, "wall"):
        assert list(figures[step]) == ["p50_ms", "p95_ms", "max_ms"]
    rows = stretto(*STEADY, "-p", "fifo", "--churn", "one").table
    assert [row[0] for row in rows[:7]] == ["step", *STEPS, "wall"]
    assert {"first_ms", "changes", "running", "worst_gap", "peak_mb"} <= {row[0] for row in rows}


@pytest.mark.slow
@pytest.mark.processes
def test_several_policies_are_measured_one_after_the_other(stretto: Stretto) -> None:
    ran = stretto(*STEADY, "--policies", "fifo, edf", "--limit", 60, "--json")
    assert [row["policy"] for row in ran.json["policies"]] == ["fifo", "edf"]
    assert {row["decisions"] for row in ran.json["policies"]} == {2}
    assert ran.json["limit_s"] == 60
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == ["fifo", "edf"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "expected --cluster and --trace, or --jobs and --gpus, got --cluster '' and --trace ''"),
        (("-c", "sia-homo-64"), "got --cluster 'sia-homo-64' and --trace ''"),
        (("--jobs", 5), "got --jobs 5 and --gpus 0"),
        (("--jobs", 5, "--gpus", 96, "-t", "demo"), "got --jobs 5 and --gpus 96 beside a trace"),
        (("--jobs", 5, "--gpus", 96, "--churn", "much"), "churn must be one of usual, one, got 'much'"),
        (("--jobs", 5, "--gpus", 96, "--set", "sim.start_s=5"), "unknown space 'sim'"),
        (("--policies", "all"), "got --jobs 0 and --gpus 0"),
        (("--jobs", 5, "--gpus", 96, "--policies", "fifo,nobody"), "'nobody'"),
        (("--jobs", 5, "--gpus", 96, "--policies", "all", "-p", "fifo"), "got --policy fifo"),
        (("--jobs", 5, "--gpus", 96, "--policies", "all", "--set", "place.rule=spread"), "got --set place"),
    ],
)
def test_half_of_what_is_to_be_measured_is_refused(
    words: tuple[object, ...], said: str, stretto: Stretto
) -> None:
    ran = stretto("bench", "decide", *words)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
