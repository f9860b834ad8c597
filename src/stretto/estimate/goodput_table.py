"""Goodput of jobs on configurations, worked out cell by cell as it is asked for, and remembered.

A row stands for what one job has shown: its `Evidence`, or the table of speeds that is all that is known of
it. Rows are found by the identity of that object, as long as a world hands over the same one. Else they are
found by content, so that equal jobs share a row. A cell is worked out when it is first asked for. So a round
costs what has changed since the last, and only the sizes that a policy looks at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stretto.estimate.beliefs import Frame, believed_of
from stretto.estimate.efficiency import gain
from stretto.estimate.goodput import BatchChoices, BatchLimits, best_batches
from stretto.estimate.serving import KEPT_PER_S, kept
from stretto.estimate.table_rows import requested_row, table_row
from stretto.estimate.throughput import Mode, perfectly_scaled, without_sync
from stretto.model import (
    BoolArray,
    Evidence,
    FloatArray,
    IntArray,
    MeasuredSpeeds,
    Observations,
    TrainingLimits,
)

FIRST_ROOM = 256  # rows; chosen
FULL = 0.75  # part of the room beyond which what was not asked for lately is forgotten; chosen

MOST_OBJECTS = 2  # for each row that there is room for, or for each job; chosen: forgetting pays for itself

ObjectArray = npt.NDArray[np.object_]
Shown = Evidence | MeasuredSpeeds
Believable = tuple[TrainingLimits, tuple[Observations, ...]]  # what beliefs follow from


@dataclass(eq=False)
class Facts:
    """What is believed of each row, as columns that have room for more rows."""

    params: FloatArray  # (rows, types, 7) of the type's own model; anything where it has none
    source: IntArray  # (rows, types) the type whose model answers
    ratio: FloatArray  # (rows, types) by which its answer is multiplied
    perfect: BoolArray  # (rows, types) what it says about synchronising is left out
    min_local: IntArray  # (rows, types) and more of `TrainingLimits`
    max_local: IntArray  # (rows, types)
    replica: IntArray  # (rows, types) GPUs of one
    single_per_s: FloatArray  # (rows, types)
    observed_gpus: IntArray  # (rows, types) most on which anything was measured
    init: IntArray  # (rows,)
    most: IntArray  # (rows,) largest batch
    is_soft: BoolArray  # (rows,) whether more is considered where GPUs would lie idle
    reach: IntArray  # (rows,) GPUs that its batch can keep busy
    restart_s: FloatArray  # (rows,) that one is assumed to take; NaN: not said
    serves: BoolArray  # (rows,) whether it keeps its service level is all that counts
    service_level: ObjectArray  # (rows,) `ServiceLevel` of these
    fixed: IntArray  # (rows,) total batch that may not change; 0: it may
    grad_sqr: FloatArray  # (rows,)
    grad_var: FloatArray  # (rows,)
    has_shown: BoolArray  # (rows,) anything of its speed
    is_table: BoolArray  # (rows,) a table is all that is known
    requested: IntArray  # (rows,) GPUs asked for
    used: IntArray  # (rows,) the last call that asked for it

    @classmethod
    def of(cls, rows: int, types: int) -> "Facts":
        """Room for rows of which nothing is said yet."""
        by_type = (rows, types)
        whole: dict[str, IntArray] = {name: np.zeros(by_type, dtype=np.int64) for name in _WHOLE_BY_TYPE}
        whole.update({name: np.zeros(rows, dtype=np.int64) for name in _WHOLE})
        return cls(
            params=np.zeros((rows, types, 7)),
            ratio=np.zeros(by_type),
            perfect=np.zeros(by_type, dtype=np.bool_),
            single_per_s=np.zeros(by_type),
            is_soft=np.zeros(rows, dtype=np.bool_),
            restart_s=np.zeros(rows),
            serves=np.zeros(rows, dtype=np.bool_),
            service_level=np.full(rows, None),
            grad_sqr=np.zeros(rows),
            grad_var=np.zeros(rows),
            has_shown=np.zeros(rows, dtype=np.bool_),
            is_table=np.zeros(rows, dtype=np.bool_),
            **whole,
        )

    def copy_rows(self, to: IntArray | slice, origin: "Facts", rows: IntArray | slice) -> None:
        """Take over rows of others."""
        for entry in fields(self):
            getattr(self, entry.name)[to] = getattr(origin, entry.name)[rows]


BELIEVED = ("params", "source", "ratio", "perfect", "observed_gpus")
LIMITS = (
    *("min_local", "max_local", "replica", "single_per_s", "init", "most", "is_soft", "reach"),
    *("restart_s", "serves", "service_level"),
)
_WHOLE_BY_TYPE = ("source", "min_local", "max_local", "replica", "observed_gpus")
_WHOLE = ("init", "most", "reach", "fixed", "requested", "used")


class Matrix(NamedTuple):
    """Cells, (columns, rows): by column, so that memory is touched only for columns that are looked at."""

    cells: FloatArray  # steps of the initial batch per second; NaN: cannot run
    known: BoolArray  # which of them are worked out

    @classmethod
    def of(cls, width: int, room: int) -> "Matrix":
        """Nothing is worked out yet."""
        return cls(np.zeros((width, room)), np.zeros((width, room), dtype=np.bool_))

    def take(self, origin: "Matrix", rows: IntArray) -> None:
        """Begin with these rows of another, in columns where anything is known."""
        for column in np.flatnonzero(origin.known.any(axis=1)).tolist():
            self.known[column, : rows.size] = origin.known[column, rows]  # first: it is set last
            self.cells[column, : rows.size] = origin.cells[column, rows]


class Content(NamedTuple):
    """All that a row depends on, beside the frame."""

    limits: TrainingLimits
    observed: tuple[Observations, ...]
    grad_sqr: float
    grad_var: float
    fixed_batch: int
    requested: int


class LastCall(NamedTuple):
    """What was asked for last: a world mostly hands over the same objects again."""

    shown: Sequence[Shown] = ()  # kept alive, so that no other object takes over an identity
    identity: IntArray = np.zeros(0, dtype=np.int64)  # (asked,) ascending
    requested: IntArray = np.zeros(0, dtype=np.int64)  # (asked,)
    rows: IntArray = np.zeros(0, dtype=np.int64)  # (asked,)

    @classmethod
    def of(
        cls, shown: Sequence[Shown], identity: IntArray, requested: IntArray, rows: IntArray
    ) -> "LastCall":
        """These, in any order."""
        order = np.argsort(identity, kind="stable")
        return cls(shown, identity[order], requested[order], rows[order])

    def rows_of(self, identity: IntArray, requested: IntArray) -> IntArray:
        """(asked,) the row of each that was asked for, else -1."""
        if not self.identity.size:
            return np.full(identity.size, -1)
        place = np.minimum(np.searchsorted(self.identity, identity), self.identity.size - 1)
        is_same = (self.identity[place] == identity) & (self.requested[place] == requested)
        return np.where(is_same, self.rows[place], -1)


class GoodputTable:
    """Rows of what jobs have shown, by columns: the configurations, then what was asked for on each type."""

    def __init__(self, frame: Frame, room: int = FIRST_ROOM) -> None:
        """No row yet."""
        self.frame = frame
        self.types = len(frame.gpus_per_node)
        self.configs = len(frame.configurations)
        self.width = self.configs + self.types
        self.count = 0
        self.calls = 0
        self.facts = Facts.of(room, self.types)
        self.matrix = Matrix.of(self.width, room)
        self._last = LastCall()
        self._row_of: dict[tuple[Shown, int], int] = {}
        self._like: dict[Content, int] = {}
        # Rows from which others can take over a part, by what that follows from.
        self._limits: dict[TrainingLimits, int] = {}
        self._believed: dict[Believable, int] = {}
        self._fitted: dict[Observations, int] = {}  # row times types plus type
        kinds = np.arange(self.types)
        self._kind = np.concatenate([frame.configurations.kind, kinds])
        self._gpus = np.concatenate([frame.configurations.gpus, np.zeros_like(kinds)])
        self._nodes = np.concatenate([frame.configurations.nodes, np.zeros_like(kinds)])
        self._per_node = np.array(frame.gpus_per_node)

    @property
    def room(self) -> int:
        """Rows that there is room for."""
        room: int = self.matrix.cells.shape[1]
        return room

    def rows_of(self, shown: Sequence[Shown], requested: Sequence[int]) -> IntArray:
        """The row of each job; what was not seen before gets one."""
        self.calls += 1
        identity = np.fromiter(map(id, shown), np.int64, len(shown))
        asked = np.asarray(requested, dtype=np.int64)
        rows = self._last.rows_of(identity, asked)
        # What was not asked for in the last call may have been in one before, or is new.
        others = np.flatnonzero(rows < 0)
        keys = [(shown[place], requested[place]) for place in others.tolist()]
        rows[others] = _looked_up(self._row_of, keys)
        is_new = rows[others] < 0
        if is_new.any():
            self.facts.used[rows[rows >= 0]] = self.calls
            rows[others[is_new]] = self._add([keys[place] for place in np.flatnonzero(is_new).tolist()])
            self._forget_objects(shown, requested)
        self.facts.used[rows] = self.calls
        if others.size or len(shown) != len(self._last.shown):
            self._last = LastCall.of(shown, identity, asked, rows)
        return rows

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """(cells,) speeds; in steps of the initial batch per second, NaN where a job cannot run so."""
        matrix = self.matrix  # another thread may make room meanwhile
        room = matrix.cells.shape[1]
        cells, known = matrix.cells.ravel(), matrix.known.ravel()  # views
        where = columns * room + rows
        unknown = where[~known[where]]
        if unknown.size:
            unknown = np.unique(unknown)
            column, row = np.divmod(unknown, room)
            cells[unknown] = self._worked_out(row, column)
            known[unknown] = True  # last: another thread may look meanwhile
        values: FloatArray = cells[where]
        return values

    def is_crowded(self) -> bool:
        """Whether there is little room for other rows, and the last call asked for less than half of all."""
        recent = np.count_nonzero(self.facts.used[: self.count] == self.calls)
        return self.count > FULL * self.room and bool(2 * recent < self.count)

    def recent(self) -> "GoodputTable":
        """Another table, with the half of the rows that were asked for last."""
        used = self.facts.used[: self.count]
        kept = np.sort(np.argsort(-used, kind="stable")[: self.count // 2])
        table = GoodputTable(self.frame, self.room)
        table.count, table.calls = kept.size, self.calls
        table.facts.copy_rows(slice(kept.size), self.facts, kept)
        table.matrix.take(self.matrix, kept)
        place = np.full(self.count, -1)
        place[kept] = np.arange(kept.size)
        now = place.tolist()
        table._row_of = {key: now[row] for key, row in self._row_of.items() if now[row] >= 0}
        table._like = {key: now[row] for key, row in self._like.items() if now[row] >= 0}
        table._limits = {key: now[row] for key, row in self._limits.items() if now[row] >= 0}
        table._believed = {key: now[row] for key, row in self._believed.items() if now[row] >= 0}
        table._fitted = {
            key: now[place // self.types] * self.types + place % self.types
            for key, place in self._fitted.items()
            if now[place // self.types] >= 0
        }
        return table

    # ── new rows ────────────────────────────────────────────────────────────────────────────────────

    def _add(self, keys: Sequence[tuple[Shown, int]]) -> IntArray:
        """Rows for these; equal ones, and what equals an older row in content, share one."""
        fresh: list[Evidence] = []  # of the rows that are begun
        begun: list[tuple[int, int]] = []  # (row, requested) of each
        tables: list[tuple[int, int, MeasuredSpeeds]] = []
        rows = []
        for shown, requested in keys:
            row = self._row_of.get((shown, requested), -1)
            if row < 0 and isinstance(shown, MeasuredSpeeds):
                row, self.count = self.count, self.count + 1
                tables.append((row, requested, shown))
            elif row < 0 and isinstance(shown, Evidence):
                content = Content(
                    shown.limits, shown.observed, shown.grad_sqr, shown.grad_var, shown.fixed_batch, requested
                )
                row = self._like.setdefault(content, self.count)
                if row == self.count:
                    self.count += 1
                    fresh.append(shown)
                    begun.append((row, requested))
            self._row_of[shown, requested] = row
            rows.append(row)
        self._make_room()
        if fresh:
            self._note(np.array(begun, dtype=np.int64).reshape(-1, 2), fresh)
        for row, requested, table in tables:
            self._note_table(row, requested, table)
        return np.array(rows, dtype=np.int64)

    def _forget_objects(self, shown: Sequence[Shown], requested: Sequence[int]) -> None:
        """Let go of objects that were not handed over now, once there are many more than rows or jobs.

        A world may make equal evidence anew every time. Its row is found by content then. The row of a table
        of speeds is found by the table alone, so these stay, as long as their rows do.
        """
        if len(self._row_of) <= MOST_OBJECTS * max(self.room, len(shown)):
            return
        now = set(zip(shown, requested, strict=True))
        self._row_of = {
            key: row for key, row in self._row_of.items() if key in now or isinstance(key[0], MeasuredSpeeds)
        }

    def _make_room(self) -> None:
        before = room = self.room
        if self.count <= room:
            return
        while room < self.count:
            room *= 2
        # Whole before it is put in place: another thread may look at older rows meanwhile.
        facts, matrix = Facts.of(room, self.types), Matrix.of(self.width, room)
        facts.copy_rows(slice(before), self.facts, slice(before))
        matrix.take(self.matrix, np.arange(before))
        self.facts, self.matrix = facts, matrix

    def _note(self, begun: IntArray, shown: Sequence[Evidence]) -> None:
        """What new rows have shown."""
        rows, facts = begun[:, 0], self.facts
        facts.requested[rows] = begun[:, 1]
        facts.fixed[rows] = [evidence.fixed_batch for evidence in shown]
        facts.grad_sqr[rows] = [evidence.grad_sqr for evidence in shown]
        facts.grad_var[rows] = [evidence.grad_var for evidence in shown]
        facts.has_shown[rows] = [any(evidence.observed) for evidence in shown]
        self._note_limits(rows, [evidence.limits for evidence in shown])
        # Where only the noise has changed, what is believed of speeds has not.
        keys = [(evidence.limits, evidence.observed) for evidence in shown]
        like = _looked_up(self._believed, keys)
        old, new = np.flatnonzero(like >= 0), np.flatnonzero(like < 0)
        for name in BELIEVED:
            getattr(facts, name)[rows[old]] = getattr(facts, name)[like[old]]
        if new.size:
            self._believe(rows[new], [keys[place] for place in new.tolist()])
        self._believed.update(zip(keys, rows.tolist(), strict=True))

    def _note_limits(self, rows: IntArray, limits: Sequence[TrainingLimits]) -> None:
        """What bounds the batches of new rows; as that of an older row where it is the same object."""
        facts = self.facts
        like = _looked_up(self._limits, limits)
        old, new = np.flatnonzero(like >= 0), np.flatnonzero(like < 0)
        for name in LIMITS:
            getattr(facts, name)[rows[old]] = getattr(facts, name)[like[old]]
        self._limits.update(zip(limits, rows.tolist(), strict=True))
        rows, limits = rows[new], [limits[place] for place in new.tolist()]
        if not limits:
            return
        facts.init[rows] = [limit.init_batch for limit in limits]
        facts.most[rows] = [limit.max_batch for limit in limits]
        facts.is_soft[rows] = [limit.max_is_soft for limit in limits]
        facts.min_local[rows] = [limit.min_local for limit in limits]
        facts.max_local[rows] = [limit.max_local for limit in limits]
        facts.replica[rows] = [limit.replica_gpus for limit in limits]
        facts.single_per_s[rows] = [limit.single_per_s for limit in limits]
        facts.restart_s[rows] = [limit.restart_s for limit in limits]
        facts.serves[rows] = [limit.service_level is not None for limit in limits]
        for row, limit in zip(rows.tolist(), limits, strict=True):
            facts.service_level[row] = limit.service_level
        facts.reach[rows] = [limit.reach_gpus for limit in limits]
        facts.reach[rows] *= facts.replica[rows].max(axis=1)

    def _believe(self, rows: IntArray, keys: Sequence[Believable]) -> None:
        """Fit models for new rows, but for types on which an older row has shown the same."""
        facts = self.facts
        seen = [of_type for _, observed in keys for of_type in observed]
        like = _looked_up(self._fitted, seen)
        models = np.where(like[:, None] >= 0, facts.params.reshape(-1, 7)[like], np.nan)
        believed = believed_of(
            self.frame,
            [limits for limits, _ in keys],
            [observed for _, observed in keys],
            models.reshape(len(keys), self.types, 7),
        )
        facts.params[rows], facts.source[rows] = believed.params, believed.source
        facts.ratio[rows], facts.perfect[rows] = believed.ratio, believed.perfect
        largest = np.array([of_type.largest_gpus for of_type in seen]).reshape(len(keys), self.types)
        facts.observed_gpus[rows] = largest * facts.replica[rows]
        places = (rows[:, None] * self.types + np.arange(self.types)).ravel()
        self._fitted.update(zip(seen, places.tolist(), strict=True))

    def _note_table(self, row: int, requested: int, table: MeasuredSpeeds) -> None:
        """All cells of a job of which a table is all that is known."""
        cells, known = self.matrix
        cells[: self.configs, row] = table_row(table, self.frame.configurations, self.frame.gpus_per_node)
        cells[self.configs :, row] = requested_row(table, requested)
        known[:, row] = self.facts.is_table[row] = True
        self.facts.replica[row], self.facts.restart_s[row] = 1, np.nan

    # ── cells ───────────────────────────────────────────────────────────────────────────────────────

    def _worked_out(self, row: IntArray, column: IntArray) -> FloatArray:
        """(cells,) goodput in steps of the initial batch per second; NaN where a job cannot run so.

        Of a job that serves 1 where it keeps its service level, else NaN.
        """
        facts, kind = self.facts, self._kind[column]
        by_request = column >= self.configs
        gpus = np.where(by_request, facts.requested[row], self._gpus[column])
        nodes = np.where(by_request, -(-gpus // self._per_node[kind]), self._nodes[column])
        replicas, part = np.divmod(gpus, np.maximum(facts.replica[row, kind], 1))
        runs = (facts.max_local[row, kind] > 0) & (part == 0) & (replicas > 0)
        has_shown, is_fixed = facts.has_shown[row], facts.fixed[row] > 0
        # A fixed batch has no noise to weigh.
        sqr, var = facts.grad_sqr[row], facts.grad_var[row]
        noise = (np.where(is_fixed, np.nan, sqr), np.where(is_fixed, np.nan, var))
        serves = facts.serves[row]
        best, tried_from = self._best(row, kind, nodes, replicas, noise, runs & has_shown & ~serves)
        # Goodput in steps of the initial batch, on the asked type.
        init = facts.init[row]
        steps_per_s = best.goodput / tried_from * np.where(is_fixed, gain(tried_from, init, var, sqr), 1.0)
        steps_per_s *= facts.ratio[row, kind]
        # Nothing shown yet: the profile of one replica, scaled perfectly.
        unseen = np.flatnonzero(~has_shown)
        if unseen.size:
            single = self._single_per_s(row[unseen], kind[unseen])
            steps_per_s[unseen] = perfectly_scaled(single, replicas[unseen]) / init[unseen]
        steps_per_s = np.where(runs & (steps_per_s > 0), steps_per_s, np.nan)
        for each in np.unique(row[serves]).tolist():
            cells = np.flatnonzero(row == each)
            keeps = runs[cells] & self._keeps(each, kind[cells], replicas[cells])
            steps_per_s[cells] = np.where(keeps, KEPT_PER_S, np.nan)
        return steps_per_s

    def _keeps(self, row: int, kind: IntArray, replicas: IntArray) -> BoolArray:
        """(cells,) of a job that serves, whether its service level is kept; it is hoped for where unknown.

        On a type where it never ran, batches take what they do on the type that stands in, by the ratio of
        speeds. Before anything was observed, they take as long as the profile says.
        """
        facts = self.facts
        if facts.has_shown[row]:
            params = facts.params[row, facts.source[row]] / facts.ratio[row][:, None]
            alpha_s, beta_s = params[:, 0], params[:, 1]
            hoped_for = np.zeros(self.types, dtype=np.bool_)
        else:
            single_per_s = facts.single_per_s[row]
            hoped_for = ~np.isfinite(single_per_s) | (self.frame.mode is Mode.NO_PROF)
            beta_s = 1.0 / np.where(hoped_for, 1.0, single_per_s)
            alpha_s = np.zeros(self.types)
        most_local = facts.max_local[row, kind]
        holds = kept(facts.service_level[row], alpha_s[kind], beta_s[kind], replicas, most_local).holds
        return holds | hoped_for[kind]

    def batches(self, row: IntArray, kind: IntArray, nodes: IntArray, gpus: IntArray) -> BatchChoices:
        """(allocations,) the batches of most goodput; all 0 for a job that has shown nothing."""
        facts = self.facts
        replicas = gpus // np.maximum(facts.replica[row, kind], 1)
        noise = (facts.grad_sqr[row], facts.grad_var[row])
        return self._best(row, kind, nodes, replicas, noise, facts.has_shown[row])[0]

    def _best(
        self,
        row: IntArray,
        kind: IntArray,
        nodes: IntArray,
        replicas: IntArray,
        noise: tuple[FloatArray, FloatArray],
        wanted: BoolArray,
    ) -> tuple[BatchChoices, FloatArray]:
        """(cells,) the batches of most goodput under the models believed, and the least one tried."""
        facts = self.facts
        # In the units of the type whose model answers: its replicas, on its nodes.
        source = facts.source[row, kind]
        gpus_there = replicas * facts.replica[row, source]
        nodes_there = -(-gpus_there // self._per_node[source])
        params, perfect = facts.params[row, source], facts.perfect[row, kind]
        if perfect.any():
            params = np.where(perfect[:, None], without_sync(params), params)
        bounds = bounds_of(facts, row, source, replicas)
        best = best_batches(
            params,
            noise,
            bounds,
            np.where(source == kind, nodes, nodes_there),
            np.maximum(replicas, 1),
            wanted=wanted,
        )
        return best, np.asarray(bounds.init_batch, dtype=np.float64)

    def _single_per_s(self, row: IntArray, kind: IntArray) -> FloatArray:
        """(cells,) samples/s of one replica; all types alike where no profile says more."""
        profiled = np.isfinite(self.facts.single_per_s[row]).any(axis=1)
        if self.frame.mode is Mode.NO_PROF:
            profiled = np.zeros_like(profiled)
        return np.where(profiled, np.nan_to_num(self.facts.single_per_s[row, kind]), 1.0)


def _looked_up(places: Mapping[Any, int], keys: Sequence[Any]) -> IntArray:
    """(keys,) the number of each, -1 where it has none."""
    return np.fromiter(map(places.get, keys, repeat(-1)), np.int64, len(keys))


def bounds_of(facts: Facts, row: IntArray, source: IntArray, replicas: IntArray) -> BatchLimits:
    """(cells,) what batches must keep to where the model of type `source` answers."""
    fixed = facts.fixed[row]
    is_fixed = fixed > 0
    most = np.where(is_fixed, fixed, facts.most[row])
    # A job that does not choose its batch runs however little of it is left for each GPU.
    min_local = np.where(is_fixed, 1, facts.min_local[row, source])
    most = np.where(facts.is_soft[row] & ~is_fixed, np.maximum(most, min_local * replicas), most)
    tried_from = np.where(is_fixed, fixed, facts.init[row])
    return BatchLimits(tried_from, most, min_local, facts.max_local[row, source])
