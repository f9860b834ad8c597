"""What is said about a run, with the definition of every figure.

Times are seconds; a figure that does not apply is NaN. Percentiles interpolate linearly between order
statistics. Definitions follow the papers named here; docs/metrics.md lists them all.
"""

from collections.abc import Sequence

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, Job


def completion_s(submitted_s: FloatArray, completed_s: FloatArray) -> FloatArray:
    """Job completion time (JCT): completion - submission; profiling and overheads included."""
    return completed_s - submitted_s


def queuing_s(jct_s: FloatArray, executed_s: FloatArray) -> FloatArray:
    """Queuing time: all time since submission without a single GPU, while unfinished.

    A partly served elastic job does not wait (Cornucopia, section 5.1); time between preemption and
    resumption counts; restart overhead on held GPUs does not.
    """
    return np.maximum(jct_s - executed_s, 0.0)


def initial_queuing_s(submitted_s: FloatArray, first_start_s: FloatArray) -> FloatArray:
    """Initial queuing time: first start - submission (the variant of Lyra)."""
    return first_start_s - submitted_s


def jct_inflation(jct_s: FloatArray, duration_s: FloatArray) -> FloatArray:
    """JCT / duration on the requested GPUs (Cornucopia, equation 2); jobs of duration 0 are left out."""
    counted = duration_s > 0
    return jct_s[counted] / duration_s[counted]


def percentile(values: FloatArray, percent: float) -> float:
    """A percentile by linear interpolation; NaN of nothing."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def index_percentile(values: FloatArray, share: float) -> float:
    """The value at index floor(share * N) of the sorted list, as Sia's artifact counts its p99."""
    return (
        float(np.sort(values)[min(int(share * len(values)), len(values) - 1)])
        if len(values)
        else float("nan")
    )


def mean(values: FloatArray) -> float:
    """The mean; NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


def times_bound(figure: float, bound: float, done: BoolArray) -> float:
    """A figure over its bound; NaN where a job did not end, since the bound is of all of them."""
    return figure / bound if bound > 0 and bool(done.all()) else float("nan")


def makespan_s(submitted_s: FloatArray, completed_s: FloatArray) -> float:
    """Last completion - first submission."""
    return float(completed_s.max() - submitted_s.min()) if len(completed_s) else float("nan")


def gpu_hours_per_job(attained_gpu_s: FloatArray) -> float:
    """GPU-hours allocated, overheads and profiling included, per job."""
    return mean(attained_gpu_s) / 3600.0


def restarts_per_job(restarts: IntArray) -> float:
    """Starts of workers after the first, per job: resumptions, changes of size, moves that restart."""
    return mean(restarts.astype(np.float64))


def preemption_ratio(preemptions: int, submissions: int) -> float:
    """Stops of running jobs by the scheduler / submissions (Lyra, note to table 5)."""
    return preemptions / submissions if submissions else float("nan")


def deadline_met_ratio(completed_s: FloatArray, deadline_s: FloatArray) -> float:
    """Jobs that end by their first deadline / jobs with deadlines; an unfinished job misses it."""
    with_deadline = np.isfinite(deadline_s)
    met = np.nan_to_num(completed_s, nan=np.inf) <= deadline_s
    return mean(met[with_deadline].astype(np.float64))


def reward_of(job: Job, completed_s: float) -> float:
    """What a job's completion was worth: the value of the first deadline that it kept, 0 after the last.

    An unfinished job (NaN) has earned nothing.
    """
    return next((step.value for step in job.rewards if completed_s <= step.deadline_s), 0.0)


def share_of_rewards(jobs: Sequence[Job], completed_s: FloatArray) -> FloatArray:
    """(jobs with deadlines,) each one's reward over the most that it could have earned."""
    rewarded = [
        (job, end) for job, end in zip(jobs, completed_s.tolist(), strict=True) if job.deadline_value > 0
    ]
    return np.array([reward_of(job, end) / job.deadline_value for job, end in rewarded])


def weighted_deadline_miss_rate(reward: FloatArray, least: float = 0.0, most: float = 100.0) -> float:
    """1 - mean of (W - W_min) / (W_max - W_min) over jobs with deadlines (UniSched, equation 15).

    The paper prints the attainment without "1 -" and calls it a miss rate; it is one minus it.
    """
    return 1.0 - mean((reward - least) / (most - least))


def tardiness_s(completed_s: FloatArray, deadline_s: FloatArray) -> FloatArray:
    """max(0, completion - deadline) of jobs with deadlines (Hydra)."""
    with_deadline = np.isfinite(deadline_s)
    return np.maximum(completed_s[with_deadline] - deadline_s[with_deadline], 0.0)


