"""A series of switched assumptions as Markdown and as rows of a terminal."""

from collections.abc import Iterator, Sequence

from stretto.experiments.causes import Causes, Figure, Series, Switched
from stretto.experiments.findings import FINDINGS
from stretto.experiments.markdown import duration, number, share, table
from stretto.experiments.reproduction import Verdict

SIGNS = {"": "", "at most": "≤ ", "at least": "≥ "}  # before a figure that is a limit


def series_lines(causes: Causes) -> list[str]:
    """What stands below a table on the page of all tables."""
    series = causes.series
    header = ("switched", *(f"{figure.row}, {figure.metric}" for figure in series.figures))
    is_compared = any(figure.paper is not None for figure in series.figures)
    beside_paper = (
        " In brackets is what came out over the paper's figure. It is bold where the rule calls it "
        "reproduced."
    )
    lines = [
        "One assumption is switched at a time." + (beside_paper if is_compared else ""),
        "",
        *table(header, rows_of(series, marked=True)),
        "",
    ]
    simulations = f", {causes.simulations} simulations" if causes.simulations else ""
    of_code = f" by commit {causes.commit}" if causes.commit else ""
    lines.append(
        f"- Switched on {causes.made_on}{of_code}, {share(causes.scale)}{simulations}, in "
        f"{duration(causes.took_s)}."
    )
    lines += _met_lines(series)
    return lines + [f"- {finding}." for finding in FINDINGS.get(causes.name, ())]


def rows_of(series: Series, marked: bool) -> Iterator[list[str]]:
    """The paper's figures, if any; ours, and ours with each assumption switched. marked: as Markdown."""
    if any(figure.paper is not None for figure in series.figures):
        yield ["*the paper*" if marked else "the paper", *(_published(figure) for figure in series.figures)]
    for row in series.switched:
        how = f"`{row.how}`" if marked and row.how else row.how
        name = f"{row.what}: {how}" if row.how else row.what
        yield [name, *(_figure(series, row, column, marked) for column in range(len(series.figures)))]


def met_by(series: Series) -> list[str]:
    """For each figure that the paper prints: by which switches it comes out."""
    lines = []
    for column, figure in enumerate(series.figures):
        if figure.paper is None:
            continue
        met = [row.what for row in series.switched[1:] if series.verdict(row, column) is Verdict.REPRODUCED]
        name = f"{figure.row}, {figure.metric}"
        lines.append(
            f"{name} is reproduced with {_listed(met)}" if met else f"{name}: no switch alone is enough"
        )
    return lines


def _met_lines(series: Series) -> list[str]:
    """Which figures come out by some switch alone, and which by none; the table itself says by which."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for column, figure in enumerate(series.figures):
        if figure.paper is not None:
            verdicts = [series.verdict(row, column) for row in series.switched[1:]]
            names[Verdict.REPRODUCED in verdicts].append(f"`{figure.row}, {figure.metric}`")
    begins = {True: "Some switch alone reproduces", False: "No switch alone reproduces"}
    return [f"- {begins[is_met]} {', '.join(of)}." for is_met, of in names.items() if of]


def _listed(words: Sequence[str]) -> str:
    return ", or with ".join(f"*{word}*" for word in words)


def _published(figure: Figure) -> str:
    return "" if figure.paper is None else SIGNS[figure.bound] + number(figure.paper)


def _figure(series: Series, row: Switched, column: int, marked: bool) -> str:
    figure, value = series.figures[column], row.values[column]
    if value.ours is None:
        return ""
    text = number(value.ours) + (f" ± {number(value.half)}" if value.half else "")
    if figure.paper:
        text += f" ({number(value.ours / figure.paper)})"
    is_met = series.verdict(row, column) is Verdict.REPRODUCED
    return f"**{text}**" if marked and is_met else text
