"""3Sigma: deadlines under uncertainty, with distributions of runtimes instead of numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from stretto.model import (
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    Job,
    JobId,
    JobTable,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    floats,
    on_change,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew, most_gpus_of_one_job
from stretto.policies.three_sigma.options import (
    StartOptions,
    Utility,
    expected_utility,
    plan_starts,
    pulled_forward,
    survival,
)
from stretto.settings import CheckedSettings, setting

SHORTEST_S = 1.0  # chosen: no estimate is shorter
BINS = 80  # of a histogram, at most [3Sigma]
WIDEST = 16.0  # chosen: ratios beyond 1/16 and 16 count as these
EDGES = np.geomspace(1 / WIDEST, WIDEST, BINS)  # the middles of the bins; that of 1 lies between two
FEATURES = ("user", "queue", "model", "gpus", "model and gpus")
EXACT = 0.01  # chosen: an estimate within this part of the duration was right


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Ratios of durations to estimates that jobs of one kind have had."""

    seen: FloatArray = field(default_factory=lambda: np.zeros(0))  # middles of the bins with anything in them
    count: FloatArray = field(default_factory=lambda: np.zeros(0))  # of each
    error: float = 0.0  # sum of the relative errors of the mean, each before the ratio was known
    tried: int = 0  # ratios that were predicted

    @property
    def mean(self) -> float:
        """The estimator whose error is kept; 1 before anything was seen."""
        return float((self.seen * self.count).sum() / self.count.sum()) if self.count.size else 1.0

    @property
    def probability(self) -> FloatArray:
        """(bins,) of each ratio."""
        shares: FloatArray = self.count / self.count.sum()
        return shares

    @property
    def mean_error(self) -> float:
        """Relative error of the mean so far; infinite before the first try."""
        return self.error / self.tried if self.tried else float("inf")

    def with_ratio(self, ratio: float) -> "Histogram":
        """One more job."""
        middle = 1.0 if abs(ratio - 1.0) < EXACT else float(EDGES[np.abs(np.log(EDGES / ratio)).argmin()])
        place = int(np.searchsorted(self.seen, middle))
        error = self.error + abs(self.mean - ratio) / ratio
        if place < self.seen.size and self.seen[place] == middle:
            count = self.count.copy()
            count[place] += 1
            return Histogram(self.seen, count, error, self.tried + 1)
        return Histogram(
            np.insert(self.seen, place, middle), np.insert(self.count, place, 1.0), error, self.tried + 1
        )


NOTHING_SEEN = Histogram(np.ones(1), np.ones(1))  # estimates are believed until jobs have ended
History = Mapping[str, Histogram]  # by feature and value; "" is that of all jobs


@dataclass(frozen=True, eq=False)
class Seen:
    """What 3Sigma remembers: the jobs of its last decision, to learn from those that end, and the history."""

    at_s: float = 0.0
    jobs: tuple[Job, ...] = ()
    executed_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # (jobs,)
    estimate_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # (jobs,)
    given: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (jobs,) GPUs
    history: History = field(default_factory=dict)


