"""The tables' cells, the same for the page and the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.report.content import Comparison, RunSeries, Value
from stretto.report.findings import interval_words
from stretto.report.standings import Standing, Standings
from stretto.report.wording import DASH, Unit, column_unit, digits, plural, share, times
from stretto.sim.summary import METRICS, RANKED_BY, Metric


@dataclass(frozen=True, slots=True)
class Column:
    """A metric in the one unit that its column uses."""

    metric: Metric
    unit: Unit

    @property
    def heading(self) -> str:
        """Title with unit, for plain text."""
        return f"{self.metric.title} ({self.unit.name})" if self.unit.name else self.metric.title


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of the main table."""

    text: str
    interval: str  # "± 0.03" or "0.49 – 0.61"; empty without one
    is_best: bool
    part: float  # of the column's largest value, for the bar behind it; 0 where unknown


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's line of the main table."""

    standing: Standing
    ratio: str  # of mean JCT to the best
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class PairLine:
    """The best policy against one other."""

    other: Standing
    workloads: str
    ratio: str
    interval: str
    median: str
    faster: float
    slower: float
    jobs: str
    p_value: str
    verdict: str


def columns_of(standings: Standings, main_only: bool = True) -> tuple[Column, ...]:
    """The metrics that apply, each with the unit in which its figures read best."""
    present = standings.present([metric for metric in METRICS if metric.main or not main_only])
    return tuple(
        Column(
            metric,
            column_unit(metric.quantity, [standing.value(metric.key) for standing in standings.ranked]),
        )
        for metric in present
    )


def main_lines(standings: Standings, columns: Sequence[Column]) -> tuple[Line, ...]:
    """A line per policy, best first."""
    best = standings.best.value(RANKED_BY.key)
    leaders = [standings.leaders(column.metric) for column in columns]
    largest = [np.nanmax([s.value(column.metric.key) for s in standings.ranked]) for column in columns]
    return tuple(
        Line(
            standing,
            times(standing.value(RANKED_BY.key) / best) if best > 0 else DASH,
            tuple(
                _cell(standing, column, standing.policy in leading, most)
                for column, leading, most in zip(columns, leaders, largest, strict=True)
            ),
        )
        for standing in standings.ranked
    )


def _cell(standing: Standing, column: Column, is_best: bool, largest: float) -> Cell:
    estimate, unit = standing.estimates[column.metric.key], column.unit
    interval = ""
    if np.isfinite(estimate.half_width):
        # A bootstrap interval leans to one side, Student's does not: each is written as it is.
        one_sided = estimate.basis == "jobs"
        interval = (
            f"{unit.text(estimate.low)} – {unit.text(estimate.high)}"
            if one_sided
            else f"± {unit.text(estimate.half_width)}"
        )
    part = estimate.value / largest if np.isfinite(estimate.value) and largest > 0 else 0.0
    return Cell(unit.text(estimate.value), interval, is_best, part)


def pair_lines(standings: Standings) -> tuple[PairLine, ...]:
    """The best policy against each other, on the same jobs."""
    return tuple(
        PairLine(
            other=pairing.other,
            workloads=f"{pairing.ahead} of {pairing.workloads}",
            ratio=times(pairing.ratio.value),
            interval=interval_words(pairing.ratio) if np.isfinite(pairing.ratio.low) else DASH,
            median=times(pairing.jobs.median_ratio),
            faster=0.0 if np.isnan(pairing.jobs.faster) else pairing.jobs.faster,
            slower=0.0 if np.isnan(pairing.jobs.slower) else pairing.jobs.slower,
            jobs=plural(pairing.jobs.jobs, "job"),
            p_value=_p_words(pairing.jobs.p_value),
            verdict="unknown" if np.isnan(pairing.ratio.low) else "settled" if pairing.is_settled else "open",
        )
        for pairing in standings.pairings
    )


def run_lines(
    comparison: Comparison, columns: Sequence[Column], most: int
) -> tuple[tuple[RunSeries, tuple[str, ...]], ...]:
    """Every run with all its figures, in the units of `columns`; at most `most` of them."""
    return tuple(
        (run, tuple(column.unit.text(run.metric(column.metric.key)) for column in columns))
        for run in comparison.runs[:most]
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What the runs were set to, what is common apart from what differs."""

    common: tuple[tuple[str, str], ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]  # key, value for each policy by colour


def settings_of(standings: Standings) -> Settings:
    """Resolved settings by key; several values of one policy's runs stand side by side."""
    keys = sorted({key for s in standings.ranked for run in s.runs for key in run.settings})
    common, differing = [], []
    for key in keys:
        values = tuple(_setting(standing, key) for standing in standings.by_colour)
        if len(set(values)) == 1:
            common.append((key, values[0]))
        else:
            differing.append((key, values))
    return Settings(tuple(common), tuple(differing))


def _setting(standing: Standing, key: str) -> str:
    return ", ".join(dict.fromkeys(_worded(run.settings.get(key)) for run in standing.runs))


def _worded(value: Value) -> str:
    return DASH if value is None else str(value)


def _p_words(p_value: float) -> str:
    if np.isnan(p_value):
        return DASH
    return "< 0.001" if p_value < 1e-3 else digits(p_value, 2)


def faster_words(line: PairLine) -> str:
    """'71 % sooner, 22 % later, the rest alike'."""
    rest = 1 - line.faster - line.slower
    return f"{share(line.faster)} sooner, {share(line.slower)} later" + (
        f", {share(rest)} alike" if rest > 5e-4 else ""
    )
