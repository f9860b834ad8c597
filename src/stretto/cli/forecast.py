"""`stretto explain` and `stretto whatif`: why, until when, and what if."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.cli.service import (
    JobName,
    Token,
    Url,
    ago,
    clock_of,
    clock_of_service,
    service,
    when_in_table,
    when_of,
)
from stretto.errors import InputError
from stretto.service.state.messages import gpus_of, headline

LEAST_HELD = 20  # forecasts, before it is said how many have held; chosen


def explain(job: JobName, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Show why a job waits, which jobs hold its GPUs, and what would start it."""
    with service(url, token) as client:
        explanation = client.explain(job)
        if as_json:
            show_json(explanation)
            return
        clock = clock_of_service(client)
    now = explanation["now"]
    span = explanation.get("start") or explanation.get("end")
    when = when_of(span, now) if span else ""
    show_line(f"job {explanation['id']} {explanation['name']}: {headline(explanation, when)}")
    waits = not explanation["gpus"] and not explanation["ended"]
    if waits and not when and not explanation["never"] and explanation["foreseen"] and explanation["draws"]:
        show_line(f"not before {clock_of(explanation['foreseen'], now)}, as far as was looked ahead")
    if explanation["starts_as"] and when:
        first = explanation["starts_as"]
        nodes = ", ".join(f"{gpus} on {node}" for node, gpus in first["nodes"].items())
        show_line(f"starts with {gpus_of(first['gpus'], first['gpu_type'])} ({nodes})")
    if explanation.get("preempted") and not explanation["ended"]:
        show_line(f"preempted {explanation['preempted']}")
    if explanation.get("took_from") and not explanation["ended"]:
        show_line(f"took GPUs from {', '.join(explanation['took_from'])}, of lower priority")
    for change in explanation["changes"]:
        when_or_how = f" {change['change']}" if change["change"] else ", at the next decision,"
        gets = gpus_of(change["gpus"], change["gpu_type"])
        show_line(f"would start now{when_or_how}" + ("" if gets in when_or_how else f" on {gets}"))
    if explanation["holders"]:
        header = ["held by", "name", "user", "gpus", "type", "until"]
        rows = [
            [
                holder["id"] or "-",
                holder["name"] or "of another user",
                holder["user"] or "-",
                str(holder["gpus"]),
                holder["gpu_type"],
                when_in_table(holder["end"], now) if holder["end"] else "-",
            ]
            for holder in explanation["holders"]
        ]
        show_table("", header, rows, tight="name")
    if waits and explanation["prices"]:
        header = ["type", "free", "of", "price", "pays"]
        rows = [
            [
                gpu_type["gpu_type"],
                str(gpu_type["free"]),
                str(gpu_type["gpus"]),
                "-" if gpu_type["price"] is None else f"{gpu_type['price']:.3g}",
                "-" if gpu_type["pays"] is None else f"{gpu_type['pays']:.3g}",
            ]
            for gpu_type in explanation["prices"]
        ]
        show_table("", header, rows)
    for line in explanation["assumed"]:
        say(f"assumed: {line}")
    if clock.words and not explanation["ended"]:
        say(clock.words)
    if span and (words := held_in_words(explanation.get("held", {}), "start" if waits else "end")):
        say(words)


def held_in_words(held: Mapping[str, Mapping[str, int]], what: str) -> str:
    """How many intervals of starts, or of ends, have held so far; "" for too few to say."""
    found = held.get(what, {"inside": 0, "of": 0})
    if found["of"] < LEAST_HELD:
        return ""
    return (
        f"of {found['of']} intervals of {what}s so far, {100 * found['inside'] / found['of']:.0f} % have held"
    )


