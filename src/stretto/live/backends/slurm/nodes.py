"""Slurm's nodes as the service sees them: whose GPUs are whose, and who is down, silent or shut."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stretto.live.backends.protocol import NodeState
from stretto.live.backends.slurm.listing import SlurmNode

ANY_TYPE = "gpu"  # the type of GPUs of which Slurm was told none

# States and flags, in the words of all versions since 22.05.
DEAD = frozenset({"DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "FUTURE"})
SILENT = frozenset({"NOT_RESPONDING", "NO_RESPOND", "UNKNOWN", "INVALID", "INVALID_REG", "POWERING_UP"})
SHUT = {
    "DRAIN": "drained", "DRAINED": "drained", "DRAINING": "drained", "FAIL": "failing", "FAILING": "failing",
    "MAINT": "in maintenance", "MAINTENANCE": "in maintenance", "REBOOT": "to be restarted",
    "REBOOT_REQUESTED": "to be restarted", "REBOOT_ISSUED": "to be restarted", "RESERVED": "reserved",
    "BLOCKED": "blocked",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Share:
    """What a slice takes of its node besides GPUs."""

    cpus: int
    memory_mb: int  # 0: Slurm was not told how much the node has


def is_dead(node: SlurmNode) -> bool:
    """Whether Slurm counts a node as down, and so every job of it as ended."""
    return bool(node.states & DEAD)


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


def state_of(node: SlurmNode, ours: int) -> NodeState:
    """A node as the service sees it.

    ours: GPUs that our slices hold there, by a listing of jobs that is no older than that of nodes. A node
    whose processors are all taken can take nobody new whatever its GPUs: those count as held by others too.
    """
    gpu_type = type_of(node)
    gpus = node.gpus.get(gpu_type, 0)
    used = min(node.used.get(gpu_type, 0) if len(node.gpus) > 1 else sum(node.used.values()), gpus)
    full = bool(node.cpus) and node.used_cpus >= node.cpus
    up, words = not node.states & (DEAD | SILENT), _words(node)
    return NodeState(
        name=node.name,
        gpu_type=gpu_type or ANY_TYPE,
        gpus=gpus,
        cpus=node.cpus,
        memory_gb=round(node.memory_mb / 1024, 1),
        up=up,
        address=node.address,
        why="" if up else words,
        dead=is_dead(node),
        shut=_shut(node) if up else "",
        others=max((gpus if full else used) - ours, 0),
    )


def share_of(node: SlurmNode, gpus: int, used_gpus: int) -> Share:
    """What goes with some GPUs of a node: their part of all, or of what is left where others took more.

    used_gpus: of the node, by anybody. Not asking would mean one processor and, on many clusters, all memory.
    """
    total = max(node.gpus.get(type_of(node), 0), 1)
    free = max(total - used_gpus, gpus, 1)
    cpus = min(node.cpus * gpus // total, max(node.cpus - node.used_cpus, 0) * gpus // free)
    memory_mb = min(
        node.memory_mb * gpus // total, max(node.memory_mb - node.used_memory_mb, 0) * gpus // free
    )
    return Share(max(cpus, 1), memory_mb)


def down_like(known: Mapping[str, NodeState], why: str) -> list[NodeState]:
    """Nodes that Slurm does not list any more."""
    return [
        NodeState(one.name, one.gpu_type, one.gpus, one.cpus, one.memory_gb, up=False, why=why, dead=True)
        for one in known.values()
    ]


def _shut(node: SlurmNode) -> str:
    """Why nothing new may start there; "" where it may."""
    words = next((SHUT[state] for state in sorted(node.states) if state in SHUT), "")
    return f"{words} in Slurm{_because(node)}" if words else ""


def _words(node: SlurmNode) -> str:
    return f"Slurm says {'+'.join(sorted(node.states))}{_because(node)}"


def _because(node: SlurmNode) -> str:
    return f": {node.reason}" if node.reason else ""
