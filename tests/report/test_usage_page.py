"""The page of usage: sums that are those of the rows, figures that apply, and what it survives."""

import csv
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stretto.report.charts.usage import MOST_ROWS, usage_figures
from stretto.report.figure_file import NO_LIBRARY
from stretto.report.usage import claim, most
from stretto.report.usage_page import render_usage, usage_sheet, write_usage_figures

from .made_usage import a_report, a_row
from .test_page import HOSTILE, headings, outline


def test_the_sums_are_those_of_the_rows_however_they_are_grouped() -> None:
    report = a_report()
    total = report.total
    assert total.held_h == pytest.approx(sum(row["gpu_hours"] for row in report.rows))
    for parts in (report.groups, report.periods):
        assert sum(use.held_h for use in parts.values()) == pytest.approx(total.held_h)
        assert sum(use.cost or 0.0 for use in parts.values()) == pytest.approx(total.cost)
    assert next(iter(report.groups)) == "ada"
    assert list(report.periods) == ["2026-10", "2026-11"]
    assert report.groups["ada"].hours["lost"] == pytest.approx(18.2 + 0.31)


def test_the_page_says_how_much_was_useful_and_who_has_the_most() -> None:
    rows = [a_row("ada", useful=60, lost=10, idle=10), a_row("bob", useful=10, unsaved=10)]
    report = a_report(rows, by=("user",), period="")
    assert claim(report) == "100 GPU-hours were held: 70 % of them trained usefully, 20 % were lost or idle."
    assert most(report) == "Of 2 rows by user, ada has the most: 80 %."
    page = render_usage(report)
    assert headings(page, "h1") == ["GPU time by user"]
    assert headings(page, "h3") == ["What GPUs were held for", "Cost", "Command"]
    assert claim(report) in page


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        pytest.param({}, ["held", "over-time", "cost"], id="by user and month"),
        pytest.param({"by": ("user",), "period": ""}, ["held", "cost"], id="by user"),
        pytest.param({"by": ("month",)}, ["over-time", "cost"], id="by month"),
        pytest.param({"rows": [a_row("ada", priced=False, useful=1)]}, None, id="without a price"),
        pytest.param({"rows": []}, [], id="nothing"),
        pytest.param({"rows": [a_row("ada")]}, [], id="nothing was held"),
    ],
)
def test_figures_are_there_where_they_apply(changes: dict[str, Any], figures: list[str] | None) -> None:
    drawn = [figure.id for figure in usage_figures(a_report(**changes))]
    assert drawn == (["held", "over-time", "charged"] if figures is None else figures)


def test_bars_are_as_long_as_what_they_show() -> None:
    rows = [a_row("ada", useful=30, lost=10), a_row("bob", useful=20)]
    (held, _) = usage_figures(a_report(rows, by=("user",), period=""))
    drawing = ElementTree.fromstring(held.drawing)
    widths = {
        (name, part.get("class")): float(part.get("width", 0))
        for row in drawing.iter("g")
        for name in [row.findtext("text[@class='name']")]
        for part in row.iter("rect")
    }
    scale = widths["ada", "useful"] / 30
    assert widths["ada", "lost"] == pytest.approx(10 * scale, abs=0.2)
    assert widths["bob", "useful"] == pytest.approx(20 * scale, abs=0.2)
    assert ("bob", "lost") not in widths


def test_of_very_many_rows_the_largest_are_drawn_and_the_note_says_so() -> None:
    rows = [a_row(f"user{number:03}", useful=number) for number in range(1, MOST_ROWS + 6)]
    (held, _) = usage_figures(a_report(rows, by=("user",), period=""))
    assert "user045" in held.drawing
    assert "user005<" not in held.drawing
    assert held.note == "5 further rows are in the table."
    assert "user005" in render_usage(a_report(rows, by=("user",), period=""))


def test_nothing_is_fetched_nothing_runs_and_names_from_outside_stay_words() -> None:
    report = a_report([a_row(HOSTILE, HOSTILE, useful=1)], zone=HOSTILE, command=HOSTILE, made=HOSTILE)
    page = render_usage(report)
    assert (outline(page).outside, outline(page).scripts) == ([], 0)
    assert "alert('x')" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in page
    assert "No row." in render_usage(a_report([]))


def test_the_sheet_has_every_row_with_all_figures_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    report = a_report([a_row("=ada", "2026-10", useful=1, lost=0.5), a_row("bob", "2026-10", priced=False)])
    assert write_usage_figures(report, tmp_path) == NO_LIBRARY
    with (tmp_path / "usage.csv").open(encoding="utf-8") as file:
        ada, bob = csv.DictReader(file)
    assert (ada["user"], ada["period"], ada["useful_gpu_seconds"], ada["cost"]) == (
        "'=ada",
        "2026-10",
        "3600",
        "3.75",
    )
    assert bob["cost"] == ""
    assert list(usage_sheet(report).header) == [*ada]
    held = (tmp_path / "held.svg").read_text(encoding="utf-8")
    assert re.findall(r">(useful|unsaved|lost|idle)<", held) == ["useful", "lost"]  # the legend
    assert write_usage_figures(a_report([]), tmp_path / "none") == "no figure is drawn: no GPU was used"
