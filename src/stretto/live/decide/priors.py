"""How fast a live job may be, before and after it was measured."""

from functools import lru_cache
from math import nan

import numpy as np

from stretto.live.decide.profiles import limits_in
from stretto.live.state.learned import Points, with_points
from stretto.live.state.records import JobRecord
from stretto.model import (
    NOTHING_OBSERVED,
    UNLIMITED_GPUS,
    Cluster,
    MeasuredSpeeds,
    Observations,
    Point,
    TrainingLimits,
    frozen,
    ints,
)

SCALING = 0.9  # of each doubling of GPUs, while nothing is measured; chosen
RESTART_S = 30.0  # from being given GPUs to the first step, while nothing is measured; chosen
SWITCH_S = 1.0  # the same for a job that can change its size in place, as its workers have shown; chosen
MEASURABLE_S = (1e-9, 1e9)  # of a pass; chosen: a fit to what lies beyond would be one of rounding errors
REACH_GPUS = 64  # of a job whose largest batch is not known; chosen


def prior_table(record: JobRecord, cluster: Cluster) -> MeasuredSpeeds:
    """Speeds relative to what was asked for, by the stated speeds of types and a usual loss by scaling."""
    job = record.job
    reach = min(job.max_gpus if job.max_gpus < UNLIMITED_GPUS else max(4 * job.gpus, job.gpus), 4096)
    return _prior_table(cluster, job.gpus, min(reach, int(cluster.capacity.max())))


@lru_cache(maxsize=4096)
def _prior_table(cluster: Cluster, asked: int, reach: int) -> MeasuredSpeeds:
    gpus = np.arange(int(cluster.capacity.max()) + 1, dtype=np.float64)
    useful = np.minimum(gpus, max(reach, asked))
    with np.errstate(divide="ignore"):
        relative = np.where(
            gpus > 0, (useful / asked) * SCALING ** np.log2(np.maximum(useful, 1e-9) / asked), 0.0
        )
    speeds = np.array([gpu_type.speed for gpu_type in cluster.types])
    per_s = frozen(speeds[:, None] * relative)
    return MeasuredSpeeds(per_s, per_s)


def limits_of(record: JobRecord, cluster: Cluster) -> TrainingLimits | None:
    """The batches that a job may have, from its file and its reports; None while its batch is not known."""
    if record.learned.profile:
        return limits_in(record.learned.profile, cluster.type_names)
    batch, latest = record.spec.batch, {**record.prior.said, **record.learned.latest}
    init = int(batch.init or latest.get("init_batch") or 0)
    if not init:
        return None
    # Where the file and the script both bound it, both hold.
    most = min((int(one) for one in (batch.max, latest.get("max_batch")) if one), default=init)
    most = max(most, init)
    local = min((int(one) for one in (batch.per_gpu, latest.get("max_local")) if one), default=most)
    smallest = max(1, min(local, int(latest.get("min_local") or 1)))
    switches = record.books.switches > 0 or bool(record.speaks)
    return _limits(
        len(cluster.types),
        init,
        most,
        smallest,
        local,
        SWITCH_S if switches else RESTART_S,
        record.job.gpus_per_worker,
        bool(latest.get("accumulates", True)),
        singles(known_points(record), len(cluster.types), record.job.gpus_per_worker),
    )


@lru_cache(maxsize=4096)
def singles(points: Points, types: int, replica: int) -> tuple[float, ...]:
    """Samples/s of one replica by type, as measured; NaN where it never ran alone.

    At the largest local batch that was measured alone on every type where one was, so that types can be
    compared (Sia, equation 1), else at the largest of each.
    """
    rates: list[dict[int, float]] = [{} for _ in range(types)]
    for kind, _, gpus, local, _, grad_s, _ in points:
        if 0 <= kind < types and gpus == replica and _is_measurable(grad_s):
            rates[int(kind)][int(local)] = local / grad_s
    measured = [set(one) for one in rates if one]
    common = max(set.intersection(*measured), default=0) if measured else 0
    return tuple((one[common] if common else one[max(one)]) if one else nan for one in rates)


@lru_cache(maxsize=4096)
def _limits(
    types: int,
    init: int,
    most: int,
    smallest: int,
    local: int,
    restart_s: float,
    replica: int,
    accumulates: bool,
    single_per_s: tuple[float, ...],
) -> TrainingLimits:
    """Shared by equal jobs, since what is believed of a job is remembered by this object."""
    return TrainingLimits(
        init_batch=init,
        max_batch=most,
        min_local=ints([smallest] * types),
        max_local=ints([local] * types),
        single_per_s=frozen(np.array(single_per_s, dtype=np.float64)),
        replica_gpus=ints([replica] * types),
        restart_s=restart_s,
        reach_gpus=max(most // smallest, 1),
        accumulates=accumulates,
    )


def observations_of(record: JobRecord, types: int) -> tuple[Observations, ...]:
    """By GPU type, what was measured: of earlier jobs of its model, and of itself, which counts more.

    Of a job of which short runs told beforehand, only its own.
    """
    return _observations(known_points(record), types)


def known_points(record: JobRecord) -> Points:
    """What was measured of a job, or of earlier ones where nobody has told anything before."""
    if record.learned.profile:
        return record.learned.points
    return with_points(record.prior.points, record.learned.points)


def largest_known_gpus(record: JobRecord) -> int:
    """The most GPUs on which it ran, or on which jobs of its model were measured before it."""
    prior = 0 if record.learned.profile else record.prior.largest_gpus
    return max(record.books.largest_held, prior)


@lru_cache(maxsize=16_384)
def _observations(points: tuple[tuple[float, ...], ...], types: int) -> tuple[Observations, ...]:
    found = [NOTHING_OBSERVED] * types
    for kind, nodes, gpus, local, passes, grad_s, passes_s in points:
        step_s = passes_s - max(passes - 1, 0) * grad_s  # of the one pass that synchronises
        measured = _is_measurable(grad_s) and _is_measurable(step_s)
        if 0 <= kind < types and measured and gpus >= nodes >= 1 <= local:
            # Each is a mean of its own: where there is nothing to synchronise, chance says which is larger.
            found[int(kind)] = found[int(kind)].with_point(
                Point(int(nodes), int(gpus), int(local), float(min(grad_s, step_s)), float(step_s))
            )
    return tuple(found)


def _is_measurable(pass_s: float) -> bool:
    return MEASURABLE_S[0] <= pass_s <= MEASURABLE_S[1]
