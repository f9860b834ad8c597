"""The figures of comparisons and of tables made again, as files with their data."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stretto.errors import InputError
from stretto.experiments.frames import Columns, allocations_of, jobs_of, rounds_of
from stretto.experiments.reproduction import Reproduction
from stretto.report import Comparison
from stretto.report.charts.ratios import ratio_charts
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
from stretto.sim.result import Result

TABLE = "table"  # the sheet of a table made again
NOTHING_DRAWN = "no figure is drawn: the paper has no value to compare with"


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


def write_reproduction_figures(made: Reproduction, content: Reproduced, folder: Path) -> str:
    """The same of a table made again; also says where nothing can be drawn of it."""
    charts = ratio_charts(content.figures)
    files = _file_names([*metrics_of(content.figures)])
    drawn = [Drawn(file, chart, TABLE) for file, chart in zip(files, charts, strict=True)]
    header = ("row", "metric", "bound", "paper", "ours", "ratio", "verdict")
    rows = [
        (row.row, row.metric, row.bound, row.paper, row.ours, row.ratio, str(verdict))
        for row, verdict in zip(made.rows, made.verdicts, strict=True)
    ]
    source = " · ".join(part for part in (content.paper, content.name, content.made) if part)
    no_png = _written(folder, drawn, [Sheet(TABLE, header, rows)], Names(source=source))
    return no_png if drawn else NOTHING_DRAWN


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
