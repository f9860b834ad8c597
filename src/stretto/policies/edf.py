"""Earliest deadline first."""

from dataclasses import dataclass
from typing import ClassVar

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
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew, admit_waiting


@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Give the GPUs to the jobs whose first deadline is nearest, stopping others for them.

    Jobs without a deadline come last, by submission. What does not fit is skipped. Nothing is refused: a
    job that will miss its deadline is served all the same, and may cost others theirs. The elastic EDF of
    ElasticFlow's comparison, which reserves slots and sizes ahead, is another policy and not here.
    """

    preemptive: bool = True  # False: a running job is left alone

    name: ClassVar[str] = "edf"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "consolidated"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Liu and Layland (J. ACM 1973); a baseline of UniSched (TPDS 2024)",
        order="earliest deadline; ties, and those without one, by fair share",
        starvation="unbounded: a job without a deadline waits while others with one keep coming",
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by deadline, ties by submission, then by job id."""
        jobs = snapshot.jobs
        order = jobs.deadline_s.argsort(kind="stable")
        if self.preemptive:
            return admit_anew(snapshot, order)
        return admit_waiting(snapshot, order[jobs.held_gpus[order] == 0], skip=True)
