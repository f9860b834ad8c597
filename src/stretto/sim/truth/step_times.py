"""How long one synchronised step of one model takes on one GPU type: the truth of the simulated world."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model.arrays import FloatArray
from stretto.model.errors import InputError
from stretto.sim.truth.profile_facts import ModelFacts
from stretto.sim.truth.profile_files import StepRows
from stretto.sim.truth.step_surface import StepSurface, averaged, interpolated

GPUS, LOCAL = 0, 1  # columns of StepTimes.largest_by_gpus

Placement = tuple[int, ...]  # GPUs on each node used


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Measured steps of one model on one GPU type.

    A *replica* is one GPU, or a pipeline over `replica_gpus` GPUs; the *local batch* is what one replica
    works off between two synchronisations or accumulation passes, so that in both cases a total batch is
    replicas x local batch x passes, and an iteration takes step + accumulation (step - sync).
    """

    gpu_type: str
    replica_gpus: int
    min_local: int  # samples per replica
    max_local: int  # samples per replica that fit into memory
    profiled: Mapping[
        Placement, tuple[FloatArray, FloatArray]
    ]  # canonical -> (rows,) local batch, (rows, 2) times
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

        For a number that was not measured, that of the next larger one, or else of the largest: profiles end
        at the model's largest total batch, so that more replicas were never measured with larger local ones.
        """
        position = np.searchsorted(self.largest_by_gpus[:, GPUS], replicas * self.replica_gpus)
        row = self.largest_by_gpus[min(int(position), len(self.largest_by_gpus) - 1)]
        return min(int(row[LOCAL]), self.max_local)

    @cached_property
    def most_gpus(self) -> int:
        """The most GPUs that one job was measured on."""
        return int(self.largest_by_gpus[-1, GPUS])


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

    As the published simulator computes it for the ratio between GPU types in Sia's equation 1: the two
    maxima need not be of one row, and a forced `max_local` does not count.
    """
    alone = points[:, 1] == replica_gpus
    return float(points[alone, 2].max() / times_s[alone, 0].max()) if alone.any() else float("nan")
