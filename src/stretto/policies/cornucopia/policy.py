"""Cornucopia: interactive jobs first, at once, without stopping the batch jobs for it."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    BoolArray,
    Cluster,
    Configurations,
    EndedJobs,
    IntArray,
    JobId,
    Memory,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, most_gpus_of_one_job, reasons_after
from stretto.policies.cornucopia.allocator import Candidates, allocate_greedily
from stretto.policies.cornucopia.mlfq import (
    BATCH,
    INTERACTIVE,
    LONG,
    SLACK_S,
    Means,
    Remembered,
    Runners,
    Thresholds,
    aligned,
    is_renewal_due,
    mean_of,
    means_with_ended,
    next_threshold_s,
    promote_and_demote,
    thresholds_of,
)
from stretto.policies.cornucopia.profiler import (
    ALL_PROFILED,
    LONGEST_RAMP_STEP_S,
    measured_upto,
    profiled_factors,
)
from stretto.settings import CheckedSettings, setting


class Profile(StrEnum):
    """How a job's throughput comes to be known."""

    INSTANT = "instant"  # for nothing, when the job starts
    RAMP = "ramp"  # by adding one GPU after the other, each only when the count before it is measured


class MeansFrom(StrEnum):
    """Whose durations thresholds are learned from."""

    ENDED = "ended"  # of all jobs that have ended, as the world counts them, from the first one on
    FOLLOWED = "followed"  # of jobs that it gave GPUs and saw no more, once `learn_every` have gone