@dataclass(frozen=True)
class ThreeSigma(CheckedSettings, space="policy"):
    """Start the jobs whose expected utility is most, over plans of the next slots; stop best effort for them.

    3Sigma (Park et al., EuroSys 2018), with the cycle of UniSched (TPDS 2024), section IV-D. A job's runtime
    is a distribution: its estimate times the ratios that earlier jobs like it have had. An option is a job
    and a start in one of `slots` slots. It is worth the expected utility (rewards by their deadlines; best
    effort loses worth linearly). It takes its GPUs with the probability that it still runs. Once a cycle an
    integer programme chooses at most one option for each job within the GPUs that are expected to be free. It
    may stop running best-effort jobs at the cost of their utility. Jobs with deadlines are never stopped,
    jobs that run longer than anything seen are given 1, 2, 4, … more cycles.

    What bounds a decision: the `most_jobs` most urgent deadline jobs and as many of the shortest best-effort
    jobs are candidates (equal ones are merged). As many best-effort jobs may be stopped. There are `slots`
    slots, and `nodes` nodes of branch and bound. Where everything fits, or nothing is free and no job could
    be stopped, no programme is solved. There is no bound on waiting: a best-effort job keeps a hundredth of
    its worth for ever, but others may always be worth more. It may be stopped again and again.

    Deviations: ratios to a profiled estimate stand in for runtimes (no two trainings of a trace have the same
    name). GPUs of all types count as one pool. A job that has missed all its deadlines counts as best effort
    once the decay is over, where 3Sigma would drop it.
    """

    cycle_s: float = setting(60.0, above=0)  # [UniSched, section IV-D]
    slots: int = setting(10, at_least=1)  # of the plan ahead; chosen
    slot_s: float = setting(300.0, above=0)  # chosen: the plan reaches 45 minutes ahead
    # of a best-effort job, beside rewards of 100 [UniSched: 100 to 1]
    best_effort_worth: float = setting(1.0, above=0)
    # estimated durations until a best-effort job is worth least; chosen
    fade_times: float = setting(10.0, above=0)
    # candidates of either class, and jobs that may be stopped; chosen
    most_jobs: int = setting(30, at_least=1)
    nodes: int = setting(10, at_least=1)  # of branch and bound; chosen
    gap: float = setting(0.01, at_least=0)  # relative, at which a plan is good enough; chosen

    name: ClassVar[str] = "3sigma"
    views: ClassVar[frozenset[View]] = frozenset({View.ESTIMATED_DURATION, View.PROGRESS})
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="3Sigma (EuroSys 2018), as in UniSched (TPDS 2024)",
        order="worth by its program over all jobs; exact ties by fair share",
        starvation=(
            "unbounded: a best-effort job keeps a hundredth of its worth, others may always be worth more"
        ),
    )

    @property
    def triggers(self) -> Triggers:
        """Every cycle in which anything has changed, and at the next slot while a job waits."""
        return on_change(self.cycle_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests: those that stay, then those that the plan starts now."""
        jobs = snapshot.jobs
        seen = snapshot.memory if isinstance(snapshot.memory, Seen) else Seen()
        history = self._learn(snapshot, seen)
        running = np.flatnonzero(jobs.held_gpus)
        started, stopped = self._choose(snapshot, history)
        order = np.concatenate((running[~np.isin(running, stopped)], started))
        shares = admit_anew(snapshot, order)
        waits = bool((shares.gpus == 0).any())
        memory = Seen(
            snapshot.now_s,
            tuple(map(jobs.requests.jobs.__getitem__, jobs.rows.tolist())),
            jobs.progress.executed_s.copy(),
            jobs.estimates.duration_s.copy(),
            shares.gpus,
            history,
        )
        return replace(shares, memory=memory, wake_s=snapshot.now_s + self.slot_s if waits else None)

    def _learn(self, snapshot: Snapshot, seen: Seen) -> History:
        """The history with the jobs that have ended since: about half a cycle ago."""
        active: set[JobId] = set(snapshot.jobs.ids)
        history = seen.history
        for row in np.flatnonzero((seen.given > 0) & (seen.estimate_s > 0)).tolist():
            job = seen.jobs[row]
            if job.id in active:
                continue
            ran_s = seen.executed_s[row] + max(snapshot.now_s - seen.at_s - self.cycle_s / 2, 0.0)
            if ran_s > 0:
                history = learned(history, job, float(ran_s / seen.estimate_s[row]))
        return history

    def _choose(self, snapshot: Snapshot, history: History) -> tuple[IntArray, IntArray]:
        """Rows that start now, best first, and running rows that make room."""
        jobs = snapshot.jobs
        nobody = np.zeros(0, dtype=np.int64)
        fits = jobs.gpus[:, None] <= np.minimum(most_gpus_of_one_job(snapshot.cluster), snapshot.capacity)
        waiting = np.flatnonzero((jobs.held_gpus == 0) & (fits & jobs.allowed_kinds).any(axis=1))
        free = int(snapshot.free.sum())
        if not waiting.size or jobs.gpus[waiting].sum() <= free:
            return waiting, nobody
        candidates = self._candidates(snapshot, waiting)
        urgent = np.isfinite(jobs.deadline_s[candidates])
        stoppable = self._stoppable(snapshot) if urgent.any() else nobody
        if jobs.gpus[candidates].min() > free + jobs.held_gpus[stoppable].sum():
            return nobody, nobody
        return self._solve(snapshot, history, candidates, stoppable)

    def _candidates(self, snapshot: Snapshot, waiting: IntArray) -> IntArray:
        """The deadline jobs with least time to spare, those in time first, and the shortest best effort."""
        jobs = snapshot.jobs
        left_s = jobs.estimates.remaining_s[waiting]
        spare_s = jobs.deadline_s[waiting] - snapshot.now_s - left_s
        urgent = np.isfinite(spare_s)
        by_spare = waiting[np.lexsort((spare_s, spare_s < 0))]
        by_service = waiting[(left_s * jobs.gpus[waiting]).argsort(kind="stable")]
        chosen = (
            by_spare[np.isfinite(jobs.deadline_s[by_spare])][: self.most_jobs]
            if urgent.any()
            else by_spare[:0],
            by_service[np.isinf(jobs.deadline_s[by_service])][: self.most_jobs],
        )
        return np.concatenate(chosen)

    def _stoppable(self, snapshot: Snapshot) -> IntArray:
        """Running best-effort rows that may be stopped: those with most left to do."""
        jobs = snapshot.jobs
        rows = np.flatnonzero((jobs.held_gpus > 0) & jobs.preemptible & np.isinf(jobs.deadline_s))
        return rows[(-jobs.estimates.remaining_s[rows]).argsort(kind="stable")][: self.most_jobs]

    def _solve(
        self, snapshot: Snapshot, history: History, waiting: IntArray, stoppable: IntArray
    ) -> tuple[IntArray, IntArray]:
        jobs = snapshot.jobs
        # Expected GPUs in use by slot: what runs, weighed by the chance that it still does.
        starts_s = floats(np.arange(self.slots) * self.slot_s)
        running = np.flatnonzero(jobs.held_gpus)
        runs = survival(*self._left(jobs, running, history), starts_s) * jobs.held_gpus[running, None]
        runs[:, 0] = jobs.held_gpus[running]  # what is held now is held for sure
        # Expected utility of a start in each slot, and what stopping a best-effort job costs.
        support_s, probability = self._left(jobs, waiting, history)
        worth = expected_utility(support_s, probability, starts_s, self._utility(snapshot, waiting))
        going = self._left(jobs, stoppable, history)
        cost = expected_utility(*going, np.zeros(1), self._utility(snapshot, stoppable))[:, 0]
        surviving = survival(support_s, probability, starts_s)
        room = np.maximum(int(snapshot.capacity.sum()) - runs.sum(axis=0), 0.0)
        frees = runs[np.searchsorted(running, stoppable)]
        asks = jobs.gpus[waiting]
        # The program; without an answer jobs start by worth for each GPU.
        plan = plan_starts(StartOptions(worth, surviving, asks, room, cost, frees), self.nodes, self.gap)
        by_worth = (-worth[:, 0] / asks).argsort(kind="stable")
        if plan is None:
            return waiting[by_worth], stoppable[:0]
        # Starts move forward into what the plan leaves idle; those of the first slot happen now.
        room = room + frees[plan.stopped].sum(axis=0)
        now = pulled_forward(plan.slot, by_worth, asks, surviving, room) == 0
        return waiting[by_worth[now[by_worth]]], stoppable[plan.stopped]

    def _left(self, jobs: JobTable, rows: IntArray, history: History) -> tuple[FloatArray, FloatArray]:
        """(rows, bins) seconds that are left of each job, and their probabilities; 0 where there is none."""
        # Jobs of one histogram are looked at together: hundreds run, and few histograms are the best of any.
        alike: dict[int, tuple[Histogram, list[int]]] = {}
        best: dict[tuple[object, ...], Histogram] = {}
        for place, row in enumerate(rows.tolist()):
            job = jobs[row]
            kind = (job.user, job.queue, job.model, job.gpus)
            if kind not in best:
                best[kind] = best_known(history, job)
            alike.setdefault(id(best[kind]), (best[kind], []))[1].append(place)
        widest = max((histogram.seen.size for histogram, _ in alike.values()), default=1)
        left_s, probability = np.zeros((2, len(rows), widest))
        estimate_s = np.maximum(jobs.estimates.duration_s[rows], SHORTEST_S)
        executed_s = jobs.progress.executed_s[rows]
        for histogram, places in alike.values():
            support_s = histogram.seen * estimate_s[places, None]
            after_s = executed_s[places]
            bins = slice(histogram.seen.size)
            left_s[places, bins], probability[places, bins] = given_elapsed(
                support_s, histogram.probability, after_s, self.cycle_s
            )
        return left_s, probability

    def _utility(self, snapshot: Snapshot, rows: IntArray) -> Utility:
        jobs = snapshot.jobs
        rewards = [jobs[row].rewards for row in rows.tolist()]
        steps = max(map(len, rewards), default=0)
        due_s, value = np.full((len(rows), steps), -np.inf), np.zeros((len(rows), steps))
        for row, of_job in enumerate(rewards):
            due_s[row, : len(of_job)] = [reward.deadline_s - snapshot.now_s for reward in of_job]
            value[row, : len(of_job)] = [reward.value for reward in of_job]
        return Utility(
            due_s,
            value,
            jobs.submitted_s[rows] - snapshot.now_s,
            self.fade_times * np.maximum(jobs.estimates.duration_s[rows], SHORTEST_S),
            self.best_effort_worth,
        )


# What do earlier jobs say about how long one like them runs? Distributions instead of numbers.
#
# 3Sigma (Park et al., EuroSys 2018), sections 3 and 4, for trainings whose duration is estimated from a
# profile: what is learned is the ratio of a duration to its estimate.


def features_of(job: Job) -> tuple[str, ...]:
    """The keys under which a job's ratio is kept, and that of all jobs."""
    values = (job.user, job.queue, job.model, str(job.gpus), f"{job.model} x {job.gpus}" if job.model else "")
    return ("", *(f"{name}={value}" for name, value in zip(FEATURES, values, strict=True) if value))


def learned(history: History, job: Job, ratio: float) -> History:
    """The history with one more job that has ended."""
    added = {key: history.get(key, Histogram()).with_ratio(ratio) for key in features_of(job)}
    return {**history, **added}


def best_known(history: History, job: Job) -> Histogram:
    """Of the feature whose mean has erred least; else the broader."""
    known = [history[key] for key in features_of(job) if key in history]
    return min(known, key=lambda histogram: histogram.mean_error) if known else NOTHING_SEEN


def given_elapsed(
    support_s: FloatArray, probability: FloatArray, elapsed_s: FloatArray, cycle_s: float
) -> tuple[FloatArray, FloatArray]:
    """(jobs, bins) seconds that jobs go on beyond `elapsed_s`, and P(duration | > elapsed); 0 where none.

    support_s: (jobs, bins) durations. probability: (bins,). A job may have outrun all of them
    (under-estimate). Then 2^n cycles more are assumed, if this has been done n times before: 1, 2, 4, …
    cycles beyond the longest.
    """
    possible = support_s > elapsed_s[:, None]
    likely = np.where(possible, probability, 0.0)
    outran = ~possible.any(axis=1)
    longest_s = support_s.max(axis=1)
    beyond = np.maximum(elapsed_s - longest_s, 0.0) / cycle_s
    times = np.floor(np.log2(beyond + 1.0) + 1e-9)
    left_s = np.where(possible, support_s - elapsed_s[:, None], 0.0)
    left_s[outran, 0] = (longest_s + cycle_s * (2.0 ** (times + 1.0) - 1.0) - elapsed_s)[outran]
    likely[outran, 0] = 1.0
    return left_s, likely / likely.sum(axis=1, keepdims=True)
