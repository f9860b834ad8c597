"""What holds whatever the policy is: reservations, queues, permitted sizes, nodes shared with others."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from stretto.errors import InputError
from stretto.model.arrays import IntArray, ints
from stretto.model.cluster import Cluster, NodeId
from stretto.model.job import Job, JobId
from stretto.model.queue import FairShare, Queue

MOST_AT_ONCE = 6  # of GPUs of one type by number; chosen: all their combinations are looked at


@dataclass(frozen=True)
class Reservation:
    """A number of GPUs of a type, wherever they are, or all GPUs of some nodes."""

    name: str
    from_s: float  # on the clock of the snapshots
    until_s: float
    gpu_type: str = ""
    gpus: int = 0
    nodes: tuple[str, ...] = ()  # by name; then `gpu_type` and `gpus` say nothing
    user: str = ""  # for this user, and
    queue: str = ""  # for jobs of this queue

    def serves(self, user: str, queue: str) -> bool:
        """Whether a job of this user in this queue may use it."""
        return bool(self.user and user == self.user) or bool(self.queue and queue == self.queue)

    def gpus_by_type(self, cluster: Cluster) -> Mapping[str, int]:
        """How many GPUs of each type are kept."""
        if not self.nodes:
            return {self.gpu_type: self.gpus}
        found: Counter[str] = Counter()
        for place in self.places_on(cluster).tolist():
            found[cluster.nodes[place].gpu_type] += cluster.nodes[place].gpus
        return found

    def places_on(self, cluster: Cluster) -> IntArray:
        """(reserved nodes,) their indices; those that the cluster does not have are passed over."""
        names = [NodeId(name) for name in self.nodes]
        return ints([cluster.node_index[name] for name in names if name in cluster.node_index])

    @property
    def words(self) -> str:
        """Which GPUs are kept for which jobs."""
        what = f"nodes {', '.join(self.nodes)}" if self.nodes else f"{self.gpus} x {self.gpu_type}"
        whom = [f"user {self.user}"] if self.user else []
        whom += [f"queue {self.queue}"] if self.queue else []
        return f"{what} are reserved for {' and '.join(whom)}"


def check_reservation(new: Reservation, cluster: Cluster, others: Mapping[str, Reservation]) -> None:
    """Raise InputError for one that cannot be kept on this cluster, beside those that there are."""
    if not new.user and not new.queue:
        raise InputError("a reservation must be for a user or a queue, got neither")
    if new.until_s <= new.from_s:
        raise InputError(
            f"a reservation must end after it begins, got {new.until_s - new.from_s:g} s in between"
        )
    if bool(new.nodes) == bool(new.gpus):
        raise InputError("a reservation must be of a number of GPUs or of nodes, expected one of the two")
    for name in new.nodes:
        if name not in cluster.node_index:
            raise InputError(f"nodes: no node {name!r}")
    if new.gpus and new.gpu_type not in cluster.type_names:
        raise InputError(f"gpu_type: expected one of {', '.join(cluster.type_names)}, got {new.gpu_type!r}")
    beside = [
        other
        for name, other in others.items()
        if name != new.name and other.from_s < new.until_s and new.from_s < other.until_s
    ]
    nodes_taken = {node for other in beside for node in other.nodes} & set(new.nodes)
    if nodes_taken:
        raise InputError(f"nodes: {', '.join(sorted(nodes_taken))} reserved already at that time")
    for gpu_type, count in new.gpus_by_type(cluster).items():
        same = [other for other in beside if other.gpus_by_type(cluster).get(gpu_type)]
        if len([other for other in same if not other.nodes]) >= MOST_AT_ONCE:
            raise InputError(f"at most {MOST_AT_ONCE} reservations of {gpu_type} may overlap")
        reserved = sum(other.gpus_by_type(cluster)[gpu_type] for other in same)
        there = int(cluster.capacity[cluster.type_index(gpu_type)])
        if reserved + count > there:
            raise InputError(
                f"{count} x {gpu_type} cannot be reserved: "
                f"there are {there}, of which {reserved} are reserved"
            )


# ── what holds whatever the policy is: quotas, permitted sizes, reservations, nodes that others use too ─────


LEAD_S = 30.0  # before a reservation begins, beside the grace of jobs that are to leave; chosen


@dataclass(frozen=True)
class KeptNodes:
    """Nodes that take some jobs only, whatever these ask for."""

    nodes: tuple[int, ...]  # indices
    jobs: frozenset[JobId]
    words: str  # which jobs these are


@dataclass(frozen=True)
class Constraints:
    """The constraints at one moment; a world puts them into its snapshots, and decisions keep to them."""

    queues: Mapping[str, Queue] = field(default_factory=dict)  # those with a quota
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by job, where not all are permitted
    reservations: tuple[Reservation, ...] = ()  # that have not ended, by name
    lasting_s: Mapping[str, float] = field(default_factory=dict)  # by job that cannot be moved, from a start
    lead_s: float = LEAD_S  # a job in the way of a reservation leaves so long before it begins
    profiles: Mapping[str, int] = field(default_factory=dict)  # by job, the type on which to run one worker
    # On closed nodes: not asked about, but counted
    staying: Mapping[JobId, Job] = field(default_factory=dict)
    others: Mapping[int, int] = field(default_factory=dict)  # by node, GPUs that work of others holds
    priorities_act: bool = True  # higher jobs go first and take from lower ones, whatever the policy is
    quotas_kept: bool = True  # nothing is lent that could not be taken back; parts have reservations, too
    # Who may not be preempted stays on nodes that are closed to it; policies remember what they planned there
    parts_kept: bool = True
    parents: Mapping[str, str] = field(default_factory=dict)  # of queues that are a part of another
    whole_workers: bool = False  # nothing is given that makes no whole worker on one node
    ranges_kept: bool = True  # a job whose workers differ by type is shown types that its range suits
    going_on_until_s: Mapping[JobId, float] = field(default_factory=dict)  # jobs that do not grow until then
    kept: tuple[KeptNodes, ...] = ()  # no node is in two of them
    fair_share: FairShare | None = None  # orders jobs of one priority; None: they come by submission
    shows_usage: bool = True  # policies see who has had how much, too, and may count it

    @property
    def are_void(self) -> bool:
        """Whether nothing is ruled, priorities aside."""
        ruled = self.queues or self.sizes or self.reservations or self.profiles or self.others or self.kept
        return not (ruled or self.going_on_until_s)

    @property
    def of_users(self) -> "Constraints":
        """What users have had, their shares, and that workers are whole: all that policies are shown."""
        fair_share = self.fair_share if self.shows_usage else None
        if fair_share is None and not self.whole_workers:
            return NO_CONSTRAINTS
        return Constraints(fair_share=fair_share, whole_workers=self.whole_workers)

    def at(self, now_s: float) -> "Constraints":
        """The constraints as they stand a while later, when some reservations and periods are over."""
        if not self.reservations and not self.going_on_until_s:
            return self
        left = tuple(kept for kept in self.reservations if kept.until_s > now_s)
        going_on = {job: until_s for job, until_s in self.going_on_until_s.items() if until_s > now_s}
        if (len(left), len(going_on)) == (len(self.reservations), len(self.going_on_until_s)):
            return self
        return replace(self, reservations=left, going_on_until_s=going_on)

    def next_change_s(self, now_s: float) -> float:
        """When the clock alone makes a decision necessary; infinite where it never does."""
        times = [
            at_s
            for reservation in self.reservations
            for at_s in (reservation.from_s - self.lead_s, reservation.from_s, reservation.until_s)
            if at_s > now_s
        ]
        times += [until_s for until_s in self.going_on_until_s.values() if until_s > now_s]
        return min(times, default=inf)

    def permitted(self, job: str, gpus: int) -> int:
        """The largest size that a job may have, of at most so many GPUs; 0: none."""
        sizes = self.sizes.get(job)
        return gpus if sizes is None else max((size for size in sizes if size <= gpus), default=0)


NO_CONSTRAINTS = Constraints()
