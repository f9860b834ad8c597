"""Which models of speed are believed of jobs: fitted to what they have shown, carried over between types."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stretto.estimate.fit import fit_many
from stretto.estimate.published_fit import published_fit
from stretto.estimate.throughput import Choice, Mode, single_ratios, sources_of
from stretto.model import (
    BoolArray,
    Configurations,
    FloatArray,
    IntArray,
    Observations,
    TrainingLimits,
    frozen,
)


class Fit(StrEnum):
    """How a throughput model is fitted to observations."""

    BEST = "best"  # `fit`
    PUBLISHED = "published"  # `published_fit`


@dataclass(frozen=True, eq=False)
class Frame:
    """What all that is asked in one decision has in common. Compared as an object; `frame_of` makes few."""

    configurations: Configurations
    gpus_per_node: tuple[int, ...]
    mode: Mode
    reference: Choice
    fit: Fit


@lru_cache(maxsize=64)
def frame_of(
    configurations: Configurations, gpus_per_node: tuple[int, ...], mode: Mode, reference: Choice, fit: Fit
) -> Frame:
    """The frame with these parts, always the same one."""
    return Frame(configurations, gpus_per_node, mode, reference, fit)


class Believed(NamedTuple):
    """Whose model answers for each type: `throughput.Sources`, with the models."""

    params: FloatArray  # (jobs, types, 7) of the type's own model; anything where it has none
    source: IntArray  # (jobs, types) the type whose model answers
    ratio: FloatArray  # (jobs, types) by which its answer is multiplied
    perfect: BoolArray  # (jobs, types) what it says about synchronising is left out


def believed_of(
    frame: Frame,
    limits: Sequence[TrainingLimits],
    observed: Sequence[tuple[Observations, ...]],
    at_hand: FloatArray,
) -> Believed:
    """The models of all jobs, fitted side by side. Of a job that has shown nothing, those of each type.

    at_hand: (jobs, types, 7) models that were fitted before, NaN where they were not.
    """
    jobs, types = len(observed), len(frame.gpus_per_node)
    seen = [of_type for shown in observed for of_type in shown]
    counts = np.array([_counts(of_type) for of_type in seen], dtype=np.int64).reshape(jobs, types, 2)
    several, alone = counts[..., 0], counts[..., 1]
    params = at_hand.reshape(-1, 7).copy()
    was_seen = counts.any(axis=2).ravel()
    missing = np.flatnonzero(was_seen & np.isnan(params[:, 0]))
    if missing.size:
        unfitted = [seen[place] for place in missing.tolist()]
        fitted = map(published_fit, unfitted) if frame.fit is Fit.PUBLISHED else fit_many(unfitted)
        params[missing] = list(fitted)
    params[~was_seen] = 1.0
    sources = sources_of(
        several,
        alone,
        np.isfinite([limit.single_per_s for limit in limits]),
        np.array([_ratios(limit) for limit in limits]),
        frame.gpus_per_node,
        frame.mode,
        frame.reference,
    )
    # A model fitted to one GPU scales perfectly as it is.
    row = np.arange(jobs)[:, None]
    has_shown = ((several > 0) | (alone > 0)).any(axis=1, keepdims=True)
    perfect = sources.perfect & (several[row, sources.kind] > 0) & has_shown
    return Believed(
        params.reshape(jobs, types, 7),
        np.where(has_shown, sources.kind, np.arange(types)),
        np.where(has_shown, sources.ratio, 1.0),
        perfect,
    )


@lru_cache(maxsize=65_536)
def _counts(observed: Observations) -> tuple[int, int]:
    """Operating points on several GPUs, and on one."""
    several = sum(point.gpus > 1 for point in observed.points)
    return several, len(observed) - several


@lru_cache(maxsize=65_536)
def _ratios(limits: TrainingLimits) -> FloatArray:
    """(types, types) of one GPU on each type over one on each other; 1 where either was not profiled."""
    return frozen(single_ratios(limits.single_per_s, limits.single_ratio))
