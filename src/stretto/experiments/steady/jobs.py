"""Jobs of a cluster in a steady state: what each asks for, how long it stays, and what it has shown by now.

GPUs and durations are drawn as published about Philly (`traces/makers.py`). At some moment there are more
long jobs than among all that are submitted. So the jobs that are there at first are drawn in proportion
to their durations. Each has been there for a uniformly distributed part of its own. That is what a queue
without waiting comes to. Jobs that arrive later are drawn as they are submitted.

What a job trains is a model of the catalogue, of the size class of its GPU time, at a pace of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.catalogue import CatalogueModel, read_catalogue
from stretto.estimate.throughput import grad_s, step_s
from stretto.model import (
    NOTHING_OBSERVED,
    Adaptivity,
    BoolArray,
    Cluster,
    FloatArray,
    IntArray,
    Job,
    JobId,
    Observations,
    Point,
    TrainingLimits,
)
from stretto.sim.truth.parametric import STAGES, parametric_truth
from stretto.traces.makers import SIZE_CLASSES, draw_durations_s, draw_gpus

LARGE = 0.01  # of the jobs are rigid and large
LARGE_GPUS = (512, 768, 1024, 2048)  # of these; chosen
MANY_GPUS = 10_000  # where there are so many GPUs there are large jobs
CLASS_BOUNDS_GPU_S = (3_600.0, 36_000.0, 360_000.0)  # size classes of Philly's jobs, as Sia (SOSP 2023)
PACE_SPREAD = 0.25  # of a job's speed beside that of its model, as the deviation of its logarithm; chosen
TIMING_SPREAD = 0.03  # of a measured time, likewise; chosen
BESIDE = 0.5  # chance that a job has run on a type beside its first, for each of the others; chosen
LEAST_LOCAL = 2  # samples of a step for each GPU that a job asks for, at least; chosen
BIASED_FROM = 16  # jobs from which each is drawn in proportion to its duration; chosen


@dataclass(frozen=True, eq=False)
class Models:
    """The models of the catalogue on a cluster: its figures as arrays."""

    cluster: Cluster
    catalogue: Sequence[CatalogueModel]
    limits: Sequence[TrainingLimits]
    params: FloatArray  # (models, types, 7)

    @classmethod
    def on(cls, cluster: Cluster) -> "Models":
        """All of the catalogue."""
        models = list(read_catalogue().values())
        limits = [parametric_truth(model.name, cluster).limits for model in models]
        params = [[model.on(name).params for name in cluster.type_names] for model in models]
        return cls(cluster, models, limits, np.array(params))

    @cached_property
    def by_class(self) -> Sequence[IntArray]:
        """Models of each size class, smallest first."""
        classes = np.array([model.size_class for model in self.catalogue])
        return [np.flatnonzero(classes == each) for each in SIZE_CLASSES]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Jobs as columns, in the order of their submission."""

    gpus: IntArray  # (jobs,) asked for
    duration_s: FloatArray  # (jobs,) from submission to end
    age_s: FloatArray  # (jobs,) at the beginning; negative: submitted later
    model: IntArray  # (jobs,) index into the catalogue
    pace: FloatArray  # (jobs,) its times over those of its model
    batch: FloatArray  # (jobs,) samples of a step
    is_large: BoolArray  # (jobs,) rigid, on many GPUs

    def __len__(self) -> int:
        """The number of jobs."""
        return len(self.gpus)


def draw_jobs(models: Models, present: int, later: Sequence[float], rng: np.random.Generator) -> Drawn:
    """`present` jobs that are there, and one that arrives at each of `later` (s from the beginning)."""
    capacity = int(models.cluster.capacity.max())
    many, most = models.cluster.total_gpus >= MANY_GPUS, min(capacity, 64)
    gpus, duration_s = _met(present, most, rng)
    arriving = draw_gpus(len(later), most, rng)
    gpus = np.concatenate([gpus, arriving])
    duration_s = np.concatenate([duration_s, draw_durations_s(arriving, rng)])
    age_s = np.concatenate([rng.random(present) * duration_s[:present], -np.asarray(later, dtype=np.float64)])
    is_large = (rng.random(len(gpus)) < LARGE) & many
    gpus = np.where(
        is_large, rng.choice([each for each in LARGE_GPUS if each <= capacity] or [1], len(gpus)), gpus
    )

    size = np.searchsorted(CLASS_BOUNDS_GPU_S, gpus * duration_s)
    model = np.array([int(rng.choice(models.by_class[each])) for each in size.tolist()], dtype=np.int64)
    init = np.array([model.init_batch for model in models.catalogue])[model]
    most_batch = np.array([model.max_batch for model in models.catalogue])[model]
    batch = np.maximum(init * (most_batch / init) ** rng.random(len(gpus)), LEAST_LOCAL * gpus)
    pace = rng.lognormal(0.0, PACE_SPREAD, len(gpus))
    order = np.argsort(-age_s, kind="stable")
    return Drawn(
        gpus[order],
        duration_s[order],
        age_s[order],
        model[order],
        pace[order],
        batch[order],
        is_large[order],
    )


