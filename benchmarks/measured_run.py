"""What a service wrote down of real jobs, and a simulation of jobs with the same properties.

The log says how fast each training was at each size and what it said of its steps, how long starts and
resizes took, and how much there was to do. It says how long every other job ran. Jobs with these properties
come at the same times in a simulation, under the same policy. It knows as little of them beforehand, and is
told the same of them later.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import isnan, log, nan
from typing import Any

import numpy as np

from stretto.model import (
    Cluster,
    IntArray,
    MeasuredSpeeds,
    Requests,
    TrainingLimits,
    Trigger,
    Triggers,
    View,
)
from stretto.scheduler.round import decide
from stretto.service.eventlog import Store
from stretto.service.eventlog.writer import fold
from stretto.service.scheduling.estimates import limits_of, prior_table
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state import events as happened
from stretto.service.state.records import NO_PRIOR, JobRecord, Learned
from stretto.service.state.records import Accounting as LiveAccounting
from stretto.service.state.remaining import stated_duration
from stretto.service.state.state import State
from stretto.sim.accounting import Accounting
from stretto.sim.live_knowledge import LiveKnowledge
from stretto.sim.physics import Physics
from stretto.sim.settings import Batches, Knowledge, SimSettings
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.truth.training import TrainingRun
from stretto.sim.world import SimulatedWorld

FEWEST_STEPS = 20  # that tell how long all takes that is not a step; chosen
SEED, DRAWS, SPEED_ERROR = 0, 50, 0.03  # of steps between runs on an idle machine; measured
Decision = tuple[float, str, int]  # (seconds, job, GPUs from then on)


# ── what the log tells ────────────────────────────────────────────────────────────────────────────


@dataclass
class Lived:
    """What the log tells of one job."""

    ended_s: float = nan
    did: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    first_given_s: float = nan  # when it was first decided to start it
    last_given_s: float = nan  # when it was last decided to start it
    given_s: float = nan  # the same, until it has reported
    starts_s: list[tuple[float, float, int]] = field(default_factory=list)  # wait, steps by then, workers
    resized_s: float = nan  # when it was last decided to resize it
    resizes: list[tuple[float, float, int, int]] = field(default_factory=list)  # wait, lost, before, after
    last: tuple[tuple[int, int], float, float] = ((0, 0), nan, nan)  # generation, time, steps of a report
    joined: tuple[int, int] = (0, 0)  # attempt and generation that trains
    size: int = 0  # its workers
    size_before: int = 0
    finished_s: float = nan
    learned: Learned = field(default_factory=Learned)  # from its reports; a record forgets it at its end

    @property
    def is_training(self) -> bool:
        """Whether it told of its steps; all others only run for a time."""
        return not isnan(self.last[2])


def read(store: Store) -> tuple[State, dict[str, Lived], list[Decision]]:
    """Fold the log; note how fast everybody was in each stretch between two reports of one generation."""
    state, found, decisions = State(), defaultdict[str, Lived](Lived), list[Decision]()
    for recorded in store.read():
        event, at_s = fold(state, recorded), recorded.at_s
        job = found[str(event.job)] if event is not None and hasattr(event, "job") else Lived()
        if isinstance(event, happened.Decided):
            for action in event.actions:
                _decided(found[action["job"]], event.at_s, action)
                decisions.append((event.at_s, action["job"], _gpus_in(action["after"])))
        elif isinstance(event, happened.Joined):
            _joined(state.jobs[event.job], job, at_s, event)
        elif isinstance(event, happened.Ended):
            job.ended_s = at_s
        elif isinstance(event, happened.Reported) and "progress_steps" in event.report:
            job.learned = state.jobs[event.job].learned
            _reported(job, at_s, event.report)
    return state, found, decisions


def _decided(job: Lived, at_s: float, action: Mapping[str, Any]) -> None:
    if action["verb"] == "start":
        job.given_s = job.last_given_s = at_s
        job.first_given_s = at_s if isnan(job.first_given_s) else job.first_given_s
    elif action["after"] is not None:
        job.resized_s = at_s


def _gpus_in(after: Mapping[str, Any] | None) -> int:
    return 0 if after is None else sum(mask.bit_count() for mask in after["nodes"].values())


def _joined(record: JobRecord, job: Lived, at_s: float, event: happened.Joined) -> None:
    members = record.members
    if event.number != members.number:
        return
    if job.joined != (record.attempt, members.number):  # the first of them
        job.joined = record.attempt, members.number
        job.size_before, job.size = job.size, len(members.workers)
    if event.number > 1 and event.worker == members.source and not isnan(event.lost_s):
        job.resizes.append((at_s - job.resized_s, event.lost_s, job.size_before, job.size))


def _reported(job: Lived, at_s: float, report: Mapping[str, Any]) -> None:
    steps = float(report["progress_steps"])
    if job.joined == job.last[0]:
        did = job.did[job.size]
        did[0], did[1] = did[0] + steps - job.last[2], did[1] + at_s - job.last[1]
    elif not isnan(job.given_s):
        done = 0.0 if isnan(job.last[2]) else job.last[2]
        job.starts_s.append((at_s - job.given_s, steps - done, job.size))
        job.given_s = nan
    if not isnan(job.last[2]) and steps > job.last[2]:
        job.finished_s = at_s
    job.last = job.joined, at_s, steps


# ── jobs with these properties ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Said:
    """What jobs said of their steps, by workers: NaN where it was said of none."""

    step_s: float
    alone_s: float  # of a pass without synchronisation

    def times(self, step: float, alone: float) -> "Said":
        """So many times as long."""
        return Said(self.step_s * step, self.alone_s * alone)


@dataclass(frozen=True, eq=False)
class MeasuredTruth:
    """A training as it was seen; steps of its only batch."""

    limits: TrainingLimits
    epoch_ends: tuple[float, ...]
    restart_s: float
    said: Mapping[int, Said]  # by workers
    slowdowns: Mapping[int, float]  # by workers: what passes in all for each second of steps; evaluation, say
    noise: tuple[float, float]
    slowdown: float = 1.0  # is in the steps

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of a step with all that belongs to it, of which none is known to be synchronisation)."""
        return self.step_s(sum(shape)), 0.0

    def step_s(self, workers: int) -> float:
        """Seconds for each step of a training, whatever passes between steps included."""
        return self.said[workers].step_s * self.slowdowns[workers]

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """As last reported."""
        return self.noise

    def most_local(self, kind: int, replicas: int) -> int:
        """Everything fits."""
        return int(self.limits.max_local[kind])

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to the end of each epoch."""
        return tuple(end * self.step_s(gpus) for end in self.epoch_ends)

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps a second."""
        per_s = np.array([[0.0, *(1 / self.said[workers].step_s for workers in range(1, most_gpus + 1))]])
        return MeasuredSpeeds(per_s, per_s)


