"""Which reports of trainings go into the log: those that may change a decision, and one now and then.

A training reports every half minute, for weeks, and nearly always that it is where one would expect. What
has just been reported is shown to people all the same: it is kept in memory until the next is written.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state.events import AttemptClosed, Ended, Event, Reported, WorkerEnded, WorkersEnded
from stretto.service.state.records import JobRecord
from stretto.service.state.remaining import Basis, remaining_of
from stretto.service.state.reported_metrics import (
    BOUNDS,
    LARGEST_REPORT,
    merged,
    told_points,
    with_points,
    with_report,
)
from stretto.service.state.workers import kind_of

LONGEST_S, SHARE = 900.0, 0.1  # between two in the log: a tenth of the time it runs, at most; chosen
SURPRISE_S, SURPRISE = 60.0, 0.1  # by which what is left differs from what was expected; chosen
NEWS_PER_S, NEWS_BURST = 1 / 60, 100.0  # of one job that is written at once; chosen
CHECK_S = 5.0  # of wall time; chosen
NEVER_LEFT_OUT = frozenset({"epoch_end", "in_place", "finished"})  # what they do is done by each report anew
MATTERS = frozenset({*BOUNDS, "batch", "dataset_samples", "epoch"})  # decisions are made of them


@dataclass(frozen=True)
class Held:
    """What was reported since the last report in the log."""

    report: Mapping[str, Any]
    at_s: float


@dataclass
class ReportSampler:
    """Takes reports, and writes what the log needs of them."""

    log_writer: LogWriter
    clock: Clock
    _held: dict[str, Held] = field(default_factory=dict)  # by job
    _news: dict[str, tuple[float, float]] = field(default_factory=dict)  # (allowed, when that was so) by job

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    async def take(self, record: JobRecord, report: Mapping[str, Any]) -> None:
        """Write a report, which was checked, or hold it; what is written is durable when this returns."""
        now_s, before = self.clock.now_s(), self._held.get(record.id)
        whole = merged(before.report, report) if before is not None else dict(report)
        if len(whole) > LARGEST_REPORT:
            whole = dict(report)
        self._held[record.id] = Held(whole, now_s)
        must = is_due(record, now_s) or is_urgent(record, whole)
        if must or (is_news(record, whole, now_s) and self._may_write_news(record.id, now_s)):
            await self._write(record)

    def shown(self, record: JobRecord) -> JobRecord:
        """The record as if all that was reported were written."""
        held = self._held.get(record.id)
        if held is None or record.has_ended:
            return record
        learned = with_report(record.learned, held.report, kind_of(record), held.at_s)
        return replace(record, learned=learned)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """A job that may be ending leaves behind how far it has come."""
        for _, event in told:
            if isinstance(event, WorkerEnded | WorkersEnded | AttemptClosed) and event.job in self._held:
                record = self.log_writer.state.open_job(event.job)
                if record is not None:
                    self._write(record)
            elif isinstance(event, Ended):
                self._held.pop(event.job, None)
                self._news.pop(event.job, None)

    async def run(self) -> None:
        """Write what is held once it is due, until cancelled."""
        while True:
            now_s = self.clock.now_s()
            for name in list(self._held):
                record = self.log_writer.state.open_job(name)
                if record is None:
                    self._held.pop(name, None)
                elif name in self._held and is_due(record, now_s):  # it may be under way by now
                    await self._write(record)
            await asyncio.sleep(CHECK_S)

    def _write(self, record: JobRecord) -> Awaitable[int]:
        """Durable once awaited; what is asked of the writer later comes behind it either way."""
        held = self._held.pop(record.id)
        return self.log_writer.record(changes_of(record, held.report))

    def _may_write_news(self, job: str, now_s: float) -> bool:
        allowed, at_s = self._news.get(job, (NEWS_BURST, now_s))
        allowed = min(NEWS_BURST, allowed + (now_s - at_s) * NEWS_PER_S)
        self._news[job] = (allowed - 1.0 if allowed >= 1.0 else allowed), now_s
        return allowed >= 1.0


def is_due(record: JobRecord, now_s: float) -> bool:
    """Whether the last report in the log is long ago, or of another time or size of the job."""
    since_s, told_s = record.accounting.held_since_s, record.learned.reported_s
    if isnan(told_s) or isnan(since_s) or told_s < since_s:
        return True
    return now_s - told_s >= min(LONGEST_S, SHARE * (now_s - since_s))


def is_urgent(record: JobRecord, report: Mapping[str, Any]) -> bool:
    """Whether a report says what happens once: how the job behaves, or that it got anywhere at all."""
    latest = record.learned.latest
    if report.get("finished") and not latest.get("finished"):
        return True
    if report.get("in_place") is False and record.uses_sdk is not False:
        return True
    return not record.made_progress and any(
        isinstance(report.get(key), int | float) and report[key] > record.highest_reported.get(key, 0)
        for key in ("step", "epoch")
    )


def is_news(record: JobRecord, report: Mapping[str, Any], now_s: float) -> bool:
    """Whether a report may change a decision."""
    learned = record.learned
    if report.get("epoch_end") or any(report[key] != learned.latest.get(key) for key in MATTERS & {*report}):
        return True
    if isnan(learned.initial_loss) and report.get("loss") is not None:
        return True
    metrics = tuple(float(value) for value in report.get("epoch_metrics") or ())
    if metrics and metrics != learned.metrics:
        return True
    if with_points(learned.points, told_points(report, kind_of(record))) is not learned.points:
        return True
    left_s = report.get("left_s")
    if left_s is None:
        return False
    expected = remaining_of(record, now_s)
    surprise_s = max(SURPRISE_S, SURPRISE * expected.left_s)
    return expected.basis is not Basis.TRAINING or abs(left_s - expected.left_s) > surprise_s


def changes_of(record: JobRecord, report: Mapping[str, Any]) -> Reported:
    """What a report changes of what is known: nothing else needs to be written.

    An epoch above the latest one says that an epoch has ended, for which some policies wait.
    """
    learned, kind = record.learned, kind_of(record)
    if report.get("epoch", 0) > learned.latest.get("epoch", 0):
        report = {**report, "epoch_end": True}
    changes = {
        key: value
        for key, value in report.items()
        if key in NEVER_LEFT_OUT or key not in learned.latest or learned.latest[key] != value
    }
    if "points" in changes:
        new = [
            point
            for point, parsed in zip(changes["points"], told_points(changes, kind), strict=True)
            if with_points(learned.points, [parsed]) is not learned.points
        ]
        changes = (
            {**changes, "points": new} if new else {key: changes[key] for key in changes if key != "points"}
        )
    unchanged = 0
    if "epoch_metrics" in changes:
        metrics = [float(value) for value in changes["epoch_metrics"]]
        past = list(learned.metrics)
        if past and metrics[: len(past)] == past:
            unchanged, changes["epoch_metrics"] = (
                len(past),
                changes["epoch_metrics"][len(past) :],
            )
        if not changes["epoch_metrics"]:
            unchanged, _ = 0, changes.pop("epoch_metrics")
    return Reported(record.id, changes, unchanged)
