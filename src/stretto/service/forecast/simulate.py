"""What would become of the jobs that are there: the fork, simulated several times; what-if questions."""

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np

from stretto.model import Allocation, Constraints, InputError, Plan, StrettoError, ints, types_in_words
from stretto.scheduler.constraints.job_rows import select_jobs
from stretto.scheduler.round import Scheduler, decide
from stretto.service.forecast.corrections import Interval
from stretto.service.forecast.fork import NEW, Fork, world_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state.events import Configured
from stretto.sim.world import SimulatedWorld, Starved

DRAWS = 9  # the first as believed, the others perturbed; chosen
MOST_DECISIONS = 5_000  # of one draw; chosen: what comes later is not foreseen
MOST_PASSES = 4  # over chains of jobs that wait for each other; chosen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PredictedOutcome:
    """What one draw says of one job; infinite times were not reached."""

    start_s: float  # from when it holds GPUs; now, where it does
    end_s: float
    first: Allocation | None  # what it holds first


@dataclass(frozen=True)
class Sample:
    """One simulated future."""

    fates: Mapping[str, PredictedOutcome]
    reached_s: float  # up to when it was simulated
    starved: bool  # jobs wait, and nothing would ever start them
    complete: bool  # every job has ended


Stop = Callable[[SimulatedWorld, Mapping[str, float]], bool]  # of the world, and starts by id


class Recorder(Protocol):
    """Notes what happens in a draw."""

    def anew(self) -> None:
        """The draw is begun, or begun again."""

    def decided(self, world: SimulatedWorld) -> bool:
        """A decision was carried out. Whether enough is known."""
        ...

    def fill(self, world: SimulatedWorld, until_s: float) -> None:
        """Nothing more is decided before `until_s`."""


def deadline_in(seconds: float) -> float:
    """A moment of the clock that bounds forecasts: predictions may use one, decisions may not."""
    return time.perf_counter() + seconds


def play(
    fork: Fork,
    seed: int = 0,
    stop: Stop | None = None,
    until: float = inf,
    recorder: Recorder | None = None,
) -> Sample:
    """Simulate one draw to its end.

    stop: asked after every decision whether enough is known. until: a moment of
    `time.perf_counter`, after which no more is decided; predictions may use a clock, decisions may not.
    recorder: told of every decision; the draw ends where it knows enough.
    """
    chains = {member.job.id: member.after for member in fork.members if member.after}
    froms: dict[str, float] = {}
    draw = _play(fork, seed, froms, stop if not chains else None, until, recorder)
    for _ in range(MOST_PASSES if chains else 0):
        before = dict(froms)
        for name, firsts in chains.items():
            ends = [draw.fates[first].end_s if first in draw.fates else inf for first in firsts]
            if all(map(isfinite, ends)):
                froms[name] = max(fork.now_s, *ends)
        if froms == before or time.perf_counter() >= until:
            break
        draw = _play(fork, seed, froms, stop, until, recorder)
    return draw


def _play(
    fork: Fork,
    seed: int,
    froms: Mapping[str, float],
    stop: Stop | None,
    until: float,
    recorder: Recorder | None = None,
) -> Sample:
    world, scheduler = world_of(fork, seed, froms)
    if recorder is not None:
        recorder.anew()
    ids = [job.id for job in world.requests.jobs]
    first: dict[str, Allocation] = {str(name): allocation for name, allocation in world.placement.items()}
    starts = dict.fromkeys(first, fork.now_s)
    decisions, starved, reached_s = 0, False, fork.now_s
    try:
        while decisions < MOST_DECISIONS and time.perf_counter() < until and world.wait():
            world.act(_decided(world, scheduler, fork.constraints))
            decisions, reached_s = decisions + 1, world.now_s
            if len(starts) < len(ids):
                for name, allocation in world.placement.items():
                    if name not in starts:
                        starts[name], first[name] = world.now_s, allocation
            if stop is not None and stop(world, starts):
                break
            if recorder is not None and recorder.decided(world):
                break
        else:
            if recorder is not None and decisions < MOST_DECISIONS and time.perf_counter() < until:
                recorder.fill(world, inf)  # every job has ended
    except Starved:  # no job runs, and none will: one that waits now waits for ever
        starved = True
        if recorder is not None:
            recorder.fill(world, inf)
    except StrettoError as wrong:  # of the policy: what was reached until then is what can be said
        log.warning("a forecast under %s ended early: %s", fork.configured.policy, wrong)
    ends = world.accounting.completed_s
    fates = {
        str(name): PredictedOutcome(
            starts.get(name, inf), float(ends[row]) if isfinite(ends[row]) else inf, first.get(name)
        )
        for row, name in enumerate(ids)
    }
    return Sample(fates, reached_s, starved, bool(np.isfinite(ends).all()))


