"""From what a snapshot shows of every job to a matrix of speeds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from stretto.estimate.beliefs import Fit, Frame, frame_of
from stretto.estimate.goodput_table import GoodputTable, Shown
from stretto.estimate.other_types import Untried, forbid, without_profiles
from stretto.estimate.table_rows import requested_row, table_row
from stretto.estimate.throughput import Choice, Mode
from stretto.model import (
    ANY_NUMBER,
    BatchChoice,
    Configurations,
    FloatArray,
    InputError,
    IntArray,
    Policy,
    Snapshot,
    Speeds,
    View,
    no_speeds,
    traits_of,
)
from stretto.model.timing import span

REMEMBERED_TABLES = 4  # chosen: of the last kinds of questions; a kind has a cluster and a policy


class Share(StrEnum):
    """Whose evidence counts for a job. The world keeps it: a simulation, or the state of a service."""

    JOB = "job"  # its own
    MODEL = "model"  # that of all jobs of its model, also of those that have ended


def share_of(policy: Policy | type, settings: Mapping[str, Any]) -> Share:
    """Whose evidence counts for a job: as the settings of the estimator have it, else as the policy does."""
    usual = Share.MODEL if traits_of(policy).shares_knowledge else Share.JOB
    return Share.MODEL if str(settings.get("share", usual)) == Share.MODEL else Share.JOB


@dataclass(frozen=True)
class NoEstimate:
    """For policies that do not look at speeds."""

    views: ClassVar[frozenset[View]] = frozenset()

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Nothing is believed about any job."""
        return no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), configurations)


