"""On which GPUs does a served model keep the latency that was promised?

A worker answers waiting requests together, b of them in α + β b seconds. One that comes just after a batch
has begun waits for that, and then for its own. So a worker keeps latency L with at most

    b* = max { b : 2 (α + β b) ≤ L }

requests at once (as in Nexus, Shen et al., SOSP 2019). Workers do not wait for each other, so n of them
keep it for n b* / (α + β b*) requests a second. Sia (SOSP 2023), section 3.4: goodput is 1 where a
configuration can keep the latency, and 0 otherwise.

**Deviation**: the paper speaks of a latency only. How many requests come has to be promised too, or one GPU
would do for any number. Requests are taken to come evenly; after a burst some wait for longer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stretto.estimate.fit import fit
from stretto.model.arrays import BoolArray, FloatArray, IntArray
from stretto.model.knowledge import Observations, ServiceLevel

KEPT_PER_S = 1.0  # goodput where the latency is kept: progress of a job that serves counts in seconds
ROUNDING = 1e-9  # by which a quotient may lack of a whole number and count as it


class Kept(NamedTuple):
    """Of placements, each field in the shape of what they were asked with."""

    batch: IntArray  # b*, 0: a single request takes too long
    batch_s: FloatArray  # seconds of such a batch, of a single request where there is none
    per_s: FloatArray  # requests per second for which the latency is kept
    holds: BoolArray  # whether that is as many as was promised


def kept(
    service_level: ServiceLevel,
    alpha_s: npt.ArrayLike,
    beta_s: npt.ArrayLike,
    workers: npt.ArrayLike,
    most_local: npt.ArrayLike,
) -> Kept:
    """What so many workers keep of a service level; the arguments broadcast.

    alpha_s, beta_s: seconds of a batch, and more for each request in it. most_local: requests that a worker
    can answer together at most; 0: the model does not run there.
    """
    alpha, beta = np.asarray(alpha_s, dtype=np.float64), np.asarray(beta_s, dtype=np.float64)
    most = np.asarray(most_local)
    allowed_s = service_level.latency_s / 2 - alpha
    largest = np.floor(allowed_s / np.maximum(beta, 1e-12) + ROUNDING)
    batch = np.clip(largest, 0, most).astype(np.int64)
    batch_s = alpha + beta * np.maximum(batch, 1)
    per_s = np.asarray(workers) * batch / batch_s
    holds = (batch > 0) & (per_s >= service_level.requests_per_s * (1 - ROUNDING))
    return Kept(batch, batch_s, per_s, holds)


class Needs(NamedTuple):
    """What keeps a service level, by GPU type; arrays are (types,)."""

    gpus: FloatArray  # the fewest, in whole workers; infinite: a single request takes too long
    kept: Kept  # by one worker; of a type of which nothing is known 0 requests in NaN seconds
    is_timed: BoolArray  # batches were timed there; else they are taken from another type


def needs(
    level: ServiceLevel,
    observed: Sequence[Observations],
    type_speeds: Sequence[float],
    max_local: npt.ArrayLike,
    worker_gpus: npt.ArrayLike,
) -> Needs:
    """By what batches took on each type; elsewhere as on the type that is known best, by the speeds of types.

    Where nothing was observed on any type, one worker is hoped to be enough.
    """
    is_timed = np.array([bool(seen) for seen in observed])
    workers, speeds = np.asarray(worker_gpus), np.asarray(type_speeds, dtype=np.float64)
    if not is_timed.any():
        unknown = np.full(len(speeds), np.nan)
        nothing = Kept(np.zeros(len(speeds), dtype=np.int64), unknown, unknown, is_timed)
        runs = np.broadcast_to(np.asarray(max_local), speeds.shape) > 0
        return Needs(np.where(runs, workers, np.inf), nothing, is_timed)
    best = max(range(len(observed)), key=lambda kind: (len(observed[kind]), -kind))
    source = np.where(is_timed, np.arange(len(observed)), best)
    ratio = np.where(is_timed, 1.0, speeds / speeds[best])
    models = np.array([fit(seen) if seen else np.zeros(7) for seen in observed])[source]
    alone = kept(level, models[:, 0] / ratio, models[:, 1] / ratio, 1, max_local)
    enough = np.ceil(level.requests_per_s / np.where(alone.batch > 0, alone.per_s, 1.0) - ROUNDING)
    return Needs(np.where(alone.batch > 0, np.maximum(enough, 1) * workers, np.inf), alone, is_timed)
