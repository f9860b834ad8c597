"""What holds whatever the policy is: bounds of queues, permitted sizes, reservations. Read from a state.

`within` keeps decisions to these rules: live, when a log is repeated, and in forks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from stretto.live.state.records import Queue
from stretto.live.state.reservations import Reservation
from stretto.live.state.state import State
from stretto.model import Job, JobId

LEAD_S = 30.0  # before a reservation begins, beside the grace of those who are to leave; chosen


@dataclass(frozen=True)
class Rules:
    """The rules at one moment."""

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

    @property
    def are_void(self) -> bool:
        """Whether nothing is ruled."""
        return not (self.queues or self.sizes or self.reservations or self.profiles or self.others)

    def at(self, now_s: float) -> "Rules":
        """The rules as they stand a while later, when some reservations are over."""
        left = tuple(one for one in self.reservations if one.until_s > now_s)
        return self if len(left) == len(self.reservations) else replace(self, reservations=left)

    def next_change_s(self, now_s: float) -> float:
        """When the clock alone makes a decision necessary; infinite where it never does."""
        times = [
            at_s
            for one in self.reservations
            for at_s in (one.from_s - self.lead_s, one.from_s, one.until_s)
            if at_s > now_s
        ]
        return min(times, default=inf)

    def permitted(self, job: str, gpus: int) -> int:
        """The largest size that a job may have, of at most so many GPUs; 0: none."""
        sizes = self.sizes.get(job)
        return gpus if sizes is None else max((size for size in sizes if size <= gpus), default=0)


def rules_of(state: State, now_s: float) -> Rules:
    """The rules of a state."""
    reservations = tuple(one for _, one in sorted(state.reservations.items()) if one.until_s > now_s)
    queues = {name: queue for name, queue in state.queues.items() if queue.quota_gpus is not None}
    sizes = dict(state.sized)  # a copy: jobs come and end while a decision is being made
    staying = {name: state.jobs[name].job for name in state.staying()}
    others = {index: node.others for index, node in enumerate(state.nodes) if node.others and node.up}
    if not reservations:
        return Rules(queues, sizes, staying=staying, others=others)
    lasting_s: dict[str, float] = {}
    grace_s = 0.0
    for record in state.open_jobs():
        if record.books.held_gpus:
            grace_s = max(grace_s, record.spec.grace_period_s)
        if not record.job.preemptible:
            whole_s = record.spec.expected_time_s or record.spec.max_time_s
            lasting_s[record.id] = whole_s if whole_s else inf
    return Rules(queues, sizes, reservations, lasting_s, LEAD_S + grace_s, staying=staying, others=others)
