"""How often what happens lies in the 80 % intervals of forecasts: on made traces and a recorded one.

    STRETTO_DATA=~/datasets python benchmarks/forecast_intervals.py --on judged

Jobs of a trace are submitted to the state of a service and decided about as the service does, without
processes and in no time: a job ends once it has had its GPUs for as long as the trace says. Now and then
everything that is open is foreseen, as the service does it by itself. Of each job the first forecast of its
start counts, if it waited then, and the first of its end. Later jobs come although no forecast knows of them.

Jobs are taken from places of a trace that follow each other, as many from each. All is over at one place
before the next begins. The service remembers how long jobs took, and what became of its forecasts, from one
place to the next. The first places only fill these records: they are not counted.

Intervals are compared as they were drawn and as the service corrects them (`forecast/corrections.py`). Their
score is that of Gneiting and Raftery (JASA 2007): the width, and ten times the distance of what happened from
the interval. It is printed in hours, and in logarithms of the time ahead, where no long job outweighs all.

`--on training` are the traces on which the constants of corrections were chosen: other made ones, and the
first half of the recorded one. `--on judged` are those that were not looked at meanwhile: its second half.

What owners say of their jobs is made:

- `more`: the true time, times a number from 1 to 5, which are equally likely. Users of supercomputers state
  times like that (Mu'alem and Feitelson, TPDS 2001).
- `about`: the true time, times a lognormal number of deviation 0.5: some say too little.
- `nothing`: no job says anything, so that a job is believed to take an hour.
"""

import argparse
import heapq
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np

from stretto.estimate.durations import USUAL_S
from stretto.jobfile import JobSpec
from stretto.model import BoolArray, FloatArray, Memory, Trigger
from stretto.scheduler.round import decide
from stretto.service.forecast.corrections import (
    AT_ONCE_S,
    JUST_S,
    DrawnInterval,
    ForecastRecord,
    Interval,
    corrected,
)
from stretto.service.forecast.fork import fork_of
from stretto.service.forecast.simulate import outlook_of, span_of
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.estimates import RESTART_S
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.duration_errors import (
    LEAST_KNOWN,
    MOST_KEPT,
    SHORTEST_S,
    DurationErrors,
    ErrorDistribution,
    left_after,
)
from stretto.service.state.events import Event
from stretto.service.state.reducer import apply
from stretto.service.state.remaining import LEAST_S, LEAST_SHARE, SPREAD, Basis
from stretto.service.state.state import State
from stretto.traces import read_trace

Span = tuple[str, str, Interval]  # kind, job, and what is drawn


@dataclass(frozen=True)
class Source:
    """Where jobs are taken from."""

    trace: str
    owners: str  # what they say
    part: tuple[float, float] = (0.0, 1.0)  # of its jobs, by submission


SOURCES = {
    "training": (
        Source("synthetic-philly:hours=240,seed=3", "more"),
        Source("helios-saturn:seed=3", "about"),
        Source("philly", "nothing", (0.0, 0.5)),
    ),
    "judged": (
        Source("synthetic-philly:hours=240", "more"),
        Source("helios-saturn", "about"),
        Source("philly", "nothing", (0.5, 1.0)),
    ),
}
GPUS_OF_A_NODE = 8
PROMISED = 0.8  # of what happens is to lie inside
DUE = frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY, Trigger.ROUND, Trigger.WAKE})
LOAD = 1.2  # GPU time that the jobs would take while they come, over that of the cluster: so that jobs wait
FIRST, LAST = 0.05, 0.9  # of the jobs of a place have ended at its first and last forecast
MOST_TIMES = 4  # as many GPUs as it asks for, or a quarter: the range of an elastic job
GAINS = (0.8, 1.0)  # of each doubling of GPUs, by job; the service supposes 0.9 of all
PLACES, UNCOUNTED = 14, 4  # that jobs are taken from; a service has a past


@dataclass(frozen=True)
class Arrival:
    """A job of a trace."""

    at_s: float
    gpus: int
    lasts_s: float  # on these GPUs
    said_s: float | None  # by its owner


