"""Runs as a piece of a page, for notebooks: no script, nothing fetched, and a style that stays within it."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
from markupsafe import Markup

from stretto.report.charts.cdf import jct_cdf, queue_cdf
from stretto.report.charts.dots import by_label, by_workload
from stretto.report.charts.figure import Figure, Panels
from stretto.report.charts.rows import gpu_hours_by_type, where_time_goes
from stretto.report.content import Comparison
from stretto.report.findings import caution, verdict
from stretto.report.html import asset, environment
from stretto.report.page import INTERVALS, Scene, facts_of, scenes_of
from stretto.report.standings import Standings, standings_of
from stretto.report.tables import Settings, columns_of, main_lines, settings_of
from stretto.report.wording import DASH, column_unit
from stretto.sim.summary import METRICS

NAME = ".stretto-out"
STRONG = 3 * NAME  # a class three times outweighs what notebooks say of all tables, lists and code
# Where a notebook says that it is dark or light, whatever the machine prefers: Jupyter, VS Code, Colab and
# pages made with Sphinx.
DARK = (
    "[data-jp-theme-light=false]",
    ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    "html[theme=dark]",
    "html[data-theme=dark]",
)
LIGHT = (
    "[data-jp-theme-light=true]",
    ".vscode-light",
    ".vscode-high-contrast-light",
    "html[theme=light]",
    "html[data-theme=light]",
)
IDS = re.compile(r'\b(id|aria-labelledby)="([^"]+)"')


def run_fragment(comparison: Comparison) -> str:
    """One run: what came of its jobs, what they held, and every figure."""
    standings = standings_of(comparison)
    scene = _scene(comparison, standings)
    figures = _present(scene.jobs if scene is not None else None, jct_cdf(standings), queue_cdf(standings))
    return _render(comparison, standings, scene, "one simulated run", figures=figures)


def comparison_fragment(comparison: Comparison) -> str:
    """Several runs: the verdict, the table, and what is behind it."""
    standings = standings_of(comparison)
    columns = columns_of(standings)
    scene = _scene(comparison, standings)
    figures = _present(
        jct_cdf(standings),
        scene.jobs if scene is not None else None,
        by_workload(comparison, standings),
        by_label(standings),
    )
    return _render(
        comparison,
        standings,
        scene,
        "comparison of simulated runs",
        first=_present(where_time_goes(standings), gpu_hours_by_type(standings, comparison.cluster)),
        figures=figures,
        columns=columns,
        lines=main_lines(standings, columns),
        intervals=INTERVALS[standings.basis],
    )


def _render(
    comparison: Comparison, standings: Standings, scene: Scene | None, kind: str, **parts: Any
) -> str:
    made = environment()
    made.filters["with_ids"] = with_ids
    small = () if scene is None else (scene.use, scene.timelines)
    rows: list[Panels] = [row for row in small if row is not None]
    best = standings.best
    every = [
        (metric.title, _worded(metric.quantity, best.value(metric.key)), metric.definition)
        for metric in METRICS
        if np.isfinite(best.value(metric.key))
    ]
    settings = settings_of(standings)
    defaults: dict[str, Any] = {"first": (), "lines": (), "columns": (), "intervals": ""}
    return made.get_template("fragment.html.j2").render(
        kind=kind,
        title=comparison.title,
        cluster=comparison.cluster,
        facts=facts_of(comparison),
        cautions=caution(comparison, standings),
        verdict=verdict(standings),
        scenes=rows,
        every=every,
        settings=[*settings.common, *_differing(settings, standings)],
        prefix=_prefix(comparison),
        style=Markup(_style()),
        **(defaults | parts),
    )


def _differing(settings: Settings, standings: Standings) -> Iterator[tuple[str, str]]:
    """Each setting with the policies that have it."""
    policies = [standing.policy for standing in standings.by_colour]
    for key, values in settings.differing:
        named = (f"{name}: {value}" for name, value in zip(policies, values, strict=True) if value != DASH)
        yield key, ", ".join(named)


def with_ids(drawing: Markup, prefix: str) -> Markup:
    """A drawing whose ids begin with a prefix: a notebook shows many of them on one page."""

    def prefixed(match: re.Match[str]) -> str:
        return f'{match[1]}="{" ".join(prefix + name for name in match[2].split())}"'

    return Markup(IDS.sub(prefixed, drawing))


@cache
def _style() -> str:
    """The sheets of reports, held to the inside of the element."""
    palette = asset("palette.css")
    light, dark = re.findall(r":root \{(.*?)\}", palette, flags=re.DOTALL)
    forced = {words: ",".join(f"{where} {NAME}" for where in words) for words in (LIGHT, DARK)}
    return "".join(
        (
            f"{NAME}{{{light}}}",
            f"@media (prefers-color-scheme: dark) {{{NAME}{{{dark}}}}}",
            f"{forced[LIGHT]}{{{light}color-scheme: light;}}",
            f"{forced[DARK]}{{{dark}color-scheme: dark;}}",
            f"{STRONG} {{{asset('fragment.css')}{asset('charts.css')}}}",
        )
    )


def _scene(comparison: Comparison, standings: Standings) -> Scene | None:
    """The most typical workload over time; None where nothing is known of it."""
    return next(iter(scenes_of(comparison, standings, most=1)), None)


def _prefix(comparison: Comparison) -> str:
    """The same for the same runs, so that what is shown again is the same bytes."""
    words = repr([(run.name, sorted(run.settings.items(), key=str), run.cluster) for run in comparison.runs])
    return f"s{sha256(words.encode()).hexdigest()[:8]}-"


def _worded(quantity: str, value: float) -> str:
    unit = column_unit(quantity, [value])
    return f"{unit.text(value)} {unit.name}".strip()


def _present(*figures: Figure | None) -> Sequence[Figure]:
    return [figure for figure in figures if figure is not None]
