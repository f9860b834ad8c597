"""ElasticFlow: as many GPUs as deadlines need, the rest where it costs least GPU time."""

import heapq
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf, isnan, nan
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    PolicyTraits,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
)
from stretto.policies.common.speed_curves import (
    Curve,
    Sizes,
    kinds_by_room,
    one_gpu_of_each_type,
    reasons_by_range,
    room_beside,
    unstoppable,
)
from stretto.settings import CheckedSettings, setting
from stretto.solve.progressive_filling import Filling, Slots, filling_with, least_filling, slots_until

EQUAL_GPU_S = 6  # decimals to which increases of GPU time are compared: smaller differences are rounding


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Counts of one job on one type, increasing, and how fast it is there, increasing too."""

    gpus: IntArray  # (levels,)
    per_s: FloatArray  # (levels,) steps per second

    def gpu_s_a_step(self, gpus: int) -> float:
        """GPU-seconds of one step on a count that is a level."""
        return gpus / float(self.per_s[int(np.searchsorted(self.gpus, gpus))])


@dataclass(frozen=True, slots=True, eq=False)
class LevelsOf:
    """The levels of a snapshot's jobs, made when they are looked at."""

    sizes: Sizes
    known: dict[tuple[int, int], Levels | None] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> "LevelsOf":
        """Levels within each job's range and the cluster."""
        return cls(Sizes.of(snapshot))

    def __call__(self, row: int, kind: int) -> Levels | None:
        """Those of a job on a type; None where it cannot run there."""
        if (row, kind) not in self.known:
            asked = int(self.sizes.jobs.gpus[row]) * int(self.sizes.stand_ins[kind])
            self.known[row, kind] = levels_on(self.sizes.curve(row, kind), asked)
        return self.known[row, kind]


@dataclass(frozen=True, slots=True)
class Promises:
    """What ElasticFlow remembers: which job was told what."""

    admitted: tuple[JobId, ...] = ()  # their deadlines are guaranteed
    declined: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Reserved:
    """An admitted job with its minimum satisfactory share."""

    row: int
    kind: int
    levels: Levels
    filling: Filling
    usable_s: FloatArray  # (slots,) before its deadline


