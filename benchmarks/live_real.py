"""Real trainings on two cores under the service, and a simulation of them: mean JCTs side by side.

    OMP_NUM_THREADS=1 python benchmarks/live_real.py --policy sia

The elastic examples train on the local backend, one thread a worker, and come at fixed times. What the
service wrote down then says how fast each job was at each size, how long starts and resizes took, and how
much there was to do; jobs with these properties come at the same times in the simulator, under the same
policy, which knows as little of them beforehand. What remains is what the simulator leaves out, or takes the
mean of. Then the log is decided again. Figures are printed as one JSON object.
Needs PyTorch and scikit-learn.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from stretto.demo.own_service import OwnService
from stretto.live import events as happened
from stretto.live.ledger import fold
from stretto.live.priors import limits_of, prior_table
from stretto.live.records import JobRecord
from stretto.live.replay import decided_again
from stretto.live.scheduling import scheduler_of
from stretto.live.state import State
from stretto.live.store import Store, open_store
from stretto.model import Cluster, MeasuredSpeeds, Requests, TrainingLimits, Trigger, Triggers
from stretto.scheduler.round import decide
from stretto.sim.physics import Physics
from stretto.sim.settings import Batches, SimSettings
from stretto.sim.truth.recorded import RecordedRuns
from stretto.sim.truth.training import TrainingRun
from stretto.sim.world import SimulatedWorld

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS, TRANSFORMER = "digits_cnn.py --channels 48 --target 0", "tiny_transformer.py --target 100"
JOBS = (  # (seconds after the first, script, epochs, batch); each takes most of a minute alone
    (0.0, DIGITS, 180, 64),
    (8.0, TRANSFORMER, 18, 32),
    (20.0, DIGITS, 120, 64),
    (35.0, TRANSFORMER, 24, 32),
    (50.0, DIGITS, 240, 64),
    (80.0, TRANSFORMER, 12, 32),
)


def jobs_of(scale: float) -> list[tuple[float, str, int, int]]:
    """The jobs, so many times as long, and coming so many times as slowly."""
    return [
        (at_s * scale, script, max(round(epochs * scale), 1), batch) for at_s, script, epochs, batch in JOBS
    ]


def job_file(number: int, script: str, epochs: int, batch: int) -> str:
    """The text to submit."""
    return json.dumps(
        {
            "name": f"real-{number}",
            "run": f"{sys.executable} {script} --epochs {epochs}",
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
            for number, (at_s, script, epochs, batch) in enumerate(jobs_of(given.scale)):
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
    size: int = 0
    finished_s: float = nan

    def step_s(self, workers: int) -> float:
        """Seconds of a step at a size; NaN where it was never measured."""
        steps, took_s = self.did.get(workers, (0.0, 0.0))
        return took_s / steps if steps > 0 else nan


def read(store: Store) -> tuple[State, dict[str, Lived]]:
    """Fold the log, and note how fast everybody was in each stretch between two reports of one generation."""
    state, found = State(), defaultdict[str, Lived](Lived)
    for recorded in store.read():
        event, at_s = fold(state, recorded), recorded.at_s
        job = found[str(event.job)] if hasattr(event, "job") else Lived()
        if isinstance(event, happened.Decided):
            for action in event.actions:
                if action["verb"] == "start":
                    found[action["job"]].given_s = event.at_s
                elif action["after"] is not None:
                    found[action["job"]].resized_s = event.at_s
        elif isinstance(event, happened.Joined) and event.number > 1:
            members = state.jobs[event.job].members
            if event.worker == members.source and not isnan(event.lost_s):
                before, job.size = job.size, len(members.workers)
                job.resizes.append((at_s - job.resized_s, event.lost_s, before, job.size))
        elif isinstance(event, happened.Ended):
            job.ended_s = at_s
        elif isinstance(event, happened.Reported) and "progress_steps" in event.report:
            _reported(state.jobs[event.job], job, at_s, event.report)
    return state, found


def _reported(record: JobRecord, job: Lived, at_s: float, report: Mapping[str, Any]) -> None:
    steps, members = float(report["progress_steps"]), record.members
    generation = record.attempt, members.number
    if generation == job.last[0]:
        did = job.did[len(members.workers)]
        did[0], did[1] = did[0] + steps - job.last[2], did[1] + at_s - job.last[1]
    elif not isnan(job.given_s):
        done = 0.0 if isnan(job.last[2]) else job.last[2]
        job.starts_s.append((at_s - job.given_s, steps - done, len(members.workers)))
        job.given_s, job.size = nan, len(members.workers)
    if not isnan(job.last[2]) and steps > job.last[2]:
        job.finished_s = at_s
    job.last = generation, at_s, steps


@dataclass(frozen=True, eq=False)
class MeasuredTruth:
    """A training as it was seen; steps of its only batch."""

    limits: TrainingLimits
    epoch_ends: tuple[float, ...]
    restart_s: float
    steps_s: tuple[float, ...]  # of a step, by workers; index 0 is not used
    alone_step_s: Mapping[int, float]  # of a pass without synchronisation, by local batch
    noise: tuple[float, float]
    slowdown: float = 1.0

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """(seconds of a step, seconds of it spent synchronising)."""
        whole_s = self.steps_s[sum(shape)]
        return whole_s, max(whole_s - self.alone_step_s.get(local_batch, whole_s), 0.0)

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """As last reported."""
        return self.noise

    def most_local(self, kind: int, replicas: int) -> int:
        """Everything fits."""
        return int(self.limits.max_local[kind])

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to the end of each epoch."""
        return tuple(end * self.steps_s[gpus] for end in self.epoch_ends)

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """Steps a second."""
        per_s = np.array([[0.0, *(1 / one for one in self.steps_s[1 : most_gpus + 1])]])
        return MeasuredSpeeds(per_s, per_s)