@dataclass(slots=True)
class MeasuredRun(TrainingRun):
    """A training that tells of its steps what the live one told, while more than steps takes time."""

    def _observe_and_rate(self, step_s: float, sync_s: float, batch: int) -> float:
        assert isinstance(self.truth, MeasuredTruth)
        said = self.truth.said[self.replicas]
        TrainingRun._observe_and_rate(self, said.step_s, said.step_s - said.alone_s, batch)
        return self._rate(step_s, sync_s, batch)


def said_of(job: Lived) -> dict[int, Said]:
    """As last reported, by workers: the step, and a pass without synchronisation."""
    return {
        int(gpus): Said(max(step_s, grad_s), min(step_s, grad_s))
        for _, _, gpus, _, passes, grad_s, step_s in job.learned.points
        if passes == 1
    }


def ratios_of(jobs: Sequence[Lived], size: int, seen: int) -> tuple[float, float] | None:
    """Means of a step and of a pass on `size` workers over those on `seen`; None: nobody said both."""
    told = [said for job in jobs if {size, seen} <= (said := said_of(job)).keys()]
    if not told:
        return None
    steps = [said[size].step_s / said[seen].step_s for said in told]
    alone = [said[size].alone_s / said[seen].alone_s for said in told]
    return statistics.mean(steps), statistics.mean(alone)


