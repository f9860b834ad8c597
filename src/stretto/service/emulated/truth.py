"""What a submitted job really does on the emulated cluster, by what its owner said of it.

A job runs by the clock if it states `expected_time`, or if its label `emulated.duration_s` says how long it
really takes. It takes so long on what it asks for, and is faster or slower elsewhere as recorded jobs are.
One that states neither, and whose `model` has a measured profile or is in the catalogue, trains epoch by
epoch. Where it states `stop.steps`, it ends after so many. If its purpose is batch inference, it passes
`stop.steps` times `batch.init` items forward. One that serves does so for as long as it states, with batches
that take what a pass forward of its `model` does. Any other runs for an hour. So does one that may mix GPU
types, unless it says how long it takes. How fast a training of the catalogue is on several types at once is
not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, nan
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from stretto.backends.protocol import Phase, WorkerState
from stretto.model import (
    Adaptivity,
    Cluster,
    InputError,
    MeasuredSpeeds,
    Purpose,
    TrainingLimits,
)
from stretto.service.state.records import JobRecord
from stretto.service.state.reported_metrics import REQUESTS
from stretto.sim.settings import Batches, SimSettings
from stretto.sim.setup import truth_of
from stretto.sim.truth.inference import InferenceTruth, inference_truth
from stretto.sim.truth.profiles import ProfileLibrary
from stretto.sim.truth.scaling import Curves
from stretto.sim.truth.serving import ServingRun, ServingTruth, serving_truth
from stretto.sim.truth.training import TrainingRun, TrainingTruth
from stretto.sim.truth.training_length import training_of

USUAL_S = 3600.0  # of a job of which nothing is known; chosen: an hour is easy to recognise
DURATION, SAVING = "emulated.duration_s", "emulated.saving_s"  # labels


class Granted(NamedTuple):
    """GPUs that a job holds."""

    shape: tuple[int, ...] = ()  # on each node, in the order of nodes
    by_type: Mapping[int, int] = MappingProxyType({})


class Run(Protocol):
    """One job's true state, advanced a stretch of time after the other."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def words(self) -> str:
        """What it follows, for people."""

    @property
    def reports(self) -> bool:
        """Whether there is anything to tell while it runs."""

    def start_s(self, resumes: bool, gpus: int) -> float:
        """From the start of its processes to the first step."""

    def give(self, granted: "Granted", now_s: float, pause_s: float) -> None:
        """It holds these GPUs now, and goes on after a pause; none: it stops. Keeps what it has done."""

    def advance(self, now_s: float) -> bool:
        """Run up to now; whether an epoch has ended on the way."""

    def next_s(self) -> float:
        """When an epoch, or everything, ends if nothing changes."""

    def report(self) -> dict[str, Any]:
        """What rank 0 tells, and all that is needed to go on from there."""

    def restore(self, report: Mapping[str, Any]) -> None:
        """Go on from where a report was made."""

    def profile(self) -> dict[str, Any]:
        """What a short run on one GPU of each type told before; empty where nothing was measured."""


@dataclass
class Truths:
    """Makes what jobs really do; equal jobs share what is costly."""

    cluster: Cluster
    settings: SimSettings
    profiles: ProfileLibrary | None = None
    curves: Curves = field(init=False)
    _made: dict[str, TrainingTruth | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is made yet."""
        self.curves = Curves(self.cluster, self.settings)

    def run_of(self, record: JobRecord) -> Run:
        """What one job really does."""
        duration_s = seconds_of(record.spec.labels, DURATION) or record.spec.expected_time_s
        serves = record.job.purpose is Purpose.SERVING
        by_model = serves or not (duration_s or record.job.heterogeneous)
        truth = self._truth(record) if by_model else None
        if truth is not None and serves:
            # One that promises too much is late, as it would be anywhere.
            served = serving_truth(record.job, duration_s or USUAL_S, truth, self.cluster, must_keep=False)
            return Training(ServingRun(served, served.limits, 0, self.settings), self.cluster)
        if truth is not None and record.job.purpose is Purpose.BATCH_INFERENCE:
            stop = record.spec.stop
            if stop is not None and stop.steps and record.job.batch_size:
                infers = inference_truth(record.job, float(stop.steps), truth, self.cluster)
                return Training(TrainingRun(infers, infers.limits, 0, self.settings), self.cluster)
        elif truth is not None:
            fixed = self.settings.batches is Batches.TUNED or record.job.adaptivity is not Adaptivity.ADAPTIVE
            batch = (record.job.batch_size or truth.limits.init_batch) if fixed else 0
            steps_of_one = 1.0
            if record.spec.stop is not None and record.spec.stop.steps:
                truth = training_of(truth, record.spec.stop.steps, record.job.batch_size)
                steps_of_one = record.spec.stop.steps / truth.epoch_ends[-1]
            run = TrainingRun(truth, truth.limits, batch, self.settings)
            return Training(run, self.cluster, steps_of_one)
        table = self.curves.of(record.job, np.array([gpu_type.speed for gpu_type in self.cluster.types]))
        keeps = self.settings.checkpoints if record.job.checkpoints is None else record.job.checkpoints
        return Recorded(duration_s or USUAL_S, table, self.cluster, self.settings, keeps)

    def _truth(self, record: JobRecord) -> TrainingTruth | None:
        model = record.spec.model
        if not model:
            return None
        if model not in self._made:
            try:
                self._made[model] = truth_of(record.job, self.cluster, self.settings, self.profiles)
            except InputError:
                self._made[model] = None
        return self._made[model]


@dataclass(slots=True)
class Training:
    """A training of a known model: `TrainingRun` behind the face of a job."""

    run: TrainingRun
    cluster: Cluster
    steps_of_one: float = 1.0  # steps as its owner counts them, in one of progress
    told: set[tuple[int, int, int, int]] = field(default_factory=set)  # operating points, by type

    @property
    def done(self) -> bool:
        """All epochs are finished."""
        return self.run.done

    @property
    def words(self) -> str:
        """What it follows."""
        if isinstance(self.run.truth, ServingTruth):
            return f"serving for {self.run.truth.epoch_ends[-1]:g} s"
        if isinstance(self.run.truth, InferenceTruth):
            return f"an inference of {self.run.truth.epoch_ends[-1]:.0f} batches"
        return f"a training of {len(self.run.truth.epoch_ends)} epochs"

    @property
    def reports(self) -> bool:
        """What it measures, and how far it is."""
        return True

    def start_s(self, resumes: bool, gpus: int) -> float:
        """As the settings say, or as its model takes."""
        set_s = self.run.settings.start_s
        return self.run.truth.restart_s if set_s is None else set_s

    def give(self, granted: Granted, now_s: float, pause_s: float) -> None:
        """Train on other GPUs, or on none."""
        self.run.advance(now_s)
        if not granted.shape:
            self.run.give(-1, (), moved=True, now_s=now_s)
            return
        (kind,), shape = granted.by_type, granted.shape
        if not self.run.truth.limits.max_local[kind]:
            raise InputError(f"the model does not run on {self.cluster.type_names[kind]}")
        self.run.give(kind, shape, moved=True, now_s=now_s)
        self.run.countdown_s = pause_s

    def advance(self, now_s: float) -> bool:
        """Run up to now."""
        epoch = self.run.epoch
        self.run.advance(now_s)
        return self.run.epoch > epoch

    def next_s(self) -> float:
        """The end of the epoch."""
        return self.run.next_epoch_s()

    def report(self) -> dict[str, Any]:
        """As the SDK does it: points are told once, each on the type on which it was measured."""
        run = self.run
        limits, evidence, ends = run.truth.limits, run.evidence, run.truth.epoch_ends
        assert evidence is not None
        if isinstance(run.truth, ServingTruth):
            return self._report_of_serving(run.truth)
        told: dict[str, Any] = {
            "step": int(run.progress * self.steps_of_one),
            "epoch": run.epoch,
            "samples": run.samples,
            "dataset_samples": ends[-1] * limits.init_batch / len(ends),
            "progress_steps": run.progress * self.steps_of_one,
            "init_batch": limits.init_batch,
            "max_batch": limits.max_batch,
            "batch": run.replicas * run.local_batch * (run.accumulation + 1) if run.shape else None,
            "grad_sqr": _finite(evidence.grad_sqr),
            "grad_var": _finite(evidence.grad_var),
        }
        if run.shape:
            told["points"] = self._new_points()
            told["left_s"] = _finite(run.left_s())
        return {key: value for key, value in told.items() if value is not None}

    def _report_of_serving(self, truth: ServingTruth) -> dict[str, Any]:
        run = self.run
        assert isinstance(run, ServingRun)
        told: dict[str, Any] = {
            "samples": int(run.samples),
            "progress_steps": run.progress,
            "epoch": run.epoch,
        }
        late = int((run.progress - run.kept_s) * truth.service_level.requests_per_s)
        told[REQUESTS] = {"all": {"answered": int(run.samples), "late": late}}
        if run.shape:
            largest = int(truth.limits.max_local[run.kind])
            told |= {"max_local": largest, "points": self._new_points()}
        return told

    def _new_points(self) -> list[list[float]]:
        """What was measured on the type that it holds, and not told yet."""
        run = self.run
        assert run.evidence is not None
        points = [
            [point.nodes, point.gpus, point.local_batch, 1, point.grad_s, point.step_s]
            for point in run.evidence.observed[run.kind].points
            if (run.kind, *point[:3]) not in self.told
        ]
        self.told |= {(run.kind, int(point[0]), int(point[1]), int(point[2])) for point in points}
        return points

    def restore(self, report: Mapping[str, Any]) -> None:
        """Progress is what counts; operating points are measured again, and dropped where they are known."""
        self.run.epoch = int(report.get("epoch", 0))
        self.run.progress = float(report.get("progress_steps", 0.0)) / self.steps_of_one
        self.run.samples = float(report.get("samples", 0.0))

    def profile(self) -> dict[str, Any]:
        """The limits of its batches, and the speed of one replica, by GPU type."""
        if isinstance(self.run.truth, ServingTruth):  # what keeps its latency is measured while it serves
            return {}
        return profile_json(self.run.visible, self.cluster)


@dataclass(slots=True)
class Recorded:
    """A job of which only its duration is known, in seconds on what it asked for."""

    work_s: float
    table: MeasuredSpeeds
    cluster: Cluster
    settings: SimSettings
    keeps: bool  # its progress, when it is stopped
    left_s: float = nan  # of the work, as of `since_s`
    speed: float = 0.0
    since_s: float = 0.0  # from when on it runs at that speed

    def __post_init__(self) -> None:
        """All work is before it."""
        self.left_s = self.work_s

    @property
    def done(self) -> bool:
        """Whether no work is left, but what rounding of times may leave."""
        return self.left_s <= 1e-6

    @property
    def words(self) -> str:
        """What it follows."""
        return f"a run of {self.work_s:g} s"

    @property
    def reports(self) -> bool:
        """Its end follows from what it said when it began or stopped."""
        return False

    def start_s(self, resumes: bool, gpus: int) -> float:
        """Recorded durations hold the first start already."""
        more_s = self.settings.restart_per_gpu_s * (gpus - 1)
        return self.settings.restart_s + more_s if resumes else 0.0

    def give(self, granted: Granted, now_s: float, pause_s: float) -> None:
        """Work on other GPUs, or on none."""
        self.advance(now_s)
        if not granted.shape:
            self.speed = 0.0
            if not self.keeps and not self.done:
                self.left_s = self.work_s
            return
        self.speed, self.since_s = self._speed_on(granted), now_s + pause_s

    def _speed_on(self, granted: Granted) -> float:
        """Work per second, as in simulations. Raises InputError for GPUs on which it does not run."""
        kinds, mixed = list(granted.by_type), len(granted.by_type) > 1
        fewest_nodes = -(-sum(granted.shape) // int(self.cluster.gpus_per_node[kinds[0]]))
        table = (
            self.table.spread_per_s if not mixed and len(granted.shape) > fewest_nodes else self.table.per_s
        )
        parts = [float(table[kind, gpus]) for kind, gpus in granted.by_type.items()]
        for kind, speed in zip(kinds, parts, strict=True):
            if isnan(speed):
                gpus, name = granted.by_type[kind], self.cluster.type_names[kind]
                raise InputError(f"the job does not run on {gpus} GPUs of {name}")
        return sum(parts) * (self.settings.mixing if mixed else 1.0)

    def advance(self, now_s: float) -> bool:
        """Work up to now; there are no epochs."""
        ran_s = now_s - self.since_s
        if ran_s > 0:
            self.left_s = max(self.left_s - ran_s * self.speed, 0.0)
            self.since_s = now_s
        return False

    def next_s(self) -> float:
        """The end."""
        return self.since_s + self.left_s / self.speed if self.speed > 0 else inf

    def report(self) -> dict[str, Any]:
        """Work that is left; the owner's own expectation says the rest."""
        return {"work_left_s": self.left_s}

    def restore(self, report: Mapping[str, Any]) -> None:
        """Go on with what was left."""
        self.left_s = float(report.get("work_left_s", self.work_s))

    def profile(self) -> dict[str, Any]:
        """Nothing was measured."""
        return {}


def profile_json(limits: TrainingLimits, cluster: Cluster) -> dict[str, Any]:
    """What is known of a model before it runs, by names of GPU types."""
    names = cluster.type_names
    ratio = limits.single_ratio
    return {
        "init_batch": limits.init_batch,
        "max_batch": limits.max_batch,
        "restart_s": limits.restart_s,
        "reach_gpus": limits.reach_gpus,
        "accumulates": limits.accumulates,
        "types": {
            name: {
                "min_local": int(limits.min_local[kind]),
                "max_local": int(limits.max_local[kind]),
                "replica_gpus": int(limits.replica_gpus[kind]),
                "single_per_s": _finite(float(limits.single_per_s[kind])),
                "over": {}
                if ratio is None
                else {
                    other: float(ratio[kind, index])
                    for index, other in enumerate(names)
                    if isfinite(ratio[kind, index])
                },
            }
            for kind, name in enumerate(names)
        },
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def seconds_of(labels: Mapping[str, str], key: str) -> float:
    """A label that is a positive number of seconds; 0 where there is none. Raises InputError."""
    text = labels.get(key)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not (isfinite(value) and value > 0):
        raise InputError(f"label {key}: expected seconds above 0, got {text!r}")
    return value


# ── workers and jobs of the emulated cluster as values ──────────────────────────────────────────────────────


@dataclass(slots=True)
class EmulatedWorker:
    """One worker: what a process would be."""

    id: str
    job: str
    attempt: int
    node: str
    node_index: int
    kind: int
    gpus: tuple[int, ...]
    peers: int  # workers of the attempt that it was started with, itself included
    grace_s: float
    phase: Phase = "starting"
    ready_s: float = nan  # when its start is over
    status: int | None = None
    stopped: bool = False
    started_s: float = nan
    ended_s: float = nan
    why: str = ""

    @property
    def lives(self) -> bool:
        """Whether it holds its GPUs."""
        return self.phase != "ended"

    def shown(self) -> WorkerState:
        """As a backend shows it."""
        ended = self.phase == "ended"
        return WorkerState(
            id=self.id,
            node=self.node,
            gpus=self.gpus,
            phase=self.phase,
            status=self.status,
            signal=self.status - 128 if self.status is not None and self.status > 128 else None,
            stopped=self.stopped,
            started_s=self.started_s,
            ended_s=self.ended_s if ended else None,
            lasted_s=self.ended_s - self.started_s if ended else None,
            job=self.job,
            why=self.why,
        )


@dataclass(slots=True)
class EmulatedJob:
    """One job: its true state, and those of its workers that the backend lists."""

    id: str
    run: Run
    in_place: bool  # changes its size without stopping
    saving_s: float = 0.0  # from being asked to stop to its end
    workers: dict[str, EmulatedWorker] = field(default_factory=dict)
    training: tuple[str, ...] = ()  # the workers that train together now, by rank
    generation: tuple[int, int] = (0, 0)  # attempt, number: numbers begin anew with every attempt
    has_run: bool = False
    finished: bool = False
    stamp: int = 0  # of the one look at it that is still to come
    reported_s: float = 0.0
    fresh: bool = False  # has not reported since it got these GPUs
    saved: dict[str, Any] = field(default_factory=dict)  # the report at its newest checkpoint

    def alive(self) -> list[EmulatedWorker]:
        """Workers that hold GPUs."""
        return [worker for worker in self.workers.values() if worker.lives]

    def granted_to(self, names: tuple[str, ...]) -> Granted:
        """The GPUs of some of its workers."""
        gpus_on: dict[int, int] = {}
        by_type: dict[int, int] = {}
        for name in names:
            worker = self.workers[name]
            gpus_on[worker.node_index] = gpus_on.get(worker.node_index, 0) + len(worker.gpus)
            by_type[worker.kind] = by_type.get(worker.kind, 0) + len(worker.gpus)
        return Granted(tuple(gpus_on[node] for node in sorted(gpus_on)), by_type)
