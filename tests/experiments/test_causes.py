"""A series of switched assumptions: what it runs, what it makes of that, and how it is read again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from stretto.experiments.causes import (
    NOTHING,
    Causes,
    Figure,
    Series,
    Switch,
    Switched,
    Value,
    make_causes,
    switched_runs,
    value_of,
)
from stretto.experiments.causes_page import met_by, rows_of, series_lines
from stretto.experiments.findings import FINDINGS
from stretto.experiments.ones import batches
from stretto.experiments.ones import causes as ones_causes
from stretto.experiments.ones.batches import RATE, Training
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Experiment, Made, Request, Verdict
from stretto.experiments.spec import RunSpec
from stretto.model import InputError
from stretto.sim.result import Result

SPECS = [
    RunSpec(
        "sia-homo-64",
        f"synthetic-philly:jobs=3,seed={seed}@unisched",
        "fifo",
        settings={"sim.restart_s": "5"},
    )
    for seed in (0, 1)
]


@dataclass(frozen=True)
class Recording(Request):
    """Keeps the runs that are asked for; each has as its result the number of its place."""

    asked: list[RunSpec] = field(default_factory=list)

    def run(self, specs: Sequence[RunSpec], workers: int | None = None) -> list[Result]:
        self.asked.extend(specs)
        places: list[Any] = list(range(len(specs)))
        return places


def as_they_are(results: Sequence[Result]) -> list[Value]:
    return [value_of([float(cast("Any", result)) for result in results])]


def test_the_first_row_is_the_table_and_each_other_one_has_one_assumption_changed() -> None:
    request = Recording(None)
    switches = [
        Switch("restarts cost nothing", {"sim.restart_s": "0"}),
        Switch("more jobs", trace={"jobs": "4"}),
        Switch("no goals", recipe={"performance": "0"}),
        Switch("another sample", made="synthetic-sia"),
        Switch("another order", policy="sjf"),
        Switch("a larger cluster", cluster="sia-hetero-64"),
    ]
    rows = switched_runs(request, SPECS, switches, as_they_are)
    assert [row.what for row in rows] == [NOTHING, *(switch.what for switch in switches)]
    of_seed_0 = request.asked[::2]
    assert of_seed_0[0] == SPECS[0]
    assert [spec.settings["sim.restart_s"] for spec in of_seed_0] == ["5", "0", "5", "5", "5", "5", "5"]
    assert of_seed_0[2].trace == "synthetic-philly:jobs=4,seed=0@unisched"
    assert of_seed_0[3].trace == "synthetic-philly:jobs=3,seed=0@unisched:performance=0"
    assert of_seed_0[4].trace == "synthetic-sia:jobs=3,seed=0@unisched"
    assert (of_seed_0[5].policy, of_seed_0[6].cluster) == ("sjf", "sia-hetero-64")
    assert [row.how for row in rows] == [
        "",
        "sim.restart_s=0",
        "jobs=4",
        "performance=0",
        "trace=synthetic-sia",
        "policy=sjf",
        "cluster=sia-hetero-64",
    ]


def test_a_setting_may_be_for_some_runs_alone() -> None:
    specs = [replace(SPECS[0], policy=policy, settings={"sim.restart_s": "5"}) for policy in ("fifo", "sjf")]
    of_fifo = Switch("x", {"policy.skip": "true"}, only="fifo")
    assert [of_fifo.of(spec).settings.get("policy.skip") for spec in specs] == ["true", None]
    assert of_fifo.how == "policy.skip=true where fifo"
    for value, expected in (("5", "7"), ("6", None)):
        switch = Switch("x", {"sim.resize_s": "7"}, having={"sim.restart_s": value})
        assert switch.of(specs[0]).settings.get("sim.resize_s") == expected
        assert switch.how == f"sim.resize_s=7 where sim.restart_s={value}"


def test_values_are_means_over_made_traces_with_their_interval() -> None:
    rows = switched_runs(Recording(None), SPECS, [Switch("x", {"sim.restart_s": "0"})], as_they_are)
    assert [row.values[0].ours for row in rows] == [0.5, 2.5]
    assert rows[0].values[0].half == pytest.approx(12.7062 * 0.5, rel=1e-4)  # Student's t of one degree


def test_equal_runs_are_asked_for_once() -> None:
    request = Recording(None)
    switched_runs(request, SPECS, [Switch("as it is", {"sim.restart_s": "5"})], as_they_are)
    assert len(request.asked) == len(SPECS)


SERIES = Series(
    (Figure("a", "missed", 10.0), Figure("b", "missed", 5.0, "at most"), Figure("c", "missed", None)),
    (
        Switched(NOTHING, "", (Value(20.0), Value(9.0), Value(1.0))),
        Switched("half", "policy.x=1", (Value(11.0), Value(6.0), Value(2.0))),
        Switched("wide", "", (Value(14.0, 5.0), Value(4.0), Value(None))),
    ),
)


def test_a_figure_comes_out_where_the_rule_of_the_tables_says_so() -> None:
    verdicts = [[SERIES.verdict(one, column) for column in range(3)] for one in SERIES.switched]
    yes, no, none = Verdict.REPRODUCED, Verdict.CONTRADICTED, Verdict.NOT_COMPARED
    assert verdicts == [[no, no, none], [yes, no, none], [yes, yes, none]]
    assert met_by(SERIES) == [
        "a, missed is reproduced with *half*, or with *wide*",
        "b, missed is reproduced with *wide*",
    ]
    nothing_helps = Series(SERIES.figures[:1], SERIES.switched[:1])
    assert met_by(nothing_helps) == ["a, missed: no switch alone is enough"]


def test_each_row_has_its_figures_below_the_papers_and_ours() -> None:
    assert list(rows_of(SERIES, marked=True)) == [
        ["*the paper*", "10", "≤ 5", ""],
        [NOTHING, "20 (2)", "9 (1.8)", "1"],
        ["half: `policy.x=1`", "**11 (1.1)**", "6 (1.2)", "2"],
        ["wide", "**14 ± 5 (1.4)**", "**4 (0.8)**", ""],
    ]
    assert list(rows_of(SERIES, marked=False))[2] == ["half: policy.x=1", "11 (1.1)", "6 (1.2)", "2"]


def test_where_no_paper_has_the_figures_nothing_is_said_of_one() -> None:
    ours = Series((Figure("a", "missed", None),), (Switched(NOTHING, "", (Value(20.0),)),))
    assert list(rows_of(ours, marked=True)) == [[NOTHING, "20"]]
    lines = series_lines(Causes("one-for-all", ours, 1, 1.0, 1.0, "2026-01-02"))
    assert lines[0] == "One assumption is switched at a time."
    assert not any("paper" in line or "reproduces" in line for line in lines)


def test_a_series_that_was_run_is_read_as_it_was_written() -> None:
    causes = Causes("two", SERIES, 6, 12.5, 0.5, "2026-01-02", "abc")
    written = json.loads(json.dumps(causes.as_json()))
    assert Causes.of_json(written) == causes
    assert written["switched"][1]["values"][0] == {"ours": 11.0, "half": 0.0, "verdict": "reproduced"}
    lines = series_lines(causes)
    assert (
        "- Switched on 2026-01-02 by commit abc, at a scale of 0.5: this share of each workload, "
        "6 simulations, in 12 s." in lines
    )
    assert lines[-1] == "- Some switch alone reproduces `a, missed`, `b, missed`."
    fewer = Causes("two", Series(SERIES.figures, SERIES.switched[:2]), 6, 12.5, 1.0, "2026-01-02")
    assert series_lines(fewer)[-2:] == [
        "- Some switch alone reproduces `a, missed`.",
        "- No switch alone reproduces `b, missed`.",
    ]


def test_what_follows_stands_below_the_series_of_its_table() -> None:
    assert FINDINGS.keys() <= {name for name, each in EXPERIMENTS.items() if each.causes}
    causes = Causes("unisched-table3", SERIES, 6, 12.5, 1.0, "2026-01-02")
    assert series_lines(causes)[-1] == f"- {FINDINGS['unisched-table3'][-1]}."


def test_a_table_without_a_series_is_refused() -> None:
    def make(request: Request) -> Made:
        return [], [], []

    with pytest.raises(InputError, match="--causes two: expected a table with a series"):
        make_causes(Experiment("two", "Nobody (2020)", "", make), Request(None))


def test_a_series_counts_its_simulations() -> None:
    def series(request: Request) -> Series:
        rows = switched_runs(request, SPECS[:1], [], lambda results: [Value(float(len(results)))])
        return Series((Figure("a", "runs", 1.0),), tuple(rows))

    made = make_causes(
        Experiment("two", "Nobody (2020)", "", lambda _: ([], [], []), causes=series), Request(None)
    )
    assert (made.name, made.simulations, made.series.switched[0].values[0].ours) == ("two", 1, 1.0)
    assert made.took_s > 0


WITHOUT_SIMULATIONS = [
    pytest.param(name, marks=[pytest.mark.torch, pytest.mark.long] if name == "ones-fig13" else [])
    for name, each in EXPERIMENTS.items()
    if each.causes and not each.simulations and not each.data
]


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few epochs of trainings are enough to see whether two ways to ask for them are the same."""
    half = ones_causes.Growth(3, training=Training(rate=RATE / 2))
    monkeypatch.setattr(batches, "THIRD", 3)
    monkeypatch.setattr(ones_causes, "GROWTHS", {NOTHING: ones_causes.Growth(3), "half": half})


@pytest.mark.usefixtures("few_epochs")
@pytest.mark.parametrize("name", WITHOUT_SIMULATIONS)
def test_a_series_without_simulations_begins_with_the_figures_of_its_table(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.causes is not None
    series = experiment.causes(Request(None, scale=0.2))
    table = {(row.row, row.metric): row for row in experiment.make(Request(None, scale=0.2))[1]}
    for figure, value in zip(series.figures, series.switched[0].values, strict=True):
        row = table.get((figure.row, figure.metric))
        if row is not None:
            assert (row.paper, row.bound) == (figure.paper, figure.bound)
            assert value.ours == pytest.approx(row.ours)
    assert any((figure.row, figure.metric) in table for figure in series.figures)
    assert len({row.values for row in series.switched}) > 1