def finish_time_fairness(jct_s: FloatArray, alone_s: FloatArray, weight: FloatArray) -> FloatArray:
    """(jobs,) ρ = Σ_t w_t · JCT / JCT alone on type t (Sia, equation 6; one type: Themis).

    alone_s: (jobs, types) JCT on an isolated cluster of max(1, G_t / N_avg) GPUs of type t only. N_avg is the
    mean contention over the job's life. It is NaN or infinite where the type cannot run the job. The weight
    of that type is then shared among the others. weight: (types,) G_t / G.
    """
    feasible = np.isfinite(alone_s) & (alone_s > 0)
    shares = np.where(feasible, weight, 0.0)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    ratios = np.where(feasible, jct_s[:, None] / np.where(feasible, alone_s, 1.0), 0.0)
    return np.where(feasible.any(axis=1), (shares * ratios).sum(axis=1), np.nan)


def unfair_fraction(fairness: FloatArray) -> float:
    """Share of jobs with ρ > 1, by more than times are rounded: worse off than alone on their share."""
    known = fairness[np.isfinite(fairness)]
    return mean((known > 1.0 + 1e-6).astype(np.float64))


def collateral_damage(vacated_gpus: FloatArray, demanded_gpus: FloatArray) -> float:
    """GPUs vacated beyond the demand / GPUs demanded, mean over reclaims (Lyra, section 7.3)."""
    asked = demanded_gpus > 0
    return mean((vacated_gpus[asked] - demanded_gpus[asked]) / demanded_gpus[asked])


def usage(busy_gpu_s: float, owned_gpu_s: float) -> float:
    """GPU time in use / GPU time owned: training, overall, or on-loan usage by what is counted (Lyra)."""
    return busy_gpu_s / owned_gpu_s if owned_gpu_s > 0 else float("nan")


def integral(at_s: FloatArray, value: FloatArray, from_s: float, to_s: float) -> float:
    """Of a step function over [from_s, to_s]: `value[i]` from `at_s[i]` on, times ascending."""
    ends_s = np.append(at_s[1:], np.inf)
    overlap_s = np.minimum(ends_s, to_s) - np.maximum(at_s, from_s)
    return float((np.maximum(overlap_s, 0.0) * value).sum())


def reduction_factor(baseline: float, system: float) -> float:
    """Metric of the baseline / metric of the system (Lyra, section 7.1): above 1, the system is lower."""
    return baseline / system if system else float("nan")


def contention(submitted_s: FloatArray, completed_s: FloatArray) -> tuple[float, int]:
    """(mean, most) submitted and unfinished jobs, from the first submission to the last completion.

    Sia (table 3) samples it at every round. The mean here is over time, which is the limit of short rounds.
    So policies that are asked at other moments can be compared. An unfinished job (NaN) stays.
    """
    if not len(submitted_s):
        return float("nan"), 0
    over_s = float(np.nanmax(np.concatenate([submitted_s, completed_s])))
    ended_s = np.nan_to_num(completed_s, nan=over_s)
    span_s = over_s - float(submitted_s.min())
    times_s = np.concatenate([ended_s, submitted_s])
    steps = np.concatenate(
        [-np.ones(len(ended_s), dtype=np.int64), np.ones(len(submitted_s), dtype=np.int64)]
    )
    in_order = np.argsort(times_s, kind="stable")  # at one moment, ends go before arrivals
    most = int(np.cumsum(steps[in_order]).max())
    return (float((ended_s - submitted_s).sum()) / span_s if span_s > 0 else float(len(submitted_s))), most


def contention_over_life(submitted_s: FloatArray, completed_s: FloatArray) -> FloatArray:
    """(jobs,) mean contention over each job's life, at least 1: N_avg of finish-time fairness.

    Contention is the number of submitted, unfinished jobs; the mean is over time, as in `contention`. An
    unfinished job (NaN) stays to the end.
    """
    if not len(submitted_s):
        return np.zeros(0)
    over_s = float(np.nanmax(np.concatenate([submitted_s, completed_s])))
    ended_s = np.nan_to_num(completed_s, nan=over_s)
    job_s = _time_since(submitted_s, ended_s) - _time_since(ended_s, ended_s)
    job_s -= _time_since(submitted_s, submitted_s) - _time_since(ended_s, submitted_s)
    life_s = ended_s - submitted_s
    return np.maximum(np.where(life_s > 0, job_s / np.where(life_s > 0, life_s, 1.0), 1.0), 1.0)


def _time_since(events_s: FloatArray, at_s: FloatArray) -> FloatArray:
    """(times,) Σ max(0, t - event) over all events, for each time t."""
    ordered = np.sort(events_s)
    before = np.searchsorted(ordered, at_s, side="right")
    sums: FloatArray = np.concatenate([[0.0], np.cumsum(ordered)])[before]
    return before * at_s - sums


def significance(system: FloatArray, baseline: FloatArray) -> float:
    """One-sided p-value that the system's paired values are smaller: Wilcoxon signed-rank (ONES, table 4)."""
    from scipy.stats import wilcoxon  # takes a tenth of a second to import

    if np.array_equal(system, baseline):
        return 1.0
    return float(wilcoxon(system, baseline, alternative="less").pvalue)


def finished(completed_s: FloatArray) -> BoolArray:
    """(jobs,) whether a job has ended."""
    return np.isfinite(completed_s)
