"""How long one synchronised step of one model takes on one GPU type: the truth of the simulated world.

Step times of unmeasured placements are linear between measured ones, and extrapolated beyond them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import FloatArray, floats
from stretto.sim.truth.profile_facts import ModelFacts
from stretto.sim.truth.profile_files import StepRows

if TYPE_CHECKING:
    from scipy.spatial import Delaunay

NODES, GPUS, LOCAL = 0, 1, 2  # axes of a point

MOST_NODES = 16  # the published simulator treats a job on more nodes as on 16


@dataclass(frozen=True, eq=False)
class StepSurface:
    """(step, sync) seconds over (nodes, GPUs, local batch), through measured points.

    Inside their convex hull they are piecewise linear on the Delaunay triangulation of the points. The points
    stay as they are, not rescaled, as in the published simulators of Pollux and Sia. The points lie on a
    lattice, so the triangulation is not unique. Another version of Qhull may give other values between them.

    **Deviation** outside the hull, where those simulators fail or run backwards. The point is moved into
    the hull along one axis after the other (nodes, then GPUs, then local batch). From there

    - each GPU missing adds seconds of synchronisation. The rate is that of a line fitted to the measured
      points (the T_sync of Pollux, OSDI 2021, section 3.2). The points are those of several nodes where the
      query has several;
    - compute grows in proportion to a local batch above the largest measured, and stays at that of the
      smallest below. Neither promises more samples per second and GPU than was ever measured.

    The points may span no volume, as where all are on one node. Then the measured (nodes, GPUs) nearest by
    GPUs, then by nodes, stands in for the hull. If only one node was measured, several nodes cost no more
    than one.
    """

    points: FloatArray  # (points, 3) distinct (nodes, gpus, local batch)
    times_s: FloatArray  # (points, 2) step, sync

    def at(self, nodes: int, gpus: int, local_batch: float) -> tuple[float, float]:
        """(step_s, sync_s) of one synchronised step; defined everywhere."""
        wanted = floats([min(nodes, MOST_NODES), gpus, local_batch])
        inside = self._interpolated(wanted)
        if inside is not None:
            return float(inside[0]), float(inside[1])
        anchor, (step_s, sync_s) = self._nearest_in_hull(wanted)
        more_gpus = max(0.0, gpus - anchor[GPUS])
        more_work = max(1.0, local_batch / anchor[LOCAL])
        beyond_sync_s = sync_s + more_gpus * self._sync_s_per_gpu(several_nodes=nodes > 1)
        return float((step_s - sync_s) * more_work + beyond_sync_s), float(beyond_sync_s)

    def _interpolated(self, point: FloatArray) -> FloatArray | None:
        """(2,) times at a point in the hull; None outside it, or where the points span no volume."""
        mesh = self._triangulation
        if mesh is None:
            return None
        simplex = int(mesh.find_simplex(point))
        if simplex < 0:
            return None
        transform = mesh.transform[simplex]  # (4, 3): to barycentric coordinates, and their origin
        leading = transform[:3] @ (point - transform[3])
        weights = np.append(leading, 1.0 - leading.sum())
        if not np.isfinite(weights).all():  # a simplex without volume
            return None
        times_s: FloatArray = weights @ self.times_s[mesh.simplices[simplex]]
        return times_s

    def _nearest_in_hull(self, wanted: FloatArray) -> tuple[FloatArray, FloatArray]:
        """A point of the hull near `wanted`, and the times there."""
        if self._triangulation is not None:
            lowest = self.points.min(axis=0)
            anchor = floats(
                [np.clip(wanted[NODES], lowest[NODES], self.points[:, NODES].max()), wanted[GPUS], 0]
            )
            anchor[LOCAL] = lowest[LOCAL]  # where the most (nodes, gpus) were measured
            anchor[GPUS] = self._clipped_to_hull(anchor, GPUS)
            anchor[LOCAL] = wanted[LOCAL]
            anchor[LOCAL] = self._clipped_to_hull(anchor, LOCAL)
            # A point on a facet may fall outside by rounding: a nudge towards the middle settles it.
            for nudge in (0.0, 1e-12, 1e-9, 1e-6):
                times = self._interpolated(anchor + nudge * (self.points.mean(axis=0) - anchor))
                if times is not None:
                    return anchor, times
        return self._nearest_measured(wanted)

    def _clipped_to_hull(self, point: FloatArray, axis: int) -> float:
        """The coordinate of `point` on `axis`, moved to where the line along that axis meets the hull."""
        normal = self._hull_facets[:, axis]
        gap = self._hull_facets[:, :3] @ point + self._hull_facets[:, 3] - normal * point[axis]
        upper, lower = normal > _FLAT, normal < -_FLAT
        least = float((-gap[lower] / normal[lower]).max())
        most = float((-gap[upper] / normal[upper]).min())
        return min(max(float(point[axis]), least), most)

    def _nearest_measured(self, wanted: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The measured (nodes, gpus) nearest to `wanted`, at its local batch as far as measured there."""
        away = np.abs(self.points - wanted)
        first = np.lexsort((away[:, NODES], away[:, GPUS]))[0]
        same = (self.points[:, :LOCAL] == self.points[first, :LOCAL]).all(axis=1)
        measured, times_s = self.points[same, LOCAL], self.times_s[same]
        local = float(np.clip(wanted[LOCAL], measured.min(), measured.max()))
        return floats([*self.points[first, :LOCAL], local]), interpolated(local, measured, times_s)

    def _sync_s_per_gpu(self, several_nodes: bool) -> float:
        """Slope of a least-squares line through sync time over GPUs, and never negative."""
        across = self.points[:, NODES] > 1
        chosen = across if several_nodes and across.any() else np.ones_like(across)
        gpus, sync_s = self.points[chosen, GPUS], self.times_s[chosen, 1]
        spread = gpus - gpus.mean()
        variance = float(spread @ spread)
        return max(0.0, float(spread @ sync_s) / variance) if variance > 0.0 else 0.0

    @cached_property
    def _triangulation(self) -> "Delaunay | None":
        """None where the points span no volume."""
        from scipy.spatial import Delaunay  # here, for its import takes longer than reading all profiles

        return Delaunay(self.points) if self._spans_volume else None

    @cached_property
    def _hull_facets(self) -> FloatArray:
        """(facets, 4): outward normal and offset; negative inside."""
        from scipy.spatial import ConvexHull

        facets: FloatArray = ConvexHull(self.points).equations
        return facets

    @cached_property
    def _spans_volume(self) -> bool:
        return len(self.points) > 3 and int(np.linalg.matrix_rank(self.points - self.points[0])) == 3