@dataclass(frozen=True)
class Cornucopia(CheckedSettings, space="policy"):
    """Start interactive jobs at once on single GPUs taken from the batch jobs that miss them least.

    Cornucopia (Huang et al.) has three queues, for interactive jobs, batch jobs, and batch jobs that have run
    long (section 4.2). It profiles every job on 1 to 2R GPUs (algorithm 1). GPUs go to the largest gain in
    throughput (algorithm 2) and are taken where the loss is least (algorithm 3). A job in queue 1 is never
    taken from, below what it asked for. Within a queue jobs stand in the order in which they came to it. In
    queue 3 a job without any GPU is in queue 2 again after at most `factor` mean batch durations. There it
    comes before all that come later with as many GPUs and gain.

    There is one instance for each GPU type. A job that accepts several and holds none takes the one with most
    idle GPUs on which it is served. Where too few jobs have failed, the mean of all stands in for the time to
    failure. Deviations and readings: docs/decisions/0004-cornucopia.md.
    """

    interactive_mean_s: float = setting(600.0, above=0)  # of executed time, until learned; chosen
    rttf_s: float = setting(3_600.0, above=0)  # mean run time of jobs that fail, until learned; chosen
    batch_mean_s: float = setting(3_600.0, above=0)  # of executed time, until learned; chosen
    factor: float = setting(2.0, above=0)  # thresholds over these means; section 4.2
    # Of the time to failure: 1 in the paper's list of parameters, 2 in its demotion policy; none: as factor
    rttf_factor: float | None = setting(None, above=0)
    # crossings are noticed so late at most; chosen: thresholds are of hours
    notice_s: float = setting(60.0, at_least=0)
    learn_every: int = setting(1_000, at_least=0)  # ended jobs between new means (section 4.2); 0: never
    learn_from: int = setting(10, at_least=1)  # fewest jobs whose mean is believed; chosen
    means_from: MeansFrom = MeansFrom.ENDED
    profile: Profile = Profile.INSTANT
    # Paper: 314 s for a 64-GPU job, 5 batches and a resize at each count.
    profile_step_s: float = setting(4.9, above=0)  # at each count, in the mode ramp

    name: ClassVar[str] = "cornucopia"
    views: ClassVar[frozenset[View]] = frozenset({View.PROGRESS, View.THROUGHPUT_TABLE, View.ENDED_JOBS})
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Cornucopia (Huang et al.)",
        order="its queues, then who came first; fair share among those that come at once",
        starvation=(
            "bounded while interactive jobs leave GPUs free: in queue 3 without any for at most `factor` "
            "mean batch durations, then in queue 2 in turn"
        ),
        tables_only=True,
        former={"means_from": "followed"},
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, and at the next crossing of a threshold."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it reads the measured tables, of few jobs."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """MLFQ, profiler, allocator: counts for every GPU type in turn, those with most idle GPUs first."""
        jobs = snapshot.jobs
        memory = self._promote_and_demote(snapshot)  # the MLFQ, section 4.2
        memory = self._profile_ramp_up(memory, snapshot)  # algorithm 1, section 4.3
        gpus, kind = jobs.held_gpus.astype(np.int64), jobs.held_kind.astype(np.int64)
        left = np.maximum(snapshot.free, 0)
        joined_s = memory.joined_s
        # The allocator, section 4.4. A job that one type cannot serve is still without GPUs for the next.
        for of_type in np.argsort(-left, kind="stable").tolist():
            rows = self._on_type(snapshot, gpus, kind, of_type)
            rows = rows[joined_s[rows].argsort(kind="stable")]  # ties by arrival
            if rows.size:
                candidates = self._candidates(snapshot, memory, rows, gpus, of_type)
                given = allocate_greedily(candidates, int(left[of_type]))  # algorithms 2 and 3
                left[of_type] -= int(given.sum() - gpus[rows].sum())
                gpus[rows], kind[rows] = given, np.where(given > 0, of_type, -1)
        memory = _with_runners(memory, snapshot, gpus)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=reasons_after(snapshot, gpus, left),
            memory=memory,
            wake_s=self._wake_s(memory, snapshot, gpus),
        )

    def standing(self, memory: Memory, job: JobId) -> str:
        """In which queue a job is, and what takes it to another."""
        if not isinstance(memory, Remembered) or job not in memory.ids:
            return ""
        until, ended = memory.thresholds, memory.means.jobs
        basis = f"as learned from {ended} ended jobs" if ended else "as set"
        within = {
            INTERACTIVE: f"for interactive jobs, down after {until.interactive_s:.0f} s of running there",
            BATCH: f"for batch jobs, down after {until.batch_s:.0f} s of running there",
            LONG: f"for long jobs, up after {until.starved_s:.0f} s without GPUs",
        }
        queue = int(memory.queue[memory.ids.index(job)])
        return f"queue {queue} of {LONG}, {within[queue]}, {basis}"

    def _promote_and_demote(self, snapshot: Snapshot) -> Remembered:
        """What is remembered, with every job in the queue where it belongs now."""
        blank = Remembered(self._thresholds(self.interactive_mean_s, self.rttf_s, self.batch_mean_s))
        memory = snapshot.memory if isinstance(snapshot.memory, Remembered) else blank
        if self.means_from is MeansFrom.FOLLOWED:
            memory = self._learn_from_followed(memory, snapshot)
        else:
            memory = self._learn_from_ended(aligned(memory, snapshot.jobs), snapshot.jobs.ended)
        return promote_and_demote(memory, snapshot.jobs, snapshot.now_s)

    def _learn_from_ended(self, memory: Remembered, ended: EndedJobs) -> Remembered:
        """New thresholds, where it is time, from the means of all jobs that have ended."""
        if not self.learn_every or not is_renewal_due(memory.means.jobs, ended.jobs, self.learn_every):
            return memory
        of_all_s = mean_of(
            ended.interactive_s + ended.batch_s, ended.jobs, self.learn_from, otherwise_s=self.rttf_s
        )
        learned = self._thresholds(
            mean_of(ended.interactive_s, ended.interactive, self.learn_from, self.interactive_mean_s),
            mean_of(ended.failed_s, ended.failed, self.learn_from, otherwise_s=of_all_s),
            mean_of(ended.batch_s, ended.batch, self.learn_from, self.batch_mean_s),
        )
        means = Means(ended.interactive, ended.interactive_s, ended.batch, ended.batch_s)
        return replace(memory, thresholds=learned, means=means)

    def _learn_from_followed(self, memory: Remembered, snapshot: Snapshot) -> Remembered:
        """New thresholds whenever the count of jobs that have gone passes a multiple of `learn_every`."""
        means = means_with_ended(memory, snapshot)
        if self.learn_every and means.jobs // self.learn_every > memory.means.jobs // self.learn_every:
            learned = self._thresholds(
                mean_of(means.interactive_s, means.interactive, 1, self.interactive_mean_s),
                self.rttf_s,
                mean_of(means.batch_s, means.batch, 1, self.batch_mean_s),
            )
            memory = replace(memory, thresholds=learned)
        return replace(aligned(memory, snapshot.jobs), means=means)

    def _thresholds(self, interactive_mean_s: float, rttf_s: float, batch_mean_s: float) -> Thresholds:
        return thresholds_of(interactive_mean_s, rttf_s, batch_mean_s, self.factor, self.rttf_factor)

    def _profile_ramp_up(self, memory: Remembered, snapshot: Snapshot) -> Remembered:
        """Algorithm 1: the counts that jobs have held for long enough by now are profiled.

        Line 2, the loop over 1 to 2R GPUs, is spread over decisions: `_candidates` lets a job have one GPU
        more than is profiled of it. Lines 3 and 4 take `profile_step_s` at each count. They take longer where
        the world measures while jobs run and has not measured this count yet. What it knows already of a new
        job, from others of its model, is profiled.
        """
        if self.profile is Profile.INSTANT:
            return memory
        runners = memory.runners
        done = runners.since_s + self.profile_step_s <= snapshot.now_s + SLACK_S
        done &= ~_awaits_measurement(memory, snapshot)
        rows = runners.rows[done]
        upto = memory.profiled_upto.copy()
        upto[rows] = np.maximum(upto[rows], runners.gpus[done])
        known = [measured_upto(table) for table in snapshot.jobs.tables]
        upto = np.maximum(upto, np.array(known, dtype=np.int64))
        return replace(memory, profiled_upto=upto)

    def _on_type(self, snapshot: Snapshot, gpus: IntArray, kind: IntArray, of_type: int) -> IntArray:
        """Rows of the jobs that hold GPUs of a type, or none and could take it."""
        jobs = snapshot.jobs
        most = most_gpus_of_one_job(snapshot.cluster)[of_type]
        may: BoolArray = (gpus == 0) & (jobs.gpus <= most)
        if len(snapshot.cluster.types) > 1 or not jobs.allowed_kinds.all():
            may &= jobs.allowed_kinds[:, of_type]
        return np.flatnonzero(may | (kind == of_type))

    def _candidates(
        self, snapshot: Snapshot, memory: Remembered, rows: IntArray, gpus: IntArray, of_type: int
    ) -> Candidates:
        """The allocator's columns for the jobs in `rows`: R and 2R, within the profile and the cluster."""
        jobs = snapshot.jobs
        # R is what a job asks for; an elastic one may grow to 2R, within its own range.
        elastic = ~jobs.rigid[rows]
        wanted, least, held_gpus = jobs.gpus[rows], jobs.min_gpus[rows], gpus[rows]
        limit = int(most_gpus_of_one_job(snapshot.cluster)[of_type])
        most = np.where(elastic, np.minimum(2 * wanted, jobs.max_gpus[rows]), wanted)
        asked, most = np.minimum(wanted, limit), np.minimum(most, limit)
        upto = None
        if self.profile is Profile.RAMP:  # one more GPU than is known: that is how the next count is measured
            upto = memory.profiled_upto[rows]
            reach = np.where(elastic, np.maximum(upto + 1, least), most)
            asked, most = np.minimum(asked, reach), np.minimum(most, reach)
        # Scaling factors are looked up only for the jobs that the allocator comes to.
        tables = jobs.tables

        def factors(position: int) -> tuple[float, ...]:
            known = ALL_PROFILED if upto is None else int(upto[position])
            return profiled_factors(tables[int(rows[position])], of_type, int(wanted[position]), known)

        return Candidates(
            queue=memory.queue[rows],
            held=held_gpus,
            least=least,
            asked=asked,
            most=most,
            largest=jobs.max_gpus[rows],
            elastic=elastic,
            fixed=~jobs.preemptible[rows] & (held_gpus > 0),
            factors=factors,
        )

    def _wake_s(self, memory: Remembered, snapshot: Snapshot, gpus: IntArray) -> float | None:
        at_s = next_threshold_s(memory, snapshot.jobs, gpus, snapshot.now_s)
        at_s = max(at_s, snapshot.now_s + self.notice_s)
        if self.profile is Profile.RAMP:
            runners = memory.runners
            new = runners.gpus > memory.profiled_upto[runners.rows]
            new &= ~snapshot.jobs.rigid[runners.rows]
            measured_s = runners.since_s + self.profile_step_s
            awaits = _awaits_measurement(memory, snapshot)  # when it comes is unknown
            measured_s = np.where(awaits, snapshot.now_s + self.notice_s, measured_s)[new]
            at_s = min(at_s, max(float(measured_s.min(initial=inf)), snapshot.now_s + SLACK_S))
        return at_s if isfinite(at_s) else None


