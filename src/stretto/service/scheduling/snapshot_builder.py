"""From the state of the service to the snapshot of a decision.

Figures of open jobs as columns, brought up to date job by job: most jobs do not change between decisions.

A row is a job, in the order of submission. Rows of jobs that have ended stay until there are more of them
than of others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from stretto.estimate.durations import believed_durations
from stretto.estimate.speed_table import SpeedEvidence, speed_tables
from stretto.model import (
    Batch,
    BoolArray,
    Cluster,
    Durations,
    FloatArray,
    IntArray,
    Job,
    JobId,
    JobTable,
    Learning,
    MeasuredSpeeds,
    Memory,
    Progress,
    Requests,
    Snapshot,
    Trigger,
    View,
    frozen,
)
from stretto.service.scheduling.estimates import (
    SWITCH_S,
    WAITED_S,
    cpus_per_gpu,
    evidence_of,
    is_breakable,
    largest_known_gpus,
    prior_table,
    recovering_until_s,
    speed_evidence_of,
    switches_in_place,
    work_left,
)
from stretto.service.state.on_hold import holds_at, next_end_s
from stretto.service.state.records import JobRecord
from stretto.service.state.remaining import stated_duration
from stretto.service.state.state import State
from stretto.service.state.status import Reason, depends_on_others, why_not_yet

FLOATS = (
    *(
        "not_before_s",
        "executed_s",
        "profiled_s",
        "attained_gpu_s",
        "held_since_s",
        "first_start_s",
        "last_stop_s",
        "recovering_until_s",
    ),
    *("suspension_s", "resize_s", "resized_s", "stated_s", "told_left_s", "work_left", "cpus"),
    *("samples", "dataset_samples", "initial_loss", "loss", "metric"),
)
INTS = ("held_gpus", "held_nodes", "held_kind", "restarts", "largest_held", "epochs")
BOOLS = ("is_open", "is_shut", "depends", "profiling", "breakable")
OBJECTS = ("record", "table", "evidence", "history")
LEAST_ROWS = 64
DURATIONS = frozenset({View.ORACLE_DURATION, View.ESTIMATED_DURATION})
TABLES = frozenset({View.THROUGHPUT_TABLE, View.GOODPUT_MODEL})
_NO_METRICS = np.zeros(0)


@dataclass
class JobColumns:
    """Columns of these views; `follow` brings them up to date."""

    views: frozenset[View]
    cluster: Cluster | None = None
    requests: Requests | None = None  # of all rows
    count: int = 0  # rows in use
    ended: int = 0  # of them, of jobs that have ended
    seen: int = 0  # up to which event the columns are up to date
    row_of: dict[str, int] = field(default_factory=dict)
    batched: set[str] = field(default_factory=set)  # jobs for which a decision has chosen a batch
    at: dict[str, Any] = field(default_factory=dict)  # (rows and room for more,) by name
    state: State | None = None  # that it follows
    measures: bool = False  # whether tables are of measured speeds, as the configuration says
    counts_workers: bool = False  # whether what was measured counts workers, likewise

    def follow(self, state: State) -> None:
        """Look again at every job that has changed."""
        self.state = state
        measures = state.configured.speeds == "measured"
        fresh = self.cluster is not state.cluster or self.seen > state.seq or 2 * self.ended > self.count
        counts_workers = state.configured.workers != "split"
        fresh = fresh or (self.measures, self.counts_workers) != (measures, counts_workers)
        self.measures, self.counts_workers = measures, counts_workers
        fresh = fresh or self.seen < state.unchanged  # a job may have ended and left since
        if fresh or not self.at:
            self._begin(state)
        else:
            changed = state.changed_since(self.seen)
            newcomers = [each for each in changed if each.id not in self.row_of and not each.has_ended]
            self._add(newcomers)
            for record in changed:
                if record.id in self.row_of:
                    self._refresh(self.row_of[record.id], record, state)
        self.seen = state.seq

    def eligible(self, state: State, now_s: float) -> IntArray:
        """(jobs,) rows of jobs that the policy may give GPUs to, or that hold some that it may take."""
        column, rows = self.at, slice(self.count)
        may: BoolArray = column["is_open"][rows] & ~column["is_shut"][rows]
        may &= (column["held_gpus"][rows] > 0) | (column["not_before_s"][rows] <= now_s)
        may[[self.row_of[job] for job in state.staying() if job in self.row_of]] = False
        if (hold_of := holds_at(state, now_s)) is not None:
            waits = np.flatnonzero(may & (column["held_gpus"][rows] == 0))
            may[waits] = [hold_of(record) is None for record in column["record"][waits]]
        for row in np.flatnonzero(may & column["depends"][rows]).tolist():
            may[row] = why_not_yet(state, column["record"][row], now_s) is Reason.NONE
        return np.flatnonzero(may)

    def next_change_s(self, now_s: float) -> float:
        """When a job becomes eligible by the clock alone; infinite where none does."""
        if not self.at:
            return float("inf")
        times = self.at["not_before_s"][: self.count]
        later = (times > now_s) & self.at["is_open"][: self.count]
        return float(times[later].min(initial=np.inf))

    def known(self, rows: IntArray, now_s: float) -> dict[str, Any]:
        """What the views show of these rows."""
        column, views = self.at, self.views
        columns: dict[str, Any] = {}
        if View.PROGRESS in views:
            columns["known_progress"] = self._progress(rows, now_s)
        if View.ORACLE_DURATION in views:
            columns["known_durations"] = self._durations(rows, now_s)
        if View.ESTIMATED_DURATION in views:
            columns["known_estimates"] = self._durations(rows, now_s)
        if View.REMAINING_WORK in views:
            columns["known_work"] = column["work_left"][rows]
        if views & TABLES:
            columns["known_tables"] = self._tables(rows)
        if View.GOODPUT_MODEL in views:
            columns["known_evidence"] = column["evidence"][rows].tolist()
        if View.LEARNING in views:
            names = ("samples", "dataset_samples", "initial_loss", "loss", "metric")
            columns["known_learning"] = Learning(
                **{name: column[name][rows] for name in names}, history=column["history"][rows].tolist()
            )
        if View.CPU_DEMAND in views:
            columns["known_cpu_demand"] = column["cpus"][rows]
        return columns

    def _since_s(self, rows: IntArray, now_s: float) -> Any:
        held = self.at["held_gpus"][rows] > 0
        return np.where(held, now_s - self.at["held_since_s"][rows], 0.0)

    def _progress(self, rows: IntArray, now_s: float) -> Progress:
        column, since_s = self.at, self._since_s(rows, now_s)
        profiles = column["profiling"][rows]
        if self.measures:  # a profiling run in which the job is still starting has measured nothing
            profiles = profiles & ~(now_s < column["recovering_until_s"][rows])
        return Progress(
            executed_s=column["executed_s"][rows] + since_s,
            attained_gpu_s=column["attained_gpu_s"][rows] + column["held_gpus"][rows] * since_s,
            first_start_s=column["first_start_s"][rows],
            last_stop_s=column["last_stop_s"][rows],
            restarts=column["restarts"][rows],
            largest_held_gpus=column["largest_held"][rows],
            epochs=column["epochs"][rows],
            recovering=self._recovering(rows, now_s),
            profiled_s=column["profiled_s"][rows] + np.where(profiles, since_s, 0.0),
            suspension_s=self._suspensions_s(rows),
            resize_s=self._resizes_s(rows),
        )

    def _suspensions_s(self, rows: IntArray) -> FloatArray:
        """(jobs,) of each job itself, else of its model, else of all."""
        own_s: FloatArray = self.at["suspension_s"][rows]
        if self.state is None or self.state.configured.suspensions != "measured":
            return np.full(len(rows), nan)
        if self.state.suspensions:
            unknown = np.flatnonzero(np.isnan(own_s))
            records = self.at["record"][rows[unknown]].tolist()
            own_s[unknown] = [self.state.suspension_s(record.spec.model) for record in records]
        return own_s

    def _resizes_s(self, rows: IntArray) -> FloatArray:
        """(jobs,) of each job itself, else of its model, else of all, else assumed; NaN: not in place."""
        assumed_s: FloatArray = self.at["resize_s"][rows]
        if self.state is None or self.state.configured.resizes != "measured" or not self.state.resizes:
            return assumed_s
        seen_s: FloatArray = self.at["resized_s"][rows]
        unknown = np.flatnonzero(np.isnan(seen_s) & np.isfinite(assumed_s))
        records = self.at["record"][rows[unknown]].tolist()
        seen_s[unknown] = [self.state.resize_s(record.spec.model) for record in records]
        return np.where(np.isnan(assumed_s), nan, seen_s)

    def _recovering(self, rows: IntArray, now_s: float) -> BoolArray:
        """(jobs,) to be left alone: on their way to what they hold, unless a user waits for an answer."""
        assert self.requests is not None
        column = self.at
        recovering: BoolArray = now_s < column["recovering_until_s"][rows]
        waits = self.requests.interactive[rows] & (column["held_gpus"][rows] == 0)
        since_s = np.fmax(self.requests.submitted_s[rows], column["last_stop_s"][rows])
        since_s = np.fmax(since_s, column["not_before_s"][rows])
        if (waits & (now_s - since_s < WAITED_S)).any():
            recovering &= ~column["breakable"][rows]
        return recovering

    def _durations(self, rows: IntArray, now_s: float) -> Durations:
        """On what was asked for: as the owner states it, or as the training says that is left."""
        assert self.requests is not None
        column, held_gpus = self.at, self.at["held_gpus"][rows]
        asked_gpus, whole_s, told_s = (
            self.requests.gpus[rows],
            column["stated_s"][rows],
            column["told_left_s"][rows],
        )
        since_s = self._since_s(rows, now_s)
        had_s = (column["attained_gpu_s"][rows] + held_gpus * since_s) / asked_gpus
        serves = self.requests.serves[rows]  # until its time is over, whatever it holds
        had_s = np.where(serves, column["executed_s"][rows] + since_s, had_s)
        return believed_durations(whole_s, had_s, told_s, held_gpus, asked_gpus)

    def _tables(self, rows: IntArray) -> list[MeasuredSpeeds]:
        """Of jobs that have changed the column has only what a table follows from: many are made together."""
        column = self.at["table"]
        missing = [row for row in rows.tolist() if isinstance(column[row], SpeedEvidence)]
        if missing:
            assert self.cluster is not None
            tables = speed_tables(column[missing].tolist(), self.cluster)
            for row, table in zip(missing, tables, strict=True):
                column[row] = table.speeds
        tables_of_rows: list[MeasuredSpeeds] = column[rows].tolist()
        return tables_of_rows

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, state: State) -> None:
        """All rows anew."""
        self.cluster, self.requests, self.count, self.ended = state.cluster, None, 0, 0
        self.row_of, self.at, self.batched = {}, {}, set()
        records = state.open_jobs()
        self._make_room(max(len(records), LEAST_ROWS))
        self._add(records)
        for row, record in enumerate(records):
            self._refresh(row, record, state)

    def _make_room(self, rows: int) -> None:
        kinds: dict[str, Any] = {**dict.fromkeys(FLOATS, np.float64), **dict.fromkeys(INTS, np.int64)}
        kinds |= {**dict.fromkeys(BOOLS, np.bool_), **dict.fromkeys(OBJECTS, np.object_)}
        before = self.at
        self.at = {name: np.zeros(rows, dtype=kind) for name, kind in kinds.items()}
        for name, column in before.items():
            self.at[name][: self.count] = column[: self.count]

    def _add(self, records: Iterable[JobRecord]) -> None:
        """Rows for jobs that were submitted since, in the order of submission."""
        assert self.cluster is not None
        new = sorted(records, key=lambda newcomer: newcomer.number)
        if self.requests is not None and not new:
            return
        if self.count + len(new) > len(self.at["is_open"]):
            self._make_room(2 * (self.count + len(new)))
        for record in new:
            self.row_of[record.id] = self.count
            self.at["record"][self.count] = record
            self.count += 1
        self.requests = extended(self.requests, [record.job for record in new], self.cluster)

    def _refresh(self, row: int, record: JobRecord, state: State) -> None:
        """Write one row."""
        column, views, accounting = self.at, self.views, record.accounting
        if record.has_ended:
            self.batched.discard(record.id)
            if column["is_open"][row]:
                column["is_open"][row], column["held_gpus"][row], self.ended = False, 0, self.ended + 1
                for name in OBJECTS:
                    column[name][row] = None
            return
        assert self.cluster is not None
        assert self.requests is not None
        if self.requests.jobs[row] is not record.job:  # the owner wants something else now
            jobs = list(self.requests.jobs)
            jobs[row] = record.job
            self.requests = Requests(jobs, self.cluster)
        if record.batch is not None:
            self.batched.add(record.id)
        allocation = state.wanted(record.id)
        column["is_open"][row] = True
        column["is_shut"][row] = bool(record.ending) or record.held
        column["depends"][row] = depends_on_others(record)
        column["not_before_s"][row] = record.not_before_s
        column["held_gpus"][row] = allocation.gpus if allocation is not None else 0
        column["held_nodes"][row] = len(allocation.nodes) if allocation is not None else 0
        column["held_kind"][row] = allocation.kind if allocation is not None else -1
        column["attained_gpu_s"][row], column["held_since_s"][row] = (
            accounting.attained_gpu_s,
            accounting.held_since_s,
        )
        latest = record.learned.latest
        column["executed_s"][row] = accounting.executed_s
        if View.PROGRESS in views:
            column["profiled_s"][row], column["profiling"][row] = accounting.profiled_s, accounting.profiling
            column["first_start_s"][row], column["last_stop_s"][row] = (
                accounting.first_start_s,
                accounting.last_stop_s,
            )
            column["restarts"][row] = max(accounting.starts, record.attempt, 1) - 1
            column["largest_held"][row] = largest_known_gpus(record)
            column["epochs"][row] = int(latest.get("epoch", 0))
            column["recovering_until_s"][row] = recovering_until_s(record, allocation, state)
            column["breakable"][row] = is_breakable(record)
            column["suspension_s"][row] = record.suspensions.mean_s
            column["resize_s"][row] = SWITCH_S if switches_in_place(record) else nan
            column["resized_s"][row] = record.resizes.mean_s
        if views & DURATIONS:
            left_s = latest.get("left_s")
            column["stated_s"][row] = stated_duration(record)[0]
            column["told_left_s"][row] = float(left_s) if left_s is not None and isfinite(left_s) else nan
        if View.REMAINING_WORK in views:
            column["work_left"][row] = work_left(record)
        if views & TABLES:
            table = speed_evidence_of if self.measures else prior_table
            column["table"][row] = table(record, self.cluster)
        if View.GOODPUT_MODEL in views:
            column["evidence"][row] = evidence_of(record, self.cluster, self.counts_workers)
        if View.LEARNING in views:
            for name in ("samples", "dataset_samples", "loss", "metric"):
                column[name][row] = float(latest.get(name, nan))
            column["initial_loss"][row] = record.learned.initial_loss
            metrics = record.learned.metrics
            column["history"][row] = np.array(metrics) if metrics else _NO_METRICS
        if View.CPU_DEMAND in views:
            column["cpus"][row] = cpus_per_gpu(record)


def extended(before: Requests | None, more: list[Job], cluster: Cluster) -> Requests:
    """Requests with more jobs at the end; columns that were asked for are kept and lengthened."""
    if before is None:
        return Requests(more, cluster)
    after, tail = Requests([*before.jobs, *more], cluster), Requests(more, cluster)
    for name, column in list(vars(before).items()):
        if isinstance(column, np.ndarray):
            vars(after)[name] = frozen(np.concatenate([column, getattr(tail, name)]))
    return after


# ── a state and a time make a snapshot: what a decision may look at ─────────────────────────────────────────


@dataclass
class SnapshotBuilder:
    """Makes snapshots of one state as it goes on; keeps columns, and looks again at what has changed."""

    views: frozenset[View]
    _figures: JobColumns = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has been seen."""
        self._figures = JobColumns(self.views)

    def observe(self, state: State, now_s: float, due: frozenset[Trigger], memory: Memory = None) -> Snapshot:
        """Every job that may run now, in the order of submission. Needs a node to have been seen.

        memory: what the policy remembered after its last decision; no event holds it, only its digest.
        """
        assert state.cluster is not None
        assert state.placement is not None
        figures = self._figures
        figures.follow(state)
        assert figures.requests is not None
        rows = figures.eligible(state, now_s)
        table = JobTable(
            requests=figures.requests,
            rows=rows,
            held_gpus=figures.at["held_gpus"][rows],
            held_nodes=figures.at["held_nodes"][rows],
            held_kind=figures.at["held_kind"][rows],
            known_ended=state.ended_jobs if View.ENDED_JOBS in self.views else None,
            **figures.known(rows, now_s),
        )
        return Snapshot(
            version=state.version,
            now_s=now_s,
            cluster=state.cluster,
            usable=state.usable(),
            jobs=table,
            placement=state.placement,
            due=due,
            memory=memory,
            seed=state.configured.seed,
        )

    def batches(self, state: State) -> dict[JobId, Batch]:
        """Of jobs that hold GPUs, where a decision has chosen one; the state as `observe` has seen it."""
        batched = self._figures.batched
        if not batched or state.placement is None:
            return {}
        records = ((name, state.jobs[name]) for name in state.placement if name in batched)
        return {name: record.batch for name, record in records if record.batch is not None}

    def next_change_s(self, state: State, now_s: float) -> float:
        """When a job becomes eligible by the clock alone; infinite where none does."""
        if state.cluster is None:
            return float("inf")
        self._figures.follow(state)
        return min(self._figures.next_change_s(now_s), next_end_s(state, now_s))
