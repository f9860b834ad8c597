"""Usage as one self-contained page without a script: the same bytes for the same rows."""

from collections.abc import Sequence
from pathlib import Path

from stretto.report.charts.usage import usage_figures
from stretto.report.export import Drawn, write_figures
from stretto.report.figure_file import Names
from stretto.report.findings import Card
from stretto.report.html import environment, style_of
from stretto.report.sheet import Sheet
from stretto.report.usage import MEANINGS, USES, UsageReport, claim, most, name_of, together
from stretto.report.wording import digits, plural, share
from stretto.whole_files import write_whole

USAGE = "usage"  # the sheet of all rows
FIGURES = ("jobs", "gpus", "gpu_hours", "gpu_seconds")
MOST_ROWS = 1_000  # lines of the table; all are in the sheet


def write_usage(report: UsageReport, path: Path) -> None:
    """Write the page as UTF-8. Raises OSError."""
    write_whole(path, render_usage(report))


def render_usage(report: UsageReport) -> str:
    """The page as one HTML document."""
    made = environment()
    made.filters["digits"] = digits
    is_priced = report.total.cost is not None
    return made.get_template("usage.html.j2").render(
        report=report,
        claim=claim(report),
        rest=most(report),
        cards=_cards(report),
        uses=USES,
        figures=usage_figures(report),
        is_priced=is_priced,
        lines=[(name_of(row, report.names), row, together([row])) for row in report.rows[:MOST_ROWS]],
        left_out=max(0, len(report.rows) - MOST_ROWS),
        meanings=MEANINGS,
        style=style_of("report.css", "usage.css"),
    )


def write_usage_figures(report: UsageReport, folder: Path) -> str:
    """Write the figures and all rows; returns why there is no PNG, empty where there is. Raises OSError."""
    drawn = [Drawn(figure.id, figure, USAGE) for figure in usage_figures(report)]
    source = f"{report.title} · {report.span}" + (f" · {report.made}" if report.made else "")
    why = write_figures(folder, drawn, [usage_sheet(report)], Names(parts=USES, source=source))
    return why if drawn else "no figure is drawn: no GPU was used"


def usage_sheet(report: UsageReport) -> Sheet:
    """Every figure of every row, in GPU-seconds."""
    figures = [*FIGURES, *(f"{use}_gpu_seconds" for use in (*USES, "charged"))]
    figures += ["unpriced_gpu_seconds", "cost"]
    rows = [[row[name] for name in (*report.names, *figures)] for row in report.rows]
    return Sheet(USAGE, (*report.names, *figures), rows)


def _cards(report: UsageReport) -> Sequence[Card]:
    total = report.total
    if not total.held_h:
        return ()
    cards = [
        Card("Useful", share(total.part("useful")), f"{digits(total.hours['useful'])} GPU-hours", "clear"),
        Card(
            "Lost",
            share(total.part("lost")),
            f"{digits(total.hours['lost'])} GPU-hours, to restarts and resizes",
            "open" if total.part("lost") > 0.05 else "plain",  # chosen: worth a look
        ),
        Card("Idle", share(total.part("idle")), f"{digits(total.hours['idle'])} GPU-hours, before a start"),
    ]
    if total.cost is not None:
        unpriced = f"; {digits(total.unpriced_h)} GPU-hours have no price" if total.unpriced_h else ""
        cards.append(Card("Cost", digits(total.cost, 4), f"at the prices of its time{unpriced}"))
    else:
        now = sum(row["gpus"] for row in report.rows)
        cards.append(Card("Now", plural(now, "GPU"), "held by these jobs at the moment"))
    return cards
