"""Where a row stands in a figure follows from its name, and from those beside it."""

import json
from pathlib import Path

import pytest

from stretto.report.row_names import Layout, layouts_of, parts_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def only(rows: list[str], *policies: str) -> Layout:
    (layout,) = layouts_of(rows, policies)
    return layout


@pytest.mark.parametrize(
    ("name", "axis", "series", "about"),
    [
        pytest.param("{} GPUs: {s}", "GPUs", ("sia", "fifo"), "", id="before a colon"),
        pytest.param("{} GPUs, {s}", "GPUs", ("sia", "fifo"), "", id="before a comma"),
        pytest.param("{} jobs an hour/{s}", "jobs an hour", ("sia", "fifo"), "", id="before a slash"),
        pytest.param("{s}, {} samples", "samples", ("never", "at once"), "", id="behind the series"),
        pytest.param("T[{}]: {s}", "T", ("sia", "fifo"), "", id="in brackets"),
        pytest.param("{}%: {s}", "%", ("sia", "fifo"), "", id="per cent"),
        pytest.param("{}% hostile: {s}", "% hostile", ("a", "b"), "", id="per cent of what"),
        pytest.param("{}% {s}", "%", ("rigid", "elastic"), "", id="per cent of either"),
        pytest.param("{s}, noise {}%", "noise, %", ("H_SLO", "H_MIX1"), "", id="a word before it"),
        pytest.param("a {s}, lease of {} min", "lease, min", ("H_SLO", "P_SLO"), "(a)", id="a figure's part"),
        pytest.param("bert on {} {s}", "GPUs", ("t4", "a100"), "bert", id="GPUs of a type"),
        pytest.param("baseline / {s}, {}%", "%", ("baseline / lyra", "baseline / afs"), "", id="a ratio"),
        pytest.param("c M, overhead x {}: {s}", "overhead x", ("with", "without"), "(c), M", id="a panel"),
        pytest.param("{} GPUs: {s}", "GPUs", ("srtf", "srtf, some first"), "", id="a comma in the series"),
    ],
)
def test_rows_that_differ_by_a_number_are_curves_over_it(
    name: str, axis: str, series: tuple[str, str], about: str
) -> None:
    named = [each.removeprefix("baseline / ") if "baseline" in name else each for each in series]
    rows = [name.replace("{s}", each).replace("{}", f"{x:,}") for x in (10, 200, 3_000) for each in named]
    layout = only(rows)
    assert (layout.axis, layout.about) == (axis, about)
    assert [(spot.series, spot.x) for spot in layout.spots] == [
        (each, x) for x in (10.0, 200.0, 3_000.0) for each in series
    ]


def test_a_single_series_has_no_name_and_what_it_is_stands_above() -> None:
    layout = only([f"{gpus} GPUs" for gpus in (64, 128, 256)])
    assert [(spot.series, spot.x) for spot in layout.spots] == [("", 64), ("", 128), ("", 256)]
    layout = only(["baseline / 0% wrong", "baseline / 20% wrong", "baseline / 40% wrong"])
    assert (layout.axis, layout.about, layout.is_ratio) == ("% wrong", "baseline / …", True)
    assert {spot.series for spot in layout.spots} == {""}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(["rounds of 30 s", "rounds of 300 s"], id="two numbers"),
        pytest.param(["1 baseline", "2 lyra, basic", "7 loaning: random"], id="numbers of rows"),
        pytest.param(["jobs up to 1 h", "jobs of 1 to 10 h", "jobs above 10 h"], id="other words each"),
        pytest.param(["lyra, trace 0", "lyra, trace 1", "lyra, trace 2"], id="numbers that only count"),
        pytest.param(["H_MIX1", "H_MIX2", "P_MIX1"], id="digits of a word"),
        pytest.param(["3sigma", "4sigma", "5sigma"], id="digits that begin a word"),
        pytest.param(["a training", "b test", "c"], id="no number"),
    ],
)
def test_others_are_bars(rows: list[str]) -> None:
    layout = only(rows)
    assert layout.axis == ""
    assert len({spot.category for spot in layout.spots}) == len(rows)


def test_names_that_are_a_grid_of_their_parts_are_groups_of_bars_with_a_colour_for_each_policy() -> None:
    rows = [f"{load}, {policy}: session" for load in ("half load", "overload") for policy in ("sia", "fifo")]
    layout = only(rows, "sia", "fifo")
    assert layout.about == "session"
    assert [(spot.category, spot.series) for spot in layout.spots] == [
        ("half load", "sia"),
        ("half load", "fifo"),
        ("overload", "sia"),
        ("overload", "fifo"),
    ]


def test_without_policies_the_last_part_has_the_colour_unless_it_has_too_many_values() -> None:
    rows = [f"{model}, {action}" for model in ("mlp", "bert") for action in ("grow", "move")]
    assert [spot.series for spot in only(rows).spots] == ["grow", "move", "grow", "move"]
    many = [f"{loan}, trace {trace}" for trace in range(10) for loan in ("basic", "ideal")]
    assert {spot.series for spot in only(many).spots} == {"basic", "ideal"}


def test_what_varies_with_another_part_is_no_grid_and_the_whole_name_stands_beside_its_bar() -> None:
    rows = ["10 scaling: gandiva", "11 scaling: afs", "13 scaling: lyra"]
    assert [spot.category for spot in only(rows, "gandiva", "afs", "lyra").spots] == rows


def test_ratios_and_parts_of_a_figure_have_charts_of_their_own() -> None:
    rows = ["philly/sia", "philly/gavel", "philly: gavel / sia"]
    assert [(len(layout.spots), layout.is_ratio) for layout in layouts_of(rows)] == [(2, False), (1, True)]
    rows = ["a H_SLO: with", "a H_SLO: without", "d 256 GPUs", "d 640 GPUs", "d 960 GPUs"]
    assert [(layout.about, layout.axis) for layout in layouts_of(rows)] == [
        ("(a), H_SLO", ""),
        ("(d)", "GPUs"),
    ]


def test_very_many_bars_are_several_charts() -> None:
    rows = [f"{load}, {n}x: {each}" for load in ("half", "full") for n in "abcdef" for each in "pqrstu"]
    assert [layout.about for layout in layouts_of(rows)] == ["half", "full"]
    assert {len(layout.spots) for layout in layouts_of(rows)} == {36}


def test_a_name_has_parts_but_not_within_brackets() -> None:
    assert parts_of("bert/sia, t4") == ("bert", "sia", "t4")
    assert parts_of("synergy (inert: no demand, none)") == ("synergy (inert: no demand, none)",)
    assert parts_of("baseline / lyra") == ("baseline / lyra",)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_row_of_every_table_stands_once_in_one_place(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    by_metric: dict[str, list[str]] = {}
    for row in table["rows"]:
        by_metric.setdefault(row["metric"], []).append(row["row"])
    for rows in by_metric.values():
        layouts = layouts_of(rows, table["shown"])
        assert sorted(spot.row for layout in layouts for spot in layout.spots) == sorted(set(rows))
        for layout in layouts:
            places = [(spot.series, spot.category, spot.x) for spot in layout.spots]
            assert len(set(places)) == len(places)
