"""What a policy is: a frozen dataclass of parameters that turns a snapshot into shares."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol

from stretto.model.cluster import Cluster
from stretto.model.configurations import Configurations
from stretto.model.errors import InputError
from stretto.model.knowledge import View
from stretto.model.plan import Shares
from stretto.model.snapshot import Snapshot, Trigger
from stretto.model.speeds import Speeds


@dataclass(frozen=True, slots=True)
class Triggers:
    """When a policy wants to be asked. Times that it names itself (`Shares.wake_s`) come on top."""

    on: frozenset[Trigger]
    round_s: float | None = None  # period of Trigger.ROUND
    when_changed: bool = False  # leave out rounds before which nothing came, went or changed

    def __post_init__(self) -> None:
        """Check the period."""
        if self.round_s is not None and not 0 < self.round_s < inf:
            raise InputError(f"round_s must be a finite number > 0, got {self.round_s:g}")


ON_CHANGE = Triggers(frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY}))


def every(round_s: float) -> Triggers:
    """Asked at multiples of a period, and at nothing else."""
    return Triggers(frozenset({Trigger.ROUND}), round_s)


def on_change(round_s: float | None = None) -> Triggers:
    """Asked whenever jobs or nodes come or go; with a period, at its multiples before which they did."""
    if round_s is None:
        return ON_CHANGE
    return Triggers(frozenset({Trigger.ROUND}), round_s, when_changed=True)


class Policy(Protocol):
    """Who gets how many GPUs of which type, and why.

    A policy holds only its parameters; what it remembers between decisions is the `memory` of its shares,
    which comes back in the next snapshot. It reads the time from the snapshot and draws, if it must, from
    a generator seeded with `snapshot.seed` and what it keeps in its memory.

    A class may also say `order` (who comes first, and what it leaves to fair share, which is the order of the
    rows), `starvation` (who may be passed over, for how long), `paper`, `tables_only` (it
    reads measured tables itself and is given no speeds), and `profiles_first` (a live service is to run the
    first job of a model on one GPU of each type).
    """

    name: ClassVar[str]
    placer: ClassVar[str]  # the placement rule that its paper assumes

    @property
    def views(self) -> frozenset[View]:
        """What it needs to know beside requests and what is held now; a class attribute will do."""

    @property
    def triggers(self) -> Triggers:
        """When it wants to be asked."""

    def configurations(self, cluster: Cluster) -> Configurations:
        """The columns of the `Speeds` that it will be given."""

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """A share for every job of the snapshot. Pure: equal arguments give equal shares."""