def _met(count: int, most: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """GPUs and durations of jobs that are met at some moment: in proportion to their durations."""
    gpus = draw_gpus(count * BIASED_FROM, most, rng)
    duration_s = draw_durations_s(gpus, rng)
    met = rng.choice(len(gpus), size=count, p=duration_s / duration_s.sum())
    return gpus[met], duration_s[met]


def jobs_of(drawn: Drawn, models: Models, began_s: float) -> list[Job]:
    """What each asked for. began_s: the time at which ages are those of `drawn`."""
    names = [model.name for model in models.catalogue]
    largest = models.cluster.type_names[int(models.cluster.capacity.argmax())]
    return [
        Job(
            JobId(f"job-{row:06d}"),
            submitted_s=began_s - age_s,
            gpus=gpus,
            model=names[model],
            batch_size=int(batch),
            adaptivity=Adaptivity.RIGID if is_large else Adaptivity.ADAPTIVE,
            gpu_types=(largest,) if is_large else (),
        )
        for row, (age_s, gpus, model, batch, is_large) in enumerate(
            zip(
                drawn.age_s.tolist(),
                drawn.gpus.tolist(),
                drawn.model.tolist(),
                drawn.batch.tolist(),
                drawn.is_large.tolist(),
                strict=True,
            )
        )
    ]


# ── what a job shows of its speed ─────────────────────────────────────────────────────────────────


def points_of(
    drawn: Drawn,
    models: Models,
    rows: IntArray,
    kind: IntArray,
    nodes: IntArray,
    gpus: IntArray,
    rng: np.random.Generator,
) -> list[Point]:
    """What rows show on so many GPUs of a type: their model's times, at their pace, as a clock sees them."""
    model = drawn.model[rows]
    local = np.ceil(drawn.batch[rows] / gpus)
    low = np.array([limits.min_local for limits in models.limits])[model, kind]
    high = np.array([limits.max_local for limits in models.limits])[model, kind]
    local = np.clip(local, low, np.maximum(high, low)).astype(np.int64)
    params = models.params[model, kind]
    seen = drawn.pace[rows] * rng.lognormal(0.0, TIMING_SPREAD, len(rows))
    alone_s, whole_s = grad_s(params, local) * seen, step_s(params, nodes, gpus, local) * seen
    columns = (nodes, gpus, local, alone_s, np.maximum(whole_s, alone_s))
    return [Point(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def shown_before(
    drawn: Drawn, models: Models, count: int, rng: np.random.Generator
) -> tuple[list[tuple[Observations, ...]], IntArray]:
    """What the first `count` rows have shown by type, and the most GPUs on which (rows,).

    A job has doubled its GPUs until it had what it asked for, or twice as many, on one type. A large job had
    what it asked for. On some other types a job has run on one GPU or two.
    """
    cluster, types = models.cluster, len(models.cluster.types)
    reach = np.array([limits.reach_gpus for limits in models.limits])[drawn.model[:count]]
    largest = np.minimum(drawn.gpus[:count] * rng.integers(1, 3, count), np.maximum(reach, 1))
    large = drawn.is_large[:count]
    largest = np.where(large, drawn.gpus[:count], largest)
    main = np.where(
        large, cluster.capacity.argmax(), rng.choice(types, count, p=cluster.capacity / cluster.total_gpus)
    )
    row, kind, gpus = [], [], []
    for each in range(count):
        sizes = [int(largest[each])]
        while sizes[-1] > 1 and not large[each]:
            sizes.append(sizes[-1] // 2)
        row += [each] * len(sizes)
        kind += [int(main[each])] * len(sizes)
        gpus += sizes
        for other in np.flatnonzero(rng.random(types) < BESIDE).tolist() if not large[each] else ():
            if other != main[each]:
                row.append(each)
                kind.append(other)
                gpus.append(int(rng.integers(1, 3)))
    rows, kinds, counts = (np.array(column, dtype=np.int64) for column in (row, kind, gpus))
    nodes = -(-counts // cluster.gpus_per_node[kinds])
    points: dict[tuple[int, int], list[Point]] = {}
    for each, of_type, point in zip(
        row, kind, points_of(drawn, models, rows, kinds, nodes, counts, rng), strict=True
    ):
        points.setdefault((each, of_type), []).append(point)
    observed = [
        tuple(
            Observations(tuple(points[each, of_type])) if (each, of_type) in points else NOTHING_OBSERVED
            for of_type in range(types)
        )
        for each in range(count)
    ]
    return observed, largest.astype(np.int64)


def noise_of(drawn: Drawn, models: Models, stages: IntArray) -> FloatArray:
    """(jobs,) σ² beside |µ|² = 1, as each reports it in this stage of its training."""
    start = np.array([model.noise_start / model.init_batch for model in models.catalogue])[drawn.model]
    end = np.array([model.noise_end / model.init_batch for model in models.catalogue])[drawn.model]
    done = (np.clip(stages, 0, STAGES - 1) + 0.5) / STAGES
    noise: FloatArray = start ** (1 - done) * end**done
    return noise