@dataclass(frozen=True)
class ElasticFlow(CheckedSettings, space="policy"):
    """Admit jobs whose deadlines can be met, reserve just enough GPUs for them, and share out the rest.

    ElasticFlow (Gu et al., ASPLOS 2023), section 4. Counts are the powers of two of a job's range at which
    more GPUs make it faster. By increasing deadline every job gets its *minimum satisfactory share*. That is
    the smallest count that, where so many GPUs are free, finishes it in time (progressive filling). A new job
    is admitted if that works out for it and for every job admitted before. What then is free now goes to jobs
    that have none. After that it goes, count by count, to the job whose GPU time grows least for each GPU
    added.

    Without a deadline a job is *best effort*: its share is its smallest count, by submission. A job that is
    declined is served like one without a deadline. With `drop` it never runs, as in the paper. A simulation
    then ends with an error, since the job waits for ever. An admitted job that has fallen behind, which its
    plan does not foresee, comes first among the best-effort jobs.

    Deviations: slots begin at the decision and grow beyond the first hour, since deadlines may lie weeks
    ahead. The next decision comes when a job's share is to change, not at every slot. A restart is not part
    of the plan. The published code prefers the *largest* increase of GPU time, which with sub-linear speeds
    favours those that profit least; here the smallest wins.

    Cost: without deadlines O(GPUs log GPUs) however many jobs wait, and array operations over all jobs. Each
    job admitted adds one filling, O(levels x slots), to a decision. Each arrival with a deadline adds one for
    every admitted job due after it. Admitted jobs are at most what the cluster can do until their deadlines.
    Starvation: admitted jobs never wait beyond their plan. Others have no bound while admitted jobs fill the
    cluster; among themselves none passes one that was submitted before it and fits.
    """

    drop: bool = False  # declined jobs never run [ElasticFlow]; else they are served as best effort
    slot_s: float = setting(60.0, above=0)  # seconds [published code]
    alike_slots: int = setting(60, at_least=1)  # slots of that length, before they grow; chosen: an hour
    # by which each later slot is longer than the one before; 0: all alike; chosen
    slot_growth: float = setting(0.1, at_least=0)
    # Owners say how many steps a job takes [ElasticFlow]; without that all jobs are best effort, and the
    # surplus goes as if each had as much GPU time left as any other
    knows_work: bool = True

    name: ClassVar[str] = "elasticflow"
    placer: ClassVar[str] = "buddy"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="ElasticFlow (ASPLOS 2023)",
        order="earliest deadline; ties, and those without one, by fair share",
        starvation="unbounded for jobs without a guarantee while admitted ones fill the cluster",
        tables_only=True,
    )

    @property
    def views(self) -> frozenset[View]:
        """Measured speeds, and steps that are left where they are known."""
        return frozenset({View.THROUGHPUT_TABLE} | ({View.REMAINING_WORK} if self.knows_work else set()))

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, and at the slot in which a plan changes."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: the rest it reads from the tables."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Minimum satisfactory shares, then the surplus."""
        jobs = snapshot.jobs
        promises = snapshot.memory if isinstance(snapshot.memory, Promises) else Promises()
        unstopped = unstoppable(jobs)
        levels_of = LevelsOf.of(snapshot)
        unknown = np.full(len(jobs), nan)
        work = np.nan_to_num(jobs.remaining_work, nan=inf) if self.knows_work else unknown
        is_due = np.isfinite(jobs.deadline_s) & (jobs.deadline_s > snapshot.now_s) & ~unstopped
        due = np.flatnonzero(is_due & ~np.isnan(work))
        slots = self._slots(snapshot, due)
        free = np.repeat(room_beside(snapshot, unstopped)[:, None], len(slots.length_s), axis=1)

        # Admission (algorithm 1): the least GPUs, slot by slot, with which each deadline is met.
        desk = _Desk(snapshot, levels_of, work, slots, free)
        reserved, late, promises = desk.admit(due, promises)
        gpus = np.where(unstopped, jobs.held_gpus, 0)
        kind = np.where(unstopped, jobs.held_kind, -1)
        for reservation in reserved:
            gpus[reservation.row], kind[reservation.row] = reservation.filling.gpus[0], reservation.kind
        declined = _rows_of(snapshot, promises.declined)
        others = self._others(snapshot, gpus, {reservation.row for reservation in reserved}, late, declined)
        # Allocation (algorithm 2): what is left now goes where it costs least GPU time.
        desk.share_out(gpus, kind, reserved, others, unstopped)

        idle = gpus == 0
        kind[idle] = -1
        why = reasons_by_range(snapshot, gpus, desk.free[:, 0].tolist())
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=_declined(why, declined) if self.drop else why,
            memory=promises,
            wake_s=_next_change_s(
                snapshot.now_s, slots, [reservation.filling.gpus for reservation in reserved]
            ),
        )

    def _slots(self, snapshot: Snapshot, due: IntArray) -> Slots:
        """Up to the last deadline; a single one where there is none."""
        last_s = float((snapshot.jobs.deadline_s[due] - snapshot.now_s).max(initial=self.slot_s))
        return slots_until(last_s, self.slot_s, self.alike_slots, self.slot_growth)

    def _others(
        self, snapshot: Snapshot, gpus: IntArray, reserved: set[int], late: list[int], declined: IntArray
    ) -> list[int]:
        """Rows without GPUs and without a reservation, those that fell behind first, then by submission."""
        waits = gpus == 0
        waits[list(reserved)] = False
        if self.drop:
            waits[declined] = False
        behind = [row for row in late if waits[row]]
        waits[behind] = False
        return behind + np.flatnonzero(waits).tolist()


@dataclass(eq=False)
class _Desk:
    """One decision while it is made: what each job has reserved, and what is left."""

    snapshot: Snapshot
    levels_of: LevelsOf
    work: FloatArray  # (jobs,) steps left; NaN: nothing is known of any
    slots: Slots
    free: IntArray  # (types, slots) GPUs not reserved; the first slot is now

    def admit(self, due: IntArray, promises: Promises) -> tuple[list[Reserved], list[int], Promises]:
        """Reservations by deadline, admitted jobs that can no longer be in time, and what every job is told.

        due: rows of jobs with a deadline ahead.
        """
        jobs = self.snapshot.jobs
        # What was promised comes first: reservations of admitted jobs, by deadline.
        admitted, declined = set(promises.admitted), set(promises.declined)
        by_deadline = due[np.lexsort((due, jobs.deadline_s[due]))].tolist()
        reserved: list[Reserved] = []
        frees = [self.free]  # before each reservation, and after the last
        late = []
        for row in by_deadline:
            if jobs.ids[row] not in admitted:
                continue
            reservation = self._reserve(row, frees[-1])
            if reservation is None:
                late.append(row)
            else:
                reserved.append(reservation)
                frees.append(_less(frees[-1], reservation))
        # A newcomer is admitted where it fits and all reservations after its deadline can be made anew.
        new = [row for row in by_deadline if jobs.ids[row] not in admitted | declined]
        for row in sorted(new):
            turn = (jobs.deadline_s[row], row)
            position = sum((jobs.deadline_s[earlier.row], earlier.row) < turn for earlier in reserved)
            tried, after = self._reserve_all(
                [row, *(earlier.row for earlier in reserved[position:])], frees[position]
            )
            if tried:
                reserved[position:], frees[position + 1 :] = tried, after
                admitted.add(jobs.ids[row])
            else:
                declined.add(jobs.ids[row])
        # Answers are remembered for the jobs that are still here.
        self.free = frees[-1].copy()
        here = [job for job in jobs.ids if job in admitted or job in declined]
        return (
            reserved,
            late,
            Promises(
                tuple(job for job in here if job in admitted), tuple(job for job in here if job in declined)
            ),
        )

    def share_out(
        self,
        gpus: IntArray,
        kind: IntArray,
        reserved: list[Reserved],
        others: list[int],
        unstopped: BoolArray,
    ) -> None:
        """Give what is free now: first to jobs that have nothing, then where GPU time grows least."""
        # Jobs whose filling starts later, and jobs without a deadline, first get a smallest share now.
        of = {reservation.row: reservation for reservation in reserved}
        for reservation in reserved:
            if gpus[reservation.row] == 0:
                self._upgrade(reservation, of, gpus)
        self._start(others, gpus, kind)
        if not self.free[:, 0].any():
            return
        offers = [
            offer
            for row in np.flatnonzero((gpus > 0) & ~unstopped).tolist()
            if (offer := self._offer(row, of, gpus, kind))
        ]
        heapq.heapify(offers)
        while offers and self.free[:, 0].any():
            _, _, row = heapq.heappop(offers)
            # A job with a deadline goes up a level of its filling; another one just takes its next count.
            if row in of:
                if not self._upgrade(of[row], of, gpus):
                    continue
            else:
                more = self._next_level(row, int(kind[row]), int(gpus[row])) - int(gpus[row])
                if more > self.free[kind[row], 0]:
                    continue
                self.free[kind[row], 0] -= more
                gpus[row] += more
            again = self._offer(row, of, gpus, kind)
            if again:
                heapq.heappush(offers, again)

    def _start(self, rows: list[int], gpus: IntArray, kind: IntArray) -> None:
        """The smallest count for each of these in turn, skipping those that do not fit."""
        left: list[int] = self.free[:, 0].tolist()
        smallest, own = self.snapshot.jobs.min_gpus.tolist(), self.snapshot.jobs.held_kind.tolist()
        most = max(left)
        for row in rows:
            if most == 0:
                break
            if smallest[row] > most:
                continue
            for type_index in kinds_by_room(left, own[row]):
                levels = self.levels_of(row, type_index) if smallest[row] <= left[type_index] else None
                if levels is not None and levels.gpus[0] <= left[type_index]:
                    gpus[row], kind[row] = levels.gpus[0], type_index
                    left[type_index] -= int(levels.gpus[0])
                    most = max(left)
                    break
        self.free[:, 0] = left

    def _reserve_all(self, rows: list[int], free: IntArray) -> tuple[list[Reserved], list[IntArray]]:
        """Reservations of all of these in turn with what is free after each; empty where one fails."""
        reserved, frees = [], []
        for row in rows:
            reservation = self._reserve(row, free)
            if reservation is None:
                return [], []
            free = _less(free, reservation)
            reserved.append(reservation)
            frees.append(free)
        return reserved, frees

    def _reserve(self, row: int, free: IntArray) -> Reserved | None:
        """The minimum satisfactory share of one job, on the first type where there is one."""
        jobs = self.snapshot.jobs
        usable_s = self.slots.before(float(jobs.deadline_s[row]) - self.snapshot.now_s)
        for kind in kinds_by_room(free[:, 0].tolist(), int(jobs.held_kind[row])):
            levels = self.levels_of(row, kind)
            if levels is None:
                continue
            filling = least_filling(levels.gpus, levels.per_s, float(self.work[row]), free[kind], usable_s)
            if filling is not None:
                return Reserved(row, kind, levels, filling, usable_s)
        return None

    def _next_level(self, row: int, kind: int, now: int) -> int:
        """The next count after the present one, 0 where there is none."""
        levels = self.levels_of(row, kind)
        if levels is None:
            return 0
        at = int(np.searchsorted(levels.gpus, now, side="right"))
        return int(levels.gpus[at]) if at < len(levels.gpus) else 0

    def _offer(
        self, row: int, of: dict[int, Reserved], gpus: IntArray, kind: IntArray
    ) -> tuple[float, int, int] | None:
        """(more GPU time for each GPU added, GPUs now, row) of the next count; None if there is none."""
        now, type_index = int(gpus[row]), int(kind[row])
        levels = self.levels_of(row, type_index)
        if row in of:
            raised = self._raised(of[row], now)
            if raised is None:
                return None
            growth = (raised.gpu_s - of[row].filling.gpu_s) / (int(raised.gpus[0]) - now)
        else:
            then = self._next_level(row, type_index, now)
            if not then or levels is None or np.isinf(self.work[row]):
                return None
            work = float(self.work[row])
            if isnan(work):  # unknown: as many steps as make one GPU-second on the fewest GPUs
                work = 1.0 / levels.gpu_s_a_step(int(levels.gpus[0]))
            growth = work * (levels.gpu_s_a_step(then) - levels.gpu_s_a_step(now)) / (then - now)
        return round(growth, EQUAL_GPU_S), now, row

    def _raised(self, reservation: Reserved, now: int) -> Filling | None:
        """The reservation with the next count now, and as much later where that is free."""
        then = self._next_level(reservation.row, reservation.kind, now)
        free = self.free[reservation.kind] + reservation.filling.gpus
        if not then or then > free[0]:
            return None
        level = max(int(np.searchsorted(reservation.levels.gpus, then)), reservation.filling.level)
        return filling_with(
            then,
            level,
            reservation.levels.gpus,
            reservation.levels.per_s,
            float(self.work[reservation.row]),
            free,
            reservation.usable_s,
        )

    def _upgrade(self, reservation: Reserved, of: dict[int, Reserved], gpus: IntArray) -> bool:
        """Give an admitted job its next count now; what it then need not have later is free again."""
        raised = self._raised(reservation, int(gpus[reservation.row]))
        if raised is None:
            return False
        self.free[reservation.kind] += reservation.filling.gpus - raised.gpus
        gpus[reservation.row] = raised.gpus[0]
        of[reservation.row] = replace(reservation, filling=raised)
        return True


def _less(free: IntArray, one: Reserved) -> IntArray:
    after = free.copy()
    after[one.kind] -= one.filling.gpus
    return after


def _rows_of(snapshot: Snapshot, ids: tuple[JobId, ...]) -> IntArray:
    if not ids:
        return np.zeros(0, dtype=np.int64)
    wanted = set(ids)
    return np.array([row for row, job in enumerate(snapshot.jobs.ids) if job in wanted], dtype=np.int64)


def _declined(why: Reasons, rows: IntArray) -> Reasons:
    code = why.code.copy()
    code[rows[code[rows] > 0]] = int(Why.DECLINED)
    return Reasons(code, why.evidence)


def _next_change_s(now_s: float, slots: Slots, fillings: list[IntArray]) -> float | None:
    """When the first reservation changes other than by its end."""
    if not fillings:
        return None
    reserved = np.array(fillings)
    changes = ((reserved != reserved[:, :1]) & (reserved > 0)).any(axis=0)
    return now_s + float(slots.start_s[int(changes.argmax())]) if changes.any() else None


# The counts that ElasticFlow gives a job: powers of two at which more GPUs make it faster.


@lru_cache(maxsize=65_536)
def levels_on(curve: Curve, gpus_asked: int) -> Levels | None:
    """The powers of two on a curve; without any, what the job asks for, else the fewest that it can use."""
    if not curve.gpus:
        return None
    powers = [index for index, gpus in enumerate(curve.gpus) if gpus & (gpus - 1) == 0]
    if not powers:
        powers = [curve.gpus.index(gpus_asked) if gpus_asked in curve.gpus else 0]
    faster, best = [], 0.0
    for index in powers:
        if curve.per_s[index] > best:
            faster.append(index)
            best = curve.per_s[index]
    return Levels(
        np.array([curve.gpus[index] for index in faster]), np.array([curve.per_s[index] for index in faster])
    )
