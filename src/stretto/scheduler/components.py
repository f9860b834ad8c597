"""What makes up a scheduler: an estimator, a policy, a placer, and a rule for nodes that are lent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stretto.model import BatchChoice, Configurations, Loans, Placement, Policy, Shares, Snapshot, Speeds


class Estimator(Protocol):
    """How fast would each job run on each configuration?"""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """One row for each job of the snapshot, one column for each configuration."""


@runtime_checkable
class ChoosesBatches(Protocol):
    """Of an estimator: says which batch it counted with, so that workers can train with it."""

    def batches(
        self,
        snapshot: Snapshot,
        configurations: Configurations,
        held: Sequence[tuple[int, int, int, int]],
    ) -> list[BatchChoice]:
        """The batch of most goodput for each (row, GPU type, nodes, GPUs); all 0: nothing can be said."""


class Placer(Protocol):
    """Which GPUs, exactly?"""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """A placement of every share that can be placed; a job left out waits."""


class Lending(Protocol):
    """Which nodes of others may be used, and who makes room where they want them back?"""

    @property
    def period_s(self) -> float:
        """How often it wants to be asked, in s."""

    @property
    def foresight(self) -> bool:
        """Whether it must be shown what lenders will use next, which only a simulated world knows."""

    def settle(self, snapshot: Snapshot) -> Loans:
        """What is on loan from now on; asked every `period_s`, and when nodes of lenders fail or return."""


@dataclass(frozen=True)
class Scheduler:
    """The choices that make up a scheduler; the last only where there are lenders."""

    estimator: Estimator
    policy: Policy
    placer: Placer
    lending: Lending | None = None
