"""A table made again, as one self-contained page without a script: the same bytes for the same table."""

from pathlib import Path

from jinja2 import Environment

from stretto.errors import InputError
from stretto.report.charts.ratios import ratio_charts
from stretto.report.charts.value_figures import value_figures
from stretto.report.html import environment, style_of
from stretto.report.reproduction import (
    NEARNESS,
    Reproduced,
    blocks_of,
    claim,
    counts_of,
    definition_of,
    farthest,
    limits,
    number,
    published,
    title_of,
    unit_of,
)
from stretto.report.value_charts import charts_of
from stretto.report.wording import plural, times
from stretto.whole_files import write_whole


def write_reproduction(content: Reproduced, path: Path) -> None:
    """Write the page as UTF-8."""
    write_whole(path, render_reproduction(content))


def render_reproduction(content: Reproduced) -> str:
    """The page as one HTML document; InputError without a figure."""
    if not content.figures:
        raise InputError(f"{content.name}: a page needs at least one figure, got none")
    compared = content.compared
    limited = sum(figure.is_kept is not None for figure in content.figures)
    return (
        _environment()
        .get_template("reproduction.html.j2")
        .render(
            content=content,
            cautions=_cautions(content),
            claim=claim(content.figures),
            farthest=farthest(compared),
            limits=limits(content.figures) if compared else "",
            counts=counts_of(compared) if compared else (),
            limited=limited,
            left_over=_left_over(len(content.figures) - len(compared) - limited),
            blocks=blocks_of(content.figures),
            drawn=value_figures(charts_of(content.figures, content.policies)),
            charts=ratio_charts(content.figures),
            definitions={figure.metric: definition_of(figure.metric) for figure in content.figures},
            style=style_of("report.css", "reproduction.css"),
        )
    )


def _cautions(content: Reproduced) -> list[str]:
    """What a reader must know before reading any figure."""
    made = [source for source in content.sources if not source.is_real]
    if not made:
        return []
    if len(made) == len(content.sources):
        return ["Made data: no figure of this page confirms anything about the paper."]
    count = f"{plural(len(made), 'input')} of {len(content.sources)}"
    return [f"{count} {'is' if len(made) == 1 else 'are'} made, not recorded: see what was read, below."]


def _left_over(figures: int) -> str:
    if not figures:
        return ""
    verb = "has" if figures == 1 else "have"
    return f"{plural(figures, 'further figure')} of ours {verb} no value in the paper to compare with."


def _environment() -> Environment:
    made = environment()
    words = {
        "number": number,
        "published": published,
        "title_of": title_of,
        "unit_of": unit_of,
        "times": times,
    }
    made.filters |= words
    made.globals["nearness"] = [words for _, words in NEARNESS]
    return made