_FLAT = 1e-12  # a facet's normal has length 1; below this it is taken as parallel to an axis


def interpolated(at: float, xs: FloatArray, ys: FloatArray) -> FloatArray:
    """(columns,) each column of ys (rows, columns) at `at`, linear between ascending xs, constant beyond."""
    return floats([np.interp(at, xs, column) for column in ys.T])


def averaged(keys: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct rows of `keys` in ascending order, and the mean of the rows of `values` that share each."""
    distinct, owner, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros((len(distinct), values.shape[1]))
    np.add.at(sums, owner.reshape(-1), values)
    return distinct, sums / count[:, None]


# ── one model on one GPU type ─────────────────────────────────────────────────────────────────────


ON_GPUS, LARGEST = 0, 1  # columns of StepTimes.largest_by_gpus

Placement = tuple[int, ...]  # GPUs on each node used


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Measured steps of one model on one GPU type.

    A *replica* is one GPU, or a pipeline over `replica_gpus` GPUs. The *local batch* is what one replica
    works off between two synchronisations or accumulation passes. So in both cases a total batch is replicas
    x local batch x passes, and an iteration takes step + accumulation (step - sync).
    """

    gpu_type: str
    replica_gpus: int
    min_local: int  # samples per replica
    max_local: int  # samples per replica that fit into memory
    # Canonical -> (rows,) local batch, (rows, 2) times
    profiled: Mapping[Placement, tuple[FloatArray, FloatArray]]
    surface: StepSurface
    largest_by_gpus: FloatArray  # (counts, 2) GPUs, ascending, and the largest local batch measured on them
    replica_samples_per_s: float  # one replica alone; NaN where that was not measured

    def step(self, placement: Placement, local_batch: float) -> tuple[float, float]:
        """(step_s, sync_s) of one synchronised step on `placement`, GPUs per node in any rotation.

        Sia's published simulator: linear in the local batch if the placement was measured, else on the
        surface over (nodes, GPUs, local batch). Beyond the measured local batches: see `StepSurface`.
        """
        shape = canonical(placement)
        if shape not in self.profiled:
            return self.surface.at(len(shape), sum(shape), local_batch)
        measured, times_s = self.profiled[shape]
        nearest = min(max(local_batch, float(measured[0])), float(measured[-1]))
        step_s, sync_s = interpolated(nearest, measured, times_s)
        more_work = max(1.0, local_batch / nearest)
        return float((step_s - sync_s) * more_work + sync_s), float(sync_s)

    def largest_local(self, replicas: int) -> int:
        """The largest local batch measured on that many replicas, within what fits into memory.

        For a number that was not measured, that of the next larger one, or else of the largest. Profiles end
        at the model's largest total batch, so more replicas were never measured with larger local ones.
        """
        position = np.searchsorted(self.largest_by_gpus[:, ON_GPUS], replicas * self.replica_gpus)
        row = self.largest_by_gpus[min(int(position), len(self.largest_by_gpus) - 1)]
        return min(int(row[LARGEST]), self.max_local)

    @cached_property
    def most_gpus(self) -> int:
        """The most GPUs that one job was measured on."""
        return int(self.largest_by_gpus[-1, ON_GPUS])


def step_times(
    gpu_type: str, facts: ModelFacts, placements: StepRows, scalability: StepRows | None
) -> StepTimes:
    """Steps as measured, in replicas, ready to be asked.

    Where both files hold a point (nodes, GPUs, local batch), the surface goes through their mean, the rows of
    `placements` counting as one. Raises InputError where a pipeline has no number of stages on this type.
    """
    replica_gpus = _replica_gpus(gpu_type, facts)
    measured = [
        _in_replicas(rows, facts, replica_gpus) for rows in (placements, scalability) if rows is not None
    ]
    on_placements, on_placements_s = averaged(measured[0][0], measured[0][1])
    points, times_s = averaged(
        np.vstack([on_placements, *(points for points, _ in measured[1:])]),
        np.vstack([on_placements_s, *(times_s for _, times_s in measured[1:])]),
    )
    local = measured[0][0][:, 2]
    return StepTimes(
        gpu_type=gpu_type,
        replica_gpus=replica_gpus,
        min_local=int(local.min()),
        max_local=facts.max_local.get(gpu_type, int(local.max())),
        profiled=_by_placement(placements.placements, local, measured[0][1]),
        surface=StepSurface(points, times_s),
        largest_by_gpus=_largest_by_gpus(points),
        replica_samples_per_s=_replica_samples_per_s(*measured[0], replica_gpus),
    )


def canonical(placement: Placement) -> Placement:
    """The lexicographically smallest rotation of the GPUs per node, unused nodes left out. Not a sort."""
    used = tuple(gpus for gpus in placement if gpus)
    if not used or min(used) < 0:
        raise ValueError(f"placement must have at least one GPU on some node, got {placement}")
    return min(used[shift:] + used[:shift] for shift in range(len(used)))


def consolidated(gpus: int, gpus_per_node: int) -> Placement:
    """`gpus` on as few nodes as possible: full nodes, then the remainder."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


def _replica_gpus(gpu_type: str, facts: ModelFacts) -> int:
    if facts.pipeline is None:
        return 1
    if gpu_type not in facts.pipeline.stages:
        known = ", ".join(sorted(facts.pipeline.stages))
        raise InputError(f"gpu type {gpu_type!r}: the pipeline's stages are known only on {known}")
    return facts.pipeline.stages[gpu_type]


def _in_replicas(rows: StepRows, facts: ModelFacts, replica_gpus: int) -> tuple[FloatArray, FloatArray]:
    """(rows, 3) nodes, GPUs, samples per replica and step; (rows, 2) step and sync of the whole step."""
    local, step_s, sync_s = rows.local_batch, rows.times_s[:, 0], rows.times_s[:, 1]
    if facts.pipeline is not None:
        # The files give one stage's forward time for one micro-batch: profile_facts.Pipeline.
        local = local * facts.pipeline.micro_batches
        step_s = 3.0 * (replica_gpus - 1 + facts.pipeline.micro_batches) * step_s + sync_s
    return np.column_stack([rows.nodes, rows.gpus, local]), np.column_stack([step_s, sync_s])


def _by_placement(
    placements: tuple[Placement, ...], local: FloatArray, times_s: FloatArray
) -> dict[Placement, tuple[FloatArray, FloatArray]]:
    rows_of: dict[Placement, list[int]] = {}
    for row, placement in enumerate(placements):
        rows_of.setdefault(canonical(placement), []).append(row)
    profiled = {}
    for placement, rows in rows_of.items():
        distinct, mean_s = averaged(local[rows, None], times_s[rows])
        profiled[placement] = (distinct[:, 0], mean_s)
    return profiled


def _largest_by_gpus(points: FloatArray) -> FloatArray:
    counts, owner = np.unique(points[:, 1], return_inverse=True)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, owner, points[:, 2])
    return np.column_stack([counts, largest])


def _replica_samples_per_s(points: FloatArray, times_s: FloatArray, replica_gpus: int) -> float:
    """Largest local batch / longest step among the rows of one replica.

    As the published simulator computes it for the ratio between GPU types in Sia's equation 1. The two maxima
    need not be of one row, and a forced `max_local` does not count.
    """
    alone = points[:, 1] == replica_gpus
    return float(points[alone, 2].max() / times_s[alone, 0].max()) if alone.any() else float("nan")
