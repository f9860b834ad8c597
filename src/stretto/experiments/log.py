"""A run on disk: its words, its summary, its jobs, and every decision, so that it can be decided again."""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import InputError, Plan, Snapshot, digest
from stretto.sim.result import Result

DECISIONS, SPEC, SUMMARY, JOBS = "decisions.jsonl", "run.json", "summary.json", "jobs.csv"


class LogWriter:
    """Writes a run into a directory; decisions as they are made, before they are carried out."""

    def __init__(self, directory: Path, spec: RunSpec) -> None:
        """Create the directory; InputError where that cannot be."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / SPEC).write_text(json.dumps(asdict(spec), indent=2) + "\n")
            self._decisions: TextIO = (directory / DECISIONS).open("w")
        except OSError as wrong:
            raise InputError(f"--out {directory}: cannot be written: {wrong.strerror}") from None
        self.directory = directory

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        """Keep one decision."""
        self._decisions.write(json.dumps(decision(snapshot, plan)) + "\n")

    def finish(self, result: Result) -> None:
        """Write what came of it."""
        self._decisions.close()
        (self.directory / SUMMARY).write_text(json.dumps(result.summary(), indent=2) + "\n")
        requests = result.requests
        with (self.directory / JOBS).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                [
                    "id",
                    "model",
                    "submitted_s",
                    "first_start_s",
                    "completed_s",
                    "executed_s",
                    "gpu_s",
                    "restarts",
                ]
            )
            for row, job in enumerate(requests.jobs):
                writer.writerow(
                    [
                        job.id,
                        job.model,
                        job.submitted_s,
                        result.first_start_s[row],
                        result.completed_s[row],
                        round(float(result.executed_s[row]), 6),
                        round(float(result.attained_gpu_s[row]), 6),
                        int(result.restarts[row]),
                    ]
                )


def decision(snapshot: Snapshot, plan: Plan) -> dict[str, Any]:
    """One decision as plain values."""
    names = snapshot.cluster.type_names
    nodes = snapshot.cluster.nodes
    return {
        "at_s": snapshot.now_s,
        "version": plan.based_on,
        "jobs": len(snapshot.jobs),
        "actions": [
            [
                action.verb.value,
                action.job,
                None
                if action.after is None
                else {
                    "type": names[action.after.kind],
                    "nodes": {
                        nodes[node].id: mask
                        for node, mask in zip(action.after.nodes, action.after.masks, strict=True)
                    },
                },
            ]
            for action in plan.actions
        ],
        "wake_s": plan.wake_s,
        "memory": digest(plan.memory),
    }


def logged_spec(directory: Path) -> RunSpec:
    """The words of a run that was written; InputError where there is none."""
    try:
        return RunSpec(**json.loads((directory / SPEC).read_text()))
    except (OSError, ValueError, TypeError) as wrong:
        raise InputError(f"--from-log {directory}: no run was written there ({wrong})") from None


def decide_again(directory: Path) -> tuple[Result, int, list[str]]:
    """Run a logged run again: its result, how many decisions there are, and how those that differ do."""
    spec = logged_spec(directory)
    again: list[str] = []
    result = run_spec(spec, record=lambda snapshot, plan: again.append(json.dumps(decision(snapshot, plan))))
    different = [
        f"decision {number}: was {then or 'none'}, now {now or 'none'}"
        for number, (then, now) in enumerate(zip_longest(_lines(directory / DECISIONS), again))
        if then != now
    ]
    return result, len(again), different


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open() as file:
            for line in file:
                yield line.rstrip("\n")
    except OSError as wrong:
        raise InputError(f"{path}: cannot be read: {wrong.strerror}") from None
