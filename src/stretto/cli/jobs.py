"""The verbs for jobs of a running service: list, describe, logs, events, cancel and the like.

A verb is for ids, ranges of ids, names, states, or all of one's own jobs.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import completion, options
from stretto.cli.printing import say, show_cells, show_json, show_line, show_table, table_of
from stretto.cli.service import (
    JobName,
    Token,
    Url,
    ago,
    clock_of,
    clock_of_service,
    one_line,
    promise_in_words,
    service,
    watch,
)
from stretto.errors import InputError
from stretto.service.state.messages import progress_in_words, reason_in_words

if TYPE_CHECKING:
    from stretto.client import Client

RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
STATES = ("PENDING", "STARTING", "RUNNING", "RESIZING", "PREEMPTING", "SUSPENDED")

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids like 4, ranges like 5-9, or names (your newest job of that name).",
        metavar="JOB...",
        autocompletion=completion.jobs,
    ),
]
State = Annotated[list[str], typer.Option("--state", help="Jobs in this state; may be given several times.")]
Every = Annotated[bool, typer.Option("--all", help="All jobs that have not ended; asks before.")]
User = Annotated[
    str, typer.Option("--user", help="The user whose jobs ranges, --state and --all mean; for operators.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class Selection:
    """What the user said of the jobs that are meant."""

    words: Sequence[str]
    states: Sequence[str] = ()
    everything: bool = False
    user: str = ""
    is_sure: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for what names no jobs, or names them twice over."""
        for state in self.states:
            if state.upper() not in STATES:
                raise InputError(f"--state {state}: expected one of {', '.join(STATES)}")
        if self.words and (self.everything or self.states):
            option = "--all" if self.everything else f"--state {self.states[0]}"
            raise InputError(f"{option}: expected no jobs beside it, got {self.words[0]}")
        if not (self.words or self.everything or self.states):
            raise InputError("expected ids, ranges or names of jobs, --state, or --all")

    @property
    def is_one(self) -> bool:
        """Whether one job or array is named."""
        return len(self.words) == 1 and not RANGE.fullmatch(self.words[0])

    def names(self, client: "Client") -> list[str]:
        """Ids and names, in the order in which they were said, each once. Raises InputError."""
        if self.words and not any(map(RANGE.fullmatch, self.words)):
            return list(dict.fromkeys(self.words))
        going = list(client.jobs(user=self.user))
        if not self.words:
            states = {state.upper() for state in self.states}
            return [job["id"] for job in going if not states or job["state"] in states]
        ids = list(dict.fromkeys(job["array"] or job["id"] for job in going))
        chosen: dict[str, None] = {}
        for word in self.words:
            chosen |= dict.fromkeys(_within(word, ids))
        return list(chosen)


def _within(word: str, ids: Sequence[str]) -> list[str]:
    """The ids of jobs that go on which a range covers; a word that is no range stands for itself."""
    bounds = RANGE.fullmatch(word)
    if bounds is None:
        return [word]
    first, last = int(bounds[1]), int(bounds[2])
    if first > last:
        raise InputError(f"{word}: expected a range from the smaller id to the larger one")
    covered = [job for job in ids if job.isdecimal() and first <= int(job) <= last]
    if not covered:
        raise InputError(f"{word}: expected ids of jobs that go on, got none")
    return covered


def change_all(selection: Selection, verb: str, url: str, token: str, as_json: bool, **values: Any) -> None:
    """Ask for a change of every job that is meant, and show each; status 2 where one was refused."""
    with service(url, token) as client:
        names = selection.names(client)
        if selection.is_one:
            _show(client.change(names[0], verb, **values), as_json)
            return
        if not names:
            raise InputError("these jobs have all ended, or there are none: nothing to do")
        if not selection.words and not selection.is_sure:
            _ask(verb, len(names))
        changed, refused = _each(names, lambda name: client.change(name, verb, **values), as_json)
    if as_json:
        show_json({"changed": changed, "refused": refused})
    if refused:
        raise typer.Exit(2)