def said_at_every_size(
    job: Lived, sizes: Sequence[int], alike: Sequence[Lived], every: Sequence[Lived]
) -> dict[int, Said]:
    """Of a size that it never had: from the nearest, by the ratio that jobs of its script showed, else any.

    Where nobody was seen at both sizes a step takes as long as at the nearest.
    """
    own = said_of(job)
    said = {}
    for size in sizes:
        nearest = min(own, key=lambda known: abs(log(known / size)))
        ratios = ratios_of(alike, size, nearest) or ratios_of(every, size, nearest) or (1.0, 1.0)
        said[size] = own[nearest] if nearest == size else own[nearest].times(*ratios)
    return said


def truth_of(
    record: JobRecord, job: Lived, epochs: int, said: Mapping[int, Said], cluster: Cluster
) -> MeasuredTruth:
    """What was seen of a training, which says `said` of its steps at each size."""
    whole_s, steps_s = sum(took_s for _, took_s in job.did.values()), 0.0
    for workers, (steps, _) in job.did.items():
        steps_s += steps * said[workers].step_s
    slowdowns = {
        workers: took_s / (steps * said[workers].step_s)
        for workers, (steps, took_s) in job.did.items()
        if steps >= FEWEST_STEPS
    }
    slowdowns = {workers: slowdowns.get(workers, whole_s / steps_s) for workers in said}
    waits = [
        wait_s - steps * said[workers].step_s * slowdowns[workers] for wait_s, steps, workers in job.starts_s
    ]
    limits, latest = limits_of(record, cluster), job.learned.latest
    assert limits is not None
    steps = job.last[2]
    return MeasuredTruth(
        limits=limits,
        epoch_ends=tuple(steps * (number + 1) / epochs for number in range(epochs)),
        restart_s=max(statistics.mean(waits), 0.0) + (job.ended_s - job.finished_s) / len(waits),
        said=said,
        slowdowns=slowdowns,
        noise=(float(latest.get("grad_sqr", 1.0)), float(latest.get("grad_var", 1.0))),
    )


@dataclass(frozen=True)
class Part:
    """A job of a scene, as its file tells."""

    script: str  # jobs of one are alike
    epochs: int


@dataclass(frozen=True)
class Measured:
    """What a live run says of its jobs."""

    truths: Sequence[MeasuredTruth | None]  # by job; None: it told of no steps
    ran_s: Sequence[float]  # by job, from its last start to its end; of trainings NaN
    pauses_s: Sequence[float]  # of resizes, in all the time that they cost

    @property
    def resize_s(self) -> float:
        """Of a resize, on average."""
        return max(statistics.mean(self.pauses_s), 0.0) if self.pauses_s else 0.0


def measured_in(
    state: State, seen: Mapping[str, Lived], names: Sequence[str], parts: Sequence[Part]
) -> Measured:
    """What has happened to each job."""
    cluster = state.cluster
    assert cluster is not None
    sizes = range(1, int(cluster.capacity.sum()) + 1)
    of_script = defaultdict[str, list[Lived]](list)
    for name, part in zip(names, parts, strict=True):
        of_script[part.script].append(seen[name])
    every = [seen[name] for name in names]
    truths: list[MeasuredTruth | None] = []
    ran_s, pauses_s = [], []
    for name, part in zip(names, parts, strict=True):
        job = seen[name]
        ran_s.append(nan if job.is_training else job.ended_s - job.last_given_s)
        if not job.is_training:
            truths.append(None)
            continue
        said = said_at_every_size(job, sizes, of_script[part.script], every)
        truth = truth_of(state.jobs[name], job, part.epochs, said, cluster)
        truths.append(truth)
        # Until a resize has happened a job goes on at its old speed: as much is lost as in so long a pause.
        pauses_s += [
            lost_s + (wait_s - lost_s) * (1 - truth.step_s(after) / truth.step_s(before))
            for wait_s, lost_s, before, after in job.resizes
            if before and after
        ]
    return Measured(truths, ran_s, pauses_s)


# ── a simulation of them ──────────────────────────────────────────────────────────────────────────


