"""Slurm's nodes as the service sees them: whose GPUs are whose, and which are down, silent or shut."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stretto.backends.node_topology import NOWHERE, NodeTopology
from stretto.backends.protocol import NodeState
from stretto.backends.slurm.parsers import SlurmNode

ANY_TYPE = "gpu"  # the type of GPUs of which Slurm was told none

# States and flags, in the words of all versions since 22.05.
DEAD = frozenset({"DOWN", "POWERED_DOWN", "FUTURE"})
SILENT = frozenset(
    {"POWERING_DOWN", "NOT_RESPONDING", "NO_RESPOND", "UNKNOWN", "INVALID", "INVALID_REG", "POWERING_UP"}
)
SHUT = {
    "DRAIN": "drained", "DRAINED": "drained", "DRAINING": "drained", "FAIL": "failing", "FAILING": "failing",
    "MAINT": "in maintenance", "MAINTENANCE": "in maintenance", "REBOOT": "to be restarted",
    "REBOOT_REQUESTED": "to be restarted", "REBOOT_ISSUED": "to be restarted", "RESERVED": "reserved",
    "BLOCKED": "blocked", "POWER_DOWN": "to be powered down", "POWER_DRAIN": "to be powered down",
}  # fmt: skip


LENDER = "stretto: with lender "  # how the reason begins for which a node is drained
UNTOLD_MB = 1024  # below this, Slurm was not told how much memory a node has: its default is 1 MB
LEAST_MEMORY = 0.5  # of its part of all, that a worker job is to have even where others took more; chosen


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What a worker, or all others, have of a node or are to have."""

    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0  # 0 where Slurm was not told how much the node has

    def __add__(self, other: "NodeResources") -> "NodeResources":
        return NodeResources(self.gpus + other.gpus, self.cpus + other.cpus, self.memory_mb + other.memory_mb)

    def or_less(self, other: "NodeResources") -> "NodeResources":
        """The smaller of each."""
        return NodeResources(
            min(self.gpus, other.gpus), min(self.cpus, other.cpus), min(self.memory_mb, other.memory_mb)
        )

    def or_more(self, other: "NodeResources") -> "NodeResources":
        """The larger of each."""
        return NodeResources(
            max(self.gpus, other.gpus), max(self.cpus, other.cpus), max(self.memory_mb, other.memory_mb)
        )


def is_dead(node: SlurmNode) -> bool:
    """Whether Slurm counts a node as down, and so every job of it as ended."""
    return bool(node.states & DEAD)


def is_silent(node: SlurmNode) -> bool:
    """Whether Slurm does not know how a node is, and has not given it up."""
    return bool(node.states & SILENT) and not is_dead(node)


def type_of(node: SlurmNode) -> str:
    """The type of which a node has most GPUs, as Slurm calls it; "" for none."""
    return max(sorted(node.gpus), key=lambda one: node.gpus[one], default="")


def gres_of(node: SlurmNode, count: int) -> str:
    """What to ask Slurm for, for so many GPUs of a node."""
    gpu_type = type_of(node)
    return f"gpu:{gpu_type}:{count}" if gpu_type else f"gpu:{count}"


def serves(node: SlurmNode, partitions: Iterable[str]) -> bool:
    """Whether a node has GPUs and is in one of these partitions."""
    return bool(node.gpus.get(type_of(node))) and bool(set(partitions) & set(node.partitions))


def state_of(node: SlurmNode, others: NodeResources, where: NodeTopology = NOWHERE) -> NodeState:
    """A node as the service sees it."""
    gpu_type = type_of(node)
    up, words = not node.states & (DEAD | SILENT), _words(node)
    return NodeState(
        name=node.name,
        gpu_type=gpu_type or ANY_TYPE,
        gpus=node.gpus.get(gpu_type, 0),
        cpus=node.cpus,
        memory_gb=round(node.memory_mb / 1024, 1),
        up=up,
        address=node.address,
        why="" if up else words,
        dead=is_dead(node),
        shut=_shut(node) if up else "",
        others=others.gpus,
        zone=where.zone,
        rack=where.rack,
        nvlink_domain=where.nvlink_domain,
    )


def share_of(node: SlurmNode, gpus: int, others: NodeResources) -> NodeResources:
    """What goes with some GPUs of a node: their part of all, or of what other people leave, if that is less.

    Not asking would mean one processor and, on many clusters, all memory of the node.
    """
    total = max(node.gpus.get(type_of(node), 0), 1)
    left = max(total - others.gpus, gpus, 1)
    cpus = min(node.cpus * gpus // total, max(node.cpus - others.cpus, 0) * gpus // left)
    memory_mb = node.memory_mb if node.memory_mb >= UNTOLD_MB else 0
    whole_mb = memory_mb * gpus // total
    left_mb = max(memory_mb - others.memory_mb, 0) * gpus // left
    return NodeResources(gpus, max(cpus, 1), max(min(whole_mb, left_mb), int(whole_mb * LEAST_MEMORY)))


def held_by_others(node: SlurmNode, ours: NodeResources) -> NodeResources:
    """What of a node is in use and not ours.

    ours: by a listing of jobs that is no older than that of nodes. A node whose processors or memory are all
    taken can take no new worker, whatever its GPUs: those count as held by others too.
    """
    gpu_type = type_of(node)
    gpus = node.gpus.get(gpu_type, 0)
    used = min(node.used.get(gpu_type, 0) if len(node.gpus) > 1 else sum(node.used.values()), gpus)
    full = 0 < node.cpus <= node.used_cpus or UNTOLD_MB <= node.memory_mb <= node.used_memory_mb
    return NodeResources(
        gpus=max((gpus if full else used) - ours.gpus, 0),
        cpus=max(node.used_cpus - ours.cpus, 0),
        memory_mb=max(node.used_memory_mb - ours.memory_mb, 0),
    )


def unserved(node: NodeState, listed: SlurmNode | None) -> NodeState:
    """A node that was ours to use and is no more: what runs there goes on as long as Slurm has the node."""
    if listed is None:
        return replace(node, up=False, dead=True, why="Slurm lists it no more", shut="", others=0)
    up = not listed.states & (DEAD | SILENT)
    return replace(
        node,
        up=up,
        dead=is_dead(listed),
        why="" if up else _words(listed),
        shut="it has left the partitions that are used" if up else "",
        others=0,
    )


def lender_of(node: SlurmNode) -> str:
    """The lender for which we have drained a node; "" for none."""
    is_ours = "DRAIN" in node.states and node.reason.startswith(LENDER)
    return node.reason.removeprefix(LENDER) if is_ours else ""


def _shut(node: SlurmNode) -> str:
    """Why nothing new may start there; "" where it may.

    Of a node that is drained for its lender the service knows: it is resumed before a worker starts there.
    """
    if lender_of(node):
        return ""
    words = next((SHUT[state] for state in sorted(node.states) if state in SHUT), "")
    return f"{words} in Slurm{_because(node)}" if words else ""


def _words(node: SlurmNode) -> str:
    return f"Slurm says {'+'.join(sorted(node.states))}{_because(node)}"


def _because(node: SlurmNode) -> str:
    return f": {node.reason}" if node.reason else ""
