"""What the dashboard shows, as one document, and what of it has changed."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from stretto.service.http.auth import Caller
from stretto.service.http.node_rows import NodeRows
from stretto.service.http.routes.queues import queues_json
from stretto.service.http.sse import Entry, Feed
from stretto.service.service import Service
from stretto.service.state.events import ArraySubmitted, Decided, event_of
from stretto.service.state.messages import reason_in_words
from stretto.service.state.records import JobRecord

AT_ONCE = 100  # jobs that are written without a pause
MOST_WAITING = 500  # jobs whose reasons are looked at again after a decision, the first in line; chosen
# By themselves: no reason to send a job, or a node, again
MOVING = frozenset({"waited_s", "left_s", "share_done", "gpus_busy", "gpu_memory_gb", "idle_s"})
MOVING_OF_NODES = frozenset({"busy", "gpu_use"})
KEYS = (  # of a job, as its status has them
    *("id", "name", "array", "user", "queue", "kind", "priority", "state", "reason", "evidence"),
    *("gpus", "gpus_asked", "gpus_min", "gpus_max", "elastic", "gpu_type", "nodes", "attempt", "generation"),
    *("submitted_s", "started_s", "ended_s", "waited_s", "left_s", "share_done", "restarts", "resizes"),
    *("gpus_busy", "gpu_memory_gb", "gpu_memory_total_gb", "idle_s"),
)


class Overview:
    """The cluster as one caller sees it: whole at first, then what has changed."""

    def __init__(self, service: Service, feed: Feed, caller: Caller, rows: NodeRows | None = None) -> None:
        self.service, self.feed, self.caller = service, feed, caller
        self._rows_of_nodes = rows or NodeRows(service)
        self.seen = feed.last
        self._nodes: dict[str, dict[str, Any]] = {}
        self._queues: list[dict[str, Any]] = []
        self._jobs: dict[str, int] = {}  # a digest of what was last sent of each job

    async def whole(self) -> dict[str, Any]:
        """Everything: nodes, queues, and jobs that have not ended."""
        self.seen = self.feed.last
        state = self.service.state
        records = [record for record in state.open_jobs() if self.caller.owns(record)]
        self._jobs = {}
        jobs = await self._rows(records)
        self._nodes = self._node_rows()
        self._queues = queues_json(self.service)
        return {
            **self._head(),
            "nodes": list(self._nodes.values()),
            "queues": self._queues,
            "jobs": list(jobs.values()),
        }

    async def changed(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """What these events may have changed; a job that this caller may not see is left out."""
        state = self.service.state
        entries = list(entries)
        names = dict.fromkeys(name for entry in entries for name in jobs_in(entry))
        if any(entry.kind == Decided.__name__ for entry in entries):  # why jobs wait may be new
            names |= dict.fromkeys(self._first_in_line())
        records = [state.jobs[name] for name in names if name in state.jobs]
        jobs = await self._rows(record for record in records if self.caller.owns(record))
        nodes = self._node_rows()
        changes = [node for name, node in nodes.items() if _has_changed(self._nodes.get(name, {}), node)]
        gone = [name for name in self._nodes if name not in nodes]
        self._nodes = nodes
        change: dict[str, Any] = {
            **self._head(),
            "jobs": list(jobs.values()),
            "nodes": changes,
        }
        if gone:
            change["nodes_gone"] = gone
        if (queues := queues_json(self.service)) != self._queues:
            self._queues = change["queues"] = queues
        return change

    async def renewed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything, and what of that has changed since the newest text."""
        # Another one, for a caller may go away before it is whole
        fresh = Overview(self.service, self.feed, self.caller, self._rows_of_nodes)
        _, entries = await self.feed.after(self.seen)
        whole = await fresh.whole()
        touched = dict.fromkeys(name for entry in entries for name in jobs_in(entry))
        jobs = self.service.state.jobs
        no_more = [name for name in dict.fromkeys(self._jobs) | touched if name not in fresh._jobs]
        ended = [jobs[name] for name in no_more if name in jobs and self.caller.owns(jobs[name])]
        rows = [row for row in whole["jobs"] if self._jobs.get(row["id"]) != fresh._jobs.get(row["id"])]
        rows += (await fresh._rows(ended)).values()
        told = self._nodes
        changes = [node for name, node in fresh._nodes.items() if _has_changed(told.get(name, {}), node)]
        change: dict[str, Any] = {**fresh._head(), "jobs": rows, "nodes": changes}
        if gone := [name for name in told if name not in fresh._nodes]:
            change["nodes_gone"] = gone
        if fresh._queues != self._queues:
            change["queues"] = fresh._queues
        self.seen, self._jobs = fresh.seen, fresh._jobs
        self._nodes, self._queues = fresh._nodes, fresh._queues
        return whole, change

    async def running(self) -> dict[str, Any]:
        """Jobs that hold GPUs: the time that is left of them changes by itself, as how busy GPUs are does."""
        records = [
            record
            for record in self.service.state.open_jobs()
            if record.accounting.held_gpus and self.caller.owns(record)
        ]
        jobs = await self._rows(records, again=True)
        nodes = self._node_rows()
        changes = [node for name, node in nodes.items() if self._nodes.get(name) != node]
        self._nodes |= {node["name"]: node for node in changes}
        return {**self._head(), "jobs": list(jobs.values()), "nodes": changes}

    def _node_rows(self) -> dict[str, dict[str, Any]]:
        """Every node by name."""
        return {node["name"]: node for node in self._rows_of_nodes.seen_by(self.caller)}

    def _head(self) -> dict[str, Any]:
        state, now_s = self.service.state, self.service.clock.now_s()
        return {
            "seq": self.seen,
            "now_s": now_s,
            "unix_s": state.calendar.unix_at(now_s),
            "policy": state.configured.policy,
        }

    def _first_in_line(self) -> list[str]:
        """Jobs that wait, by submission."""
        waiting = (
            record.id
            for record in self.service.state.open_jobs()
            if not record.accounting.held_gpus and self.caller.owns(record)
        )
        return list(islice(waiting, MOST_WAITING))

    async def _rows(self, records: Iterable[JobRecord], again: bool = False) -> dict[str, dict[str, Any]]:
        """What is new of these jobs, by id. again: also where nothing but times has changed."""
        rows = {}
        for number, record in enumerate(records, start=1):
            status = self.service.status_of(record)
            row = {key: getattr(status, key) for key in KEYS}
            row["why"] = reason_in_words(status.reason, status.evidence)
            digest = hash(json.dumps({key: row[key] for key in KEYS if key not in MOVING}))
            if again or self._jobs.get(record.id) != digest:
                rows[record.id] = row
                self._jobs[record.id] = digest
            if record.has_ended:
                self._jobs.pop(record.id, None)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # others come in between
        return rows


def _has_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether anything of a node is new that changes only by what happens."""
    return before is not now and _stays(before) != _stays(now)


def _stays(node: Mapping[str, Any]) -> dict[str, Any]:
    """What of a node changes only by what happens."""
    return {key: value for key, value in node.items() if key not in MOVING_OF_NODES}


def jobs_in(entry: Entry) -> Iterable[str]:
    """Jobs that an event is about."""
    yield entry.subject
    if entry.kind == ArraySubmitted.__name__:
        event = event_of(entry.kind, entry.body)
        assert isinstance(event, ArraySubmitted)
        yield from (task.job for task in event.tasks())
    if job := entry.body.get("job"):
        yield str(job)
    for action in entry.body.get("actions", ()):
        yield str(action.get("job", ""))
    yield from entry.body.get("preempted", ())
    yield from entry.body.get("jobs", ())
