"""`stretto top`: the cluster and its jobs as they change."""

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.cluster import busy_in_words, state_with_taints
from stretto.cli.jobs import row_of, size_of
from stretto.cli.printing import say, shortened, show_json, show_table
from stretto.cli.service import ServiceClock, Token, Url, again_and_again, clock_of_service, service
from stretto.service.state.messages import reason_in_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stretto.client import Client

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
COLOURS = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "red",
    "bright_cyan",
    "bright_yellow",
    "bright_green",
)
LEVELS = "▁▂▃▄▅▆▇█"
FREE, DOWN, OTHERS, ENDING = "·", "x", "#", "~"
KEPT = 120  # sizes of a job that are kept for its line over time


def top(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two updates.")] = 1.0,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Show nodes with the jobs on their GPUs, and jobs with their size over time. On a pipe: once."""
    with service(url, token) as client:
        nodes, jobs = client.nodes(), _jobs(client)
        if as_json:
            show_json({"nodes": nodes, "jobs": jobs})
            return
        if not sys.stdout.isatty():
            letters, clock = letters_of(jobs, {}), clock_of_service(client)
            rows = [
                [
                    node["name"],
                    node["gpu_type"],
                    state_with_taints(node),
                    map_of(node, letters),
                    busy_in_words(node.get("busy")),
                ]
                for node in nodes
            ]
            show_table("", ["node", "type", "state", "gpus", "busy"], rows)
            show_table(
                "",
                ["key", "id", "name", "state", "gpus", "busy", "done", "ends", "why"],
                [_plain(job, letters, clock.present_unix_s) for job in jobs],
            )
            if clock.words:
                say(clock.words)
            return
        _live(client, every)


def _jobs(client: "Client") -> list[dict[str, Any]]:
    """Those of all users, where that may be seen, else one's own."""
    from stretto.client import Refused

    try:
        return list(client.jobs(everybody=True))
    except Refused:
        return list(client.jobs())


def letters_of(jobs: Sequence[Mapping[str, Any]], before: Mapping[str, str]) -> dict[str, str]:
    """A letter for every job; one that has it keeps it, and letters come round where there are more jobs."""
    found = {one["id"]: before[one["id"]] for one in jobs if one["id"] in before}
    unused = [letter for letter in LETTERS if letter not in set(found.values())]
    for number, one in enumerate(one for one in jobs if one["id"] not in found):
        found[one["id"]] = unused[number] if number < len(unused) else LETTERS[number % len(LETTERS)]
    return found


def map_of(node: Mapping[str, Any], letters: Mapping[str, str]) -> str:
    """A node's GPUs, one sign each: its job's letter, # for work of others, ~ for ending, a dot for free."""
    if not node["up"]:
        return DOWN * int(node["gpus"])
    held = "".join(letters.get(job, "?") * gpus for job, gpus in node["jobs"].items())
    held += OTHERS * int(node["others"]) + ENDING * int(node.get("ending", 0))
    return held + FREE * (int(node["gpus"]) - len(held))


def line_of(sizes: Sequence[int], most: int, width: int) -> str:
    """Sizes over time, one sign each, the newest last; a space for none."""
    newest = sizes[-width:]
    return "".join(
        " " if size == 0 else LEVELS[min(len(LEVELS) - 1, (size * len(LEVELS) - 1) // max(most, 1))]
        for size in newest
    )


def _plain(job: Mapping[str, Any], letters: Mapping[str, str], now: float) -> list[str]:
    cells = row_of(job, now)
    return [
        letters[job["id"]],
        job["id"],
        job["name"],
        job["state"],
        size_of(job),
        _busy(job),
        cells[8],
        cells[9],
        cells[10],
    ]


def _busy(job: Mapping[str, Any]) -> str:
    """How busy its GPUs are; a dash where it has none."""
    return busy_in_words(job.get("gpus_busy")) if job["gpus"] else "-"


def _live(client: "Client", every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    sizes: dict[str, list[int]] = defaultdict(list)
    letters: dict[str, str] = {}
    console = Console(highlight=False)
    clock = clock_of_service(client)

    def look() -> "RenderableType":
        nonlocal letters
        nodes, jobs = client.nodes(), _jobs(client)
        letters = letters_of(jobs, letters)
        for job in jobs:
            sizes[job["id"]] = [*sizes[job["id"]][1 - KEPT :], job["gpus"]]
        return screen(nodes, jobs, letters, sizes, console.width, console.height, clock)

    with Live(look(), console=console, auto_refresh=False, screen=True) as live:
        for frame in again_and_again(look, every):
            live.update(frame, refresh=True)


def screen(
    nodes: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]],
    letters: Mapping[str, str],
    sizes: Mapping[str, Sequence[int]],
    width: int,
    height: int,
    clock: ServiceClock | None = None,
) -> "RenderableType":
    """What `top` shows on a terminal of this size."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = time.time() if clock is None else clock.present_unix_s
    used = sum(node["gpus"] - node["free"] for node in nodes)
    total = sum(node["gpus"] for node in nodes)
    running = sum(bool(job["gpus"]) for job in jobs)
    head = Text(
        f"{time.strftime('%H:%M:%S')}   {used} of {total} GPUs held   {running} jobs run, "
        f"{len(jobs) - running} wait",
        style="bold",
    )
    is_measured = any(node.get("busy") is not None for node in nodes)
    colours = {name: COLOURS[LETTERS.index(letter) % len(COLOURS)] for name, letter in letters.items()}
    by_letter = {letter: colours[name] for name, letter in letters.items()}

    node_rows = max(min(len(nodes), height // 2 - 4), 1)
    machines = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("node", "type", "state", *(["busy"] if is_measured else [])):
        machines.add_column(name, no_wrap=True)
    machines.add_column("gpus", overflow="fold")
    for node in nodes[:node_rows]:
        gpus = Text()
        for letter in map_of(node, letters):
            gpus.append(letter, style=by_letter.get(letter, "dim"))
        busy = [busy_in_words(node.get("busy"))] if is_measured else []
        machines.add_row(node["name"], node["gpu_type"], state_with_taints(dict(node)), *busy, gpus)
    parts: list[RenderableType] = [head, machines]
    if clock is not None and clock.words:
        parts.insert(1, Text(clock.words, style="dim"))
    if len(nodes) > node_rows:
        parts.append(Text(f"and {len(nodes) - node_rows} more nodes", style="dim"))

    wide = width >= 100
    over = min(width - 80, 40) if wide else 8
    left = max(height - node_rows - 9 - (len(nodes) > node_rows), 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    is_shown = wide and is_measured
    header = ("", "id", "name", "state", "gpus", *(["busy"] if is_shown else []), "over time", "done", "ends")
    for name in (*header, *(["why"] if wide else [])):
        table.add_column(name, no_wrap=True, min_width=over if name == "over time" else None)
    ordered = sorted(jobs, key=lambda job: not job["gpus"])
    for job in ordered[:left]:
        cells, name = row_of(job, now), job["id"]
        most = max([*sizes[name], job["gpus_min"], 1])
        row = [
            Text(letters[name], style=colours[name]),
            Text(name),
            Text(shortened(job["name"], 20 if wide else 13)),
            Text(job["state"]),
            Text(size_of(job)),
            *([Text(_busy(job))] if is_shown else []),
            Text(line_of(sizes[name], most, over), style=colours[name]),
            Text(cells[8]),
            Text(cells[9]),
        ]
        table.add_row(*row, *([Text(reason_in_words(job["reason"]))] if wide else []))
    parts.append(table)
    if len(ordered) > left:
        parts.append(Text(f"and {len(ordered) - left} more jobs", style="dim"))
    return Group(*parts)
