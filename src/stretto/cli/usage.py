"""The verbs for what was used, and what it costs."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.options import Listing
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.cli.service import Token, Url, service
from stretto.errors import InputError
from stretto.service.state.messages import span_in_words

if TYPE_CHECKING:
    from stretto.report.usage import UsageReport

DIMENSIONS = ("user", "queue", "type", "job", "day", "week", "month")
PERIODS = DIMENSIONS[4:]
SHOWN = ("useful", "unsaved", "lost", "idle", "charged")
Zone = Annotated[
    str, typer.Option(help="The time zone of days, and of dates that say none, like Europe/Berlin.")
]


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="What to sum by: user, queue, type, job, and day, week or month; may be given several "
            "times. Else user."
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", help="The first day, or a time.", metavar="DATE", show_default="the first"),
    ] = "",
    end: Annotated[
        str,
        typer.Option("--to", help="The day, or time, at which it ends.", metavar="DATE", show_default="now"),
    ] = "",
    zone: Zone = "UTC",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page of it, with figures.")
    ] = None,
    figures: options.Figures = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Show jobs instead whose GPUs have hardly done anything of late.")
    ] = False,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Show GPU-hours held, what they were for, which user is charged, and what they cost."""
    if idle:
        if by or start or end or as_csv or out is not None or figures is not None:
            raise InputError("--idle: expected alone, or with --json")
        _show_idle(url, token, as_json)
        return
    by = by or ["user"]
    for dimension in by:
        if dimension not in DIMENSIONS:
            raise InputError(f"--by {dimension}: expected {', '.join(DIMENSIONS[:-1])} or {DIMENSIONS[-1]}")
    if as_csv and as_json:
        raise InputError("--csv: expected without --json")
    _check_written(out, figures)
    with service(url, token) as client:
        rows = client.usage(*by, start=start, end=end, zone=zone)
    if as_csv or out is not None or figures is not None:
        report = _report(by, rows, start, end, zone)
        _write(report, as_csv, out, figures)
    if as_json:
        show_json({"by": by, "zone": zone, "from": start or None, "to": end or None, "usage": rows})
        return
    if as_csv:
        return
    names = ["period" if dimension in PERIODS else dimension for dimension in by]
    is_priced = any(row["cost"] is not None for row in rows)
    header = [*by, "jobs", "gpus", "gpu hours", *SHOWN, *(["cost"] if is_priced else [])]
    show_table("", header, [_row(row, names, is_priced) for row in rows], none="no GPUs have been used yet")
    if set(by) & set(PERIODS):
        say(f"days begin at midnight, {zone}")


def _show_idle(url: str, token: str, as_json: bool) -> None:
    """Jobs that hold GPUs which hardly do anything."""
    with service(url, token) as client:
        answer = client.idle_holders()
    if as_json:
        show_json(answer)
        return
    rule = (
        f"busy for less than {100 * answer['below']:g} % of the time for {span_in_words(answer['after_s'])}"
    )
    cells = [
        [
            row["job"],
            row["name"],
            row["user"] or "(none)",
            f"{row['gpus']} x {row['gpu_type']}",
            f"{100 * row['busy']:.0f}%",
            f"{row['memory_gb']:.1f} GB",
            span_in_words(row["idle_s"]),
            f"{row['idle_gpu_seconds'] / 3600:.2f}",
        ]
        for row in answer["idle"]
    ]
    header = ["job", "name", "user", "gpus", "busy", "memory", "for", "gpu hours"]
    none = f"no job is {rule}" if answer["is_measured"] else "unknown: no node says how busy its GPUs are"
    show_table("", header, cells, none=none)
    if cells or not sys.stdout.isatty():
        say(rule if cells else none)


def _row(row: dict[str, Any], names: list[str], is_priced: bool) -> list[str]:
    return [
        *(row[name] or "(none)" for name in names),
        str(row["jobs"]),
        str(row["gpus"]),
        f"{row['gpu_hours']:.2f}",
        *(f"{row[f'{use}_gpu_seconds'] / 3600:.2f}" for use in SHOWN),
        *([f"{row['cost']:.2f}"] if is_priced else []),
    ]


def _check_written(out: Path | None, figures: Path | None) -> None:
    """Raise InputError where files could not be written, before the service is asked."""
    if out is None and figures is None:
        return
    from stretto.cli.reproduce import check_page
    from stretto.experiments.log import check_writable

    if out is not None:
        check_page(out)
    if figures is not None:
        check_writable(figures, "--figures")


def _report(by: list[str], rows: list[dict[str, Any]], start: str, end: str, zone: str) -> "UsageReport":
    from stretto import __version__
    from stretto.report.usage import UsageReport

    return UsageReport(
        by=tuple(by),
        period=next((dimension for dimension in by if dimension in PERIODS), ""),
        rows=rows,
        start=start,
        end=end,
        zone=zone,
        command=shlex.join(["stretto", *sys.argv[1:]]),
        versions={"stretto": __version__},
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _write(report: "UsageReport", as_csv: bool, out: Path | None, figures: Path | None) -> None:
    from stretto.report.usage_page import usage_sheet, write_usage, write_usage_figures

    if as_csv:
        usage_sheet(report).write(sys.stdout)
    option = f"--out {out}"
    try:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_usage(report, out)
            say(f"page: {out}")
        if figures is not None:
            option = f"--figures {figures}"
            if no_png := write_usage_figures(report, figures):
                say(no_png)
            say(f"figures: {figures}")
    except OSError as wrong:
        raise InputError(f"{option}: cannot be written: {wrong.strerror}") from None


prices = typer.Typer(help="Prices of GPU-hours in a running service; lists them.", cls=Listing)


@prices.command("list")
def list_prices(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List prices by GPU type, and from when on they hold."""
    with service(url, token) as client:
        rows = client.gpu_prices()
    _show_prices(rows, as_json)


@prices.command("set", context_settings=options.NEGATIVE_NUMBERS)
def set_price(
    gpu_type: Annotated[str, typer.Argument(help="The GPU type.", metavar="TYPE")],
    price: Annotated[float, typer.Argument(help="Of an hour of one GPU.", metavar="PRICE")],
    start: Annotated[
        str,
        typer.Option("--from", help="From when on.", metavar="DATE", show_default="this quarter of an hour"),
    ] = "",
    zone: Zone = "UTC",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set the price of a GPU type from a time on. Usage before that keeps its price."""
    if not 0 <= price <= 1e9:
        raise InputError(f"price: expected a number from 0 to 1e9, got {price:g}")
    with service(url, token) as client:
        rows = client.set_gpu_price(gpu_type, price, start, zone)
    if as_json:
        show_json({"gpu_prices": rows})
    else:
        show_line(f"{gpu_type}: {price:g} per GPU-hour from {start or 'now'} on")


def _show_prices(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json({"gpu_prices": rows})
        return
    cells = [[row["gpu_type"], f"{row['price']:g}", row["from"]] for row in rows]
    show_table("", ["type", "per gpu-hour", "from"], cells, none="no price has been set")
