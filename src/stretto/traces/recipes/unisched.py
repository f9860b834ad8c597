"""Deadlines, rewards and stopping criteria as UniSched (TPDS 2024), section IV-B, gives them to a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from stretto.model import Adaptivity, FloatArray, Goal, InputError, Job, JobId, Reward
from stretto.traces.learning import LearningCurve
from stretto.traces.workload import Truth, Workload

SLACK = (1.1, 2.0)  # first deadline over duration, both counted from submission, uniform [paper]
SOFT_STEPS = (
    (1.0, 100.0),
    (1.1, 80.0),
    (1.2, 50.0),
    (1.5, 20.0),
)  # (times the first deadline, reward) [paper]
STRICT_STEPS = SOFT_STEPS[:1]
TARGETS = (1.0, 0.99)  # of the best metric of the training, equally likely [paper]
HOSTILE_GPUS = (3, 5, 6, 7)  # requests that fill no cell of 1, 2, 4 or 8 GPUs
SHIFT_S = 1_800.0  # chosen: an added job comes within half an hour of the one that it repeats

# Of made learning curves; all chosen. No public trace of jobs has metrics.
EPOCHS = (20, 200)  # fewest and most that an owner allows, uniform in the logarithm
BEST, START = (0.7, 0.98), 0.1  # metric that it approaches, and before training
KNEE_PART = (0.02, 0.15)  # epochs of the fast part over all
PACE = (0.8, 1.5)
NOISE = 0.002
SAMPLES = 50_000.0  # of an epoch

DENSITY, SLACKS, GOALS, CURVES, SIZES = range(5)  # purposes of random streams


@dataclass(frozen=True)
class UniSchedScenario:
    """Parameters. Which jobs have no, a strict or a soft deadline is the trace's own affair."""

    density: float = 1.0  # jobs over those of the trace: below 1 some are left out, above it some come twice
    performance: float = 0.2  # share of jobs that stop by performance; drawn: the trace has no names [paper]
    hostile: float = 0.0  # share of jobs of 2 to 8 GPUs that ask for a number which consolidates badly
    elastic: bool = False  # jobs may hold 1 to twice what they ask for, for baselines that change sizes
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.density <= 10:
            raise InputError(f"recipe unisched: density must be > 0 and at most 10, got {self.density}")
        for name in ("performance", "hostile"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe unisched: {name} must be from 0 to 1, got {getattr(self, name)}")

    def stream(self, purpose: int) -> np.random.Generator:
        """A generator for one purpose, so that what is drawn for another does not shift it."""
        return np.random.default_rng([self.seed, purpose, 11])


def prepare(workload: Workload, parameters: UniSchedScenario) -> Workload:
    """The jobs with deadlines drawn anew, at the density asked for, a part of them stopping by performance.

    A soft deadline's further steps are at 1.1, 1.2 and 1.5 times the first, counted from submission as the
    first is. The learning curves of jobs that stop by performance are made. The epoch in which each reaches
    its goal is the one in which the trace says that it ended. InputError for a job without a duration.
    """
    if not workload.jobs:
        return workload
    pairs = _at_density(list(zip(workload.jobs, workload.truths, strict=True)), parameters)
    duration_s = np.array([truth.duration_s for _, truth in pairs])
    if np.isnan(duration_s).any():
        job = pairs[int(np.isnan(duration_s).argmax())][0]
        raise InputError(f"recipe unisched: job {job.id} has no duration to give it a deadline by")
    slack = parameters.stream(SLACKS).uniform(*SLACK, len(pairs))
    jobs = [
        replace(job, rewards=rewards_for(job.submitted_s, slack_of * ran_s, len(job.rewards)))
        for (job, _), slack_of, ran_s in zip(pairs, slack.tolist(), duration_s.tolist(), strict=True)
    ]
    jobs = _some_hostile(jobs, parameters)
    jobs, truths, goals = _some_by_performance(jobs, [truth for _, truth in pairs], parameters)
    if parameters.elastic:
        jobs = [_elastic(job) for job in jobs]
    added = (
        f"deadlines of UniSched drawn anew, density {parameters.density:g}, "
        f"{goals} jobs stop by performance on made learning curves"
        + (
            f", {parameters.hostile:g} of small requests made hard to consolidate"
            if parameters.hostile
            else ""
        )
        + (", sizes elastic" if parameters.elastic else "")
    )
    source = "; ".join(filter(None, (workload.source, added)))
    return replace(workload, jobs=jobs, truths=truths, source=source)


def rewards_for(submitted_s: float, deadline_s: float, steps: int) -> tuple[Reward, ...]:
    """None for no step, a strict deadline for one, a soft one for more; deadline_s: from submission."""
    chosen = () if steps == 0 else STRICT_STEPS if steps == 1 else SOFT_STEPS
    return tuple(Reward(submitted_s + times * deadline_s, value) for times, value in chosen)


def whole_curve_of(rng: np.random.Generator) -> LearningCurve:
    """What a training reports over all epochs that its owner allows."""
    allowed = round(float(np.exp(rng.uniform(*np.log(EPOCHS)))))
    return LearningCurve(
        epochs=allowed,
        dataset_samples=SAMPLES,
        best=float(rng.uniform(*BEST)),
        start=START,
        knee=max(float(rng.uniform(*KNEE_PART)) * allowed, 0.5),
        pace=float(rng.uniform(*PACE)),
        noise=NOISE,
        seed=int(rng.integers(2**31)),
    )


def curve_of(rng: np.random.Generator) -> tuple[LearningCurve, Goal]:
    """What a training reports until it reaches its goal, and that goal: the best, or 99 % of it."""
    whole = whole_curve_of(rng)
    target = float(rng.choice(TARGETS)) * float(whole.metrics.max())
    reached = int((whole.metrics >= target).argmax()) + 1
    return replace(whole, epochs=reached), Goal(target, whole.epochs)


def _at_density(pairs: list[tuple[Job, Truth]], parameters: UniSchedScenario) -> list[tuple[Job, Truth]]:
    """Random jobs left out, or random jobs repeated a little earlier or later under a name of their own."""
    count, wanted = len(pairs), max(round(parameters.density * len(pairs)), 1)
    rng = parameters.stream(DENSITY)
    if wanted <= count:
        drawn = np.sort(rng.permutation(count)[:wanted])
        return [pairs[row] for row in drawn.tolist()]
    last_s = pairs[-1][0].submitted_s
    again = rng.permutation(np.resize(np.arange(count), ceil(wanted / count) * count))[: wanted - count]
    shift_s = rng.uniform(-SHIFT_S, SHIFT_S, again.size)
    copies = []
    for number, (row, by_s) in enumerate(zip(again.tolist(), shift_s.tolist(), strict=True)):
        job, truth = pairs[row]
        at_s = float(np.clip(job.submitted_s + by_s, 0.0, last_s))
        rewards = tuple(Reward(max(reward.deadline_s, at_s), reward.value) for reward in job.rewards)
        if len({reward.deadline_s for reward in rewards}) < len(rewards):  # clipped: drawn anew in any case
            rewards = rewards_for(at_s, 1.0, len(rewards))
        copies.append(
            (replace(job, id=JobId(f"{job.id}-again-{number}"), submitted_s=at_s, rewards=rewards), truth)
        )
    return sorted([*pairs, *copies], key=lambda pair: (pair[0].submitted_s, pair[0].id))


def _some_hostile(jobs: list[Job], parameters: UniSchedScenario) -> list[Job]:
    """A share of the jobs of 2 to 8 GPUs asks for 3, 5, 6 or 7 instead; how long they run stays."""
    if not parameters.hostile:
        return jobs
    rng = parameters.stream(SIZES)
    small = np.flatnonzero([2 <= job.gpus <= 8 and job.adaptivity is Adaptivity.RIGID for job in jobs])
    changed = rng.permutation(small)[: round(parameters.hostile * small.size)]
    sizes = rng.choice(HOSTILE_GPUS, changed.size)
    jobs = list(jobs)
    for row, gpus in zip(changed.tolist(), sizes.tolist(), strict=True):
        jobs[row] = replace(jobs[row], gpus=gpus, min_gpus=gpus, max_gpus=gpus, gpus_per_worker=1)
    return jobs


def _some_by_performance(
    jobs: list[Job], truths: Sequence[Truth], parameters: UniSchedScenario
) -> tuple[list[Job], list[Truth], int]:
    chosen: FloatArray = parameters.stream(GOALS).random(len(jobs))
    rng = parameters.stream(CURVES)
    jobs, ends = list(jobs), list(truths)
    rows = np.flatnonzero(chosen < parameters.performance).tolist()
    for row in rows:
        curve, goal = curve_of(rng)
        jobs[row], ends[row] = replace(jobs[row], goal=goal), replace(ends[row], learning=curve)
    return jobs, ends, len(rows)


def _elastic(job: Job) -> Job:
    return replace(
        job, adaptivity=Adaptivity.STRONG_SCALING, min_gpus=job.gpus_per_worker, max_gpus=2 * job.gpus
    )