@dataclass(frozen=True)
class Stretch:
    """A job holds as many GPUs as before."""

    gpus: int
    began_s: float  # to get on
    pace: float  # over that on what it asked for


@dataclass
class World:
    """The state of a service, and jobs that last as long as they should."""

    policy: str
    gpus: int
    is_elastic: bool = False  # jobs may have other sizes than they ask for
    now_s: float = 0.0
    state: State = field(default_factory=State)
    memory: Memory = None
    left_s: dict[str, float] = field(default_factory=dict)  # by job, on what it asked for
    gain: dict[str, float] = field(default_factory=dict)  # by job, of each doubling
    stretches: dict[str, Stretch] = field(default_factory=dict)  # of jobs that hold GPUs

    def __post_init__(self) -> None:
        """A cluster of whole nodes."""
        configured = happened.Configured(
            self.policy, priorities="preempt", quotas="kept", speeds="measured", defaults="current"
        )
        self.scheduler = scheduler_of(configured)
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        self.tell(happened.Began(1.0e9), configured)
        for index in range(self.gpus // GPUS_OF_A_NODE):
            self.tell(happened.NodeSeen(f"n{index}", "v100", GPUS_OF_A_NODE))

    def tell(self, *events: Event) -> None:
        """Fold what happens now."""
        for event in events:
            apply(self.state, event, self.state.seq + 1, self.now_s)

    def submit(self, job: str, arrival: Arrival) -> None:
        """A job comes."""
        spec: dict[str, Any] = {"run": "true", "name": job, "preemptible": True}
        spec["resources"] = {"accelerators": [{"gpu_type": "", "gpus": arrival.gpus}]}
        if arrival.said_s is not None:
            spec["expected_time_s"] = arrival.said_s
        if self.is_elastic:
            most = min(MOST_TIMES * arrival.gpus, self.gpus)
            spec["elastic"] = {"min_gpus": max(arrival.gpus // MOST_TIMES, 1), "max_gpus": most}
            self.gain[job] = float(np.random.default_rng([int(job), 5]).uniform(*GAINS))
        self.tell(happened.Submitted(job, JobSpec.from_json(spec).to_json(), "ada"))
        self.left_s[job] = arrival.lasts_s

    def decide(self) -> None:
        """One decision, and what follows of it at once."""
        snapshot = snapshot_for(self.scheduler, self.observer, self.state, self.now_s, DUE, self.memory)
        plan = decide(snapshot, self.scheduler)
        self.tell(decided(snapshot, plan, self.state.seq, 1.0))
        self.memory = plan.memory
        for job, stretch in list(self.stretches.items()):
            if self.state.jobs[job].accounting.held_gpus != stretch.gpus:  # it was stopped, or resized
                self.left_s[job] -= max(self.now_s - stretch.began_s, 0.0) * stretch.pace
                del self.stretches[job]
        for job, held in (self.state.placement or {}).items():
            if str(job) not in self.stretches:
                self.stretches[str(job)] = self.stretch(str(job), held.gpus)

    def stretch(self, job: str, gpus: int) -> Stretch:
        """It has got GPUs. An elastic job loses the time that the service supposes of every restart."""
        times = gpus / self.state.jobs[job].job.gpus
        pace = times * self.gain.get(job, 1.0) ** math.log2(times)
        return Stretch(gpus, self.now_s + (RESTART_S if self.is_elastic else 0.0), pace)

    def end_due(self) -> None:
        """Jobs that have had their time end."""
        for job in [job for job in self.stretches if self.ends_s(job) <= self.now_s + 1e-6]:
            del self.stretches[job]
            self.tell(happened.Ended(job, "COMPLETED", 0))

    def ends_s(self, job: str) -> float:
        """When a job that holds its GPUs ends."""
        stretch = self.stretches[job]
        return stretch.began_s + max(self.left_s[job], 0.0) / stretch.pace

    def foreseen(self, draws: int) -> list[Span]:
        """What the service says now of all jobs."""
        fork = fork_of(self.state, self.now_s, memory=self.memory)
        outlook = outlook_of(fork, draws)
        spans: list[Span] = []
        for member in fork.members:
            job = str(member.job.id)
            if member.held is None and not self.state.jobs[job].accounting.starts:
                spans.append(("start", job, outlook.start(job)))
            spans.append(("end", job, outlook.end(job)))
        return spans

    def happened_s(self) -> dict[tuple[str, str], float]:
        """When jobs have started and ended, by kind and job."""
        jobs = self.state.jobs.items()
        starts = {("start", str(job)): record.accounting.first_start_s for job, record in jobs}
        ends = {("end", str(job)): record.ended_s for job, record in jobs}
        times = {**starts, **ends}
        return {key: at_s for key, at_s in times.items() if at_s is not None and isfinite(at_s)}

    def next_s(self) -> float:
        """When something happens by itself: a job ends, or the policy wants to be asked."""
        times = [self.ends_s(job) for job in self.stretches]
        if self.state.wake_s is not None and self.state.open:
            times.append(max(self.state.wake_s, self.now_s + 1.0))
        if (round_s := self.scheduler.policy.triggers.round_s) is not None and self.state.open:
            times.append((math.floor(self.now_s / max(round_s, 60.0)) + 1) * max(round_s, 60.0))
        return min(times, default=math.inf)


@dataclass(frozen=True)
class Told:
    """A forecast, and what became of it."""

    kind: str  # start | end
    said: DrawnInterval
    corrected: Interval
    place: int  # at which it was made
    at_s: float = math.nan  # it happened


@dataclass
class Forecasts:
    """The first forecasts of each job at one place."""

    record: ForecastRecord
    place: int
    told: dict[tuple[str, str], Told] = field(default_factory=dict)  # by kind and job
    noted: set[tuple[str, str]] = field(default_factory=set)  # what is in the record

    def tell(self, now_s: float, spans: Iterable[Span], happened_s: Mapping[tuple[str, str], float]) -> None:
        """What is said now of jobs of which nothing was said before. happened_s: by kind and job."""
        self.note(happened_s)
        waits = ((told.kind, told.said) for key, told in self.told.items() if key not in self.noted)
        corrections = self.record.corrections(waits, now_s)
        for kind, job, span in spans:
            if (kind, job) not in self.told and isfinite(span.middle_s):
                better = corrected(corrections, kind, span, now_s)
                self.told[kind, job] = Told(kind, DrawnInterval(now_s, span), better, self.place)

    def note(self, happened_s: Mapping[tuple[str, str], float]) -> None:
        """What has happened goes into the record."""
        new = happened_s.keys() & self.told.keys() - self.noted
        for at_s, key in sorted((happened_s[key], key) for key in new):
            told = self.told[key]
            self.record.note(told.kind, told.said, told.corrected, at_s)
            self.told[key] = replace(told, at_s=at_s)
            self.noted.add(key)


def places_of(source: Source, jobs: int, seed: int) -> list[list[Arrival]]:
    """So many jobs from each of some places of a trace, in order of time."""
    workload = read_trace(source.trace)
    pairs = sorted(zip(workload.jobs, workload.truths, strict=True), key=lambda pair: pair[0].submitted_s)
    pairs = [pair for pair in pairs if isfinite(pair[1].duration_s) and pair[0].gpus <= 64]
    pairs = pairs[int(source.part[0] * len(pairs)) : int(source.part[1] * len(pairs))]
    draw = np.random.default_rng(seed)
    stride = (len(pairs) - jobs) / PLACES

    def word(lasts_s: float) -> float | None:
        if source.owners == "more":
            return lasts_s * float(draw.uniform(1.0, 5.0))
        return lasts_s * float(np.exp(0.5 * draw.normal())) if source.owners == "about" else None

    places = []
    for number in range(PLACES):
        first = int(number * stride + draw.uniform(0.0, max(stride - jobs, 1.0)))
        chosen = pairs[first : first + jobs]
        begins_s = chosen[0][0].submitted_s
        places.append(
            [
                Arrival(
                    job.submitted_s - begins_s, job.gpus, max(truth.duration_s, 1.0), word(truth.duration_s)
                )
                for job, truth in chosen
            ]
        )
    return places


def played(
    world: World, arrivals: list[Arrival], looks: int, draws: int, record: ForecastRecord, place: int = 0
) -> list[Told]:
    """Up to the last end."""
    forecasts = Forecasts(record, place)
    coming = [(arrival.at_s, number, arrival) for number, arrival in enumerate(arrivals, start=1)]
    heapq.heapify(coming)
    at = iter(np.linspace(FIRST, LAST, looks) * len(arrivals))
    look = next(at)
    while coming or world.state.open:
        world.now_s = min(coming[0][0] if coming else math.inf, world.next_s())
        world.end_due()
        while coming and coming[0][0] <= world.now_s:
            _, number, arrival = heapq.heappop(coming)
            world.submit(str(number), arrival)
        world.decide()
        if len(world.state.ended) >= look:
            forecasts.tell(world.now_s, world.foreseen(draws), world.happened_s())
            look = next(at, math.inf)
    forecasts.note(world.happened_s())
    return list(forecasts.told.values())


# ── the same under strict `fifo` without a service, in a fiftieth of the time: for many services ────────────


@dataclass
class Line:
    """Jobs that start in the order in which they came, on whole nodes, as `fifo` and `consolidated` do it."""

    free: list[int]  # GPUs, by node
    runs: list[tuple[float, int, dict[int, int]]] = field(default_factory=list)  # end, job, GPUs by node
    waits: list[int] = field(default_factory=list)
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)

    def go_on(self, now_s: float, gpus: Sequence[int], lasts_s: Mapping[int, float]) -> None:
        """End what is due, and start what fits: nothing behind a job that does not."""
        while self.runs and self.runs[0][0] <= now_s + 1e-6:
            for node, count in heapq.heappop(self.runs)[2].items():
                self.free[node] += count
        while self.waits and (where := self.place(gpus[self.waits[0]])):
            job = self.waits.pop(0)
            for node, count in where.items():
                self.free[node] -= count
            self.start_s[job], self.end_s[job] = now_s, now_s + lasts_s[job]
            heapq.heappush(self.runs, (self.end_s[job], job, where))

    def place(self, gpus: int) -> dict[int, int]:
        """Whole nodes, and the rest where it fits best; nothing: there is no room."""
        whole, rest = divmod(gpus, GPUS_OF_A_NODE)
        nodes = [node for node, free in enumerate(self.free) if free == GPUS_OF_A_NODE][:whole]
        where = dict.fromkeys(nodes, GPUS_OF_A_NODE)
        fits = [(free, node) for node, free in enumerate(self.free) if free >= rest and node not in where]
        if len(nodes) < whole or (rest and not fits):
            return {}
        return {**where, min(fits)[1]: rest} if rest else where

    def future(self, now_s: float, gpus: Sequence[int], left_s: Mapping[int, float]) -> "Line":
        """What becomes of the jobs that are there, with so much left of each."""
        runs = [(now_s + left_s[job], job, where) for _, job, where in self.runs]
        heapq.heapify(runs)
        ends_s = {job: end_s for end_s, job, _ in runs}
        line = Line(list(self.free), runs, list(self.waits), {}, ends_s)
        line.go_on(now_s, gpus, left_s)
        while line.waits:
            line.go_on(line.runs[0][0], gpus, left_s)
        return line


def played_in_line(
    arrivals: list[Arrival], looks: int, draws: int, record: ForecastRecord, past: DurationErrors, place: int
) -> list[Told]:
    """As `played`. Draws of what is left are those of the service, and its simulation is `Line`."""
    line, forecasts = (
        Line([GPUS_OF_A_NODE] * (gpus_for(arrivals) // GPUS_OF_A_NODE)),
        Forecasts(record, place),
    )
    gpus, lasts_s = [job.gpus for job in arrivals], {row: job.lasts_s for row, job in enumerate(arrivals)}
    basis = Basis.ASSUMED if arrivals[0].said_s is None else Basis.EXPECTED
    whole_s = np.array([USUAL_S if job.said_s is None else job.said_s for job in arrivals])
    errors = past.of_ended.setdefault(basis, [])
    at = iter(np.linspace(FIRST, LAST, looks) * len(arrivals))
    look, come, over = next(at), 0, set[int]()
    while come < len(arrivals) or line.runs:
        coming_s = arrivals[come].at_s if come < len(arrivals) else math.inf
        now_s = min(coming_s, line.runs[0][0] if line.runs else math.inf)
        ended = [job for _, job, _ in line.runs if line.end_s[job] <= now_s + 1e-6]
        for job in sorted(ended, key=line.start_s.__getitem__):
            errors.append(math.log(max(now_s - line.start_s[job], SHORTEST_S) / whole_s[job]))
            if len(errors) > MOST_KEPT:
                del errors[: MOST_KEPT // 10]
        over.update(ended)
        while come < len(arrivals) and arrivals[come].at_s <= now_s:
            line.waits.append(come)
            come += 1
        line.go_on(now_s, gpus, lasts_s)
        if len(over) >= look:
            there = np.array(sorted({job for _, job, _ in line.runs} | {*line.waits}), np.int64)
            had_s = np.array([now_s - line.start_s.get(job, now_s) for job in there.tolist()])
            futures = [
                line.future(now_s, gpus, dict(zip(there.tolist(), left_s.tolist(), strict=True)))
                for left_s in drawn_left_s(whole_s[there], had_s, basis, errors, draws)
            ]
            spans: list[Span] = []
            for job in there.tolist():
                if job in line.waits:
                    spans.append(("start", str(job), span_of([future.start_s[job] for future in futures])))
                spans.append(("end", str(job), span_of([future.end_s[job] for future in futures])))
            forecasts.tell(now_s, spans, happened_in_line(line, now_s))
            look = next(at, math.inf)
    forecasts.note(happened_in_line(line, math.inf))
    return list(forecasts.told.values())


def happened_in_line(line: Line, now_s: float) -> dict[tuple[str, str], float]:
    """Starts and ends up to now, by kind and job."""
    ends = {("end", str(job)): at_s for job, at_s in line.end_s.items() if at_s <= now_s + 1e-6}
    return ends | {("start", str(job)): at_s for job, at_s in line.start_s.items()}


def drawn_left_s(
    whole_s: FloatArray, had_s: FloatArray, basis: Basis, errors: list[float], draws: int
) -> Iterator[FloatArray]:
    """(jobs,) what is left of each, draw by draw: as `fork.factors` has it."""
    left_s = np.maximum(whole_s - had_s, np.minimum(LEAST_S, LEAST_SHARE * whole_s))
    lasted = np.log(np.maximum(had_s[had_s > 0], SHORTEST_S) / whole_s[had_s > 0]).tolist()
    for seed in range(draws):
        draw = np.random.default_rng([seed, 17])
        normal = draw.normal(size=len(whole_s))
        chance = draw.uniform(size=len(whole_s)) if seed else np.full(len(whole_s), 0.5)
        if len(errors) >= LEAST_KNOWN:
            yield left_after(whole_s, had_s, ErrorDistribution.of(errors, lasted), chance)
        else:
            yield left_s * (np.exp(SPREAD[basis] * normal) if seed else 1.0)


def gpus_for(arrivals: list[Arrival]) -> int:
    """A size of the cluster with which jobs have to wait, in whole nodes."""
    span_s = max(arrivals[-1].at_s, 1.0)
    asked = sum(job.gpus * min(job.lasts_s, span_s - job.at_s) for job in arrivals) / (LOAD * span_s)
    widest = max(arrival.gpus for arrival in arrivals)
    return max(math.ceil(asked / GPUS_OF_A_NODE), math.ceil(widest / GPUS_OF_A_NODE)) * GPUS_OF_A_NODE


def lived(policy: str, source: Source, seed: int, wanted: argparse.Namespace) -> list[Told]:
    """One service at all places, and what it has told at those that count."""
    record, past, told = ForecastRecord(), DurationErrors(), list[Told]()
    for number, arrivals in enumerate(places_of(source, wanted.jobs, seed)):
        if wanted.quick:
            here = played_in_line(arrivals, wanted.forecasts, wanted.draws, record, past, number)
        else:
            world = World(policy, gpus_for(arrivals), wanted.elastic)
            world.state.duration_errors = past
            here = played(world, arrivals, wanted.forecasts, wanted.draws, record, number)
        told += here if number >= UNCOUNTED else []
    return told


def figures(told: list[Told], spans: list[Interval]) -> dict[str, Any]:
    """Of forecasts and their intervals: shares inside, before and after; widths, and scores.

    A standard error is over places, since jobs of one are early or late together.
    """
    made_s, at_s = np.array([(one.said.made_s, one.at_s) for one in told]).T
    low_s, high_s = np.array([(span.low_s, span.high_s) for span in spans]).T
    early, late = at_s < low_s - JUST_S, at_s > high_s + JUST_S
    is_bounded = np.isfinite(high_s)
    hours = [(each[is_bounded] - made_s[is_bounded]) / 3600 for each in (low_s, high_s, at_s)]
    logs = [np.log(np.maximum(each * 3600, 0.0) + AT_ONCE_S) for each in hours]
    return {
        "inside": round(float(1.0 - early.mean() - late.mean()), 3),
        "inside_error": round(error_over([one.place for one in told], ~(early | late)), 3),
        "early": round(float(early.mean()), 3),
        "late": round(float(late.mean()), 3),
        "unbounded": round(float(1.0 - is_bounded.mean()), 3),
        "width_h": round(float((hours[1] - hours[0]).mean()), 2),
        "middle_width_h": round(float(np.median(hours[1] - hours[0])), 2),
        "score_h": round(float(scores(*hours).mean()), 2),
        "width_log": round(float((logs[1] - logs[0]).mean()), 2),
        "score_log": round(float(scores(*logs).mean()), 2),
    }


def error_over(places: list[int], inside: BoolArray) -> float:
    """The standard error of a share, over places of different numbers of forecasts."""
    off = np.bincount(places, inside - inside.mean())
    count = len(set(places))
    return float(np.sqrt((off**2).sum() * count / max(count - 1, 1)) / len(inside))


def scores(low: FloatArray, high: FloatArray, at: FloatArray) -> FloatArray:
    """(forecasts,) the interval score: small for those that are narrow and hold."""
    return (high - low) + 2.0 / (1.0 - PROMISED) * (np.maximum(low - at, 0.0) + np.maximum(at - high, 0.0))


def main() -> None:
    """Measure, and print a JSON object for each trace, kind of forecast and way to make intervals."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--on", choices=sorted(SOURCES), default="judged")
    parser.add_argument("--jobs", type=int, default=300, help="of each place")
    parser.add_argument("--forecasts", type=int, default=10, help="at each place")
    parser.add_argument("--draws", type=int, default=9)
    parser.add_argument("--elastic", action="store_true", help="jobs may have a quarter to four times")
    parser.add_argument("--policies", nargs="+", default=["fifo"])
    parser.add_argument("--traces", nargs="+", default=[], help="those whose names begin so; all")
    words = "of the places, and of what owners say; each is a service of its own"
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help=words)
    words = "without a service and its simulator: strict fifo alone, and the same forecasts"
    parser.add_argument("--quick", action="store_true", help=words)
    wanted = parser.parse_args()
    if wanted.quick and (wanted.elastic or wanted.policies != ["fifo"]):
        parser.error("--quick is of fifo alone, without --elastic")
    print(json.dumps({"cores": os.cpu_count(), **vars(wanted)}))
    for policy in wanted.policies:
        for source in SOURCES[wanted.on]:
            if wanted.traces and not source.trace.startswith(tuple(wanted.traces)):
                continue
            for seed in wanted.seeds:
                told = lived(policy, source, seed, wanted)
                for kind in ("start", "end"):
                    mine = [one for one in told if one.kind == kind]
                    row = {"policy": policy, "trace": source.trace, "owners": source.owners, "seed": seed}
                    row |= {"kind": kind, "forecasts": len(mine)}
                    drawn, better = [one.said.span for one in mine], [one.corrected for one in mine]
                    print(json.dumps({**row, "intervals": "drawn", **figures(mine, drawn)}), flush=True)
                    print(json.dumps({**row, "intervals": "corrected", **figures(mine, better)}), flush=True)


if __name__ == "__main__":
    main()