def _awaits_measurement(memory: Remembered, snapshot: Snapshot) -> BoolArray:
    """(runners,) whether nothing was measured yet on as many GPUs as each holds, and still may be."""
    jobs, runners = snapshot.jobs, memory.runners
    awaits = runners.since_s + LONGEST_RAMP_STEP_S > snapshot.now_s
    for position in np.flatnonzero(awaits).tolist():
        row, count = int(runners.rows[position]), int(runners.gpus[position])
        measured, kind = jobs.tables[row].measured, int(jobs.held_kind[row])
        awaits[position] = measured is not None and kind >= 0 and not measured[kind, count]
    return np.asarray(awaits, dtype=np.bool_)


def _with_runners(memory: Remembered, snapshot: Snapshot, gpus: IntArray) -> Remembered:
    """Which jobs have GPUs from now on, and since when so many."""
    jobs, before = snapshot.jobs, memory.runners
    running = np.flatnonzero(gpus)
    count = gpus[running]
    since_s = np.full(len(running), snapshot.now_s)
    if before.rows.size:
        position = np.minimum(np.searchsorted(before.rows, running), len(before.rows) - 1)
        same = (
            (before.rows[position] == running)
            & (before.gpus[position] == count)
            & (jobs.held_gpus[running] == count)
        )
        since_s = np.where(same, before.since_s[position], since_s)
    runners = Runners(running, jobs.interactive[running], jobs.progress.executed_s[running], count, since_s)
    return replace(memory, at_s=snapshot.now_s, runners=runners)
