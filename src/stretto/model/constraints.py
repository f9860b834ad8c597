"""What holds whatever the policy is: quotas, permitted sizes, reservations, nodes that others use too."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from stretto.model.fair_share import FairShare
from stretto.model.job import Job, JobId
from stretto.model.queue import Queue
from stretto.model.reservation import Reservation

LEAD_S = 30.0  # before a reservation begins, beside the grace of those who are to leave; chosen


@dataclass(frozen=True)
class Constraints:
    """The constraints at one moment; a world puts them into its snapshots, and decisions keep to them."""

    queues: Mapping[str, Queue] = field(default_factory=dict)  # those with a quota
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by job, where not all are permitted
    reservations: tuple[Reservation, ...] = ()  # that have not ended, by name
    lasting_s: Mapping[str, float] = field(default_factory=dict)  # by job that cannot be moved, from a start
    lead_s: float = LEAD_S  # who is in the way of a reservation leaves so long before it begins
    profiles: Mapping[str, int] = field(default_factory=dict)  # by job, the type on which to run one worker
    staying: Mapping[JobId, Job] = field(
        default_factory=dict
    )  # on closed nodes: not asked about, but counted
    others: Mapping[int, int] = field(default_factory=dict)  # by node, GPUs that work of others holds
    priorities_act: bool = True  # higher jobs go first and take from lower ones, whatever the policy is
    quotas_kept: bool = True  # nothing is lent that could not be taken back; parts have reservations, too
    parents: Mapping[str, str] = field(default_factory=dict)  # of queues that are a part of another
    fair_share: FairShare | None = None  # orders jobs of one priority; None: they come by submission

    @property
    def are_void(self) -> bool:
        """Whether nothing is ruled, priorities aside."""
        return not (self.queues or self.sizes or self.reservations or self.profiles or self.others)

    def at(self, now_s: float) -> "Constraints":
        """The constraints as they stand a while later, when some reservations are over."""
        left = tuple(one for one in self.reservations if one.until_s > now_s)
        return self if len(left) == len(self.reservations) else replace(self, reservations=left)

    def next_change_s(self, now_s: float) -> float:
        """When the clock alone makes a decision necessary; infinite where it never does."""
        times = [
            at_s
            for reservation in self.reservations
            for at_s in (reservation.from_s - self.lead_s, reservation.from_s, reservation.until_s)
            if at_s > now_s
        ]
        return min(times, default=inf)

    def permitted(self, job: str, gpus: int) -> int:
        """The largest size that a job may have, of at most so many GPUs; 0: none."""
        sizes = self.sizes.get(job)
        return gpus if sizes is None else max((size for size in sizes if size <= gpus), default=0)


NO_CONSTRAINTS = Constraints()
