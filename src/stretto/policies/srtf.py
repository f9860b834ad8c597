"""Shortest remaining time first, and its relatives that weigh time by GPUs."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    FloatArray,
    JobTable,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew, admit_waiting


@dataclass(frozen=True)
class ShortestRemainingTimeFirst:
    """Give the GPUs to the jobs that will finish soonest, stopping others for them.

    All unfinished jobs in the order of what is left of them on the GPUs that they asked for; what does not
    fit is skipped. Ties keep the running job. `by_service` weighs what is left by those GPUs (shortest
    remaining service first).
    """

    by_service: bool = False  # order by remaining time x GPUs instead of by remaining time
    preemptive: bool = True  # False: a running job is left alone
    estimated: bool = False  # what an estimator believes instead of the truth
    # Interactive jobs come before all others and stop them, as in figure 1 of Cornucopia
    interactive_first: bool = False

    name: ClassVar[str] = "srtf"
    placer: ClassVar[str] = "consolidated"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="common practice; SRSF as in Tiresias (NSDI 2019)",
        order="least left to run; ties by fair share",
        starvation="unbounded: a long job waits as long as shorter ones keep coming",
    )

    @property
    def views(self) -> frozenset[View]:
        """Durations: true or estimated."""
        return frozenset({View.ESTIMATED_DURATION if self.estimated else View.ORACLE_DURATION})

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by what is left of the jobs."""
        running = snapshot.jobs.held_gpus > 0
        left = self._left(snapshot.jobs)
        if self.interactive_first:  # every interactive job has less left than any other
            left = np.where(snapshot.jobs.interactive, -1.0 / (1.0 + left), left)
        waiting = np.flatnonzero(~running)
        if not self.preemptive:
            return admit_waiting(snapshot, waiting[left[waiting].argsort(kind="stable")], skip=True)
        running_first = np.concatenate((np.flatnonzero(running), waiting))
        return admit_anew(snapshot, running_first[left[running_first].argsort(kind="stable")])

    def _left(self, jobs: JobTable) -> FloatArray:
        remaining_s = (jobs.estimates if self.estimated else jobs.durations).remaining_s
        return remaining_s * jobs.gpus if self.by_service else remaining_s


@dataclass(frozen=True)
class ShortestRemainingServiceFirst(ShortestRemainingTimeFirst):
    """Give the GPUs to the jobs with the fewest GPU-seconds left, stopping others for them."""

    by_service: bool = True

    name: ClassVar[str] = "srsf"
    traits: ClassVar[PolicyTraits] = replace(
        ShortestRemainingTimeFirst.traits,
        paper="Tiresias (NSDI 2019)",
        order="fewest GPU-seconds left; ties by fair share",
    )


@dataclass(frozen=True)
class QuasiShortestServiceFirst(ShortestRemainingTimeFirst):
    """Start first the waiting jobs with the fewest predicted GPU-seconds; never stop one that runs.

    Helios (SC 2021), also a baseline of Lucid. Deviation: the prediction is the world's estimate, not one
    from names and users as the paper's boosted trees make. The simulated world makes it of the truth and an
    error (`sim.duration_error`, 0 unless set).
    """

    by_service: bool = True
    preemptive: bool = False
    estimated: bool = True

    name: ClassVar[str] = "qssf"
    traits: ClassVar[PolicyTraits] = replace(
        ShortestRemainingTimeFirst.traits,
        paper="Helios (SC 2021)",
        order="fewest predicted GPU-seconds; ties by fair share",
    )
