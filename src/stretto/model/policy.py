"""What a policy is: a frozen dataclass of parameters that turns a snapshot into shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import ClassVar, Protocol, runtime_checkable

from stretto.errors import InputError
from stretto.model.arrays import FloatArray
from stretto.model.cluster import Cluster
from stretto.model.configurations import Configurations, Speeds
from stretto.model.job import JobId
from stretto.model.knowledge import View
from stretto.model.memory import Memory
from stretto.model.plan import Shares
from stretto.model.snapshot import Snapshot, Trigger


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


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a policy says of itself beyond what each must say: all of it optional, the same for all settings.

    A policy class sets it as `traits: ClassVar[PolicyTraits] = PolicyTraits(paper=...)`.
    """

    paper: str = ""  # where it was published
    order: str = ""  # which job comes first, and what it leaves to fair share, which is the order of the rows
    starvation: str = ""  # which jobs may be passed over, and for how long
    sizes_by_type: bool = False  # workers of one job may have another number of GPUs on each type
    mixes_types: bool = False  # a job that may hold GPUs of several types at once can get them
    shares_knowledge: bool = False  # it counts on what all jobs of a model have shown; see estimate.share
    tables_only: bool = False  # it reads the measured tables of few jobs itself and is given no speeds
    # Settings by name, as people type them, each in the place of the default of its field.
    reproducing: Mapping[str, str] = field(default_factory=dict)  # where measured profiles are simulated
    artifact: Mapping[str, str] = field(default_factory=dict)  # in the fidelity of its published simulator
    former: Mapping[str, str] = field(default_factory=dict)  # in logs from before the settings were there


class Policy(Protocol):
    """Which job gets how many GPUs of which type, and why.

    A policy holds only its parameters; what it remembers between decisions is the `memory` of its shares,
    which comes back in the next snapshot. It reads the time from the snapshot and draws, if it must, from
    a generator seeded with `snapshot.seed` and what it keeps in its memory.

    A class may also declare `PolicyTraits`, and be one that `ProfilesFirst` or one that `BidsForGpus`.
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


class DeclaresTraits(Protocol):
    """Of a policy, or of its class: says more of itself than each must."""

    traits: ClassVar[PolicyTraits]


@runtime_checkable
class ProfilesFirst(Protocol):
    """Of a policy: may want the first job of a model to run on one GPU of each type, in a live service."""

    @property
    def profiles_first(self) -> bool:
        """Whether it wants that, with its settings."""


@runtime_checkable
class SumsBatches(Protocol):
    """Of a policy that chooses local batches: may want only their sum to count, as in older logs."""

    @property
    def sums_batches(self) -> bool:
        """Whether the sum is split evenly, and never less than the submitted batch, with its settings."""


@runtime_checkable
class BidsForGpus(Protocol):
    """Of a policy: can say what a job could pay for GPUs, beside the prices of its shares."""

    def pays(self, snapshot: Snapshot, speeds: Speeds) -> FloatArray:
        """(jobs, types) the most for one GPU of a type, in the units of `Shares.prices`; NaN: cannot run."""


@runtime_checkable
class TellsStanding(Protocol):
    """Of a policy: can say of a job where it stands among the others, by what it remembers."""

    def standing(self, memory: Memory, job: JobId) -> str:
        """In a few words for people; "" where it remembers nothing of the job."""


class Promise(StrEnum):
    """Whether a deadline can be kept, as a policy's plan has it."""

    YES = "yes"
    AT_RISK = "at risk"  # a later step of a soft one can, or the clock alone leaves time enough
    NO = "no"


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """What a policy expects of one job; times are as in the snapshot, NaN where there is none."""

    promise: Promise | None  # None: the job has no deadline ahead
    deadline_s: float  # that the promise is about: of the step that can be kept, else the first
    end_s: float  # with YES the latest end, else the earliest
    lease_until_s: float  # until when what it holds is its own
    suspension_s: float  # what a stop and a later start cost it
    is_measured: bool  # whether that was measured


@runtime_checkable
class PromisesDeadlines(Protocol):
    """Of a policy: can say of a job whether its deadline will be kept, before anything is decided of it."""

    def outlook(self, snapshot: Snapshot, speeds: Speeds, job: JobId) -> JobOutlook:
        """Of a job in the snapshot, whose memory is that of the last decision; speeds as for `allocate`."""


NO_TRAITS = PolicyTraits()  # of a policy that says nothing of itself


def traits_of(policy: Policy | type) -> PolicyTraits:
    """What a policy, or a class of policies, says of itself; the defaults where it says nothing.

    Raises InputError where `traits` is something else.
    """
    # Asked in every decision: a check by the protocol would look at all of its members each time.
    traits = getattr(policy, "traits", NO_TRAITS)
    if not isinstance(traits, PolicyTraits):
        raise InputError(f"policy.traits must be a PolicyTraits, got {traits!r}")
    return traits