def _decided(world: SimulatedWorld, scheduler: Scheduler, constraints: Constraints) -> Plan:
    """What the service would want: a job on a closed node is not asked about; others are left out."""
    snapshot = world.observe()
    staying = constraints.staying
    if staying:
        rows = ints([row for row, name in enumerate(snapshot.jobs.ids) if name not in staying])
        jobs = select_jobs(snapshot.jobs, rows, {}, snapshot.placement)
        snapshot = replace(snapshot, jobs=jobs)
    fair = snapshot.constraints.fair_share
    constraints = constraints.at(snapshot.now_s)
    constraints = replace(constraints, others={}, fair_share=fair)  # the world is without what others hold
    plan = decide(replace(snapshot, constraints=constraints), scheduler)
    return replace(plan, actions=tuple(action for action in plan.actions if action.job not in staying))


def span_of(values: Sequence[float]) -> Interval:
    """The span of some draws; what most of them did not reach is infinite."""
    ordered = sorted(values)
    last, outside = len(ordered) - 1, outside_of(len(ordered))
    return Interval(ordered[last // 2], ordered[outside], ordered[last - outside])


def outside_of(draws: int) -> int:
    """How many of the draws lie on either side of an interval that holds 80 % of what happens.

    What happens is one more draw: as likely as not before, between or after any of these. So it lies between
    the first and the last of nine in eight of ten cases.
    """
    return max((draws + 1) // 10 - 1, 0)


@dataclass(frozen=True)
class Forecast:
    """What a scheduler would make of a fork."""

    fork: Fork = field(repr=False)
    draws: tuple[Sample, ...] = field(repr=False)

    def start(self, job: str) -> Interval:
        """When a job would start; of one that holds GPUs, now."""
        span = span_of([draw.fates[job].start_s if job in draw.fates else inf for draw in self.draws])
        return span if job in self.holding else self.fork.corrected("start", span)

    def end(self, job: str) -> Interval:
        """When a job would end."""
        span = span_of([draw.fates[job].end_s if job in draw.fates else inf for draw in self.draws])
        return self.fork.corrected("end", span)

    @cached_property
    def holding(self) -> frozenset[str]:
        """Jobs that hold GPUs."""
        return frozenset(str(member.job.id) for member in self.fork.members if member.held is not None)

    def always_end(self) -> frozenset[str]:
        """Jobs that end in every draw: means over fewer in one forecast than in another compare nothing."""
        ending = [{name for name, fate in draw.fates.items() if isfinite(fate.end_s)} for draw in self.draws]
        return frozenset.intersection(*map(frozenset, ending)) if ending else frozenset()

    def mean_jct_s(self, submitted: Mapping[str, float]) -> Interval:
        """The mean time from submission to end, draw by draw. submitted: of jobs that always end."""
        means = [
            float(np.mean([draw.fates[name].end_s - at_s for name, at_s in submitted.items()]))
            for draw in self.draws
            if submitted
        ]
        return span_of(means) if means else Interval(inf, inf, inf)

    def last_end(self) -> Interval:
        """When the last job would end."""
        return span_of([max((fate.end_s for fate in one.fates.values()), default=inf) for one in self.draws])


def outlook_of(
    fork: Fork, draws: int = DRAWS, stop: Stop | None = None, until: float = inf, processor_s: float = inf
) -> Forecast:
    """Several draws; fewer, but at least one, where time runs out.

    until: as of `play`. processor_s: no draw begins once so much of a processor was used.
    """
    samples: list[Sample] = []
    enough_s = time.process_time() + processor_s
    for seed in range(draws):
        if samples and (time.perf_counter() >= until or time.process_time() >= enough_s):
            break
        sample = play(fork, seed, stop, until)
        if samples and time.perf_counter() >= until:
            break  # half a draw would say that nothing ends
        samples.append(sample)
    return Forecast(fork, tuple(samples))


def configured_as(
    configured: Configured, policy: str, settings: Mapping[str, str], seed: int | None = None
) -> Configured:
    """Another scheduler; its settings are its own where the policy is another."""
    same = policy in ("", configured.policy)
    kept = dict(configured.settings) if same else {}
    return replace(
        configured,
        policy=configured.policy if same else policy,
        placer=configured.placer if same else "",
        settings={**kept, **settings},
        resolved=configured.resolved if same and not settings else {},
        seed=configured.seed if seed is None else seed,
    )


def as_json(
    fork: Fork, outlook: Forecast, unix_s: float, counted: frozenset[str] | None = None
) -> dict[str, Any]:
    """What `stretto whatif` shows of one scheduler; times are Unix times, null where never reached.

    counted: jobs whose mean is taken; None: those that end in every draw.
    """
    counted = outlook.always_end() if counted is None else counted
    submitted = {
        str(member.job.id): member.job.submitted_s for member in fork.members if member.job.id in counted
    }
    jobs = []
    for member in fork.members:
        start, end = outlook.start(member.job.id), outlook.end(member.job.id)
        first = next((d.fates[member.job.id].first for d in outlook.draws if member.job.id in d.fates), None)
        jobs.append(
            {
                "id": member.job.id,
                "name": member.name,
                "user": member.job.user,
                "runs": member.held is not None,
                "gpus": 0 if first is None else first.gpus,
                "gpu_type": "" if first is None else types_in_words(first, fork.cluster),
                "start": span_json(start, unix_s),
                "end": span_json(end, unix_s),
                "jct_s": _finite(end.middle_s - member.job.submitted_s),
                "basis": member.remaining.basis.value,
            }
        )
    return {
        "policy": fork.configured.policy,
        "draws": len(outlook.draws),
        "mean_jct_s": span_json(outlook.mean_jct_s(submitted), 0.0),
        "counted_jobs": len(submitted),
        "open_jobs": len(fork.members),
        "until": _finite(min((draw.reached_s for draw in outlook.draws), default=inf) + unix_s),
        "last_end": span_json(outlook.last_end(), unix_s),
        "jobs": jobs,
    }


def span_json(span: Interval, unix_s: float) -> dict[str, float | None]:
    """The three times of a span."""
    return {
        "middle": _finite(span.middle_s + unix_s),
        "low": _finite(span.low_s + unix_s),
        "high": _finite(span.high_s + unix_s),
    }


def _finite(value: float) -> float | None:
    return round(value, 3) if isfinite(value) else None


# ── questions about the future: what may be asked, and the functions that answer ────────────────────────────


LARGEST_COUNT = 1_000  # of a setting that is a whole number; chosen
TIMES_USUAL = 10  # that its default may be multiplied by, where this gives more; chosen


def check_settings(scheduler: Scheduler, named: Iterable[str]) -> None:
    """Raise InputError for a named setting whose count would make a decision take for ever."""
    parts = {"policy": scheduler.policy, "place": scheduler.placer, "estimate": scheduler.estimator}
    for name in named:
        space, _, key = name.partition(".")
        part = parts.get(space)
        usual = {entry.name: entry.default for entry in fields(part)} if is_dataclass(part) else {}
        default, given = usual.get(key), getattr(part, key, None)
        if not isinstance(given, int) or isinstance(given, bool):
            continue
        most = max(LARGEST_COUNT, TIMES_USUAL * default if isinstance(default, int) else 0)
        if given > most:
            raise InputError(f"{name} in a what-if must be at most {most}, got {given}")


# ── questions about the future, as functions that a process beside the service answers ──────────────────────


LONGEST_S = 30.0  # of wall time for one answer; chosen


def packed(function: Callable[..., Any], *arguments: Any) -> bytes:
    """A question on its way."""
    return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)


def answered(configured: Configured, question: bytes) -> Any:
    """The answer to a packed question.

    A policy from a file of its own is imported first: what it remembers cannot be unpacked without.
    """
    scheduler_of(configured)
    function, arguments = pickle.loads(question)
    return function(*arguments)


def foreseen(forks: Sequence[Fork], draws: int, unix_s: float) -> list[dict[str, Any]]:
    """What becomes of all jobs, fork by fork; fewer draws where time runs out.

    Means are over the jobs that end in every draw of every fork, so that they can be compared.
    """
    began = time.perf_counter()
    outlooks = [
        outlook_of(fork, draws, None, began + LONGEST_S * number / len(forks))
        for number, fork in enumerate(forks, start=1)
    ]
    counted = frozenset.intersection(*(outlook.always_end() for outlook in outlooks))
    return [as_json(fork, outlook, unix_s, counted) for fork, outlook in zip(forks, outlooks, strict=True)]


def would_start(fork: Fork, unix_s: float) -> dict[str, Any]:
    """Where, when and at what size the job that was added to a fork would start."""
    outlook = outlook_of(fork, DRAWS, None, time.perf_counter() + LONGEST_S)
    start, end = outlook.start(NEW), outlook.end(NEW)
    fate = outlook.draws[0].fates.get(NEW)
    first = fate.first if fate is not None else None
    cluster = fork.cluster
    return {
        "starts": isfinite(start.middle_s),
        "now": round(fork.now_s + unix_s, 3),
        "start": span_json(start, unix_s),
        "end": span_json(end, unix_s),
        "gpus": 0 if first is None else first.gpus,
        "gpu_type": "" if first is None else cluster.type_names[first.kind],
        "nodes": {}
        if first is None
        else {
            cluster.nodes[node].id: mask.bit_count()
            for node, mask in zip(first.nodes, first.masks, strict=True)
        },
        "assumed": list(fork.assumed),
    }
