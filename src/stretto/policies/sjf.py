"""Shortest job first."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_waiting


@dataclass(frozen=True)
class ShortestJobFirst:
    """Start the waiting job of the shortest known duration first, and never stop one that runs.

    Ties go to the job that asks for fewer GPUs, then to the earlier one. The duration is the true one on
    the GPUs asked for: a reference, since it is not known in a real cluster.
    """

    skip: bool = False  # let what fits pass what does not (as in the first phase of Lyra); chosen: strict

    name: ClassVar[str] = "sjf"
    views: ClassVar[frozenset[View]] = frozenset({View.ORACLE_DURATION})
    placer: ClassVar[str] = "consolidated"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="common practice",
        order="shortest duration, then fewest GPUs; ties by fair share",
        starvation="unbounded: a long job waits as long as shorter ones keep coming",
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by duration."""
        jobs = snapshot.jobs
        waiting = np.flatnonzero(jobs.held_gpus == 0)
        shortest_first = np.lexsort((jobs.gpus[waiting], jobs.durations.duration_s[waiting]))
        return admit_waiting(snapshot, waiting[shortest_first], skip=self.skip)