def _each(
    names: Sequence[str], change: Callable[[str], dict[str, Any]], as_json: bool
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """One after the other; what is refused for one does not keep the others."""
    changed: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for name in names:
        try:
            changed.append(change(name))
        except InputError as wrong:
            refused.append({"job": name, "detail": str(wrong)})
            say(f"stretto: {wrong}")
            continue
        if not as_json:
            _show(changed[-1], as_json)
    return changed, refused


def _ask(verb: str, jobs: int) -> None:
    """Raise InputError unless a user at the terminal agrees."""
    if not sys.stdin.isatty():
        raise InputError(f"{verb} of {jobs} jobs: expected --yes, since no terminal is there to ask")
    if not typer.confirm(f"{verb} {jobs} job{'s' * (jobs != 1)}?", err=True):
        raise InputError(f"{verb}: nothing was done")


def _show(job: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(job)
    elif len(job["ids"]) > 1:
        show_line(f"array {job['array']}: {len(job['ids'])} jobs")
    else:
        show_line(one_line(dict(job)))


# ── the commands ──────────────────────────────────────────────────────────────────────────────────


if TYPE_CHECKING:
    from rich.table import Table

SHORT_IDLE_S = 60.0  # that is not worth a word; chosen
UNLIMITED_GPUS = 1_000_000  # from so many on, a range has no upper end
HEADER = ("id", "name", "user", "state", "gpus", "type", "age", "waited", "done", "ends", "why")


def list_jobs(
    everybody: Annotated[bool, typer.Option("--all", help="Show the jobs of all users.")] = False,
    ended: Annotated[
        bool, typer.Option("--ended", help="Show ended jobs, too; the newest come first.")
    ] = False,
    last: Annotated[int, typer.Option(min=1, help="With --ended: the most jobs to show, the newest.")] = 200,
    watching: Annotated[
        bool, typer.Option("--watch", help="Show the list again whenever something changes.")
    ] = False,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """List jobs with their age, GPUs, progress, expected end, and why they wait."""
    with service(url, token) as client:

        def listed() -> list[dict[str, Any]]:
            return list(islice(client.jobs(everybody, ended, newest=ended), last if ended else None))

        if as_json:
            show_json({"jobs": listed()})
            return

        clock = clock_of_service(client)

        def rows() -> list[list[str]]:
            return [row_of(job, clock.present_unix_s) for job in listed()]

        if clock.words:
            say(clock.words)
        if not watching:
            none = nothing_listed(everybody, ended)
            show_table("", *_without(HEADER, rows(), everybody), tight="name", none=none)
            return

        def look() -> "Table":
            columns = _without(HEADER, rows(), everybody)
            return table_of(time.strftime("jobs at %H:%M:%S"), *columns, tight="name")

        watch(look, lambda: ["\t".join(row) for row in rows()])


def nothing_listed(everybody: bool, ended: bool) -> str:
    """What is said where no job is to be listed, and how to see others."""
    others = [option for option, is_given in (("--all", everybody), ("--ended", ended)) if not is_given]
    said = f"no {'' if ended else 'open '}jobs{'' if everybody else ' of yours'}"
    return said + (f": see also {' and '.join(others)}" if others else "")


def row_of(job: Mapping[str, Any], now: float) -> list[str]:
    """A job as cells below HEADER. now: by the clock of the service."""
    done, left_s = job["share_done"], job["left_s"]
    why = reason_in_words(job["reason"], job["evidence"])
    return [
        job["id"],
        job["name"],
        job["user"],
        job["state"],
        size_of(job),
        job["gpu_type"] or "-",
        ago(job["age_s"]),
        ago(job["waited_s"]),
        "-" if done is None else f"{100 * done:.0f}%",
        "-" if left_s is None else clock_of(now + left_s, now),
        why,
    ]


def size_of(job: Mapping[str, Any]) -> str:
    """GPUs now, and the range that it asks for: 4/1-8, 0/2, 8/1-."""
    least, most = job["gpus_min"], job["gpus_max"]
    asked = str(least) if least == most else f"{least}-{most if most < UNLIMITED_GPUS else ''}"
    return f"{job['gpus']}/{asked}"


def _without(
    header: Sequence[str], rows: list[list[str]], everybody: bool
) -> tuple[list[str], list[list[str]]]:
    """On a terminal only columns that say something, and on a narrow one the most needed."""
    if not sys.stdout.isatty():
        return list(header), rows
    from rich.console import Console

    width = Console().width
    left_out = set() if everybody else {"user"}
    left_out |= {"waited", "type"} if width < 100 else set()
    for column, name in enumerate(header):
        if all(row[column] in ("", "-") for row in rows) and name != "why":
            left_out.add(name)
    columns = [column for column, name in enumerate(header) if name not in left_out]
    return [header[column] for column in columns], [[row[column] for column in columns] for row in rows]


def describe(job: JobName, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Show everything about one job."""
    with service(url, token) as client:
        described = client.describe(job)
        if as_json:
            show_json(described)
            return
        clock = clock_of_service(client)
    rows = [[key, value] for key, value in _described(described, clock.now_unix_s) if value not in ("", "-")]
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        if sys.stdout.isatty():
            show_line(f"{key:{width}}  {value}")
        else:
            show_cells([key, value])
    if clock.words:
        say(clock.words)


def _upload_of(job: Mapping[str, Any]) -> str:
    """What it has brought along; "" for nothing."""
    if not (upload := job.get("upload")):
        return ""
    from stretto.client.upload_manifest import in_words

    files = f"{upload['files']} file{'s' if upload['files'] != 1 else ''}"
    return f"{upload['digest'][:12]}, {files}, {in_words(upload['bytes'])}"


def _described(job: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    done, left_s = job["share_done"], job["left_s"]
    nodes = ", ".join(f"{gpus} on {node}" for node, gpus in job["nodes"].items())
    reported = {key: value for key, value in job["progress"].items() if key != "left_s"}
    progress = ", ".join(f"{name} {value}" for name, value in progress_in_words(reported).items())
    lost = f"{job['switches']} in place, {job['lost_s']:.2f} s of training lost" if job["switches"] else ""
    return [
        ("job", f"{job['id']} {job['name']}"),
        ("user", job["user"]),
        ("queue", job["queue"]),
        ("priority", str(job["priority"]) if job["priority"] else ""),
        ("kind", job["kind"]),
        ("state", job["state"]),
        ("why", reason_in_words(job["reason"], job["evidence"])),
        ("gpus", f"{size_of(job)} {job['gpu_type']}".rstrip()),
        ("gpus a worker", worker_sizes_in_words(job["gpus_per_worker"])),
        ("nodes", nodes),
        ("busy", busy_of(job)),
        ("training on", str(job["training_gpus"]) if job["training_gpus"] else ""),
        ("submitted", _submitted(job, now)),
        ("ended", clock_of(job.get("ended_unix_s"), now)),
        ("waited", ago(job["waited_s"])),
        ("ran", ago(job["running_s"]) if job["running_s"] else ""),
        ("gpu hours", f"{job['gpu_s'] / 3600:.2f}" if job["gpu_s"] else ""),
        ("done", "" if done is None else f"{100 * done:.0f} %"),
        ("ends", "" if left_s is None else f"about {clock_of(now + left_s, now)}"),
        ("progress", progress),
        *(_serving(job["serving"]) if job.get("serving") else _speeds(job.get("speeds"))),
        ("standing", job.get("standing", "")),
        ("budgets", "; ".join(job.get("budgets", []))),
        *_outlook(job.get("outlook"), now),
        (
            "attempts",
            f"{job['attempt']}, {job['failures']} failed" if job["failures"] else str(job["attempt"]),
        ),
        *_attempts(job.get("attempts", ()), now),
        ("restarts", str(job["restarts"]) if job["restarts"] else ""),
        ("resized", lost or (str(job["resizes"]) if job["resizes"] else "")),
        ("remark", job.get("remark", "")),
        ("preempted", job.get("preempted", "")),
        ("took from", ", ".join(job.get("took_from", []))),
        ("checkpoint", job["checkpoint"]),
        ("image", job.get("image", "")),
        ("upload", _upload_of(job)),
        ("exit status", "" if job["status"] is None else str(job["status"])),
    ]


def busy_of(job: Mapping[str, Any]) -> str:
    """How busy its GPUs are, and their memory; "" where it has none, unknown where no node says it."""
    if not job["gpus"]:
        return ""
    if job.get("gpus_busy") is None:
        return "unknown"
    words = f"{100 * job['gpus_busy']:.0f} % of the time"
    words += f", {job['gpu_memory_gb']:.1f} of {job['gpu_memory_total_gb']:.0f} GB in use"
    idle_s = job.get("idle_s") or 0.0
    return words + (f"; so little for {ago(idle_s)}" if idle_s >= SHORT_IDLE_S else "")


def worker_sizes_in_words(gpus: Mapping[str, int]) -> str:
    """One number, or one for each type; "" where each worker has one GPU."""
    sizes = set(gpus.values())
    if len(sizes) > 1:
        return ", ".join(f"{size} on {gpu_type}" for gpu_type, size in gpus.items())
    return "".join(str(size) for size in sizes if size > 1)


def _submitted(job: Mapping[str, Any], now: float) -> str:
    """When it was submitted, and of a job that goes on how long ago that is."""
    if job["ended_s"] is not None:
        return clock_of(job.get("submitted_unix_s"), now)
    return f"{clock_of(now - job['age_s'], now)}, {ago(job['age_s'])} ago"


def _attempts(attempts: Sequence[Mapping[str, Any]], now: float) -> list[tuple[str, str]]:
    """When and why each attempt began that was not the first."""
    return [
        (f"attempt {each['number']}", f"since {clock_of(each['began_unix_s'], now)}: {each['why']}")
        for each in attempts
        if each["why"]
    ]


def _outlook(outlook: Mapping[str, Any] | None, now: float) -> list[tuple[str, str]]:
    """What a policy that plans for deadlines expects."""
    if outlook is None:
        return []
    lease_left_s = outlook["lease_left_s"]
    return [
        ("deadline", promise_in_words(outlook, now)),
        ("lease", "" if lease_left_s is None else f"until {clock_of(now + lease_left_s, now)}"),
        ("suspension", f"{outlook['suspension_s']:.0f} s, {outlook['suspension']}"),
    ]


def _serving(serving: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a job that serves has promised, what keeps it on each type, and the latency of its requests."""
    needs = []
    for each in serving["needs"]:
        if each["batch"] is None:
            continue
        gpus = "none" if each["gpus"] is None else f"{each['gpus']} or more"
        timed = "" if each["timed"] else ", not timed there"
        batch = f"batches of {each['batch']} in " if each["batch"] else "one request in "
        needs.append((f"keep it on {each['gpu_type']}", f"{gpus} ({batch}{_ms(each['batch_s'])}{timed})"))
    latency = ""
    if serving["answered"]:
        recent = (
            "" if serving["p99_s"] is None else f"p50 {_ms(serving['p50_s'])}, p99 {_ms(serving['p99_s'])}; "
        )
        latency = f"{recent}{serving['late']} of {serving['answered']} requests late"
    promised = f"{_ms(serving['latency_s'])} at {serving['requests_per_s']:g} requests/s"
    return [("promises", promised), *needs, ("latency", latency)]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _speeds(speeds: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Steps per second by GPUs, a line for each type; spread placements only where they were measured."""
    if speeds is None or speeds["is_relative"]:
        return []
    by_type: dict[str, list[str]] = {}
    for entry in speeds["entries"]:
        if entry["spread"] and entry["source"] != "measured":
            continue
        error = f" ± {100 * entry['error']:.0f} %" if entry["error"] is not None else ""
        where = " spread" if entry["spread"] else ""
        words = f"{entry['gpus']}{where}: {entry['per_s']:g}{error} {entry['source']}"
        by_type.setdefault(entry["gpu_type"], []).append(words)
    return [(f"steps/s on {name}", ", ".join(words)) for name, words in by_type.items()]


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Index of the worker.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Number of the attempt; 0: the latest.")] = 0,
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many lines from the end.")] = None,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Show the logs of a job; -f follows them through restarts until it ends."""
    with service(url, token) as client:
        pieces = client.log(job, rank, attempt, follow, tail)
        if as_json:
            show_json({"job": job, "rank": rank, "text": "".join(pieces)})
            return
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()


def _change_of(verb: str, what: str) -> Callable[..., None]:
    """The command that does one thing, which needs no further words, to the jobs that are selected."""

    def change(
        jobs: Jobs = None,
        state: State = [],  # noqa: B006  (typer wants a plain default)
        every: Every = False,
        user: User = "",
        yes: Yes = False,
        url: Url = "",
        token: Token = "",
        as_json: options.Json = False,
    ) -> None:
        change_all(Selection(jobs or [], state, every, user, yes), verb, url, token, as_json)

    change.__name__, change.__doc__ = verb, what
    return change


cancel = _change_of("cancel", "End jobs.")
hold = _change_of("hold", "Keep jobs from running until they are released.")
release = _change_of("release", "Let held jobs run again.")
requeue = _change_of("requeue", "End the attempts of jobs and let them wait anew.")


def scale(
    min_gpus: Annotated[int, typer.Option("--min", min=1, help="Minimum of GPUs.")],
    max_gpus: Annotated[int, typer.Option("--max", min=1, help="Maximum of GPUs.")],
    jobs: Jobs = None,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set the minimum and maximum size of elastic jobs."""
    bounds = {"min_gpus": min_gpus, "max_gpus": max_gpus}
    change_all(Selection(jobs or []), "scale", url, token, as_json, **bounds)


def priority(
    job: JobName,
    value: Annotated[int, typer.Argument(help="A larger value is scheduled sooner.", metavar="VALUE")],
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set the priority of a job or an array; above 0 is for operators."""
    change_all(Selection([job]), "priority", url, token, as_json, priority=value)
