"""First in, first out."""

from dataclasses import dataclass
from typing import ClassVar

from stretto.model import (
    Cluster,
    Configurations,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    on_change,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_waiting
from stretto.settings import CheckedSettings, setting


@dataclass(frozen=True)
class FirstInFirstOut(CheckedSettings, space="policy"):
    """Start jobs in the order in which they came, and never stop one that runs.

    The usual reading is strict: the first job that does not fit holds up all that came later. With `skip`,
    later jobs that fit may pass it (backfilling without a reservation: large jobs may starve).

    Numbers of GPUs decide whether a job fits, before any is placed. Under the placer `consolidated`, a job
    may fit so while no whole nodes are free for it. It is started all the same and finds no place. It keeps
    its number from those behind it at every decision until it does: with `skip`, too, it then holds them up.
    With `place.rule=relaxed` what fits by number has a place.
    """

    skip: bool = False  # let what fits pass what does not; chosen: strict, as in the trace studies
    # decide at rounds of so many seconds only; None: whenever jobs come or go
    round_s: float | None = setting(None, above=0)

    name: ClassVar[str] = "fifo"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "consolidated"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="common practice; the baseline of Lyra (EuroSys 2023)",
        order="fair share, then submission",
        starvation=(
            "bounded: nobody passes it, so it waits for the jobs before it; with skip, large ones may starve"
        ),
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, or at rounds before which they did."""
        return on_change(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by submission, ties by job id: the order of the rows."""
        waiting = (snapshot.jobs.held_gpus == 0).nonzero()[0]
        return admit_waiting(snapshot, waiting, skip=self.skip)
