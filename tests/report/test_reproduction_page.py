"""The page of a table made again: what it finds, what it promises, and what it survives."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from stretto.errors import InputError
from stretto.report.charts.ratios import ratio_charts
from stretto.report.content import Note
from stretto.report.reproduction import (
    Published,
    Reproduced,
    Source,
    blocks_of,
    claim,
    counts_of,
    farthest,
    limits,
    published,
    title_of,
    unit_of,
)
from stretto.report.reproduction_page import render_reproduction, write_reproduction

from .test_browser import BROWSER, seen
from .test_page import HOSTILE, headings, outline

FIGURES = (
    Published("philly/sia", "avg_jct_h", 0.6, 0.63),
    Published("philly/sia", "restarts_per_job", 2.9, 4.0),
    Published("philly/gavel", "avg_jct_h", 1.9, 1.0),
    Published("philly/gavel", "restarts_per_job", None, 0.5),
    Published("64 GPUs", "policy_ms_p50", 96.0, 1.92),
)
PAGE = Reproduced(
    name="sia-table3",
    paper="Sia (SOSP 2023), table 3",
    figures=FIGURES,
    sources=(Source("philly", True, "recorded"), Source("speeds", False, "the catalogue")),
    notes=("scale 0.1",),
    facts=("sia-table3", "3 simulations"),
    method=(Note("Simulated", "No GPU was used."),),
    command="stretto reproduce sia-table3 --out page.html",
    versions={"stretto": "0.1.0"},
    made="2026-01-01 00:00 UTC",
)


@pytest.mark.parametrize(
    ("paper", "ours", "nearness"),
    [
        pytest.param(1.0, 1.0, 0, id="the same"),
        pytest.param(2.0, 1.9, 0, id="a little less"),
        pytest.param(1.0, 1.4, 1, id="within a half more"),
        pytest.param(1.0, 0.5, 2, id="half is as far as twice"),
        pytest.param(1.0, 20.0, 3, id="far more"),
        pytest.param(1.0, 0.0, 3, id="nothing where there was something"),
        pytest.param(1.0, -1.0, 3, id="less than nothing"),
        pytest.param(None, 1.0, None, id="not published"),
        pytest.param(1.0, None, None, id="does not apply"),
        pytest.param(0.0, 1.0, None, id="of nothing"),
        pytest.param(1.0, float("nan"), None, id="not known"),
    ],
)
def test_a_figure_is_so_near(paper: float | None, ours: float | None, nearness: int | None) -> None:
    assert Published("a", "x", paper, ours).nearness == nearness


@pytest.mark.parametrize(
    ("figure", "is_kept"),
    [
        pytest.param(Published("a", "x", 1.0, 0.0, "at most"), True, id="nothing is at most 1"),
        pytest.param(Published("a", "x", 1.0, 15.9, "at most"), False, id="more than at most"),
        pytest.param(Published("a", "x", 0.9, 1.0, "at least"), True, id="more than at least"),
        pytest.param(Published("a", "x", 0.9, 0.8, "at least"), False, id="less than at least"),
        pytest.param(Published("a", "x", 0.9, None, "at least"), None, id="does not apply"),
        pytest.param(Published("a", "x", 0.9, float("nan"), "at least"), None, id="not known"),
        pytest.param(Published("a", "x", 0.9, 0.9), None, id="a figure is no limit"),
    ],
)
def test_a_limit_is_kept_or_not_and_has_no_nearness(figure: Published, is_kept: bool | None) -> None:
    assert figure.is_kept is is_kept
    if figure.bound:
        assert figure.nearness is None


def test_limits_are_counted_apart_from_figures() -> None:
    stated = (
        Published("a", "queue_s", 1.0, 0.0, "at most"),
        Published("b", "queue_s", 1.0, 15.9, "at most"),
    )
    assert limits(stated) == claim(stated) == "1 of 2 limits that the paper's text states are kept."
    assert limits(stated[1:]) == "The one limit that the paper's text states is not kept."
    assert limits(FIGURES) == farthest(stated) == ""
    page = unescape(render_reproduction(replace(PAGE, figures=(*FIGURES, *stated))))
    assert claim(FIGURES) in page
    assert limits(stated) in page
    assert "1 further figure of ours has no value in the paper" in page
    assert re.search(r'paper at most 1<span class="ratio near0">kept<', page)
    assert re.search(r'paper at most 1<span class="ratio near3">not kept<', page)
    assert "queue" not in {chart.title for chart in ratio_charts((*FIGURES, *stated))}


def test_figures_are_counted_by_how_near_they_come() -> None:
    assert [(one.figures, one.part) for one in counts_of(FIGURES)] == [
        (1, 0.25),
        (1, 0.25),
        (1, 0.25),
        (1, 0.25),
    ]


def test_the_claim_is_about_the_middle_figure() -> None:
    three = [Published("a", str(ours), 1.0, ours) for ours in (0.5, 1.1, 5.0)]
    assert claim(three) == "Half of the 3 figures come out within 2.00× of the paper's."
    assert claim(three[1:2]) == "The one figure comes out within 1.10× of the paper's."
    assert claim([Published("a", "x", None, 1.0)]) == "The paper prints no figure to compare with."


def test_the_farthest_figure_is_named_in_either_direction() -> None:
    assert farthest(FIGURES) == "Farthest off: Decision time of 64 GPUs, 0.0200× of the paper's."
    assert farthest(FIGURES[:1]) == ""


def test_rows_with_the_same_metrics_are_one_table() -> None:
    blocks = blocks_of([FIGURES[0], FIGURES[4], *FIGURES[1:4]])  # however they come
    assert [(block.metrics, [name for name, _ in block.rows]) for block in blocks] == [
        (("avg_jct_h", "restarts_per_job"), ["philly/sia", "philly/gavel"]),
        (("policy_ms_p50",), ["64 GPUs"]),
    ]


@pytest.mark.parametrize(
    ("metric", "title", "unit"),
    [
        ("avg_jct_h", "Mean JCT", "h"),
        ("avg_jct_s", "Mean JCT", "s"),
        ("policy_ms_p50", "Decision time", "ms"),
        ("restarts_per_job", "Restarts per job", ""),
        ("usage_training", "usage training", ""),
        ("queued_over_60_s", "queued over 60", "s"),
        ("interactive_share_over_60s", "interactive share over 60s", ""),
        ("samples_per_s", "samples per s", ""),
        ("avg_jct_min", "Mean JCT", "min"),
        ("batch_gpu_min", "batch gpu min", ""),
        ("missed_percent", "missed", "%"),
        ("h", "h", ""),
    ],
)
def test_a_metric_is_named_as_readers_know_it(metric: str, title: str, unit: str) -> None:
    assert (title_of(metric), unit_of(metric)) == (title, unit)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.6, "0.6"), (110.0, "110"), (1.9 / 0.6, "3.17"), (12_345.0, "12\u2009345"), (None, "–")],
)
def test_the_papers_figures_have_no_digits_of_ours(value: float | None, words: str) -> None:
    assert published(value) == words


def test_the_page_has_everything_in_order() -> None:
    page = render_reproduction(PAGE)
    assert headings(page, "h1") == ["Sia (SOSP 2023), table 3"]
    assert headings(page, "h2") == [
        "The table",
        "Drawn",
        "Metric by metric",
        "What was read",
        "How the figures were obtained",
    ]
    metrics = ["Mean JCT, h", "Restarts per job", "Decision time, ms"]
    drawn = ["Mean JCT, h: philly", "Restarts per job: philly", "Decision time, ms"]
    assert headings(page, "h3") == [*drawn, *metrics, "Command"]
    for words in (
        "philly/gavel",
        "not published",
        "paper 1.9",
        "0.526×",
        "scale 0.1",
        PAGE.command,
        "stretto 0.1.0",
    ):
        assert words in page
    assert "1 input of 2 is made, not recorded" in page
    assert "1 further figure of ours has no value in the paper" in page


def test_how_far_off_a_figure_is_can_be_read_without_colours() -> None:
    page = render_reproduction(PAGE)
    assert re.search(
        r'near2">0\.526×<span aria-hidden="true"> ▼</span><span class="sr">, within 3×</span>', page
    )
    assert re.search(r'near0">1\.05×<span class="sr">, within 10 %</span>', page)


def test_a_page_of_made_data_says_so_first() -> None:
    made = replace(PAGE, sources=(Source("demo", False, "made"),))
    page = render_reproduction(made)
    assert page.index("Made data: no figure of this page") < page.index("<main>")
    real = replace(PAGE, sources=(Source("philly", True, "recorded"),))
    assert 'role="note"' not in render_reproduction(real)


def test_nothing_is_fetched_and_no_script_may_run() -> None:
    page = render_reproduction(PAGE)
    found = outline(page)
    assert (found.outside, found.scripts) == ([], 0)
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in page
    assert len(found.ids) == len(set(found.ids))


def test_names_from_outside_stay_words() -> None:
    hostile = replace(
        PAGE,
        paper=HOSTILE,
        figures=(Published(HOSTILE, HOSTILE, 1.0, 3.0), Published("b", HOSTILE, 1.0, 100.0)),
        sources=(Source(HOSTILE, True, HOSTILE),),
        notes=(HOSTILE,),
        facts=(HOSTILE,),
        command=HOSTILE,
        made=HOSTILE,
    )
    page = render_reproduction(hostile)
    assert outline(page).scripts == 0
    assert headings(page, "h1") == [HOSTILE]


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    write_reproduction(PAGE, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == render_reproduction(PAGE)


def test_what_is_farther_off_than_the_axis_reaches_is_an_arrow_at_its_end() -> None:
    near = [Published(f"row {n}", "x", 1.0, 1.0 + n / 10) for n in range(8)]
    (chart,) = ratio_charts([*near, Published("far", "x", 1.0, 1e6), Published("gone", "x", 1.0, 0.0)])
    assert chart.drawing.count("<circle") == 8
    assert len(re.findall(r'<path [^>]*class="mark"', chart.drawing)) == 2
    assert "far: ours 1\u2009000\u2009000, the paper&#39;s 1" in chart.drawing


def test_metrics_without_a_published_figure_have_no_chart() -> None:
    assert ratio_charts([Published("a", "x", None, 1.0)]) == ()
    page = render_reproduction(replace(PAGE, figures=(Published("a", "x", None, 1.0),)))
    assert "Metric by metric" not in page
    assert "<h2>Drawn</h2>" not in page, "one value alone is no figure"
    two = (Published("a", "x", None, 1.0), Published("b", "x", None, 2.0))
    assert "<h2>Drawn</h2>" in render_reproduction(replace(PAGE, figures=two))


def test_a_page_needs_a_figure() -> None:
    with pytest.raises(InputError, match="sia-table3: a page needs at least one figure"):
        render_reproduction(replace(PAGE, figures=()))


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_a_browser_shows_it_without_a_complaint(tmp_path: Path) -> None:
    document, complaints = seen(render_reproduction(PAGE), tmp_path)
    assert "philly/gavel" in document
    assert complaints == ""
