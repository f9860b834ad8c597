"""How a training went: its loss over time, how fast it was at each size, and what changes of size cost.

Made of what the log keeps of one job, in the order in which it happened.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

from stretto.service.state.size_changes import Size

CURVES = ("loss", "metric", "batch")
SWITCHES = frozenset({"WorkersWanted", "AttemptClosed", "Generation", "WorkersJoined", "Joined"})
LEAST_MEASURED_S = 1.0  # between two reports; chosen: what lies nearer says nothing of speed


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a job."""

    at_s: float
    kind: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """What a training said of itself at one time."""

    at_s: float
    step: int | None
    epoch: int | None
    loss: float | None
    metric: float | None
    batch: int | None  # samples of a step

    @property
    def says_something(self) -> bool:
        """Whether there is anything to draw."""
        return self.loss is not None or self.metric is not None or self.batch is not None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a training came on at one size, over all the time that it had it."""

    gpu_type: str
    gpus: float
    steps_per_s: float  # of the initial batch, where it says so: measured goodput
    over_s: float  # so long was measured


@dataclass(frozen=True, slots=True)
class Resize:
    """A change of size, and what it cost."""

    at_s: float  # when it was decided
    gpus_before: float
    gpus: float
    gpu_type: str
    how: str  # start, restart, in place, stop
    trains_after_s: (
        float | None
    )  # from then until all workers trained at the new size; None: not yet, or never
    lost_s: float | None  # in which it did not train, or trained in vain; None: not known
    reason: str


def points_of(events: Iterable[Happened]) -> list[Point]:
    """What was reported over time; step and epoch go on as they were where a report leaves them out."""
    points, step, epoch = [], None, None
    for event in events:
        if event.kind != "Reported":
            continue
        report = event.body["report"]
        step, epoch = report.get("step", step), report.get("epoch", epoch)
        loss, metric, batch = (_number(report.get(name)) for name in CURVES)
        point = Point(event.at_s, step, epoch, loss, metric, None if batch is None else int(batch))
        if point.says_something:
            points.append(point)
    return points


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of them, evenly by number; the first and the last stay."""
    if len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def paces_of(events: Iterable[Happened], sizes: Sequence[Size]) -> list[Pace]:
    """Measured speed at each size, between reports that lie in one time of unchanged size."""
    steps: dict[tuple[str, float], float] = {}
    over_s: dict[tuple[str, float], float] = {}
    before: tuple[float, float] | None = None  # time and steps of the last report
    place = -1
    for event in events:
        if event.kind in SWITCHES:  # what is reported across one is of no single size
            before = None
        if event.kind != "Reported":
            continue
        report = event.body["report"]
        done = _number(report.get("progress_steps", report.get("step")))
        now = _place(sizes, event.at_s)
        if done is None or now < 0:
            continue
        if before is not None and now == place and done >= before[1]:
            took_s = event.at_s - before[0]
            if took_s < LEAST_MEASURED_S:
                continue
            key = sizes[now].gpu_type, sizes[now].gpus
            steps[key] = steps.get(key, 0.0) + done - before[1]
            over_s[key] = over_s.get(key, 0.0) + took_s
        place, before = now, (event.at_s, done)
    return [
        Pace(gpu_type, gpus, steps[gpu_type, gpus] / over_s[gpu_type, gpus], over_s[gpu_type, gpus])
        for gpu_type, gpus in sorted(steps)
        if gpus > 0
    ]


def _place(sizes: Sequence[Size], at_s: float) -> int:
    """Which of the sizes a job had; -1 before the first."""
    return bisect_right(sizes, at_s, key=lambda size: size.at_s) - 1


@dataclass
class _Switch:
    """A change of size on its way."""

    events: Sequence[Happened]
    uses_generations: bool
    until_s: float
    closed: bool = field(init=False, default=False)

    def trained(self, from_s: float) -> tuple[float | None, float]:
        """(when all workers trained, what they say that was lost), of the first such time since `from_s`."""
        expected: set[str] | None = None
        joined: set[str] = set()
        number, lost_s = -1, 0.0
        first = bisect_left(self.events, from_s, key=lambda event: event.at_s)
        for event in islice(self.events, first, None):
            if event.at_s >= self.until_s:
                break
            body = event.body
            match event.kind:
                case "AttemptClosed":
                    self.closed, expected = True, None
                case "WorkersWanted" if not self.uses_generations:
                    expected, joined = {str(worker["id"]) for worker in body["workers"]}, set()
                case "WorkersRan" if not self.uses_generations and expected is not None:
                    joined |= set(body["workers"])
                case "Generation" if body["workers"]:
                    expected, joined, number = set(body["workers"]), set(), body["number"]
                case "Joined" | "WorkersJoined" if body["number"] == number and expected is not None:
                    joined |= {body["worker"]} if event.kind == "Joined" else set(body["workers"])
                    lost_s = max(lost_s, float(body.get("lost_s") or 0.0))
            if expected and joined >= expected:
                return event.at_s, lost_s
        return None, lost_s


def resizes_of(sizes: Sequence[Size], events: Sequence[Happened]) -> Iterator[Resize]:
    """Every change of size with its cost, in order."""
    uses_generations = any(event.kind == "Generation" for event in events)
    before, has_held = 0.0, False
    for index, size in enumerate(sizes):
        until_s = sizes[index + 1].at_s if index + 1 < len(sizes) else float("inf")
        switch = _Switch(events, uses_generations, until_s)
        trains_s, lost_s = switch.trained(size.at_s) if size.gpus else (None, 0.0)
        after_s = None if trains_s is None else max(trains_s - size.at_s, 0.0)
        how = "stop" if not size.gpus else "start" if not has_held else "in place"
        if size.gpus and has_held and (not before or switch.closed):
            how = "restart"
        # Within a switch in place the others go on training; after a restart nothing trained until then.
        cost_s = after_s if how in ("start", "restart") else lost_s if trains_s is not None else None
        yield Resize(size.at_s, before, size.gpus, size.gpu_type, how, after_s, cost_s, size.reason)
        before, has_held = size.gpus, has_held or size.gpus > 0


def _number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
