"""GPUs that are kept for a user or a queue from a time to a time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.model.arrays import IntArray, ints
from stretto.model.cluster import Cluster, NodeId
from stretto.model.errors import InputError

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
        """What is kept for whom."""
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
