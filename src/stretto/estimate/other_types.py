"""What a job without a profile is believed to do on a GPU type that it has not tried (Sia, section 5.7).

The paper says only that a job without profiles "adopts a profile-as-you-go approach". Four beliefs fit that.
"""

from dataclasses import replace
from enum import StrEnum

import numpy as np

from stretto.model import Evidence, Snapshot, Speeds


class Untried(StrEnum):
    """A belief about other types, of a job that has run somewhere. It counts where nothing is profiled."""

    PERFECT = "perfect"  # as fast as those tried, and scales perfectly
    MEASURED = "measured"  # as fast as those tried, and scales as they were seen to
    SMALLEST = "smallest"  # as fast as those tried, on one GPU; more only once one was tried
    NEVER = "never"  # nothing: a job stays on its first type


def without_profiles(snapshot: Snapshot) -> Snapshot:
    """The snapshot with jobs of which no type was profiled."""
    stripped = [_unprofiled(evidence) for evidence in snapshot.jobs.evidence]
    return replace(snapshot, jobs=replace(snapshot.jobs, known_evidence=stripped))


def forbid(speeds: Speeds, belief: Untried) -> None:
    """Take the configurations away that a belief forbids, of jobs that have run somewhere."""
    if belief not in (Untried.SMALLEST, Untried.NEVER):
        return
    configurations = speeds.configurations
    never_ran_there = (speeds.observed_gpus == 0)[:, configurations.kind]
    too_many = (configurations.gpus > 1) | (belief is Untried.NEVER)
    speeds.per_s[speeds.modelled[:, None] & never_ran_there & too_many] = np.nan


def _unprofiled(evidence: Evidence | None) -> Evidence | None:
    if evidence is None:
        return None
    limits = evidence.limits
    nothing = np.full_like(limits.single_per_s, np.nan)
    return replace(evidence, limits=replace(limits, single_per_s=nothing, single_ratio=None))
