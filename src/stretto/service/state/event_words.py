"""Events in the words that people read: what has happened, and what of it they want to know."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.service.state.messages import gpus_of, progress_in_words, span_in_words

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
OUTCOMES = {"done": "is done", "failed": "failed", "lost": "was lost", "left": "left its GPUs"}
UNLIMITED = 1 << 20  # GPUs; from so many on, a range has no upper end
NAMED = 3  # workers that are named one by one; of more, the first and the last


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
            size = "one worker trains" if len(workers or ()) == 1 else size
            return f"generation {event['number']}: {size}"
        case "WorkerReady" | "WorkerStopped" if "worker" in event:
            return str(event["worker"])
        case "WorkerEnded" if "worker" in event:
            reason = f": {event['why']}" if event.get("why") else ""
            return f"{event['worker']} with status {event['status']}{reason}"
        case "Joined" if "worker" in event:
            lost = f", {event['lost_s']:.2f} s lost" if event.get("lost_s") else ""
            return f"{event['worker']} is in generation {event['number']}, from step {event['step']}{lost}"
        case "StoreOpened" if "address" in event:
            return f"of generation {event['number']}: {event['address']}"
        case "Submitted" | "ArraySubmitted":
            after = event.get("after") or ()
            return f"by {event.get('user') or 'its owner'}" + (f", after {_listed(after)}" if after else "")
        case "Scaled":
            least, most = int(event["min_gpus"]), int(event["max_gpus"])
            return f"{least} to {gpus_of(most)}" if most < UNLIMITED else f"at least {gpus_of(least)}"
        case "Prioritised":
            return str(event["priority"])
        case "Requeued" | "Cancelled":
            return str(event.get("why") or "")
        case "Checkpointed":
            return f"at step {event['step']}: {event['path']}"
        case "AttemptClosed" if event.get("outcome") in OUTCOMES:
            outcome, why = OUTCOMES[event["outcome"]], event.get("why")
            status = "" if event.get("status") is None else f", status {event['status']}"
            return f"attempt {event['attempt']} {outcome}{status}" + (f": {why}" if why else "")
        case "Ended":
            status = "" if event.get("status") is None else f", status {event['status']}"
            return f"{str(event['state']).lower()}{status}" + (
                f": {event['why']}" if event.get("why") else ""
            )
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
            keys = ("step", "epoch", "loss", "metric", "metrics")
            return _pairs(progress_in_words({key: report[key] for key in keys if key in report}))
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
