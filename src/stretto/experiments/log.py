"""A run on disk: its words, its summary, its jobs, and every decision, so that it can be decided again."""

import csv
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, asdict, fields, replace
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from stretto.experiments.json_text import json_text
from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import InputError, Loans, Plan, Snapshot, digest, nodes_of
from stretto.sim.result import Result
from stretto.sim.run import Setup
from stretto.whole_files import write_whole

DECISIONS, SPEC, SUMMARY, JOBS = "decisions.jsonl", "run.json", "summary.json", "jobs.csv"
JOB_COLUMNS = (
    "id",
    "model",
    "submitted_s",
    "first_start_s",
    "completed_s",
    "executed_s",
    "gpu_s",
    "restarts",
)
ALWAYS_SAID = "place.rule"  # in logs that say every setting


class LogWriter:
    """Writes a run into a directory; decisions as they are made, before they are carried out.

    Nothing is created before the first decision: by then all input has been read and found good.
    """

    def __init__(self, directory: Path, spec: RunSpec) -> None:
        """Check that the directory can be written; InputError where it cannot."""
        check_writable(directory)
        self.directory = directory
        self._spec = spec
        self._decisions: TextIO | None = None

    def __enter__(self) -> "LogWriter":
        """Nothing is open yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the decisions; after an error they are all that is there."""
        if self._decisions is None:
            return
        if error is not None:
            with suppress(OSError):  # what is still to be written fails as the rest did
                self._decisions.close()
            return
        with self._written():
            self._decisions.close()

    def begin(self, setup: Setup) -> None:
        """Add every setting to the words, so that they mean the same when defaults have changed."""
        self._spec = replace(self._spec, settings={**setup.resolved_texts(), **self._spec.settings})

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        """Keep one decision."""
        with self._written():
            if self._decisions is None:
                self._decisions = self._open()
            self._decisions.write(json.dumps(decision(snapshot, plan)) + "\n")

    def finish(self, result: Result) -> None:
        """Write what came of it."""
        with self._written():
            _write(self.directory / SUMMARY, result.summary())
            with (self.directory / JOBS).open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(JOB_COLUMNS)
                writer.writerows(_rows(result))

    def _open(self) -> TextIO:
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in (SUMMARY, JOBS):  # of an earlier run: they would belong to other decisions
            (self.directory / name).unlink(missing_ok=True)
        _write(self.directory / SPEC, asdict(self._spec.from_anywhere()))
        return (self.directory / DECISIONS).open("w", encoding="utf-8")

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Raise InputError for what the disk refuses, as a full one does in the middle."""
        try:
            yield
        except OSError as wrong:
            raise InputError(f"--out {self.directory}: cannot be written: {wrong.strerror}") from None


def check_writable(directory: Path, option: str = "--out") -> None:
    """Raise InputError where a directory neither is nor could be made, without making it."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InputError(f"{option} {directory}: expected a directory, but {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"{option} {directory}: expected a directory to write to, but {nearest} is read-only"
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
        **({} if plan.loans is None else {"loans": _settled(snapshot, plan.loans)}),
    }


def _settled(snapshot: Snapshot, loans: Loans) -> dict[str, Any]:
    """What was settled with lenders before the policy was asked."""
    return {
        "on_loan": int(loans.usable[nodes_of(snapshot.lenders)].sum()),
        "preempted": list(loans.preempted),
        "scaled_in": list(loans.scaled_in),
    }


def logged_spec(directory: Path) -> RunSpec:
    """The words of a run that was written; InputError where there is none."""
    path = directory / SPEC
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise InputError(f"--from-log {directory}: expected the log of a run, got {wrong}") from None
    if not isinstance(read, dict):
        raise InputError(f"{path}: expected an object, got {read!r}")
    types = {entry.name: _type_of(entry) for entry in fields(RunSpec)}
    for name, value in read.items():
        if name not in types:
            raise InputError(f"{path}: unknown field {name!r}, expected one of {', '.join(types)}")
        if not isinstance(value, types[name]):
            raise InputError(f"{path}: {name} must be of type {types[name].__name__}, got {value!r}")
    missing = [entry.name for entry in fields(RunSpec) if _is_required(entry) and entry.name not in read]
    if missing:
        raise InputError(f"{path}: missing {missing[0]}")
    # Logs that do not say it are older than the field. One with every setting of its day lacks those alone
    # that came later, and these were not there yet.
    is_former = ALWAYS_SAID in read.get("settings", {}) or read.get("former", True)
    return RunSpec(**{**read, "former": is_former})


def decide_again(
    directory: Path,
    progress: Callable[[int, int], None] | None = None,
    to_load: Callable[[str], str] = str,
) -> tuple[Result, int, list[str]]:
    """Run a logged run again: its result, how many decisions there are, and how those that differ do.

    to_load: the name of the policy to load for the one that the log names; it may raise InputError.
    """
    spec = logged_spec(directory)
    spec = replace(spec, policy=to_load(spec.policy))
    then = list(_lines(directory / DECISIONS))
    now: list[str] = []

    def record(snapshot: Snapshot, plan: Plan) -> None:
        now.append(json.dumps(decision(snapshot, plan)))

    result = run_spec(spec, progress, record)
    different = [
        f"decision {number}: was {was or 'none'}, is {again or 'none'}"
        for number, (was, again) in enumerate(zip_longest(then, now))
        if was != again
    ]
    return result, len(now), different


def _write(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json_text(value) + "\n")


def _rows(result: Result) -> Iterator[list[Any]]:
    for row, job in enumerate(result.requests.jobs):
        start_s, end_s = float(result.first_start_s[row]), float(result.completed_s[row])
        yield [
            job.id,
            job.model,
            job.submitted_s,
            start_s if isfinite(start_s) else "",
            end_s if isfinite(end_s) else "",
            round(float(result.executed_s[row]), 6),
            round(float(result.attained_gpu_s[row]), 6),
            int(result.restarts[row]),
        ]


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")
    except (OSError, UnicodeDecodeError) as wrong:
        raise InputError(f"{path}: cannot be read: {wrong}") from None


def _type_of(entry: Field[Any]) -> type:
    if entry.default_factory is not MISSING:
        return type(entry.default_factory())
    return str if entry.default is MISSING else type(entry.default)


def _is_required(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING
