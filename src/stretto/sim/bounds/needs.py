"""What jobs cannot do without, whatever is decided: the least time, the least GPU time, the most speed.

All are the best over all placements and batch sizes that a job may have. The work of a training is cut into
parts, its epochs, since the best batch changes as it goes on. Work counts in seconds at the fastest of each
part. The speed on a number of GPUs is that of the part that gains most by them, and parts may be done in any
order. That can only make a bound lower.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from stretto.estimate.efficiency import gain
from stretto.model import BoolArray, Cluster, FloatArray, Job, MeasuredSpeeds, floats, frozen
from stretto.sim.physics import Physics
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.truth.profiled import ProfiledTruth
from stretto.sim.truth.step_times import consolidated
from stretto.sim.truth.training import TrainingRun, TrainingTruth, split
from stretto.traces.workload import reach_of

BATCHES = 48  # total batches that are tried, spaced geometrically; chosen
SLACK = (
    5e-3  # by which a batch or a placement between those that are tried may be faster; tested by drawn ones
)
FINELY = 64  # GPUs up to which every number is tried; chosen
MORE_NODES = 4  # than the fewest, each number of which is tried; chosen
ROUNDING = 1e-9
LEAST_S = 1e-9  # of a part, where rounding leaves it none
ROUNDING_S = 0.5  # what the clock of Sia's published simulator may give to an epoch


@dataclass(frozen=True, eq=False)
class Needs:
    """The least that one job takes."""

    gpu_s: FloatArray  # (parts, types) GPU-seconds; infinite on a type on which it cannot run
    fastest_s: float
    slowest_s: float  # where it holds what it needs, but the least and slowest of it
    speeds: FloatArray  # (types, most + 1) most work per second by GPUs; 0 where it cannot run
    work: float  # in all
    start_s: float = 0.0  # before its first step
    on_several_types: bool = False  # at once


@dataclass(frozen=True, eq=False)
class NeedsOfJobs:
    """The needs of all jobs of a workload; those of equal jobs are made once."""

    made: Sequence[Needs]
    index: tuple[int, ...]  # (jobs,) into `made`
    times: FloatArray  # (jobs,) by which its work is multiplied: the seconds of a recorded job

    def of_each(self, values: Sequence[float]) -> FloatArray:
        """(jobs,) a figure of each of `made`, in proportion to the work of each job."""
        return floats(values)[list(self.index)] * self.times

    @property
    def start_s(self) -> FloatArray:
        """(jobs,) before the first step of each."""
        return floats([needs.start_s for needs in self.made])[list(self.index)]


def needs_of(physics: Physics, settings: SimSettings) -> NeedsOfJobs:
    """What each job of a world cannot do without."""
    cluster = physics.requests.cluster
    reach = reach_of(cluster)
    made: dict[object, int] = {}
    needs: list[Needs] = []
    index, times = [], np.ones(len(physics.requests.jobs))
    speeds: dict[tuple[TrainingTruth, int], FloatArray] = {}
    for row, job in enumerate(physics.requests.jobs):
        run = physics.training.get(row)
        sizes = _Sizes(cluster, reach, job)
        if run is None:
            table = physics.tables[row]
            factor = _most_by_cores(physics, row, cluster)
            key: object = (id(table), sizes.key, factor, job.heterogeneous)
            times[row] = physics.recorded.work_s[row]
        else:
            key = (run.truth, run.fixed_batch, sizes.key)
        if key not in made:
            made[key] = len(needs)
            if run is None:
                needs.append(_recorded(table, sizes, factor, settings.mixing if job.heterogeneous else 0.0))
            else:
                of_truth = (run.truth, run.fixed_batch)
                if of_truth not in speeds:
                    speeds[of_truth] = part_seconds(run.truth, run.fixed_batch, cluster, settings)
                needs.append(_training(speeds[of_truth], sizes, run, settings))
        index.append(made[key])
    return NeedsOfJobs(needs, tuple(index), times)


class _Sizes:
    """(types, most + 1) which numbers of GPUs a job may hold."""

    def __init__(self, cluster: Cluster, reach: Sequence[int], job: Job) -> None:
        accepted = tuple(not job.gpu_types or name in job.gpu_types for name in cluster.type_names)
        self.key = (accepted, job.min_gpus, job.max_gpus)
        gpus = np.arange(int(cluster.capacity.max()) + 1)
        most = np.minimum(job.max_gpus * cluster.stand_ins, reach)
        allowed = (gpus >= job.min_gpus) & (gpus <= most[:, None]) & (gpus > 0)
        self.allowed: BoolArray = allowed & np.array(accepted)[:, None]
        self.gpus = gpus


# ── recorded jobs: speed by GPUs ──────────────────────────────────────────────────────────────────


def _recorded(table: MeasuredSpeeds, sizes: _Sizes, factor: float, mixing: float) -> Needs:
    """Of one second of a recorded job."""
    best = np.fmax(table.per_s, table.spread_per_s) * factor
    runs = sizes.allowed & (best > 0)
    seconds = np.where(runs, 1.0 / np.where(runs, best, 1.0), inf)
    fastest_s = seconds.min()
    if mixing:  # on several types at once it is as fast as its parts together, at the most
        fastest_s = min(fastest_s, 1.0 / (mixing * (1.0 / seconds.min(axis=1)).sum()))
    return _needs(seconds[:, :, None], sizes, np.full(1, fastest_s), on_several_types=mixing > 0)


def _most_by_cores(physics: Physics, row: int, cluster: Cluster) -> float:
    """By how much more cores than its proportional share can speed a recorded job up."""
    cores = physics.recorded.cpus_per_gpu
    if cores is None or not cores[row] > 0:
        return 1.0
    usual = [node.cpus / node.gpus for node in cluster.nodes if node.cpus and node.gpus]
    return max((float(cores[row]) / min(each, float(cores[row])) for each in usual), default=1.0)


# ── trainings: steps and their worth ──────────────────────────────────────────────────────────────


def _training(seconds: FloatArray, sizes: _Sizes, run: TrainingRun, settings: SimSettings) -> Needs:
    allowed = np.where(sizes.allowed[:, :, None], seconds, inf)
    fastest_s = allowed.min(axis=(0, 1))
    start_s = run.truth.restart_s if settings.start_s is None else settings.start_s
    return _needs(allowed, sizes, fastest_s, start_s)


def _needs(
    seconds: FloatArray,
    sizes: _Sizes,
    fastest_s: FloatArray,
    start_s: float = 0.0,
    on_several_types: bool = False,
) -> Needs:
    """seconds: (types, most + 1, parts) of each part on so many GPUs, infinite where a job cannot run."""
    runs: BoolArray = np.asarray(np.isfinite(seconds).all(axis=2))
    gpu_s = np.where(runs[:, :, None], seconds, inf) * np.maximum(sizes.gpus, 1)[:, None]
    whole_s = seconds.sum(axis=2)
    speeds = np.where(runs, (fastest_s / np.where(runs[:, :, None], seconds, 1.0)).max(axis=2), 0.0)
    return Needs(
        gpu_s=frozen(gpu_s.min(axis=1).T),
        fastest_s=float(fastest_s.sum()),
        slowest_s=float(whole_s[runs].max()),
        speeds=frozen(speeds),
        work=float(fastest_s.sum()),
        start_s=start_s,
        on_several_types=on_several_types,
    )


def part_seconds(
    truth: TrainingTruth, fixed_batch: int, cluster: Cluster, settings: SimSettings
) -> FloatArray:
    """(types, most + 1, epochs) least seconds of each epoch of a training on so many GPUs of a type.

    A little less than what was found, by SLACK: not all placements and batches are tried.
    """
    ends = floats(truth.epoch_ends)
    progress = np.diff(ends, prepend=0.0)
    gains = _Gains(truth, len(progress))
    seconds = np.full((len(cluster.types), int(cluster.capacity.max()) + 1, len(progress)), inf)
    for kind, capacity in enumerate(cluster.capacity.tolist()):
        if not truth.limits.max_local[kind]:
            continue
        before = capacity
        for gpus in _sizes_tried(int(truth.limits.replica_gpus[kind]), capacity):
            rate = _best_rate(truth, fixed_batch, cluster, kind, gpus, gains)
            if rate is not None:
                seconds[kind, gpus] = progress / rate
            # Between two sizes that are tried a job is no faster than on the better of them.
            seconds[kind, before + 1 : gpus] = np.minimum(seconds[kind, before], seconds[kind, gpus])
            before = gpus
    seconds *= truth.slowdown * (1.0 - SLACK)
    if settings.fidelity is Fidelity.ARTIFACT:
        seconds = np.maximum(seconds - ROUNDING_S, LEAST_S)
    return seconds


def _sizes_tried(fewest: int, most: int) -> Iterator[int]:
    """Every number of GPUs up to FINELY, then every thirtieth part more."""
    gpus = fewest
    while gpus < most:
        yield gpus
        gpus += max(1, gpus * 2 // FINELY)
    if fewest <= most:
        yield most


def _best_rate(
    truth: TrainingTruth, fixed_batch: int, cluster: Cluster, kind: int, gpus: int, gains: "_Gains"
) -> FloatArray | None:
    """(epochs,) most progress per second on so many GPUs, before the slow-down; None where it cannot run."""
    replicas = gpus // int(truth.limits.replica_gpus[kind])
    splits = _splits(truth, kind, replicas, fixed_batch)
    if not splits:
        return None
    shapes = list(_shapes(truth, cluster, kind, gpus))
    best = np.zeros(gains.epochs)
    for local, passes in splits:
        iteration_s = min(
            passes * (step_s - sync_s) + sync_s
            for step_s, sync_s in (truth.step(kind, shape, local) for shape in shapes)
        )
        np.maximum(best, gains.of(replicas * local * passes) / iteration_s, out=best)
    return best


def _splits(truth: TrainingTruth, kind: int, replicas: int, fixed_batch: int) -> list[tuple[int, int]]:
    """(local batch, passes) that are tried: of the fixed batch, or of many as large as the model allows."""
    limits, most_local = truth.limits, int(truth.limits.max_local[kind])
    if fixed_batch:
        local, accumulation = split(fixed_batch, replicas, most_local)
        return [(local, accumulation + 1)]
    largest = max(limits.max_batch // replicas, 1)
    tried = set()
    for share in np.geomspace(1, largest, BATCHES).tolist():
        fewest = ceil(share / most_local - ROUNDING)
        tried |= {(max(round(share / passes), 1), passes) for passes in (fewest, fewest + 1)}
    for passes in range(1, largest // most_local + 1):  # what fills the memory of GPUs
        tried.add((most_local, passes))
    return sorted(tried)


def _shapes(truth: TrainingTruth, cluster: Cluster, kind: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """GPUs on each node: as few nodes as can be, some more and the most, evenly, and what was measured."""
    per_node = int(cluster.gpus_per_node[kind])
    yield consolidated(gpus, per_node)
    nodes = int((cluster.kind == kind).sum())
    fewest, most = -(-gpus // per_node), min(gpus, nodes)
    for used in sorted({*range(fewest, min(fewest + MORE_NODES, most) + 1), most}):
        each, rest = divmod(gpus, used)
        yield (each + 1,) * rest + (each,) * (used - rest)
    if isinstance(truth, ProfiledTruth):
        profiled: Mapping[tuple[int, ...], object] = truth.model.on(truth.types[kind]).profiled
        for shape in profiled:
            if sum(shape) == gpus and len(shape) <= nodes and max(shape) <= per_node:
                yield shape


class _Gains:
    """Progress of one iteration by its total batch, for every epoch of a training."""

    def __init__(self, truth: TrainingTruth, epochs: int) -> None:
        self.truth, self.epochs = truth, epochs
        self._made: dict[float, FloatArray] = {}

    def of(self, batch: float) -> FloatArray:
        """(epochs,) in iterations of the initial batch."""
        if batch not in self._made:
            sqr, var = floats([self.truth.grad_stats(batch, epoch) for epoch in range(self.epochs)]).T
            self._made[batch] = gain(batch, self.truth.limits.init_batch, var, sqr)
        return self._made[batch]