class KnownAsLive(Physics):
    """A world that shows what the service knew: what owners state, and epochs where a stop rule has them."""

    def __init__(
        self,
        cluster: Cluster,
        records: Sequence[JobRecord],
        measured: "Measured",
        settings: SimSettings,
    ) -> None:
        """Trainings keep what they did; other jobs ran so long on what they asked for."""
        jobs = [
            record.job if truth is None else replace(record.job, checkpoints=True)
            for record, truth in zip(records, measured.truths, strict=True)
        ]
        tables = [prior_table(record, cluster) for record in records]
        runs = {
            row: MeasuredRun(truth, _as_submitted(records[row], cluster), truth.limits.init_batch, settings)
            for row, truth in enumerate(measured.truths)
            if truth is not None
        }
        recorded = RecordedRuns(np.array(measured.ran_s), cluster, tables)
        super().__init__(Requests(jobs, cluster), runs, recorded, tables, settings)
        stated_s = np.array([stated_duration(record)[0] for record in records])
        self.live = LiveKnowledge(self.requests, runs, stated_s, np.zeros_like(stated_s))
        self.counts_work = np.where([record.spec.stop is not None for record in records], 1.0, nan)

    def known(self, rows: IntArray, now_s: float, views: Set[View], accounting: Accounting) -> dict[str, Any]:
        """The columns that these views show."""
        columns = super().known(rows, now_s, frozenset(views), accounting)
        durations = self.live.durations(rows, now_s, accounting)
        columns |= {name: durations for name in ("known_durations", "known_estimates") if name in columns}
        if "known_work" in columns:
            columns["known_work"] = columns["known_work"] * self.counts_work[rows]
        return columns


def simulated(
    state: State, names: Sequence[str], measured: Measured
) -> tuple[SimulatedWorld, list[Decision]]:
    """A simulation of jobs with the measured properties, at its end, and what was decided in it."""
    cluster = state.cluster
    assert cluster is not None
    settings = SimSettings(batches=Batches.TUNED, resize_s=measured.resize_s, knowledge=Knowledge.LIVE)
    scheduler = scheduler_of(state.configured)
    physics = KnownAsLive(cluster, [state.jobs[name] for name in names], measured, settings)
    triggers = _eager(scheduler.policy.triggers)
    world = SimulatedWorld(cluster, physics, triggers, scheduler.policy.views, settings)
    decisions = list[Decision]()
    while world.wait():
        plan = decide(world.observe(), scheduler)
        decisions += [
            (world.now_s, action.job, 0 if action.after is None else action.after.gpus)
            for action in plan.actions
        ]
        world.act(plan)
    return world, decisions


def jcts(state: State, names: Sequence[str], ends_s: Sequence[float]) -> list[float]:
    """Seconds from submission to end, by job."""
    return [end - state.jobs[name].job.submitted_s for name, end in zip(names, ends_s, strict=True)]


def spread(state: State, names: Sequence[str], measured: Measured) -> list[float]:
    """Mean JCTs of simulations in which every step takes a little more or less, in order.

    Where these lie far apart the policy stands at a tipping point, and one live run is one draw of many.
    """
    chance = np.random.default_rng(SEED)
    means = []
    for _ in range(DRAWS):
        truths = [truth and _with_other_steps(truth, chance) for truth in measured.truths]
        world, _ = simulated(state, names, replace(measured, truths=truths))
        means.append(statistics.mean(jcts(state, names, world.accounting.completed_s.tolist())))
    return sorted(means)


def _with_other_steps(truth: MeasuredTruth, chance: np.random.Generator) -> MeasuredTruth:
    off = np.exp(chance.normal(0.0, SPEED_ERROR, len(truth.said))).tolist()
    said = {workers: was.times(by, by) for (workers, was), by in zip(truth.said.items(), off, strict=True)}
    return replace(truth, said=said)


def _as_submitted(record: JobRecord, cluster: Cluster) -> TrainingLimits:
    """What is known before it runs: its file, nothing of its speed and of what its script will say."""
    at_first = replace(record, learned=Learned(), prior=NO_PRIOR, accounting=LiveAccounting(), uses_sdk=None)
    known = limits_of(at_first, cluster)
    assert known is not None  # its file says the batch
    return known


def _eager(triggers: Triggers) -> Triggers:
    """A service asks at arrivals and ends, too."""
    return replace(triggers, on=triggers.on | {Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY})
