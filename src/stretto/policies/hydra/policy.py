"""Hydra: least completion time and lateness by sequencing jobs, without preemption."""

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import (
    NO_CONFIGURATIONS,
    admit_waiting,
    most_gpus_of_one_job,
    reasons_after,
)
from stretto.policies.hydra.sequences import Problem, best_sequence
from stretto.settings import CheckedSettings, setting


@dataclass(frozen=True)
class Hydra(CheckedSettings, space="policy"):
    """Start first the jobs with a deadline, then the others, each by shortest remaining time; stop nobody.

    Hydra (Yang et al., IEEE Trans. Computers 2023) in the form in which UniSched (TPDS 2024), section IV-D,
    compares itself with it: one GPU type, deadline jobs before best effort, shortest remaining time within
    both classes, whatever fits starts. A decision sorts the waiting jobs: n log n.

    `original`: the method of Hydra's own paper. Sequences of jobs and a GPU type for each, by branch and
    bound, with the least Σ completion time + ω Σ tardiness, on the speeds measured for each type. ω grows
    with the lateness that there is. The search takes at most `nodes` nodes over the `most_jobs` jobs that
    the rule above puts first; those that the sequence starts now start, then others that fit. Deviations:
    jobs need several GPUs at once here, so that a start waits for that many; ω's growth is chosen.

    There is no bound on waiting: shorter jobs, and jobs with deadlines, can pass a best-effort job for
    ever, and a job of many GPUs can be passed by small ones as long as these keep coming.
    """

    original: bool = False  # branch and bound over sequences instead of the order by classes
    # ω, seconds of completion time that a second of lateness counts; chosen
    tardiness_weight: float = setting(2.0, at_least=0)
    # waiting jobs that are sequenced at once; chosen: 8! orders times types
    most_jobs: int = setting(8, at_least=1)
    nodes: int = setting(10_000, at_least=1)  # of the branch and bound; chosen

    name: ClassVar[str] = "hydra"
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Hydra (IEEE Trans. Computers 2023), as in UniSched (TPDS 2024)",
        order="deadlines, then least left to run; ties by fair share",
        starvation=(
            "unbounded: within a class long jobs wait for shorter ones, "
            "best effort for every job with a deadline"
        ),
    )

    @property
    def views(self) -> frozenset[View]:
        """Estimated durations; the original also measures its jobs on every type."""
        measured = {View.THROUGHPUT_TABLE} if self.original else set()
        return frozenset({View.ESTIMATED_DURATION} | measured)

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: the speed on the GPUs asked for is enough."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests; whoever runs keeps what it holds."""
        order = by_class_and_time(snapshot)
        if not self.original:
            return admit_waiting(snapshot, order, skip=True)
        began = self._begin_sequence(snapshot, speeds, order[: self.most_jobs])
        behind = order[self.most_jobs :]
        return _with_others(snapshot, began, behind)

    def _begin_sequence(self, snapshot: Snapshot, speeds: Speeds, rows: IntArray) -> IntArray:
        """(jobs,) the type on which each of these rows starts now, -1 for everybody else."""
        kind = np.full(len(snapshot.jobs), -1, dtype=np.int64)
        problem = self._problem(snapshot, speeds, rows)
        able = np.flatnonzero(np.isfinite(problem.duration_s).any(axis=1))
        found = best_sequence(problem.of(able), self._weight(snapshot), self.nodes)
        now = found.start_s == 0
        kind[rows[able[now]]] = found.kind[now]
        return kind

    def _problem(self, snapshot: Snapshot, speeds: Speeds, rows: IntArray) -> Problem:
        jobs, types = snapshot.jobs, len(snapshot.cluster.types)
        fits = jobs.gpus[rows, None] <= np.minimum(most_gpus_of_one_job(snapshot.cluster), snapshot.capacity)
        allowed = jobs.allowed_kinds[rows] & fits
        per_s = np.nan_to_num(speeds.requested_per_s[rows], nan=0.0)
        fastest = np.where(jobs.allowed_kinds[rows], per_s, 0.0).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = np.where(fastest[:, None] > 0, fastest[:, None] / per_s, 1.0)
        remaining_s = jobs.estimates.remaining_s
        return Problem(
            duration_s=np.where(allowed, np.maximum(remaining_s[rows, None], 1e-9) * slower, inf),
            gpus=jobs.gpus[rows],
            due_s=jobs.deadline_s[rows] - snapshot.now_s,
            age_s=snapshot.now_s - jobs.submitted_s[rows],
            models=tuple(jobs[row].model for row in rows.tolist()),
            free_s=tuple(_freed_s(snapshot, remaining_s, kind) for kind in range(types)),
        )

    def _weight(self, snapshot: Snapshot) -> float:
        """ω: grows with the lateness of the active jobs, as a part of the time since they came."""
        jobs = snapshot.jobs
        late_s = np.maximum(snapshot.now_s - jobs.deadline_s, 0.0).sum()
        age_s = (snapshot.now_s - jobs.submitted_s).sum()
        return float(self.tardiness_weight * (1.0 + (late_s / age_s if age_s > 0 else 0.0)))


def by_class_and_time(snapshot: Snapshot) -> IntArray:
    """Waiting rows: deadline jobs first, each class by remaining time, ties by submission."""
    jobs = snapshot.jobs
    waiting = np.flatnonzero(jobs.held_gpus == 0)
    remaining_s = jobs.estimates.remaining_s[waiting]
    return waiting[np.lexsort((remaining_s, np.isinf(jobs.deadline_s[waiting])))]


def _freed_s(snapshot: Snapshot, remaining_s: FloatArray, kind: int) -> tuple[float, ...]:
    """When each GPU of a type is free, seconds from now, ascending."""
    jobs = snapshot.jobs
    on = np.flatnonzero(jobs.held_kind == kind)
    busy_s = np.repeat(np.maximum(remaining_s[on], 1e-9), jobs.held_gpus[on])
    return tuple([0.0] * int(snapshot.free[kind]) + np.sort(busy_s).tolist())


def _with_others(snapshot: Snapshot, kind: IntArray, behind: IntArray) -> Shares:
    """Start what the sequence starts, then of the rows behind whatever still fits."""
    jobs, types = snapshot.jobs, len(snapshot.cluster.types)
    started = np.flatnonzero(kind >= 0)
    # Admit none: that gives the shares of the running jobs, to which the started ones are added.
    shares = admit_waiting(snapshot, started[:0], skip=True)
    gpus, kinds = shares.gpus.copy(), shares.kind.copy()
    gpus[started], kinds[started] = jobs.gpus[started], kind[started]
    left = snapshot.free - np.bincount(kind[started], jobs.gpus[started], types).astype(np.int64)
    most = most_gpus_of_one_job(snapshot.cluster)
    for row in behind.tolist():
        if not left.any():
            break
        room = np.where(jobs.allowed_kinds[row] & (jobs.gpus[row] <= np.minimum(most, left)), left, -1)
        at = int(room.argmax())
        if room[at] >= 0:
            gpus[row], kinds[row] = jobs.gpus[row], at
            left[at] -= jobs.gpus[row]
    return replace(
        shares,
        gpus=gpus,
        kind=kinds,
        why=reasons_after(snapshot, gpus, left),
        order=np.concatenate((started, behind[gpus[behind] > 0])),
    )