def whatif(
    policy: Annotated[str, typer.Option("--policy", "-p", help="Another policy, by name.")] = "",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="SPACE.KEY=VALUE", help="A setting of policy, estimate or place."),
    ] = [],  # noqa: B006  (typer wants a plain default)
    add: Annotated[
        list[str], typer.Option("--add", metavar="TYPE:GPUS[xNODES]", help="More nodes, like a100:8x2.")
    ] = [],  # noqa: B006
    job: Annotated[Path | None, typer.Option("--job", help="One more job, from its file.")] = None,
    without: Annotated[
        list[str], typer.Option("--without", metavar="ID", help="A job that is not to be there.")
    ] = [],  # noqa: B006
    draws: Annotated[int, typer.Option(min=1, max=64, help="Number of futures to draw.")] = 9,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Forecast the open jobs as things are, and with another policy, more nodes, or other jobs."""
    from stretto.experiments.spec import parse_settings

    asks: dict[str, Any] = {"policy": policy, "settings": dict(parse_settings(settings)), "draws": draws}
    asks["nodes"] = [_nodes(nodes) for nodes in add]
    if without:
        asks["without"] = without
    if job is not None:
        asks["job"] = _text(job)
    with service(url, token) as client:
        answer = client.whatif(**asks)
        if as_json:
            show_json(answer)
            return
        clock = clock_of_service(client)
    present, changed, now = answer["present"], answer["changed"], answer["now"]
    if not present["jobs"] and not (changed and changed["jobs"]):
        say("no open jobs")
        return
    _show_jobs(present, changed, now)
    fewest = min(each.get("open_jobs", 0) for each in (present, changed) if each is not None)
    for name, forecast in (("as it is", present), ("changed", changed)):
        if forecast is not None:
            show_line(
                f"{name} ({forecast['policy']}): mean JCT {_duration(forecast['mean_jct_s'])}"
                f"{_of_how_many(forecast, fewest)}, "
                f"all done {when_of(forecast['last_end'], now) or 'later than was looked ahead'}"
            )
    if clock.words:
        say(clock.words)
    for name, why in answer["left_out"].items():
        say(f"left out: job {name} ({why})")
    for line in answer["assumed"]:
        say(f"assumed: {line}")


def _of_how_many(forecast: Mapping[str, Any], fewest: int) -> str:
    """Over which jobs a mean is taken, where those are not all. fewest: open jobs, of either side."""
    counted = forecast.get("counted_jobs")
    if counted is None or counted == forecast["open_jobs"]:
        return ""
    return (
        f" of the {counted} jobs on both sides"
        if counted == fewest
        else f" of {counted} jobs that end in all futures"
    )


def _show_jobs(present: Mapping[str, Any], changed: Mapping[str, Any] | None, now: float) -> None:
    rows = []
    before = {job["id"]: job for job in present["jobs"]}
    header = ["id", "name", "starts", "ends", "jct"]
    if changed is not None:
        header += ["starts then", "ends then", "jct then"]
    for job in changed["jobs"] if changed is not None else present["jobs"]:
        row = [job["id"], job["name"]]
        for side in (before.get(job["id"]), job)[: 1 + (changed is not None)]:
            if side is None:
                row += ["-", "-", "-"]
                continue
            start = "runs" if side["runs"] else when_in_table(side["start"], now)
            row += [start, when_in_table(side["end"], now), ago(side["jct_s"])]
        rows.append(row)
    if changed is not None and all(row[2] == row[5] for row in rows):  # no job starts at another time
        header = header[:5] + header[6:]
        rows = [row[:5] + row[6:] for row in rows]
    show_table("", header, rows, tight="name")


def _duration(span: Mapping[str, float | None]) -> str:
    middle, low, high = span["middle"], span["low"], span["high"]
    if middle is None:
        return "-"
    said = ago(middle)
    return said if low is None or high is None else f"{said} ({ago(low)} to {ago(high)})"


def _nodes(said: str) -> dict[str, Any]:
    gpu_type, _, size = said.partition(":")
    gpus, _, count = size.partition("x")
    if not gpu_type or not gpus.isdecimal() or not (count or "1").isdecimal():
        raise InputError(f"--add {said}: expected TYPE:GPUS or TYPE:GPUSxNODES, like a100:8x2")
    return {"gpu_type": gpu_type, "gpus": int(gpus), "count": int(count or "1")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise InputError(f"--job {path}: cannot be read: {wrong}") from None
