"""How often what happens lies in the 80 % intervals of forecasts: on made traces and a recorded one.

    STRETTO_DATA=~/datasets python benchmarks/forecast_intervals.py --jobs 400 --policies fifo tiresias

Jobs of a trace are submitted to the state of a service and decided about as the service does, without
processes and in no time: a job ends once it has had its GPUs for as long as the trace says. Now and then
everything that is open is foreseen, as `whatif` does it. Of each job the first forecast of its start counts,
if it waited then, and the first of its end. Later jobs come although no forecast knows of them.

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from stretto.jobfile import JobSpec
from stretto.model import Memory, Trigger
from stretto.scheduler.round import decide
from stretto.service.forecast.fork import fork_of
from stretto.service.forecast.simulate import outlook_of
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Event
from stretto.service.state.reducer import apply
from stretto.service.state.state import State
from stretto.traces import read_trace

SETTINGS = (  # trace, what owners say, jobs that come first
    ("synthetic-philly", "more"),
    ("helios-saturn", "about"),
    ("philly", "nothing"),
)
GPUS_OF_A_NODE = 8
DUE = frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY, Trigger.ROUND, Trigger.WAKE})
LOAD = 1.2  # GPU time that the jobs would take while they come, over that of the cluster: so that jobs wait
WARM = 1 / 3  # of the jobs have ended before the first forecast: a service has a past


@dataclass(frozen=True)
class Arrival:
    """A job of a trace."""

    at_s: float
    gpus: int
    lasts_s: float  # on these GPUs
    said_s: float | None  # by its owner


@dataclass
class World:
    """The state of a service, and jobs that last as long as they should."""

    policy: str
    gpus: int
    now_s: float = 0.0
    state: State = field(default_factory=State)
    memory: Memory = None
    left_s: dict[str, float] = field(default_factory=dict)  # by job, on what it asked for
    began_s: dict[str, float] = field(default_factory=dict)  # of jobs that hold GPUs

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
        self.tell(happened.Submitted(job, JobSpec.from_json(spec).to_json(), "ada"))
        self.left_s[job] = arrival.lasts_s

    def decide(self) -> None:
        """One decision, and what follows of it at once."""
        snapshot = snapshot_for(self.scheduler, self.observer, self.state, self.now_s, DUE, self.memory)
        plan = decide(snapshot, self.scheduler)
        self.tell(decided(snapshot, plan, self.state.seq, 1.0))
        self.memory = plan.memory
        for job in list(self.began_s):
            if not self.state.jobs[job].accounting.held_gpus:  # it was stopped, and goes on later
                self.left_s[job] -= self.now_s - self.began_s.pop(job)
        for job in self.state.placement or ():
            self.began_s.setdefault(str(job), self.now_s)

    def end_due(self) -> None:
        """Jobs that have had their time end."""
        for job in [job for job, began_s in self.began_s.items() if self.ends_s(job) <= self.now_s + 1e-6]:
            del self.began_s[job]
            self.tell(happened.Ended(job, "COMPLETED", 0))

    def ends_s(self, job: str) -> float:
        """When a job that holds its GPUs ends."""
        return self.began_s[job] + self.left_s[job]

    def next_s(self) -> float:
        """When something happens by itself: a job ends, or the policy wants to be asked."""
        times = [self.ends_s(job) for job in self.began_s]
        if self.state.wake_s is not None and self.state.open:
            times.append(max(self.state.wake_s, self.now_s + 1.0))
        if (round_s := self.scheduler.policy.triggers.round_s) is not None and self.state.open:
            times.append((math.floor(self.now_s / max(round_s, 60.0)) + 1) * max(round_s, 60.0))
        return min(times, default=math.inf)


@dataclass
class Hits:
    """Forecasts, and what became of them."""

    spans: dict[tuple[str, str], tuple[float, float, float]] = field(
        default_factory=dict
    )  # (what, job) → when, low, high
    found: Counter[tuple[str, str]] = field(default_factory=Counter)  # (what, inside | early | late)
    width_s: dict[str, list[float]] = field(default_factory=lambda: {"start": [], "end": []})

    def foresee(self, world: World, draws: int) -> None:
        """What is said now of jobs of which nothing was said before."""
        fork = fork_of(world.state, world.now_s, memory=world.memory)
        outlook = outlook_of(fork, draws)
        for member in fork.members:
            job = str(member.job.id)
            waits = member.held is None and not world.state.jobs[job].accounting.starts
            for what, span in (
                *((("start", outlook.start(job)),) if waits else ()),
                ("end", outlook.end(job)),
            ):
                if (what, job) not in self.spans and isfinite(span.middle_s):
                    self.spans[what, job] = world.now_s, span.low_s, span.high_s

    def compare(self, state: State) -> None:
        """What has happened, beside what was said of it."""
        for (what, job), (_, low_s, high_s) in self.spans.items():
            record = state.jobs[job]
            at_s = record.accounting.first_start_s if what == "start" else record.ended_s
            if not isfinite(at_s):
                continue
            word = "early" if at_s < low_s - 1.0 else "late" if at_s > high_s + 1.0 else "inside"
            self.found[what, word] += 1
            if isfinite(high_s):
                self.width_s[what].append(high_s - low_s)

    def add(self, other: "Hits") -> None:
        """Count those of another life of a service, too."""
        self.found += other.found
        for what, widths in other.width_s.items():
            self.width_s[what] += widths


def arrivals_of(trace: str, said: str, jobs: int, seed: int) -> list[Arrival]:
    """Jobs of a trace that follow each other, from a place that is drawn."""
    workload = read_trace(trace)
    pairs = sorted(zip(workload.jobs, workload.truths, strict=True), key=lambda pair: pair[0].submitted_s)
    pairs = [pair for pair in pairs if isfinite(pair[1].duration_s) and pair[0].gpus <= 64]
    draw = np.random.default_rng(seed)
    first = int(draw.integers(0, max(len(pairs) - jobs, 1)))
    chosen = pairs[first : first + jobs]
    begins_s = chosen[0][0].submitted_s

    def word(lasts_s: float) -> float | None:
        if said == "more":
            return lasts_s * float(draw.uniform(1.0, 5.0))
        return lasts_s * float(np.exp(0.5 * draw.normal())) if said == "about" else None

    return [
        Arrival(job.submitted_s - begins_s, job.gpus, max(truth.duration_s, 1.0), word(truth.duration_s))
        for job, truth in chosen
    ]


def played(policy: str, arrivals: list[Arrival], forecasts: int, draws: int) -> Hits:
    """A service of a size that jobs have to wait, up to the last end."""
    span_s = max(arrivals[-1].at_s, 1.0)
    asked = sum(job.gpus * min(job.lasts_s, span_s - job.at_s) for job in arrivals) / (LOAD * span_s)
    nodes = max(math.ceil(asked / GPUS_OF_A_NODE), math.ceil(max(a.gpus for a in arrivals) / GPUS_OF_A_NODE))
    world, hits = World(policy, nodes * GPUS_OF_A_NODE), Hits()
    coming = [(arrival.at_s, number, arrival) for number, arrival in enumerate(arrivals, start=1)]
    heapq.heapify(coming)
    looks = iter(np.linspace(WARM, 0.9, forecasts) * len(arrivals))
    look = next(looks)
    while coming or world.state.open:
        world.now_s = min(coming[0][0] if coming else math.inf, world.next_s())
        world.end_due()
        while coming and coming[0][0] <= world.now_s:
            _, number, arrival = heapq.heappop(coming)
            world.submit(str(number), arrival)
        world.decide()
        if len(world.state.ended) >= look:
            hits.foresee(world, draws)
            look = next(looks, math.inf)
    hits.compare(world.state)
    return hits


def figures(hits: Hits) -> dict[str, Any]:
    """Shares of what lies inside, before and after the intervals."""
    rows: dict[str, Any] = {}
    for what in ("start", "end"):
        total = sum(hits.found[what, word] for word in ("inside", "early", "late"))
        rows[what] = {
            "forecasts": total,
            **{
                word: round(hits.found[what, word] / max(total, 1), 3) for word in ("inside", "early", "late")
            },
            "width_h": round(float(np.median(hits.width_s[what] or [0.0])) / 3600, 2),
        }
    return rows


def settings(wanted: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Policy, trace, and what owners say."""
    for policy in wanted.policies:
        for trace, said in SETTINGS:
            if not wanted.traces or trace in wanted.traces:
                yield policy, trace, said


def main() -> None:
    """Measure, and print one JSON object for each trace."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--forecasts", type=int, default=40)
    parser.add_argument("--draws", type=int, default=9)
    parser.add_argument("--policies", nargs="+", default=["fifo"])
    parser.add_argument("--traces", nargs="+", default=[])
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="places in the traces; one sum of all"
    )
    wanted = parser.parse_args()
    print(json.dumps({"cores": os.cpu_count(), **vars(wanted)}))
    for policy, trace, said in settings(wanted):
        hits = Hits()
        for seed in wanted.seeds:
            arrivals = arrivals_of(trace, said, wanted.jobs, seed)
            hits.add(played(policy, arrivals, wanted.forecasts, wanted.draws))
        print(json.dumps({"policy": policy, "trace": trace, "owners": said, **figures(hits)}), flush=True)


if __name__ == "__main__":
    main()
