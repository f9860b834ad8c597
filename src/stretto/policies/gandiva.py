"""Gandiva's elasticity as Lyra compares with it: jobs grow while none waits, and shrink for those that do."""

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stretto.model import (
    Cluster,
    Configurations,
    IntArray,
    JobId,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    on_change,
)
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.common.speed_curves import one_gpu_of_each_type, reasons_by_range
from stretto.settings import CheckedSettings, setting


@dataclass(frozen=True)
class Grown:
    """The jobs that have more than their base demand, the latest to have grown last."""

    jobs: tuple[JobId, ...] = ()


@dataclass(frozen=True)
class Gandiva(CheckedSettings, space="policy"):
    """Start jobs on their base demands as they come; use GPUs that no job waits for to grow the running ones.

    The elastic variant of Gandiva (Xiao et al., OSDI 2018) that Lyra (EuroSys 2023), section 7.1, compares
    with: first in, first out. While no job waits, running elastic jobs get one more worker in turn, fewest
    beyond the base first. When a job waits, those that grew last go back to their bases until it fits. Jobs
    stay on their GPU type.

    Deviation: no time slicing, packing or migration, which that comparison leaves out too.

    Starvation: none beyond that of first in, first out. No job is passed (unless `skip`), so a job waits at
    most until the jobs before it have ended. With `skip` there is no bound.

    Cost of one decision: O(jobs), plus O(log jobs) for every worker that comes, at most the idle GPUs.
    """

    skip: bool = False  # let what fits pass what does not; chosen: strict
    # seconds between decisions; None: whenever jobs or nodes come or go
    round_s: float | None = setting(None, above=0)

    name: ClassVar[str] = "gandiva"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "spread"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Gandiva (OSDI 2018), as in Lyra (EuroSys 2023)",
        order="fair share for who waits; who runs takes turns",
        starvation=(
            "bounded: nobody passes it, so it waits for the jobs before it; with skip, large ones may starve"
        ),
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, or at rounds before which something has changed."""
        return on_change(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: no speed is looked at, but a job may get fewer GPUs than it asked for."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Waiting jobs come first; what they leave goes to running ones."""
        draft = _Draft(snapshot)
        nobody_waits = draft.start_waiting(self.skip)
        if nobody_waits:
            draft.grow()
        grown = [job for job, row in draft.grown.items() if draft.extra(row) > 0]
        return Shares(
            gpus=draft.gpus,
            kind=draft.kind,
            nodes=np.zeros_like(draft.gpus),
            why=reasons_by_range(snapshot, draft.gpus, draft.left),
            memory=Grown(tuple(grown)),
            order=np.concatenate((np.flatnonzero(snapshot.jobs.held_gpus), draft.started)),
            in_order=not self.skip,
        )


class _Draft:
    """What each job has while one decision is worked out."""

    def __init__(self, snapshot: Snapshot) -> None:
        jobs, cluster = snapshot.jobs, snapshot.cluster
        self.jobs = jobs
        self.stand_ins = cluster.stand_ins
        self.most = most_gpus_of_one_job(cluster)
        self.gpus, self.kind = jobs.held_gpus.copy(), jobs.held_kind.copy()
        running = self.gpus > 0
        held_gpus = np.bincount(self.kind[running], self.gpus[running], len(self.most)).astype(np.int64)
        self.left: list[int] = np.maximum(snapshot.capacity - held_gpus, 0).tolist()
        self.fixed = running & ~jobs.preemptible
        self.started: IntArray = np.zeros(0, dtype=np.int64)
        self.grown = self._grown(snapshot)

    def _grown(self, snapshot: Snapshot) -> dict[JobId, int]:
        """Rows of the jobs that hold more than their base, the latest to have grown last."""
        beyond = np.flatnonzero(self._beyond() > 0).tolist()
        rows = {self.jobs.ids[row]: row for row in beyond}
        known = snapshot.memory.jobs if isinstance(snapshot.memory, Grown) else ()
        in_turn = {job: rows.pop(job) for job in known if job in rows}
        return rows | in_turn  # of which nothing is known, first: they have grown before all others

    def _beyond(self) -> IntArray:
        """(jobs,) GPUs beyond the base demand that may be taken back."""
        base = self.jobs.min_gpus * self.stand_ins[self.kind]
        return np.where((self.gpus > 0) & ~self.fixed, self.gpus - base, 0)

    def extra(self, row: int) -> int:
        """GPUs of one running job beyond its base demand."""
        return int(self.gpus[row] - self.jobs.min_gpus[row] * self.stand_ins[self.kind[row]])

    def start_waiting(self, skip: bool) -> bool:
        """Start waiting jobs by submission while they fit; whether no job still waits that could ever run."""
        jobs = self.jobs
        ever = (jobs.allowed_kinds & (jobs.min_gpus[:, None] * self.stand_ins <= self.most)).any(axis=1)
        back = np.bincount(self.kind[self.kind >= 0], self._beyond()[self.kind >= 0], len(self.left))
        # Room counts GPUs beyond bases, which can be taken back one worker at a time.
        room = [left + int(more) for left, more in zip(self.left, back, strict=True)]
        started: list[int] = []
        all_started = True
        for row in np.flatnonzero((self.gpus == 0) & ever).tolist():
            need = int(jobs.min_gpus[row]) * self.stand_ins
            fits = [kind for kind in range(len(room)) if jobs.allowed_kinds[row, kind]]
            fits = [kind for kind in fits if need[kind] <= min(room[kind], int(self.most[kind]))]
            if fits:
                idle = [kind for kind in fits if need[kind] <= self.left[kind]]
                kind = max(idle or fits, key=(self.left if idle else room).__getitem__)
                self._shrink_until(kind, int(need[kind]))
                self.gpus[row], self.kind[row] = need[kind], kind
                self.left[kind] -= int(need[kind])
                room[kind] -= int(need[kind])
                started.append(row)
            else:
                all_started = False
                if not skip or max(room) <= 0:
                    break
        self.started = np.array(started, dtype=np.int64)
        return all_started

    def _shrink_until(self, kind: int, need: int) -> None:
        """Send jobs back to their bases, the latest to have grown first, until so many GPUs are idle."""
        for job in [job for job, row in self.grown.items() if self.kind[row] == kind][::-1]:
            if self.left[kind] >= need:
                return
            row = self.grown.pop(job)
            extra = self.extra(row)
            self.gpus[row] -= extra
            self.left[kind] += extra

    def grow(self) -> None:
        """One more worker at a time for the running job with fewest beyond its base, ties by row."""
        jobs = self.jobs
        unit = jobs.gpus_per_worker * self.stand_ins[self.kind]
        most = np.minimum(jobs.max_gpus * self.stand_ins[self.kind], self.most[self.kind])
        left = np.array(self.left)[self.kind]
        able = (self.gpus > 0) & ~self.fixed & (self.gpus + unit <= most) & (unit <= left)
        # Round-robin by the number of extra workers.
        turns = [(self.extra(row) // int(unit[row]), row) for row in np.flatnonzero(able).tolist()]
        heapq.heapify(turns)
        while turns:
            workers, row = heapq.heappop(turns)
            kind, each = int(self.kind[row]), int(unit[row])
            if each > self.left[kind]:
                continue
            self.gpus[row] += each
            self.left[kind] -= each
            job = jobs.ids[row]
            self.grown.pop(job, None)
            self.grown[job] = row
            if self.gpus[row] + each <= most[row]:
                heapq.heappush(turns, (workers + 1, row))
