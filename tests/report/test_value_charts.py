"""Values of a table as curves and bars: what is drawn of ours, of the paper, and of intervals."""

import re
from itertools import pairwise

from stretto.experiments.reproduction import PLUS_MINUS as PLUS_MINUS_OF_ROWS
from stretto.report.charts.value_figures import value_figures
from stretto.report.reproduction import Published
from stretto.report.value_charts import PLUS_MINUS, Chart, charts_of

VALUES = (
    *(
        Published(f"{gpus} GPUs: {policy}", "avg_jct_s", paper, 6_400.0 / gpus)
        for gpus, paper in ((16, 380.0), (32, None), (64, None))
        for policy in ("sia", "fifo")
    ),
    Published("16 GPUs: sia", f"avg_jct_s{PLUS_MINUS}", None, 50.0),
    Published("16 GPUs: sia", "queue_s", 1.0, 0.0, "at most"),
    Published("philly/sia", "makespan_h", 2.0, 2.5),
    Published("philly/fifo", "makespan_h", None, None),
    Published("philly/fifo", "restarts", None, 3.0),
)


def of_name(name: str) -> Chart:
    return next(chart for chart in charts_of(VALUES, ("sia", "fifo")) if chart.name == name)


def drawing_of(chart: Chart) -> str:
    (figure,) = value_figures([chart])
    return str(figure.drawing)


def test_intervals_have_the_ending_that_rows_give_them() -> None:
    assert PLUS_MINUS == PLUS_MINUS_OF_ROWS


def test_rows_over_a_number_are_a_curve_for_each_policy_with_marks_of_the_paper_and_intervals() -> None:
    chart = of_name("avg_jct_s")
    drawing = drawing_of(chart)
    assert (chart.axis, chart.unit, list(chart.colours)) == ("GPUs", "s", ["sia", "fifo"])
    assert len(re.findall(r'd="M[\d. ]+L[\d. ]+L[^"]+" class="curve"', drawing)) == 2
    assert drawing.count('class="papers own"') == 2, "a diamond for each value that the paper prints"
    assert drawing.count('class="reach"') == 3, "one interval, with both ends"
    assert ">95 % interval<" in drawing
    assert "16 GPUs: sia: ours 400 ± 50.0, the paper&#39;s 380" in drawing
    assert chart.lead == "The paper prints 2 of these 6 values."


def test_bars_begin_at_zero_and_what_is_not_known_is_said() -> None:
    chart = of_name("makespan_h")
    (figure,) = value_figures([chart])
    assert chart.title == "Makespan, h: philly"
    assert figure.note == "1 of ours is not known, or not applicable."
    zero = re.search(r'<text x="([\d.]+)" y="[\d.]+" class="tick mid">0<', figure.drawing)
    (bar,) = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="\d{3}', figure.drawing)
    assert zero
    assert zero[1] == bar
    assert figure.drawing.count('class="papers"') == 2, "the paper's value, and its word"


def test_a_limit_is_drawn_as_one_and_a_value_alone_is_no_figure() -> None:
    chart = of_name("queue_s")
    assert chart.lead == "The paper states a limit of this value."
    assert 'class="limit"' in drawing_of(chart)
    assert "restarts" not in {chart.name for chart in charts_of(VALUES)}


def test_metrics_that_differ_by_a_number_are_one_chart_over_it() -> None:
    rows = [
        Published(row, f"usage_hour_{hour:02}", None, hour / 24) for hour in range(24) for row in ("a", "b")
    ]
    (chart,) = charts_of(rows)
    assert (chart.name, chart.axis, list(chart.colours)) == ("usage", "hour", ["a", "b"])
    assert [point.spot.x for point in chart.points] == [float(hour) for hour in range(24) for _ in "ab"]
    shares = [Published("a", f"share_over_{s}s", None, 1 / s) for s in (1, 60, 600)]
    (chart,) = charts_of(shares)
    assert (chart.name, chart.axis, chart.unit) == ("share", "over, s", "")


def test_curves_that_are_zero_throughout_lie_at_the_foot_of_the_axis() -> None:
    rows = [Published(f"{gpus} GPUs: sia", "behind_percent", None, 0.0) for gpus in (16, 32, 64)]
    drawing = drawing_of(charts_of(rows, ("sia",))[0])
    labels = re.findall(r'class="tick end">([^<]+)<', drawing)
    assert labels[0] == "0"
    assert not [label for label in labels if label.startswith("-")], "below what there can be"


def test_zero_stands_at_the_foot_of_a_log_axis() -> None:
    rows = [Published(f"{x} GPUs", "queue_s", None, ours) for x, ours in ((1, 1e6), (2, 10.0), (3, 0.0))]
    (figure,) = value_figures(charts_of(rows))
    assert "s, log scale" in figure.drawing
    assert figure.note == "Zero stands at the foot of the log axis."
    ticks = re.findall(r'y="([\d.]+)" class="tick end">([\d\s.]+)<', figure.drawing)
    heights = sorted(float(y) for y, _ in ticks)
    assert ticks[0][1] == "0"
    assert min(after - before for before, after in pairwise(heights)) > 12
    negative = [Published(f"{x} GPUs", "gain", None, ours) for x, ours in ((1, 1e6), (2, 10.0), (3, -5.0))]
    (figure,) = value_figures(charts_of(negative))
    assert "log scale" not in figure.drawing


def test_groups_of_thin_bars_that_would_not_be_seen_have_a_log_axis() -> None:
    """Five series: their values do not stand beside the bars."""

    def drawn(least: float) -> tuple[str, str]:
        values = {"long": (0.0, 10.0, 1e4, 1e3, 100.0), "short": (least, 2.0, 40.0, 30.0, 20.0)}
        rows = [
            Published(f"load, {series}: {name}", "behind", None, value)
            for name, of_name in values.items()
            for series, value in zip("abcde", of_name, strict=True)
        ]
        (figure,) = value_figures(charts_of(rows, tuple("abcde")))
        return str(figure.drawing), figure.note

    drawing, note = drawn(0.0)
    assert "behind, log scale" in drawing
    assert note == "What has no bar is next to zero."
    assert re.findall(r'class="tick mid">([\d\s.]+)<', drawing)[:2] == ["0", "10"]
    assert "log scale" not in drawn(9e3)[0]
    assert "log scale" not in drawn(-1.0)[0]


def test_a_series_keeps_its_colour_from_chart_to_chart_and_none_has_one_twice() -> None:
    rows = [
        *(Published(f"{gpus} GPUs: {name}", "a", None, 1.0) for gpus in (1, 2, 4) for name in ("x", "y")),
        *(Published(f"{gpus} GPUs: {name}", "b", None, 1.0) for gpus in (1, 2, 4) for name in ("z", "y")),
        *(Published(f"{gpus} GPUs: {name}", "c", None, 1.0) for gpus in (1, 2, 4) for name in ("x", "z")),
    ]
    assert [dict(chart.colours) for chart in charts_of(rows)] == [
        {"x": 0, "y": 1},
        {"z": 0, "y": 1},
        {"x": 0, "z": 1},
    ]


def test_values_that_are_not_known_and_names_from_outside_do_no_harm() -> None:
    hostile = "<script>alert(1)</script>"
    rows = [
        Published(f"{hostile}{name}", "x", None, value)
        for name, value in zip("ab", (float("nan"), 1.0), strict=True)
    ]
    rows.append(Published("c", "x", 0.0, 0.0))
    for figure in value_figures(charts_of(rows)):
        assert "<script" not in figure.drawing
        assert "nan" not in figure.drawing
