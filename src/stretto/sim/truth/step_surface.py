"""Step time of placements that nobody measured: linear between measured ones, extrapolated beyond them."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stretto.model.arrays import FloatArray, floats

if TYPE_CHECKING:
    from scipy.spatial import Delaunay

NODES, GPUS, LOCAL = 0, 1, 2  # axes of a point

MOST_NODES = 16  # the published simulator treats a job on more nodes as on 16


@dataclass(frozen=True, eq=False)
class StepSurface:
    """(step, sync) seconds over (nodes, GPUs, local batch), through measured points.

    Inside their convex hull: piecewise linear on the Delaunay triangulation of the points as they are, not
    rescaled, as in the published simulators of Pollux and Sia. The points lie on a lattice, so that the
    triangulation is not unique, and another version of Qhull may give other values between them.

    **Deviation** outside the hull, where those simulators fail or run backwards. The point is moved into
    the hull along one axis after the other (nodes, then GPUs, then local batch), and from there
    - each GPU missing adds seconds of synchronisation at the rate of a line fitted to the measured points
      (the T_sync of Pollux, OSDI 2021, section 3.2), those of several nodes where the query has several;
    - compute grows in proportion to a local batch above the largest measured, and stays at that of the
      smallest below: neither promises more samples per second and GPU than was ever measured.
    Where the points span no volume (all on one node, say), the measured (nodes, GPUs) nearest by GPUs, then
    by nodes, stands in for the hull. If only one node was measured, several nodes cost no more than one.
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
                found = self._interpolated(anchor + nudge * (self.points.mean(axis=0) - anchor))
                if found is not None:
                    return anchor, found
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