@dataclass(frozen=True)
class MeasuredTables:
    """Speeds that were measured before a job runs, at its own batch size."""

    views: ClassVar[frozenset[View]] = frozenset({View.THROUGHPUT_TABLE})

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Steps per second; nodes beyond the fewest possible count as spread."""
        jobs = snapshot.jobs
        blank = no_speeds(len(jobs), len(snapshot.cluster.types), configurations)
        if not len(jobs):
            return blank
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        rows = [table_row(table, configurations, per_node) for table in jobs.tables]
        requested = [
            requested_row(table, gpus)
            for table, gpus in zip(jobs.tables, _gpus_asked(snapshot).tolist(), strict=True)
        ]
        return Speeds(
            configurations=configurations,
            per_s=np.array(rows),
            requested_per_s=np.array(requested),
            modelled=np.ones(len(jobs), dtype=np.bool_),
            observed_gpus=np.repeat(jobs.max_gpus[:, None], len(per_node), axis=1),
            reach_gpus=blank.reach_gpus,
        )


@dataclass(frozen=True)
class OnlineGoodput:
    """Goodput from what each job has shown so far, carried over between GPU types.

    Sia (SOSP 2023), section 3.2: see `bootstrap`. A job that has shown nothing yet is believed to be as its
    profile of one replica says, or, without one, alike on all types. Its replicas are believed to scale
    perfectly. In the oracle's mode the world shows every job's true speeds before it starts, as observations
    like any other.
    """

    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL})

    mode: Mode = Mode.BOOTSTRAP  # what is known beforehand
    reference: Choice = Choice.MOST_OBSERVED  # whose model stands in for that of another type
    fit: Fit = Fit.BEST  # how models are fitted
    share: Share = Share.JOB  # whose evidence counts; a live service counts the model's until a job starts
    untried: Untried = Untried.PERFECT  # in mode no-prof: what is believed of types that a job has not tried
    _tables: dict[Frame, GoodputTable] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the parameters; texts will do."""
        object.__setattr__(self, "mode", _one_of(Mode, self.mode, "mode"))
        object.__setattr__(self, "reference", _one_of(Choice, self.reference, "reference"))
        object.__setattr__(self, "fit", _one_of(Fit, self.fit, "fit"))
        object.__setattr__(self, "share", _one_of(Share, self.share, "share"))
        object.__setattr__(self, "untried", _one_of(Untried, self.untried, "untried"))
        if self.fit is Fit.PUBLISHED:
            import scipy.optimize  # noqa: F401  (now, not in the middle of the first decision)

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Goodput in steps of the initial batch per second; where only a table is known, what it says."""
        if self.mode is Mode.NO_PROF and self.untried is Untried.MEASURED:
            snapshot = without_profiles(snapshot)
        speeds = self._believed(snapshot, configurations)
        if self.mode is Mode.NO_PROF:
            forbid(speeds, self.untried)
        return speeds

    def _believed(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        jobs = snapshot.jobs
        if not len(jobs):
            return no_speeds(0, len(snapshot.cluster.types), configurations)
        shown: Sequence[Shown] = jobs.evidence  # type: ignore[assignment]  # where none is missing
        if None in shown:  # of some jobs only a table is known
            both = zip(shown, jobs.tables, strict=True)
            shown = [table if evidence is None else evidence for evidence, table in both]
        with self._borrowed(snapshot, configurations) as table:
            rows = table.rows_of(shown, _gpus_asked(snapshot).tolist())
        facts, is_table = table.facts, table.facts.is_table[rows]
        return SpeedsOnDemand(
            _table=table,
            _rows=rows,
            configurations=configurations,
            replica_gpus=facts.replica[rows],
            restart_s=facts.restart_s[rows],
            modelled=is_table | facts.has_shown[rows],
            observed_gpus=np.where(is_table[:, None], jobs.max_gpus[:, None], facts.observed_gpus[rows]),
            reach_gpus=np.where(is_table, ANY_NUMBER, facts.reach[rows]),
        )

    @property
    def _scales_as(self) -> Mode:
        """Bootstrapping from no profile scales an untried type as those that were tried."""
        is_measured = self.mode is Mode.NO_PROF and self.untried is Untried.MEASURED
        return Mode.BOOTSTRAP if is_measured else self.mode

    def batches(
        self,
        snapshot: Snapshot,
        configurations: Configurations,
        allocations: Sequence[tuple[int, int, int, int]],
    ) -> list[BatchChoice]:
        """The batch of most goodput for each (row, GPU type, nodes, GPUs); all 0: nothing can be said."""
        if not allocations:
            return []
        jobs = snapshot.jobs
        evidence = [jobs.evidence[row] for row, *_ in allocations]
        assert None not in evidence, "a batch is chosen by what a job has shown"
        _, kind, nodes, gpus = (np.array(column, dtype=np.int64) for column in zip(*allocations, strict=True))
        requested = jobs.gpus[[row for row, *_ in allocations]].tolist()
        with self._borrowed(snapshot, configurations) as table:
            rows = table.rows_of(evidence, requested)  # type: ignore[arg-type]  # none is missing
            chosen = table.batches(rows, kind, nodes, gpus)
        return [BatchChoice(*values) for values in zip(*(column.tolist() for column in chosen), strict=True)]

    @contextmanager
    def _borrowed(self, snapshot: Snapshot, configurations: Configurations) -> Iterator[GoodputTable]:
        """The table for this kind of question, to which no other thread adds rows meanwhile."""
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        frame = frame_of(configurations, per_node, self._scales_as, self.reference, self.fit)
        table = self._tables.pop(frame, None) or GoodputTable(frame)
        if table.is_crowded():
            table = table.recent()
        yield table
        self._tables[frame] = table
        while len(self._tables) > REMEMBERED_TABLES:
            del self._tables[next(iter(self._tables))]


class SpeedsOnDemand(Speeds):
    """Goodput that is worked out when a policy asks for it: only the sizes that it looks at."""

    _table: GoodputTable
    _rows: IntArray  # (jobs,) of the table

    def __init__(self, **columns: Any) -> None:
        """columns: the fields, but for the matrices that are worked out from `_table` and `_rows`."""
        vars(self).update(columns)

    @cached_property
    def per_s(self) -> FloatArray:
        """(jobs, configs) all of it."""
        return self._whole(np.arange(len(self.configurations)))

    @cached_property
    def requested_per_s(self) -> FloatArray:
        """(jobs, types) all of it."""
        return self._whole(np.arange(self._table.configs, self._table.width))

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(cells,) speeds of some rows on some configurations."""
        if "per_s" in vars(self):  # all of it is there, or was put in its place
            return super().at(rows, columns)
        with span("speeds"):
            return self._table.at(self._rows[rows], columns)

    def on_request(self, rows: IntArray, kinds: IntArray) -> FloatArray:
        """(cells,) speeds of some rows on what they asked for, of some types."""
        if "requested_per_s" in vars(self):
            return super().on_request(rows, kinds)
        with span("speeds"):
            return self._table.at(self._rows[rows], self._table.configs + kinds)

    @property
    def origin(self) -> tuple[object, IntArray] | None:
        """The table of all that was worked out, unless other speeds were put in its place."""
        is_table = not {"per_s", "requested_per_s"} & vars(self).keys()
        return (self._table, self._rows) if is_table else None

    def _whole(self, columns: IntArray) -> FloatArray:
        """(jobs, columns); equal rows are worked out once."""
        with span("speeds"):
            rows, of_job = np.unique(self._rows, return_inverse=True)
            cells = self._table.at(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
            whole: FloatArray = cells.reshape(len(rows), len(columns))[of_job]
        return whole


Value = TypeVar("Value", bound=StrEnum)


def _one_of(values: type[Value], given: str, name: str) -> Value:
    if given not in [value.value for value in values]:
        raise InputError(f"estimate.{name} must be one of {', '.join(values)}, got {given!r}")
    return values(given)


def _gpus_asked(snapshot: Snapshot) -> IntArray:
    """(jobs,) GPUs that each asks for, or as many as the largest type has: of more nothing can be known."""
    asked: IntArray = np.minimum(snapshot.jobs.gpus, snapshot.cluster.capacity.max())
    return asked
