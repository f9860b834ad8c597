"""How fast a recorded job is on other GPUs than those that it asked for."""

from functools import lru_cache

import numpy as np

from stretto.catalogue import find_model, has_nearest, nearest_model
from stretto.estimate.throughput import throughput
from stretto.model import (
    UNLIMITED_GPUS,
    Adaptivity,
    Cluster,
    FloatArray,
    Job,
    MeasuredSpeeds,
    Purpose,
    frozen,
)
from stretto.sim.settings import Batches, Scaling, SimSettings

BATCHES = 24  # chosen: local batches tried, spaced geometrically
USUAL_TYPE = "v100"  # chosen: its curve stands in for those of types that the catalogue does not know


class Curves:
    """Each recorded job's speed by GPU type and count; 1 on what it asked for, consolidated, at type speed 1.

    Equal jobs share one. Linear: in proportion to the GPUs within the job's range (Lyra, section 5), where
    every worker beyond its fewest may bring less. Catalogue: the samples per second of its model at a fixed
    local batch, on as few nodes as can be and on more. The total batch follows the count (Cornucopia, section
    7). Where jobs choose their batches, an adaptive one whose model the catalogue knows gains on top. It
    gains what the best batch is worth over the usual one on the same GPUs (Lyra, section 7.4, with Pollux's
    goodput).
    """

    def __init__(self, cluster: Cluster, settings: SimSettings) -> None:
        """Nothing is made yet."""
        self.cluster = cluster
        self.settings = settings
        self.most_gpus = int(cluster.capacity.max())
        self._made: dict[object, MeasuredSpeeds] = {}

    def of(self, job: Job, type_speed: FloatArray) -> MeasuredSpeeds:
        """The curve of a job; type_speed: (types,) relative to the type on which it was recorded."""
        independent = job.purpose is Purpose.BATCH_INFERENCE  # its replicas do not wait for each other
        by_model = self.settings.scaling is Scaling.CATALOGUE and bool(job.model) and not independent
        reach = job.max_gpus if job.max_gpus < UNLIMITED_GPUS else job.gpus
        adapts = job.adaptivity is Adaptivity.ADAPTIVE and not independent
        tuned = self.settings.batches is Batches.ADAPTIVE and adapts
        key = (
            job.model if by_model or tuned else "",
            independent,
            tuned,
            job.gpus,
            job.min_gpus,
            reach,
            type_speed.tobytes(),
        )
        if key not in self._made:
            useful = self._model(job) if by_model else self._linear(job, reach)
            gain = self._gain(job) if tuned else np.ones(1)
            speeds = [frozen(type_speed[:, None] * relative * gain) for relative in useful]
            self._made[key] = MeasuredSpeeds(speeds[0], speeds[1])
        return self._made[key]

    def _linear(self, job: Job, reach: int) -> tuple[FloatArray, FloatArray]:
        """(types, most_gpus + 1), the same however spread."""
        gpus = np.arange(self.most_gpus + 1)
        stand_ins = self.cluster.stand_ins[:, None]
        useful = np.minimum(gpus, reach * stand_ins)
        if self.settings.scaling_loss and job.purpose is not Purpose.BATCH_INFERENCE:
            full = job.min_gpus * stand_ins
            useful = useful - self.settings.scaling_loss * np.maximum(useful - full, 0)
            asked_useful = job.gpus - self.settings.scaling_loss * max(job.gpus - job.min_gpus, 0)
        else:
            asked_useful = job.gpus
        relative = useful / asked_useful
        return relative, relative

    def _gain(self, job: Job) -> FloatArray:
        """(types, most_gpus + 1) what choosing its batch brings on so many GPUs; 1 for unknown models."""
        if not has_nearest(job.model):
            return np.ones((1, 1))
        model = nearest_model(job.model).name
        gains = [
            _tuning_gain(model, (gpu_type.name, *gpu_type.aliases), per_node, self.most_gpus, job.gpus)
            for gpu_type, per_node in zip(
                self.cluster.types, self.cluster.gpus_per_node.tolist(), strict=True
            )
        ]
        return np.array(gains)

    def _model(self, job: Job) -> tuple[FloatArray, FloatArray]:
        """(types, most_gpus + 1) on as few nodes as can be, and on more."""
        model = nearest_model(job.model).name
        compact, spread = [], []
        for gpu_type, per_node in zip(self.cluster.types, self.cluster.gpus_per_node.tolist(), strict=True):
            names = (gpu_type.name, *gpu_type.aliases)
            on_few, on_more = _samples_per_s(model, names, per_node, self.most_gpus)
            asked_per_s = on_few[min(job.gpus, self.most_gpus)]
            compact.append(on_few / asked_per_s)
            spread.append(on_more / asked_per_s)
        return np.array(compact), np.array(spread)


@lru_cache(maxsize=1024)
def _samples_per_s(
    model_name: str, type_names: tuple[str, ...], per_node: int, most_gpus: int
) -> tuple[FloatArray, FloatArray]:
    """(most_gpus + 1,) on as few nodes as can be and on at least two, at a fixed local batch."""
    model = find_model(model_name)
    on = model.on(next((name for name in type_names if name in model.gpu_types), USUAL_TYPE))
    local = max(min(model.init_batch, on.max_local), on.min_local)
    gpus = np.arange(1, most_gpus + 1)
    fewest = -(-gpus // per_node)
    several = np.where(gpus > 1, np.maximum(fewest, 2), 1)
    compact, spread = (throughput(on.params, nodes, gpus, local) for nodes in (fewest, several))
    return np.concatenate([[0.0], compact]), np.concatenate([[0.0], spread])


@lru_cache(maxsize=1024)
def _tuning_gain(
    model_name: str, type_names: tuple[str, ...], per_node: int, most_gpus: int, gpus_asked: int
) -> FloatArray:
    """(most_gpus + 1,) goodput at the best local batch over that at the usual one, half-way through training.

    The usual one is the model's initial batch over the GPUs asked for, and stays when their number changes.
    """
    model = find_model(model_name)
    on = model.on(next((name for name in type_names if name in model.gpu_types), USUAL_TYPE))
    noise = float(model.noise_scale(0.5))
    gpus = np.arange(1, most_gpus + 1)
    nodes = -(-gpus // per_node)
    usual = max(min(model.init_batch // gpus_asked, on.max_local), on.min_local)
    tried = np.unique(np.append(np.geomspace(on.min_local, on.max_local, BATCHES).round(), usual))
    total = tried[:, None] * gpus
    goodput = throughput(on.params, nodes, gpus, tried[:, None]) / (noise + total)  # up to a factor
    allowed = total <= np.maximum(model.max_batch, usual * gpus)
    best = np.where(allowed, goodput, 0.0).max(axis=0)
    return np.concatenate([[1.0], best / goodput[np.searchsorted(tried, usual)]])
