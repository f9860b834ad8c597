"""Real trainings on two cores under the service, and a simulation of them: mean JCTs side by side.

    OMP_NUM_THREADS=1 python benchmarks/live_real.py --policy sia

The elastic examples train on the local backend, one thread a worker, and come at fixed times. What the
service wrote down then says how fast each job was at each size and what it said of its steps, how long starts
and resizes took, and how much there was to do; jobs with these properties come at the same times in the
simulator, under the same policy, which knows as little of them beforehand and is told the same of them later.
What remains is what the simulator leaves out, or takes the mean of. Then the log is decided again. Figures
are printed as one JSON object.
Needs PyTorch and scikit-learn.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from stretto.demo.own_service import OwnService
from stretto.model import (
    Cluster,
    MeasuredSpeeds,
    Requests,
    TrainingLimits,
    Trigger,
    Triggers,
)
from stretto.scheduler.round import decide
from stretto.service.eventlog import Store, open_store
from stretto.service.eventlog.writer import fold
from stretto.service.scheduling.estimates import limits_of, prior_table
from stretto.service.scheduling.replay import decided_again
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state import events as happened
from stretto.service.state.records import NO_PRIOR, JobRecord, Learned
from stretto.service.state.records import Accounting as LiveAccounting
from stretto.service.state.state import State
from stretto.sim.physics import Physics
from stretto.sim.settings import Batches, Knowledge, SimSettings
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.truth.training import TrainingRun
from stretto.sim.world import SimulatedWorld

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS, TRANSFORMER = "digits_cnn.py --channels 48 --target 0", "tiny_transformer.py --target 100"
FEWEST_STEPS = 20  # that tell how long all takes that is not a step; chosen
SEED, DRAWS, SPEED_ERROR = 0, 50, 0.03  # of steps between runs on an idle machine; measured
JOBS = (  # (seconds after the first, script, epochs, batch); each takes most of a minute alone
    (0.0, DIGITS, 180, 256),
    (8.0, TRANSFORMER, 18, 128),
    (20.0, DIGITS, 120, 256),
    (35.0, TRANSFORMER, 24, 128),
    (50.0, DIGITS, 240, 256),
    (80.0, TRANSFORMER, 12, 128),
)


def jobs_of(given: argparse.Namespace) -> list[tuple[float, str, int, int]]:
    """The jobs, so many times as long, coming so many times as slowly, with a part of the batch."""
    return [
        (at_s * given.scale, script, max(round(epochs * given.scale), 1), batch // given.divide)
        for at_s, script, epochs, batch in JOBS
    ]


def job_file(number: int, script: str, epochs: int, batch: int) -> str:
    """The text to submit."""
    return json.dumps(
        {
            "name": f"real-{number}",
            "run": f"{sys.executable} {script} --epochs {epochs} --batch {batch}",
            "workdir": str(EXAMPLES),
            "resources": {"accelerators": 1},
            "elastic": {"min": 1, "max": 2},
            "batch": {"init": batch},
            "stop": {"epochs": epochs},
            "checkpoint": {"every": "10m"},
            "envs": {"OMP_NUM_THREADS": "1"},
        }
    )


def lived(folder: Path, given: argparse.Namespace) -> str:
    """Train; the path of the log."""
    options = ["--slots", "2", "--gpu-type", "cpu", "--policy", given.policy]
    options += [word for one in given.set for word in ("--set", one)]
    service = OwnService(folder, options, ("-m", "stretto.cli.app"), {**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        service.begin()
        with service.client() as client:
            began, names = time.monotonic(), []
            for number, (at_s, script, epochs, batch) in enumerate(jobs_of(given)):
                time.sleep(max(began + at_s - time.monotonic(), 0.0))
                names.append(client.submit(job_file(number, script, epochs, batch))["id"])
            for name in names:
                said = client.wait(name)
                if said["state"] != "COMPLETED":
                    raise SystemExit(f"job {name}: {said['state']} {said['why']}")
        service.kill(signal.SIGTERM)
    finally:
        service.end()
    return str(service.state / "stretto.db")


@dataclass
class Lived:
    """What the log tells of one job."""

    ended_s: float = nan
    did: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    given_s: float = nan  # when it was last decided to start it
    starts_s: list[tuple[float, float, int]] = field(default_factory=list)  # wait, steps by then, workers
    resized_s: float = nan  # when it was last decided to resize it
    resizes: list[tuple[float, float, int, int]] = field(default_factory=list)  # wait, lost, before, after
    last: tuple[tuple[int, int], float, float] = ((0, 0), nan, nan)  # generation, time, steps of a report
    joined: tuple[int, int] = (0, 0)  # attempt and generation that trains
    size: int = 0  # its workers
    size_before: int = 0
    finished_s: float = nan
    learned: Learned = field(default_factory=Learned)  # from its reports; a record forgets it at its end


def read(store: Store) -> tuple[State, dict[str, Lived]]:
    """Fold the log, and note how fast everybody was in each stretch between two reports of one generation."""
    state, found = State(), defaultdict[str, Lived](Lived)
    for recorded in store.read():
        event, at_s = fold(state, recorded), recorded.at_s
        job = found[str(event.job)] if event is not None and hasattr(event, "job") else Lived()
        if isinstance(event, happened.Decided):
            for action in event.actions:
                if action["verb"] == "start":
                    found[action["job"]].given_s = event.at_s
                elif action["after"] is not None:
                    found[action["job"]].resized_s = event.at_s
        elif isinstance(event, happened.Joined):
            _joined(state.jobs[event.job], job, at_s, event)
        elif isinstance(event, happened.Ended):
            job.ended_s = at_s
        elif isinstance(event, happened.Reported) and "progress_steps" in event.report:
            job.learned = state.jobs[event.job].learned
            _reported(job, at_s, event.report)
    return state, found


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


@dataclass(frozen=True)
class Said:
    """What jobs said of their steps, by workers: NaN where it was said of none."""

    step_s: float
    alone_s: float  # of a pass without synchronisation


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


def said_of(job: Lived, workers: int) -> Said:
    """As last reported: the step, and a pass without synchronisation."""
    for _, _, gpus, _, passes, grad_s, step_s in job.learned.points:
        if gpus == workers and passes == 1:
            return Said(max(step_s, grad_s), min(step_s, grad_s))
    return Said(nan, nan)


def ratios_of(jobs: Sequence[Lived]) -> tuple[float, float]:
    """Means of a step and of a pass on two workers over those on one, of who said both."""
    both = [(said_of(job, 1), said_of(job, 2)) for job in jobs]
    both = [(one, two) for one, two in both if not isnan(one.step_s + two.step_s)]
    if not both:
        return nan, nan
    steps, alone = (
        [two.step_s / one.step_s for one, two in both],
        [two.alone_s / one.alone_s for one, two in both],
    )
    return statistics.mean(steps), statistics.mean(alone)


def truth_of(
    record: JobRecord, job: Lived, epochs: int, cluster: Cluster, ratios: tuple[float, float]
) -> MeasuredTruth:
    """What was seen of a job. ratios: two workers over one, for a size on which it was not seen."""
    one, two = said_of(job, 1), said_of(job, 2)
    if isnan(two.step_s):
        two = Said(one.step_s * ratios[0], one.alone_s * ratios[1])
    elif isnan(one.step_s):
        one = Said(two.step_s / ratios[0], two.alone_s / ratios[1])
    said = {1: one, 2: two}
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
class Measured:
    """What a live run says of its jobs."""

    truths: Sequence[MeasuredTruth]  # by job
    pauses_s: Sequence[float]  # of resizes, in all the time that they cost

    @property
    def resize_s(self) -> float:
        """Of a resize, on average."""
        return max(statistics.mean(self.pauses_s), 0.0) if self.pauses_s else 0.0


def measured_in(
    state: State,
    seen: Mapping[str, Lived],
    names: Sequence[str],
    jobs: Sequence[tuple[float, str, int, int]],
) -> Measured:
    """What has happened; of a size that a job never had, what jobs of its script showed is believed."""
    cluster = state.cluster
    assert cluster is not None
    scripts = [script for _, script, _, _ in jobs]
    alike = {
        script: ratios_of([seen[name] for name, one in zip(names, scripts, strict=True) if one == script])
        for script in set(scripts)
    }
    every = ratios_of([seen[name] for name in names])
    truths = [
        truth_of(
            state.jobs[name], seen[name], epochs, cluster, every if isnan(alike[script][0]) else alike[script]
        )
        for name, (_, script, epochs, _) in zip(names, jobs, strict=True)
    ]
    # Until a resize has happened a job goes on at its old speed: as much is lost as in so long a pause.
    pauses_s = [
        lost_s + (wait_s - lost_s) * (1 - truth.step_s(after) / truth.step_s(before))
        for truth, name in zip(truths, names, strict=True)
        for wait_s, lost_s, before, after in seen[name].resizes
        if before and after
    ]
    return Measured(truths, pauses_s)


def simulated(state: State, names: Sequence[str], measured: Measured) -> SimulatedWorld:
    """A simulation of jobs with the measured properties, at its end."""
    cluster = state.cluster
    assert cluster is not None
    settings = SimSettings(batches=Batches.TUNED, resize_s=measured.resize_s, knowledge=Knowledge.LIVE)
    scheduler = scheduler_of(state.configured)
    requests = Requests([replace(state.jobs[name].job, checkpoints=True) for name in names], cluster)
    tables = [prior_table(state.jobs[name], cluster) for name in names]
    runs = {
        row: MeasuredRun(truth, _as_submitted(state.jobs[name], cluster), truth.limits.init_batch, settings)
        for row, (name, truth) in enumerate(zip(names, measured.truths, strict=True))
    }
    recorded = RecordedRuns(np.full(len(names), nan), cluster, tables)
    physics = Physics(requests, runs, recorded, tables, settings)
    triggers = _eager(scheduler.policy.triggers)
    world = SimulatedWorld(cluster, physics, triggers, scheduler.policy.views, settings)
    while world.wait():
        world.act(decide(world.observe(), scheduler))
    return world


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
        truths = []
        for one in measured.truths:
            off = np.exp(chance.normal(0.0, SPEED_ERROR, len(one.said))).tolist()
            said = {
                workers: Said(was.step_s * by, was.alone_s * by)
                for (workers, was), by in zip(one.said.items(), off, strict=True)
            }
            truths.append(replace(one, said=said))
        world = simulated(state, names, replace(measured, truths=truths))
        means.append(statistics.mean(jcts(state, names, world.accounting.completed_s.tolist())))
    return sorted(means)


def _as_submitted(record: JobRecord, cluster: Cluster) -> TrainingLimits:
    """What is known before it runs: its file, nothing of its speed and of what its script will say."""
    at_first = replace(record, learned=Learned(), prior=NO_PRIOR, accounting=LiveAccounting(), uses_sdk=None)
    known = limits_of(at_first, cluster)
    assert known is not None  # its file says the batch
    return known


def _eager(triggers: Triggers) -> Triggers:
    """A service asks at arrivals and ends, too."""
    return replace(triggers, on=triggers.on | {Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY})


def main() -> None:
    """Train, simulate, compare, decide again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--scale", type=float, default=1.0, help="of the length of jobs; 1: most of a minute")
    parser.add_argument("--divide", type=int, default=1, help="batches by this: more steps, the same work")
    parser.add_argument("--log", help="of an earlier run with the same options: compare that, train nothing")
    parser.add_argument("--keep", help="an empty folder for the service's state, to compare its log again")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        folder = given.keep or stack.enter_context(tempfile.TemporaryDirectory())
        path = given.log or lived(Path(folder), given)
        store = stack.enter_context(open_store(path))
        state, seen = read(store)
        replay = decided_again(store)
    names = sorted(state.jobs, key=lambda name: state.jobs[name].number)
    measured = measured_in(state, seen, names, jobs_of(given))
    world = simulated(state, names, measured)
    live = jcts(state, names, [seen[name].ended_s for name in names])
    sim = jcts(state, names, world.accounting.completed_s.tolist())
    draws = spread(state, names, measured)
    figures = {
        "given": vars(given),
        "cores": os.cpu_count(),
        "load": {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)},  # 2 of it ours
        "jobs": len(names),
        "mean_jct_s": {"live": round(statistics.mean(live), 2), "sim": round(statistics.mean(sim), 2)},
        "ratio": round(statistics.mean(live) / statistics.mean(sim), 4),
        "jct_s": {"live": [round(one, 1) for one in live], "sim": [round(one, 1) for one in sim]},
        f"mean_jct_s of {DRAWS} simulations with steps off by {SPEED_ERROR:.0%}": {
            "least": round(draws[0], 1),
            "median": round(statistics.median(draws), 1),
            "mean": round(statistics.mean(draws), 1),
            "most": round(draws[-1], 1),
        },
        "live": {
            "restarts of a job": statistics.mean(state.jobs[name].attempt - 1 for name in names),
            "switches": sum(state.jobs[name].accounting.switches for name in names),
            "lost_s": round(sum(state.jobs[name].accounting.lost_s for name in names), 2),
        },
        "sim": {"restarts of a job": float(np.mean(world.accounting.starts)) - 1},
        "measured": {
            "start_s": [round(truth.restart_s, 2) for truth in measured.truths],
            "step_ms": [
                [None if isnan(one.step_s) else round(1e3 * one.step_s, 2) for one in truth.said.values()]
                for truth in measured.truths
            ],
            "slowdown": [[round(one, 3) for one in truth.slowdowns.values()] for truth in measured.truths],
            "resizes": len(measured.pauses_s),
            "resize_s": round(measured.resize_s, 2),
        },
        "log": {"decisions": replay.decisions, "differences": len(replay.differences)},
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
