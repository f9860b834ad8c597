"""Policies side by side: every metric with its interval, the order, and each pair on the same jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.model.arrays import FloatArray, floats
from stretto.report.content import Comparison, RunSeries
from stretto.report.statistics import (
    Basis,
    Estimate,
    Paired,
    bootstrap_mean,
    bootstrap_ratio,
    exactly,
    paired,
    student,
    student_ratio,
)
from stretto.sim.summary import METRICS, RANKED_BY, Metric

PER_JOB: Mapping[str, Callable[[RunSeries], FloatArray]] = {
    "avg_jct_s": lambda run: run.jct_s,
    "avg_queue_s": lambda run: run.queue_s[np.isfinite(run.jct_s)],
}  # means over jobs, which a single run can give an interval for


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """One policy over all its runs."""

    policy: str
    colour: int  # position among the comparison's policies
    runs: tuple[RunSeries, ...]
    estimates: Mapping[str, Estimate]  # by metric key

    def value(self, key: str) -> float:
        """Mean over runs; NaN where the metric does not apply."""
        return self.estimates[key].value

    def pooled(self, column: Callable[[RunSeries], FloatArray]) -> FloatArray:
        """One per-job column of all runs, one after the other."""
        return np.concatenate([column(run) for run in self.runs])

    @property
    def mean_queue_s(self) -> float:
        """Queuing time of the jobs that completed: the waiting part of the mean JCT."""
        return _mean(self.pooled(lambda run: run.queue_s[np.isfinite(run.jct_s)]))

    @property
    def mean_run_s(self) -> float:
        """Time with GPUs of the jobs that completed: the running part of the mean JCT."""
        return _mean(self.pooled(lambda run: run.run_s))


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """`ours` against `other` on the workloads that both ran."""

    ours: Standing
    other: Standing
    workloads: int
    ahead: int  # workloads on which ours has the lower mean JCT
    ratio: Estimate  # of mean JCT, other over ours: above 1 ours is better
    jobs: Paired
    waiting_s: float  # mean queuing time that ours saves per job (negative: that it costs)
    running_s: float  # the same of the time with GPUs

    @property
    def saved_s(self) -> float:
        """Mean JCT that ours saves per job."""
        return self.waiting_s + self.running_s

    @property
    def is_settled(self) -> bool:
        """The interval of the ratio leaves out 1."""
        return bool(self.ratio.low > 1 or self.ratio.high < 1)


@dataclass(frozen=True, slots=True, eq=False)
class Standings:
    """All policies, best mean JCT first, and the first against each other one."""

    ranked: tuple[Standing, ...]
    pairings: tuple[Pairing, ...]  # the best against each of the rest, in rank order
    basis: Basis  # what the intervals vary
    same_workloads: bool  # every policy ran every workload

    @property
    def best(self) -> Standing:
        """The policy with the lowest mean JCT."""
        return self.ranked[0]

    @property
    def by_colour(self) -> tuple[Standing, ...]:
        """In the order of the comparison."""
        return tuple(sorted(self.ranked, key=lambda standing: standing.colour))

    def present(self, metrics: Sequence[Metric] = METRICS) -> tuple[Metric, ...]:
        """The metrics that apply to at least one policy."""
        return tuple(m for m in metrics if any(np.isfinite(s.value(m.key)) for s in self.ranked))

    def leaders(self, metric: Metric) -> frozenset[str]:
        """The policies with the best value; none where there is no better, or nothing to tell apart."""
        values = {s.policy: s.value(metric.key) for s in self.ranked if np.isfinite(s.value(metric.key))}
        if metric.better == "neither" or len(values) < 2:
            return frozenset()
        best = min(values.values()) if metric.better == "lower" else max(values.values())
        leaders = frozenset(p for p, value in values.items() if np.isclose(value, best, rtol=1e-9, atol=0))
        return leaders if len(leaders) < len(values) else frozenset()


def standings_of(comparison: Comparison) -> Standings:
    """Aggregate, rank by mean JCT (policies without one last, ties by name) and pair with the best."""
    basis = basis_of(comparison)
    standings = [
        _standing(policy, colour, [run for run in comparison.runs if run.policy == policy], basis)
        for colour, policy in enumerate(comparison.policies)
    ]
    ranked = sorted(standings, key=lambda s: (np.nan_to_num(s.value(RANKED_BY.key), nan=np.inf), s.policy))
    pairings = [_pairing(ranked[0], other, basis) for other in ranked[1:]]
    workloads = set(comparison.workloads)
    return Standings(
        ranked=tuple(ranked),
        pairings=tuple(pairing for pairing in pairings if pairing is not None),
        basis=basis,
        same_workloads=all({run.workload for run in s.runs} == workloads for s in standings),
    )


def basis_of(comparison: Comparison) -> Basis:
    """What varies between runs: traces where there are several, else seeds, else only the jobs of one run."""
    traces, seeds = {run.trace for run in comparison.runs}, {run.seed for run in comparison.runs}
    return "traces" if len(traces) > 1 else "seeds" if len(seeds) > 1 else "jobs"


def per_replicate(runs: Sequence[RunSeries], values: Sequence[float], basis: Basis) -> FloatArray:
    """(replicates,) values to take an interval over: with several traces, seeds of one are averaged first.

    Seeds of one trace share its jobs; counting them as separate traces would feign certainty.
    """
    if basis != "traces":
        return floats(values)
    traces = dict.fromkeys(run.trace for run in runs)
    grouped = ([v for run, v in zip(runs, values, strict=True) if run.trace == trace] for trace in traces)
    return floats([_mean(floats(group)) for group in grouped])


def _standing(policy: str, colour: int, runs: Sequence[RunSeries], basis: Basis) -> Standing:
    estimates = {metric.key: _estimate(metric.key, runs, basis) for metric in METRICS}
    return Standing(policy, colour, tuple(runs), estimates)


def _estimate(key: str, runs: Sequence[RunSeries], basis: Basis) -> Estimate:
    values = [run.metric(key) for run in runs]
    if len(values) == 1:
        if key not in PER_JOB or not np.isfinite(values[0]):
            return exactly(values[0])
        over_jobs = bootstrap_mean(PER_JOB[key](runs[0]))
        # The summary's figure stands; the jobs only say how far it may be off.
        return Estimate(values[0], over_jobs.low, over_jobs.high, over_jobs.basis, over_jobs.count)
    return student(per_replicate(runs, values, basis), basis)


def _pairing(ours: Standing, other: Standing, basis: Basis) -> Pairing | None:
    theirs = {run.workload: run for run in other.runs}
    common = [(run, theirs[run.workload]) for run in ours.runs if run.workload in theirs]
    means = floats([[run.metric(RANKED_BY.key) for run in pair] for pair in common])
    if not common or not np.isfinite(means).any():
        return None
    matched = [_same_jobs(*pair) for pair in common]
    ours_jct, other_jct, ours_queue, other_queue = (
        np.concatenate(column) for column in zip(*matched, strict=True)
    )
    both = np.isfinite(ours_jct) & np.isfinite(other_jct)
    waiting_s = _mean((other_queue - ours_queue)[both])
    if len(common) == 1:
        ratio = bootstrap_ratio(other_jct, ours_jct)
    else:
        runs = [run for run, _ in common]
        mine, theirs_s = (per_replicate(runs, column.tolist(), basis) for column in means.T)
        ratio = student_ratio(theirs_s, mine, basis)
    return Pairing(
        ours=ours,
        other=other,
        workloads=len(common),
        ahead=int((means[:, 0] < means[:, 1]).sum()),
        ratio=ratio,
        jobs=paired(ours_jct, other_jct),
        waiting_s=waiting_s,
        running_s=_mean((other_jct - ours_jct)[both]) - waiting_s,
    )


def _same_jobs(ours: RunSeries, other: RunSeries) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """JCT of ours and other, then queuing time of ours and other, of the jobs that are in both runs."""
    if ours.jobs == other.jobs:
        return ours.jct_s, other.jct_s, ours.queue_s, other.queue_s
    _, here, there = np.intersect1d(ours.jobs, other.jobs, return_indices=True)
    return ours.jct_s[here], other.jct_s[there], ours.queue_s[here], other.queue_s[there]


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
