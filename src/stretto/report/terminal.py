"""The same result in a terminal: a compact table, and one run's summary."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stretto.report.content import Comparison, RunSeries
from stretto.report.standings import Standings, standings_of
from stretto.report.tables import Cell, Column, columns_of, main_lines
from stretto.report.wording import column_unit
from stretto.sim.summary import METRICS, Metric

WIDE = 1_000  # characters: wider than any table
LONGEST_NAME = 22  # of a policy, in characters
BEST = "*"  # also where there is no colour
BASIS = {
    "traces": "±: 95 % interval (Student) over traces",
    "seeds": "±: 95 % interval (Student) over seeds of one trace",
    "jobs": "±: 95 % bootstrap over the jobs of one run; nothing about other runs",
    "none": "",
}


def comparison_table(comparison: Comparison) -> Table:
    """One line per policy, best mean JCT first; reads as well on a pipe, where the best keep their star.

    Where the terminal is too narrow for all of it, the last columns are left out, and the caption says which.
    """
    standings, console = standings_of(comparison), Console()
    columns = [column for column in columns_of(standings) if column.metric.heading]
    shown = len(columns)
    while True:
        table = _with_columns(comparison, standings, columns[:shown], columns[shown:])
        width = Measurement.get(console, console.options.update(width=WIDE), table).maximum
        if width <= console.width or shown == 1:
            return table
        shown -= 1


def _with_columns(
    comparison: Comparison, standings: Standings, columns: Sequence[Column], left_out: Sequence[Column]
) -> Table:
    lines = main_lines(standings, columns_of(standings))
    places = {column.metric.key: index for index, column in enumerate(columns_of(standings))}
    table = _table(comparison.title, _caption(comparison, standings, left_out))
    # A number that lost a digit would be a lie, and rows without their names tell nothing.
    names = [line.standing.policy for line in lines]
    least = min(max(map(len, names), default=0), LONGEST_NAME)
    table.add_column("policy", overflow="ellipsis", min_width=least, max_width=LONGEST_NAME)
    for column in columns:
        unit = f"\n{column.unit.name}" if column.unit.name else "\n"
        table.add_column(column.metric.heading + unit, justify="right", no_wrap=True)
        if column.metric.key == "avg_jct_s":
            table.add_column("×\nbest", justify="right", no_wrap=True)
    for line in lines:
        cells: list[Text] = [Text(line.standing.policy, style="bold")]
        for column in columns:
            key = column.metric.key
            half = standings_half_width(
                line.standing.estimates[key].half_width, column.unit.scale, column.unit.places
            )
            cells.append(_cell(line.cells[places[key]], half if key == "avg_jct_s" else ""))
            if key == "avg_jct_s":
                cells.append(Text(line.ratio.removesuffix("×")))
        table.add_row(*cells)
    return table


def run_summary(run: RunSeries) -> Table:
    """One run: each figure that applies, in the unit that fits it."""
    made = ", made data" if run.synthetic else ""
    table = _table(f"{run.policy} on {run.trace} ({run.cluster}, seed {run.seed}{made})", "")
    table.show_header = False
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for metric in METRICS:
        value = run.metric(metric.key)
        if np.isfinite(value):
            table.add_row(Text(metric.title), Text(_in_its_unit(metric, value)))
    return table


def standings_half_width(half_width: float, scale: float, places: int) -> str:
    """' ±0.03' in a column's unit; empty where there is no interval."""
    return f" ±{half_width / scale:.{places}f}" if np.isfinite(half_width) else ""


def _cell(cell: Cell, after: str) -> Text:
    mark = BEST if cell.is_best else " "
    text = Text(cell.text + mark, style="bold green" if cell.is_best else "")
    return text.append(after, style="dim") if after else text


def _table(title: str, caption: str) -> Table:
    return Table(
        title=Text(title),
        caption=Text(caption) if caption else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
        pad_edge=False,
        padding=(0, 1),
    )


def _caption(comparison: Comparison, standings: Standings, left_out: Sequence[Column]) -> str:
    parts = [f"{BEST} best (lower; 'in use' is neither)"] if len(standings.ranked) > 1 else []
    if any(np.isfinite(s.estimates["avg_jct_s"].half_width) for s in standings.ranked):
        parts.append(BASIS[standings.basis])
    made = sorted({run.trace for run in comparison.runs if run.synthetic})
    if made:
        parts.append(f"made data, not recorded: {', '.join(made)}")
    if left_out:
        parts.append(f"too narrow for {', '.join(column.metric.heading for column in left_out)}: see --json")
    return "\n".join(parts)


def _in_its_unit(metric: Metric, value: float) -> str:
    unit = column_unit(metric.quantity, [value])
    return f"{unit.text(value)} {unit.name}".strip()
