"""`stretto events`: what has happened, one line each."""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import show_cells, show_line
from stretto.cli.service import Token, Url, service
from stretto.service.state.messages import gpus_of, span_in_words

# What happened, in words; a kind that is not here is spelt out from its name.
WORDS: Mapping[str, str] = {
    "Began": "the log begins",
    "Incarnated": "the log goes on, as",
    "ClockSet": "the clocks are read",
    "LeadTaken": "a service leads",
    "Configured": "the scheduler is",
    "Audited": "asked by",
    "TokenMade": "new token",
    "TokenRevoked": "revoked token",
    "TokenUsed": "used token",
    "NodeSeen": "node is there",
    "NodeLost": "node is silent",
    "NodeDead": "node is given up",
    "NodeCordoned": "node is cordoned",
    "TypesSeen": "GPU types",
    "LenderSet": "lender",
    "LenderDeleted": "lender deleted",
    "NeedReported": "need of lender",
    "NodesHandedOver": "nodes handed over",
    "GuaranteeMissed": "guarantee missed",
    "QueueSet": "bounds of queue",
    "QueueDeleted": "queue deleted",
    "PriorityClassSet": "priority class",
    "PriorityClassDeleted": "priority class deleted",
    "BudgetSet": "budget",
    "BudgetDeleted": "budget deleted",
    "BudgetReached": "budget is at",
    "Reserved": "reservation",
    "Unreserved": "end of reservation",
    "Retired": "left memory",
    "Scaled": "other bounds",
    "Prioritised": "other priority",
    "Requeued": "requeued",
    "Cancelled": "to be ended",
    "Decided": "decision",
    "WorkersWanted": "starts",
    "WorkersRan": "processes run",
    "WorkerReady": "ready to train",
    "WorkersReady": "ready to train",
    "WorkerStopped": "told to leave",
    "WorkersStopped": "told to leave",
    "WorkerEnded": "processes ended",
    "WorkersEnded": "processes ended",
    "AttemptClosed": "attempt is over",
    "Generation": "next size",
    "StoreOpened": "meeting place",
    "Joined": "trains",
    "WorkersJoined": "train together",
    "Reported": "progress",
    "Checkpointed": "checkpoint",
}
CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
LEFT_OUT = ("seq", "at_s", "unix_s", "kind", "job", "spec", "secret", "report", "actions", "memory", "sha256")
NAMED = 3  # workers that are named one by one; of more, the first and the last


def events(
    job: Annotated[
        str, typer.Argument(help="Its id or name; without it, events of everything.", metavar="[JOB]")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only what came after the event of this number.")] = 0,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Show what has happened to a job; --json prints one object a line."""
    with service(url, token) as client:
        for event in client.events(job, after, follow):
            if as_json:
                show_line(json.dumps(event))
                continue
            cells = cells_of(event, job)
            show_line(aligned(cells)) if sys.stdout.isatty() else show_cells(cells)


def cells_of(event: Mapping[str, Any], job: str = "") -> list[str]:
    """An event as cells: number, time, what, and what of it people want to know. job: of which all are."""
    unix_s = event.get("unix_s")
    at = time.strftime("%H:%M:%S", time.localtime(unix_s)) if unix_s else f"{event['at_s']:.1f}s"
    whose = "" if job or "job" not in event else f"job {event['job']}: "
    return [str(event["seq"]), at, f"{whose}{what_of(event)}", said_of(event)]


def what_of(event: Mapping[str, Any]) -> str:
    """What happened, in a few words."""
    kind = str(event["kind"])
    match kind:
        case "Held":
            return "held" if event.get("held") else "released"
        case "NodeCordoned" if not event.get("closed"):
            return "node is open"
        case "NodeCordoned" if event.get("drain"):
            return "node is drained"
    return WORDS.get(kind) or CAPITAL.sub(" ", kind).lower()


def aligned(cells: Sequence[str]) -> str:
    """A line for a terminal, in widths that suit most events: what comes later is not known yet."""
    number, at, what, said = cells
    return f"{number:>6}  {at:<8}  {what:<24}  {said}".rstrip()


def said_of(event: Mapping[str, Any]) -> str:
    """The rest of an event in words."""
    workers = event.get("workers")
    match event["kind"]:
        case "WorkersWanted" if workers:
            gpus = sum(int(worker["mask"]).bit_count() for worker in workers)
            nodes = ", ".join(dict.fromkeys(str(worker["node"]) for worker in workers))
            return f"attempt {event['attempt']}: start on {gpus_of(gpus)} of {nodes}"
        case "WorkersEnded" if workers:
            if len(workers) <= NAMED:
                return ", ".join(f"{worker['id']} with status {worker['status']}" for worker in workers)
            statuses = Counter(worker["status"] for worker in workers)
            ends = ", ".join(
                f"{count} with status {status}" if len(statuses) > 1 else f"all with status {status}"
                for status, count in statuses.items()
            )
            return f"{_listed([worker['id'] for worker in workers])}: {ends}"
        case "WorkersRan" | "WorkersReady" | "WorkersStopped" if workers:
            return _listed(workers)
        case "WorkersJoined" if workers:
            return f"{_listed(workers)} are in generation {event['number']}"
        case "Generation":
            size = f"{len(workers)} workers train together" if workers else "all workers save and leave"
            return f"generation {event['number']}: {size}"
        case "ClockSet":
            jumped_s = float(event.get("jumped_s", 0.0))
            where = "ahead" if jumped_s > 0 else "back"
            return f"the time of day has jumped {where} by {span_in_words(abs(jumped_s))}" if jumped_s else ""
        case "Held":
            return ""
        case "LenderSet":
            return f"{event['name']}: {_listed(event['nodes'])}"
        case "BudgetReached":
            level = event["level"] or "no level any more"
            return f"{event['name']}: {level}, {event['used']:.2f} of {event['amount']:g} {event['unit']}"
        case "NodesHandedOver":
            return f"{_listed(event['nodes'])} to {event['to'] or 'training'}"
        case "Retired":
            return f"{_listed(event['jobs'])}: ended a while ago, and from now on in the database only"
        case "Decided":
            loans = event.get("loans", {})
            changes = [f"{word} {_listed(loans[word])}" for word in ("lent", "returned") if word in loans]
            changes += [f"{action['verb']} {action['job']}" for action in loans.get("actions", ())]
            changes += [f"{action['verb']} {action['job']}" for action in event.get("actions", ())]
            return f"{', '.join(changes) or 'nothing changes'} ({event['took_ms']:.1f} ms)"
        case "Reported":
            report = event.get("report", {})
            progress = {key: report[key] for key in ("step", "epoch", "loss", "metric") if key in report}
            return _pairs(progress)
    return _pairs({key: value for key, value in event.items() if key not in LEFT_OUT})


def _listed(workers: Sequence[str]) -> str:
    if len(workers) <= NAMED:
        return ", ".join(workers)
    return f"{workers[0]} to {workers[-1]} ({len(workers)})"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={_text(value)}" for key, value in values.items() if value not in (None, "", [], {})
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
