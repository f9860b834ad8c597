"""How fast is a job on 1, 2, 3, … GPUs of each type, from whatever has been measured of it?

Policies that read a table (`MeasuredSpeeds`) want a speed for every count. Workers report the few counts that
they ran on. For each GPU type

1. a count that was measured at the job's own batch is as fast as it was measured;
2. where the job ran on several workers, a model of its steps says the shape between and beyond these counts
   (`fit`, Pollux's model). It is moved to go through what was measured, in proportion, from count to count;
3. where it ran on one worker only, the shape is that of a type on which it ran on several. That is equation 1
   of Sia (SOSP 2023): X_B(K) = X_B(1) / X_A(1) · X_A(K). Else it is the assumed one: `SCALING` of each
   doubling;
4. a type on which nothing was measured has the shape of the one that is known best, by the stated speeds of
   the types;
5. where nothing was measured at all, the table goes through what the job's owner expects. Where that is not
   known either it is relative: 1 on what the job asked for.

The table of a job that serves is 1 where its service level is kept, and NaN elsewhere (`serving`).

A job's own batch is fixed, so that each worker has a share of it. Or it grows with the workers up to a bound,
as scripts do where no batch is chosen for them. A step of the table is one of its batch on one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stretto.estimate.fit import fit, fit_many
from stretto.estimate.serving import KEPT_PER_S, Needs, needs
from stretto.estimate.throughput import iteration_s
from stretto.model import (
    NOTHING_OBSERVED,
    Cluster,
    FloatArray,
    IntArray,
    MeasuredSpeeds,
    Observations,
    Point,
    ServiceLevel,
    frozen,
)

SCALING = 0.9  # of each doubling of GPUs, while nothing is measured; chosen
SAME_BATCH = 0.1  # batches that differ by less count as the job's own; chosen
MEASUREMENT_ERROR = 0.05  # of a speed that was measured; reports that differ by less are not kept
MEASURABLE_S = (1e-9, 1e9)  # of a pass; chosen: a fit to what lies beyond would be one of rounding errors
JACKKNIFE_GROUPS = 12  # chosen: a standard error of twelve parts is known to a fifth
REMEMBERED_TABLES = 16_384  # chosen: of different jobs; some kB each


class Source(IntEnum):
    """Where an entry comes from."""

    ASSUMED = 0  # from the assumed curve or stated speeds of types, moved to what was measured
    FITTED = 1  # from a model of steps that were measured at other counts or batches
    MEASURED = 2  # from steps of exactly this kind


class Measurement(NamedTuple):
    """Means over steps at one operating point, as workers report them."""

    kind: int  # GPU type
    nodes: int
    workers: int  # replicas of the model
    local_batch: int  # samples of one pass of one worker
    passes: int  # of each worker in a step
    grad_s: float  # one pass without synchronisation
    step_s: float  # the whole step

    @property
    def samples(self) -> int:
        """Of a step, over all workers."""
        return self.workers * self.local_batch * self.passes


@dataclass(frozen=True, slots=True)
class SpeedEvidence:
    """All that a table depends on, beside the cluster. Equal evidence is worked out once."""

    measurements: tuple[Measurement, ...]
    batch: int  # samples a step on one worker; 0: not known
    largest_batch: int  # to which it grows with the workers; the same as `batch`: fixed
    max_local: tuple[int, ...]  # samples of one pass that fit, by type; 0: does not run there; (): no bound
    single_per_s: tuple[float, ...]  # samples/s of one worker from a profile beforehand, by type; 0: unknown
    gpus_per_worker: int
    asked_gpus: int
    reach_gpus: int  # beyond these more GPUs bring nothing
    stated_per_s: float = 0.0  # steps per second on what it asks for, as its owner expects; 0: not stated
    replica_gpus: tuple[int, ...] = ()  # of a worker by type, where types differ; (): gpus_per_worker
    scaling: float = SCALING  # of each doubling of GPUs, while nothing is measured
    service_level: ServiceLevel | None = None  # of a job that serves: its table says what keeps it

    def worker_gpus(self, kind: int) -> int:
        """GPUs of one worker on a type."""
        return self.replica_gpus[kind] if self.replica_gpus else self.gpus_per_worker


@dataclass(frozen=True, slots=True, eq=False)
class SpeedTable:
    """A table and where its entries come from. Compared as an object."""

    speeds: MeasuredSpeeds
    source: IntArray  # (2, types, most_gpus + 1) of `Source`: on as few nodes as can be, and on more
    is_relative: bool  # 1 on what was asked for, not steps per second: nothing was measured

    @property
    def both(self) -> FloatArray:
        """(2, types, most_gpus + 1) speeds, in the order of `source`."""
        return np.stack([self.speeds.per_s, self.speeds.spread_per_s])


def is_measurable(pass_s: float) -> bool:
    """Whether a pass can have taken so long."""
    return MEASURABLE_S[0] <= pass_s <= MEASURABLE_S[1]


def speed_tables(evidence: Sequence[SpeedEvidence], cluster: Cluster) -> list[SpeedTable]:
    """`speed_table` of each job; models that are not known yet are fitted side by side."""
    types = len(cluster.types)
    observed = [seen for each in evidence for seen in _observations(each.measurements, types) if seen]
    fit_many(observed)
    return [speed_table(each, cluster) for each in evidence]


@lru_cache(maxsize=REMEMBERED_TABLES)
def speed_table(evidence: SpeedEvidence, cluster: Cluster) -> SpeedTable:
    """Speeds on every count of GPUs of every type, as the docstring of this file says."""
    if evidence.service_level is not None:
        return _of_serving(evidence, cluster)
    if evidence.replica_gpus:
        return _by_worker_size(evidence, cluster)
    axis = _Axis.of(evidence, cluster)
    types = len(cluster.types)
    observed = _observations(evidence.measurements, types)
    anchors = [_anchors(evidence, kind) for kind in range(types)]
    curves = np.full((2, types, len(axis.workers)), np.nan)
    source = np.full(curves.shape, Source.ASSUMED)
    # Types on which the job ran on several workers: their models say the shape.
    several = [sum(point.gpus > 1 for point in observations.points) for observations in observed]
    modelled = [kind for kind in range(types) if several[kind]]
    for kind in modelled:
        base = _fitted(evidence, observed[kind], axis, kind)
        curves[:, kind], source[:, kind] = _through(base, anchors[kind], axis, kind, Source.FITTED)
    # Types with one worker at most: the shape of the type that is known best, or the assumed one.
    best = max(modelled, key=lambda kind: (several[kind], -kind), default=None)
    shape = _assumed(axis, evidence.scaling) if best is None else curves[:, best]
    of_shape = Source.ASSUMED if best is None else Source.FITTED
    known_types = set(modelled)
    for kind in range(types):
        alone = anchors[kind] or _alone(evidence, observed[kind], axis, kind)
        if kind not in known_types and alone:
            curves[:, kind], source[:, kind] = _through(shape, alone, axis, kind, of_shape)
            known_types.add(kind)
    # Types of which nothing is known: by the stated speeds of types, beside the one that is known best.
    stated = np.array([gpu_type.speed for gpu_type in cluster.types])
    reference = best if best is not None else min(known_types, default=None)
    for kind in set(range(types)) - known_types:
        if reference is None:
            asked_speed = _assumed_speed(evidence.asked_gpus / axis.each, evidence.scaling)
            curves[:, kind] = shape * stated[kind] * (evidence.stated_per_s or 1.0) / asked_speed
        else:
            curves[:, kind] = curves[:, reference] * stated[kind] / stated[reference]
    if evidence.max_local:
        curves[:, [kind for kind in range(types) if not evidence.max_local[kind]]] = np.nan
    per_s, of_gpus = axis.by_gpus(curves), axis.workers_of_gpus
    source = source[..., of_gpus]
    measured = frozen((source == Source.MEASURED).any(axis=0))
    speeds = MeasuredSpeeds(frozen(per_s[0]), frozen(per_s[1]), measured)
    is_relative = reference is None and not evidence.stated_per_s
    return SpeedTable(speeds, frozen(source), is_relative)


def needs_of(evidence: SpeedEvidence, cluster: Cluster) -> Needs:
    """What keeps the service level of a job that serves."""
    assert evidence.service_level is not None
    types = len(cluster.types)
    return needs(
        evidence.service_level,
        _observations(evidence.measurements, types),
        [gpu_type.speed for gpu_type in cluster.types],
        evidence.max_local or (1,) * types,
        [evidence.worker_gpus(kind) for kind in range(types)],
    )


def _of_serving(evidence: SpeedEvidence, cluster: Cluster) -> SpeedTable:
    """1 on GPUs that keep the service level; relative while no batch was timed on any type."""
    needed, gpus = needs_of(evidence, cluster), np.arange(int(cluster.capacity.max()) + 1)
    per_s = frozen(np.where(gpus >= needed.gpus[:, None], KEPT_PER_S, np.nan))
    source = np.where(needed.is_timed[:, None], Source.FITTED, Source.ASSUMED)
    both = frozen(np.broadcast_to(source, (2, *per_s.shape)).copy())
    measured = frozen(np.zeros(per_s.shape, dtype=np.bool_))
    return SpeedTable(MeasuredSpeeds(per_s, per_s, measured), both, not needed.is_timed.any())


def _by_worker_size(evidence: SpeedEvidence, cluster: Cluster) -> SpeedTable:
    """The table of a job whose workers differ by type: each type's rows as if all were of its size."""
    tables = {
        each: speed_table(replace(evidence, gpus_per_worker=each, replica_gpus=()), cluster)
        for each in set(evidence.replica_gpus)
    }
    of_type = [tables[each] for each in evidence.replica_gpus]
    both = np.stack([table.both[:, kind] for kind, table in enumerate(of_type)], axis=1)
    source = np.stack([table.source[:, kind] for kind, table in enumerate(of_type)], axis=1)
    measured = frozen((source == Source.MEASURED).any(axis=0))
    speeds = MeasuredSpeeds(frozen(both[0]), frozen(both[1]), measured)
    return SpeedTable(speeds, frozen(source), of_type[0].is_relative)


