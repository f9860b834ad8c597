"""The figures of comparisons and of tables made again, as files with their data."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stretto.errors import InputError
from stretto.experiments.all_tables import Table
from stretto.experiments.frames import Columns, allocations_of, jobs_of, rounds_of
from stretto.experiments.reproduction import Reproduction
from stretto.report import Comparison
from stretto.report.charts.ratios import ratio_charts
from stretto.report.charts.value_figures import value_figures
from stretto.report.comparison_figures import (
    ALLOCATIONS,
    JOBS,
    ROUNDS,
    drawn_of,
    names_of,
    standings_sheets,
)
from stretto.report.export import LIST, Drawn, write_figures
from stretto.report.figure_file import Names
from stretto.report.reproduction import Reproduced, metrics_of
from stretto.report.sheet import Sheet, sheet_of
from stretto.report.standings import standings_of
from stretto.report.value_charts import RATIO, Chart, charts_of
from stretto.sim.result import Result

TABLE = "table"  # the sheet of a table made again
POINTS = "points"  # the sheet of what stands where in its figures
NOTHING_DRAWN = "no figure is drawn: there is no second value to compare with, ours or the paper's"


def write_comparison_figures(
    comparison: Comparison, results: Sequence[Result], folder: Path, called: str = "--figures"
) -> str:
    """Write the figures of a comparison; returns why there is no PNG, empty where there is.

    called: what the folder is named by in messages. Raises InputError where it cannot be written.
    """
    standings = standings_of(comparison)
    sheets = [
        _of_all(name, results, columns_of)
        for name, columns_of in ((JOBS, jobs_of), (ROUNDS, rounds_of), (ALLOCATIONS, allocations_of))
    ]
    return _written(
        folder,
        drawn_of(comparison, standings),
        [*standings_sheets(standings), *sheets],
        names_of(comparison),
        called,
    )


def write_reproduction_figures(made: Reproduction | Table, content: Reproduced, folder: Path) -> str:
    """The same of a table made again, now or by an earlier command: its values, and ours over the paper's.

    Also says where nothing can be drawn of it.
    """
    charts = charts_of(content.figures, content.policies)
    ratios = ratio_charts(content.figures)
    files = _file_names(
        [*map(_name_of, charts), *(f"{metric}-over-paper" for metric in metrics_of(content.figures))]
    )
    figures = [*((figure, POINTS) for figure in value_figures(charts)), *((each, TABLE) for each in ratios)]
    drawn = [Drawn(file, figure, data) for file, (figure, data) in zip(files, figures, strict=True)]
    header = ("row", "metric", "bound", "paper", "ours", "ratio", "verdict")
    rows = [
        (row.row, row.metric, row.bound, row.paper, row.ours, row.ratio, str(verdict))
        for row, verdict in zip(made.rows, made.verdicts, strict=True)
    ]
    source = " · ".join(part for part in (content.paper, content.name, content.made) if part)
    sheets = [Sheet(TABLE, header, rows), _points(charts, files)]
    no_png = _written(folder, drawn, sheets, Names(source=source))
    return no_png if drawn else NOTHING_DRAWN


def _points(charts: Sequence[Chart], files: Sequence[str]) -> Sheet:
    """What stands where: of each point its figure and series, and its number or its bar's name."""
    header = ("figure", "series", "bar", "x", "row", "metric", "ours", "plus_minus", "paper", "bound")
    rows = [
        (
            *(file, point.spot.series, point.spot.category, point.spot.x if chart.axis else None),
            *(point.spot.row, point.metric, point.ours, point.half or None, point.paper, point.bound),
        )
        for chart, file in zip(charts, files, strict=False)
        for point in chart.points
    ]
    return Sheet(POINTS, header, rows)


def _name_of(chart: Chart) -> str:
    """The metric, and what tells the charts of one metric apart."""
    about = re.sub(r"\W+", "-", chart.about).strip("-")
    return "-".join(part for part in (chart.name, "ratio" if chart.unit == RATIO else "", about) if part)


def _written(
    folder: Path,
    drawn: Sequence[Drawn],
    sheets: Sequence[Sheet],
    names: Names,
    called: str = "--figures",
) -> str:
    try:
        return write_figures(folder, drawn, sheets, names)
    except OSError as wrong:
        raise InputError(f"{called} {folder}: cannot be written: {wrong.strerror}") from None


def _of_all(name: str, results: Sequence[Result], columns_of: Callable[[Result], Columns]) -> Sheet:
    """The frames of all runs, one after the other, each row with its run."""
    frames = [columns_of(result) for result in results]
    lengths = [len(next(iter(frame.values()))) for frame in frames]
    run = {
        key: [
            getattr(result, key) for result, rows in zip(results, lengths, strict=True) for _ in range(rows)
        ]
        for key in ("policy", "trace", "seed")
    }
    joined = {key: np.concatenate([frame[key] for frame in frames]).tolist() for key in frames[0]}
    return sheet_of(name, run | joined)


def _file_names(metrics: Sequence[str]) -> list[str]:
    """Metrics as names of files, which have no other signs and differ: a number tells those alike apart."""
    names: list[str] = []
    for metric in metrics:
        name = "".join(sign if sign.isalnum() or sign in "_-" else "-" for sign in metric).lower()
        names.append(name if name not in (*names, LIST) else f"{name}-{len(names)}")
    return names
