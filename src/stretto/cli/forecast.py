"""`stretto explain` and `stretto whatif`: why, until when, and what if."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.cli.service import JobName, Token, Url, ago, clock_of, service, when_in_table, when_of
from stretto.model import InputError
from stretto.service.state.messages import gpus_of, headline


def explain(job: JobName, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Show why a job waits, which jobs hold its GPUs, and what would start it."""
    with service(url, token) as client:
        found = client.explain(job)
    if as_json:
        show_json(found)
        return
    now = found["now"]
    span = found.get("start") or found.get("end")
    when = when_of(span, now) if span else ""
    show_line(f"job {found['id']} {found['name']}: {headline(found, when)}")
    waits = not found["gpus"] and not found["ended"]
    if waits and not when and not found["never"] and found["foreseen"] and found["draws"]:
        show_line(f"not before {clock_of(found['foreseen'], now)}, as far as was looked ahead")
    if found["starts_as"] and when:
        first = found["starts_as"]
        nodes = ", ".join(f"{gpus} on {node}" for node, gpus in first["nodes"].items())
        show_line(f"starts with {gpus_of(first['gpus'], first['gpu_type'])} ({nodes})")
    if found.get("preempted") and not found["ended"]:
        show_line(f"preempted {found['preempted']}")
    if found.get("took_from") and not found["ended"]:
        show_line(f"took GPUs from {', '.join(found['took_from'])}, of lower priority")
    for change in found["changes"]:
        said = f" {change['change']}" if change["change"] else ", at the next decision,"
        gets = gpus_of(change["gpus"], change["gpu_type"])
        show_line(f"would start now{said}" + ("" if gets in said else f" on {gets}"))
    if found["holders"]:
        header = ["held by", "name", "user", "gpus", "type", "until"]
        rows = [
            [
                one["id"] or "-",
                one["name"] or "of another user",
                one["user"] or "-",
                str(one["gpus"]),
                one["gpu_type"],
                when_in_table(one["end"], now) if one["end"] else "-",
            ]
            for one in found["holders"]
        ]
        show_table("", header, rows, tight="name")
    if waits and found["prices"]:
        header = ["type", "free", "of", "price", "pays"]
        rows = [
            [
                one["gpu_type"],
                str(one["free"]),
                str(one["gpus"]),
                "-" if one["price"] is None else f"{one['price']:.3g}",
                "-" if one["pays"] is None else f"{one['pays']:.3g}",
            ]
            for one in found["prices"]
        ]
        show_table("", header, rows)
    for line in found["assumed"]:
        say(f"assumed: {line}")


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
    draws: Annotated[int, typer.Option(min=1, max=64, help="Number of futures to draw.")] = 9,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Forecast the open jobs as things are, and with another policy, more nodes or one more job."""
    from stretto.experiments.spec import parse_settings

    asks: dict[str, Any] = {"policy": policy, "settings": dict(parse_settings(settings)), "draws": draws}
    asks["nodes"] = [_nodes(one) for one in add]
    if job is not None:
        asks["job"] = _text(job)
    with service(url, token) as client:
        found = client.whatif(**asks)
    if as_json:
        show_json(found)
        return
    present, changed, now = found["present"], found["changed"], found["now"]
    if not present["jobs"] and not (changed and changed["jobs"]):
        say("no open jobs")
        return
    _show_jobs(present, changed, now)
    for name, one in (("as it is", present), ("changed", changed)):
        if one is not None:
            show_line(
                f"{name} ({one['policy']}): mean JCT {_duration(one['mean_jct_s'])}, "
                f"all done {when_of(one['last_end'], now) or 'later than was looked ahead'}"
            )
    for name, why in found["left_out"].items():
        say(f"left out: job {name} ({why})")
    for line in found["assumed"]:
        say(f"assumed: {line}")


def _show_jobs(present: Mapping[str, Any], changed: Mapping[str, Any] | None, now: float) -> None:
    rows = []
    before = {one["id"]: one for one in present["jobs"]}
    header = ["id", "name", "starts", "ends", "jct"]
    if changed is not None:
        header += ["starts then", "ends then", "jct then"]
    for one in changed["jobs"] if changed is not None else present["jobs"]:
        row = [one["id"], one["name"]]
        for side in (before.get(one["id"]), one)[: 1 + (changed is not None)]:
            if side is None:
                row += ["-", "-", "-"]
                continue
            start = "runs" if side["runs"] else when_in_table(side["start"], now)
            row += [start, when_in_table(side["end"], now), ago(side["jct_s"])]
        rows.append(row)
    if changed is not None and all(row[2] == row[5] for row in rows):  # nobody starts at another time
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