def truth_of(record: JobRecord, job: Lived, epochs: int, cluster: Cluster, gain: float) -> MeasuredTruth:
    """What was seen of a job. gain: speed on two workers over one, where it was not seen at both sizes."""
    one_s, two_s = job.step_s(1), job.step_s(2)
    one_s, two_s = (two_s * gain if isnan(one_s) else one_s), (one_s / gain if isnan(two_s) else two_s)
    steps_s = (inf, one_s, two_s)
    waits = [wait_s - steps * steps_s[workers] for wait_s, steps, workers in job.starts_s]
    limits, latest = limits_of(record, cluster), record.learned.latest
    assert limits is not None
    steps = job.last[2]
    return MeasuredTruth(
        limits=limits,
        epoch_ends=tuple(steps * (number + 1) / epochs for number in range(epochs)),
        restart_s=max(statistics.mean(waits), 0.0) + job.ended_s - job.finished_s,
        steps_s=steps_s,
        alone_step_s={int(point[3]): float(point[5]) for point in record.learned.points},
        noise=(float(latest.get("grad_sqr", 1.0)), float(latest.get("grad_var", 1.0))),
    )


def simulated(
    state: State, seen: Mapping[str, Lived], names: list[str], scale: float
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ends by job in a simulation of jobs with the measured properties; and these properties."""
    cluster = state.cluster
    assert cluster is not None
    both = [(seen[name].step_s(1), seen[name].step_s(2)) for name in names]
    gains = [one / two for one, two in both if not isnan(one) and not isnan(two)]
    gain = statistics.mean(gains) if gains else 1.0
    truths = [
        truth_of(state.jobs[name], seen[name], epochs, cluster, gain)
        for name, (_, _, epochs, _) in zip(names, jobs_of(scale), strict=True)
    ]
    # Until a resize has happened a job goes on at its old speed: as much is lost as in so long a pause.
    pauses = [
        lost_s + (wait_s - lost_s) * (1 - truth.steps_s[after] / truth.steps_s[before])
        for truth, name in zip(truths, names, strict=True)
        for wait_s, lost_s, before, after in seen[name].resizes
        if before and after
    ]
    resize_s = max(statistics.mean(pauses), 0.0) if pauses else 0.0
    settings = SimSettings(batches=Batches.TUNED, resize_s=resize_s)
    scheduler = scheduler_of(state.configured)
    requests = Requests([replace(state.jobs[name].job, checkpoints=True) for name in names], cluster)
    tables = [prior_table(state.jobs[name], cluster) for name in names]
    runs = {
        row: TrainingRun(truth, truth.limits, truth.limits.init_batch, settings)
        for row, truth in enumerate(truths)
    }
    recorded = RecordedRuns(np.full(len(names), nan), cluster, tables)
    physics = Physics(requests, runs, recorded, tables, settings)
    triggers = _eager(scheduler.policy.triggers)
    world = SimulatedWorld(cluster, physics, triggers, scheduler.policy.views, settings)
    while world.wait():
        world.act(decide(world.observe(), scheduler))
    ends_s = {name: float(world.books.completed_s[row]) for row, name in enumerate(names)}
    return ends_s, {
        "start_s": [round(truth.restart_s, 2) for truth in truths],
        "step_ms": [[round(1e3 * one, 2) for one in truth.steps_s[1:]] for truth in truths],
        "speed on two over one": round(gain, 3),
        "resizes": len(pauses),
        "resize_s": round(resize_s, 2),
        "restarts of a job": float(np.mean(world.books.starts)) - 1,
    }


def _eager(triggers: Triggers) -> Triggers:
    """A service asks at arrivals and ends, too."""
    return replace(triggers, on=triggers.on | {Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY})


def main() -> None:
    """Train, simulate, compare, decide again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--scale", type=float, default=1.0, help="of the length of jobs; 1: most of a minute")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_store(lived(Path(folder), given)) as store:
        state, seen = read(store)
        replay = decided_again(store)
    names = sorted(state.jobs, key=lambda name: state.jobs[name].number)
    ends_s, measured = simulated(state, seen, names, given.scale)
    came_s = {name: state.jobs[name].job.submitted_s for name in names}
    live = [seen[name].ended_s - came_s[name] for name in names]
    sim = [ends_s[name] - came_s[name] for name in names]
    figures = {
        "given": vars(given),
        "cores": os.cpu_count(),
        "jobs": len(names),
        "mean_jct_s": {"live": round(statistics.mean(live), 2), "sim": round(statistics.mean(sim), 2)},
        "ratio": round(statistics.mean(live) / statistics.mean(sim), 4),
        "jct_s": {"live": [round(one, 1) for one in live], "sim": [round(one, 1) for one in sim]},
        "live": {
            "restarts of a job": statistics.mean(state.jobs[name].attempt - 1 for name in names),
            "switches": sum(state.jobs[name].books.switches for name in names),
            "lost_s": round(sum(state.jobs[name].books.lost_s for name in names), 2),
        },
        "measured": measured,
        "log": {"decisions": replay.decisions, "differences": len(replay.differences)},
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
