"""The Gittins index of a job that has had some service, from samples of how much others needed in all."""

import numpy as np

from stretto.model import FloatArray


def gittins_index_within(samples: FloatArray, attained: FloatArray, horizon: FloatArray) -> FloatArray:
    """(jobs,) chance of finishing within `horizon` per expected service spent on trying.

    G(a; D) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]     Tiresias (NSDI 2019), section 3.2.2

    samples: (samples,) total services S. attained: (jobs,) a. horizon: (jobs,) D > 0, may be infinite.
    Zero where no sample exceeds a.
    """
    return _index_until(np.sort(samples), attained, attained + horizon, horizon)


def gittins_index(samples: FloatArray, attained: FloatArray) -> FloatArray:
    """(jobs,) the largest index over every horizon; it is reached where a sample ends."""
    services = np.sort(samples)
    ends = np.unique(samples)
    shape = (len(attained), len(ends))
    horizon = np.maximum(ends - attained[:, None], 0.0)
    index = _index_until(
        services, np.repeat(attained, len(ends)), np.broadcast_to(ends, shape).ravel(), horizon.ravel()
    )
    best: FloatArray = index.reshape(shape).max(axis=1, initial=0.0)
    return best


def _index_until(
    services: FloatArray, attained: FloatArray, end: FloatArray, horizon: FloatArray
) -> FloatArray:
    """(jobs,) G(a; D) for services in order; end: a + D, given because sums of differences are rounded."""
    total = np.concatenate(([0.0], services.cumsum()))
    beyond = np.searchsorted(services, attained, side="right")
    within = np.maximum(np.searchsorted(services, end, side="right"), beyond)
    finishing = within - beyond
    longer = len(services) - within
    spent = total[within] - total[beyond] - attained * finishing
    spent = spent + longer * np.where(longer > 0, horizon, 0.0)
    index: FloatArray = np.divide(finishing, spent, out=np.zeros(len(attained)), where=spent > 0)
    return index