def standard_errors(evidence: SpeedEvidence, cluster: Cluster) -> FloatArray:
    """(2, types, most_gpus + 1) relative standard errors of a table, NaN where unknown.

    Of an entry that was measured what reports may differ by. Of one that follows from a model the jackknife:
    the table is made again without each part of the measurements in turn, and

        error² = (n - 1) / n Σ (log v_i - mean log v)²        n parts, v_i without part i

    It is no less than that of a measurement. An entry that was assumed has none.
    """
    table = speed_table(evidence, cluster)
    if evidence.service_level is not None:  # it is kept or not
        return np.full(table.source.shape, np.nan)
    parts = min(len(evidence.measurements), JACKKNIFE_GROUPS)
    errors = np.full(table.source.shape, np.nan)
    # The table again without each part; equal fits are remembered, and new ones made side by side.
    if parts > 1:
        without = [
            replace(
                evidence,
                measurements=tuple(
                    each for place, each in enumerate(evidence.measurements) if place % parts != part
                ),
            )
            for part in range(parts)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log([again.both for again in speed_tables(without, cluster)])
            spread = np.sqrt((parts - 1) * logs.var(axis=0))
        fitted = (table.source == Source.FITTED) & np.isfinite(spread)
        errors[fitted] = np.maximum(spread[fitted], MEASUREMENT_ERROR)
    errors[table.source == Source.MEASURED] = MEASUREMENT_ERROR
    errors[..., 0] = np.nan
    return errors


# ── counts of workers and of GPUs ───────────────────────────────────────────────────────────────────────────


class _Axis(NamedTuple):
    """The counts of one job's curves, which are (2, workers): on as few nodes as can be, and on more."""

    each: int  # GPUs of a worker
    workers: IntArray  # 0, 1, 2, …
    useful: IntArray  # of them that bring anything; at least 1
    gpus: IntArray  # 0, 1, 2, …
    per_node: IntArray  # (types,) GPUs

    @classmethod
    def of(cls, evidence: SpeedEvidence, cluster: Cluster) -> "_Axis":
        """Up to the GPUs of the largest type."""
        each, most = evidence.gpus_per_worker, int(cluster.capacity.max())
        workers = np.arange(max(most // each, 1) + 1)
        reach = max(evidence.reach_gpus, evidence.asked_gpus) // each
        if evidence.batch:  # a worker without a sample has nothing to do
            reach = min(reach, max(evidence.batch, evidence.largest_batch))
        useful = np.clip(workers, 1, max(reach, 1))
        return cls(each, workers, useful, np.arange(most + 1), cluster.gpus_per_node)

    @property
    def workers_of_gpus(self) -> IntArray:
        """(gpus,) whole workers on so many GPUs, at least one."""
        return np.asarray(np.clip(self.gpus // self.each, 1, len(self.workers) - 1), dtype=np.int64)

    def nodes(self, kind: int) -> IntArray:
        """(2, workers) on as few nodes as can be, and on more where there are several workers."""
        fewest = -(-self.useful * self.each // int(self.per_node[kind]))
        return np.stack([fewest, np.where(self.useful > 1, np.maximum(fewest, 2), fewest)])

    def by_gpus(self, curves: FloatArray) -> FloatArray:
        """(2, types, gpus) of (2, types, workers); GPUs that make no whole worker count in part."""
        counts = self.gpus / self.each
        low = np.minimum(counts.astype(np.int64), len(self.workers) - 1)
        high = np.minimum(low + 1, len(self.workers) - 1)
        curves = np.concatenate([np.zeros_like(curves[..., :1]), curves[..., 1:]], axis=-1)
        part = counts - low
        return np.asarray(
            curves[..., low] + np.where(part > 0, part * (curves[..., high] - curves[..., low]), 0.0)
        )


def _split(evidence: SpeedEvidence, kind: int, workers: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(like workers,) samples of a step, samples of a pass of a worker, and its passes; on a GPU type."""
    batch, largest = evidence.batch, evidence.largest_batch
    total = np.full(workers.shape, batch)
    if largest > batch:
        total = np.clip(float(batch) * workers, batch, largest).astype(np.int64)  # else it might overflow
    share = -(-total // workers)
    most_local = evidence.max_local[kind] if evidence.max_local else 0
    passes = -(-share // most_local) if most_local else np.ones_like(share)
    return total, -(-share // passes), passes


# ── what is known, and curves through it ────────────────────────────────────────────────────────────────────


class _Anchor(NamedTuple):
    """A speed that is known."""

    across: bool  # on several nodes
    workers: int
    per_s: float
    source: Source


def _anchors(evidence: SpeedEvidence, kind: int) -> list[_Anchor]:
    """Speeds on a type that were measured at the job's own batch, by count; at the batch that is nearest."""
    nearest: dict[tuple[bool, int], tuple[float, float]] = {}
    for each in evidence.measurements:
        if each.kind != kind or not is_measurable(each.step_s) or each.samples < 1 or each.nodes < 1:
            continue
        total, local, passes = (int(column) for column in _split(evidence, kind, np.array(each.workers)))
        off, step_s = abs(each.samples - total) / total, each.step_s
        one_pass = single_pass(each)
        if each.local_batch == local and one_pass is not None:  # such passes make up its step
            off, step_s = 0.0, one_pass.step_s + (passes - 1) * one_pass.grad_s
        if off > SAME_BATCH:
            continue
        place, anchor = (each.nodes > 1, each.workers), (off, total / evidence.batch / step_s)
        nearest[place] = min(nearest.get(place, anchor), anchor)
    return [_Anchor(*place, per_s, Source.MEASURED) for place, (_, per_s) in sorted(nearest.items())]


def _alone(evidence: SpeedEvidence, observed: Observations, axis: _Axis, kind: int) -> list[_Anchor]:
    """The speed of one worker by steps of other batches, else by a profile; none where neither is known."""
    if observed:
        per_s = float(_fitted(evidence, observed, axis, kind)[0, 1])
        return [_Anchor(False, 1, per_s, Source.FITTED)]
    profiled = evidence.single_per_s[kind] if evidence.single_per_s else 0.0
    if profiled > 0 and evidence.batch:
        return [_Anchor(False, 1, profiled / evidence.batch, Source.FITTED)]
    return []


def _through(
    base: FloatArray, anchors: Sequence[_Anchor], axis: _Axis, kind: int, of_base: Source
) -> tuple[FloatArray, IntArray]:
    """(2, workers) a curve moved in proportion so that it goes through the anchors, and its sources."""
    curves, source = base.copy(), np.full(base.shape, of_base)
    across = axis.nodes(kind) > 1
    for row in range(2):  # on as few nodes as can be, and on more
        own = [
            each for each in anchors if across[row, min(each.workers, len(axis.workers) - 1)] == each.across
        ]
        # By how much each anchor lies above the curve, as a logarithm. Where nothing was measured on as many
        # nodes, what was measured on other nodes moves the curve by as much as it moves its own.
        moved: dict[int, list[float]] = {}
        for each in own or anchors:
            place = min(each.workers, len(axis.workers) - 1)
            rows = np.flatnonzero(across[:, place] == each.across)
            of_row = row if row in rows or not len(rows) else int(rows[0])
            moved.setdefault(place, []).append(float(np.log(each.per_s / base[of_row, place])))
        if moved:
            counts = sorted(moved)
            by = [float(np.mean(moved[count])) for count in counts]
            curves[row] *= np.exp(np.interp(np.log2(axis.useful), np.log2(counts), by))
        # The anchors themselves are exact, beyond what a job can use too.
        for each in own:
            if each.workers < len(axis.workers):
                curves[row, each.workers] = each.per_s
                source[row, each.workers] = each.source
    return curves, source


def _assumed_speed(workers: float | IntArray, scaling: float) -> FloatArray:
    """Of a job that was never measured, over that on one worker; scaling: of each doubling."""
    return np.asarray(workers * scaling ** np.log2(workers), dtype=np.float64)


def _assumed(axis: _Axis, scaling: float) -> FloatArray:
    """(2, workers) the same however far spread."""
    return np.tile(_assumed_speed(axis.useful, scaling), (2, 1))


def _fitted(evidence: SpeedEvidence, observed: Observations, axis: _Axis, kind: int) -> FloatArray:
    """(2, workers) steps per second by the model that explains best what was observed on a type."""
    params = np.asarray(fit(observed))
    total, local, passes = _split(evidence, kind, axis.useful)
    step_s = iteration_s(params, axis.nodes(kind), axis.useful, local, passes - 1)
    return np.asarray(total / evidence.batch / step_s)


@lru_cache(maxsize=REMEMBERED_TABLES)
def _observations(measurements: tuple[Measurement, ...], types: int) -> tuple[Observations, ...]:
    """By GPU type, the passes that a model can be fitted to."""
    observed = [NOTHING_OBSERVED] * types
    for each in measurements:
        point = single_pass(each)
        if point is not None and 0 <= each.kind < types:
            observed[each.kind] = observed[each.kind].with_point(point)
    return tuple(observed)


def single_pass(measured: Measurement) -> Point | None:
    """A step of several passes as the one that synchronises; None where its times cannot be right."""
    nodes, workers, local, passes, grad_s, step_s = measured[1:]
    last_s = step_s - max(passes - 1, 0) * grad_s
    if not (is_measurable(grad_s) and is_measurable(last_s) and workers >= nodes >= 1 <= local):
        return None
    # Each is a mean of its own: where there is nothing to synchronise, chance says which is larger.
    return Point(nodes, workers, local, min(grad_s, last_s), last_s)
