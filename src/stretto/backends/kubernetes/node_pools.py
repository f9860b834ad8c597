"""Nodes that the cluster's autoscaler may add: what people say of them, and which machine is which.

A cluster that grows has a slot for each node that there may be, `h100x8-1`, `h100x8-2` and so on. A slot may
be without a machine. A machine that comes takes the first slot of its kind that is free. So machines that
come and go for months do not pile up, and jobs may ask for nodes that are not there yet. All other nodes
have their own names.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from stretto.backends.protocol import NodeState
from stretto.errors import InputError

NEVER = "no"
WORD = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,3}):([0-9]{1,4})(?::(.+))?")
EXPECTED = "expected TYPE:GPUS:NODES like h100:8:4, perhaps with :LABEL=VALUE,… of its nodes, or no"


@dataclass(frozen=True)
class NodePool:
    """Nodes of one kind, as many as there may be at once."""

    gpu_type: str
    gpus: int  # of each
    most: int
    labels: Mapping[str, str] = field(default_factory=dict)  # that tell its nodes from others; {}: not said

    @property
    def slots(self) -> list[str]:
        """Names of its nodes."""
        return [f"{self.gpu_type}x{self.gpus}-{number}" for number in range(1, self.most + 1)]

    def takes(self, machine: NodeState, labels: Mapping[str, str]) -> bool:
        """Whether a machine with these labels is of this kind."""
        is_labelled = all(labels.get(key) == value for key, value in self.labels.items())
        return (machine.gpu_type, machine.gpus) == (self.gpu_type, self.gpus) and is_labelled


def pools_of(words: Iterable[str]) -> tuple[NodePool, ...]:
    """Pools as people say them. Raises InputError."""
    pools: dict[tuple[str, int], NodePool] = {}
    for word in words:
        if word == NEVER:
            continue
        parts = WORD.fullmatch(word)
        if parts is None or not int(parts[2]) or not int(parts[3]):
            raise InputError(f"--grow {word}: {EXPECTED}")
        pairs = [pair.partition("=") for pair in (parts[4] or "").split(",") if pair]
        if not all(key and equals for key, equals, _ in pairs):
            raise InputError(f"--grow {word}: {EXPECTED}")
        gpu_type, gpus = parts[1].lower(), int(parts[2])
        if (gpu_type, gpus) in pools:
            raise InputError(f"--grow {word}: {gpu_type} with {gpus} GPUs was named before")
        labels = {key: value for key, _, value in pairs}
        pools[gpu_type, gpus] = NodePool(gpu_type, gpus, int(parts[3]), labels)
    return tuple(pools.values())


class NodeSlots:
    """Which machine is in which slot."""

    def __init__(self, pools: Iterable[NodePool], addresses: Mapping[str, str] | None = None) -> None:
        """addresses: of nodes by name, as an earlier service has seen them."""
        self.pools = tuple(pools)
        self.pool_of = {slot: pool for pool in self.pools for slot in pool.slots}
        self.addresses = dict(addresses or {})
        self._names: dict[str, str] = {}  # by machine
        self._machines: dict[str, str] = {}  # by name

    def adopt(self, name: str, machine: str) -> None:
        """A pod of ours runs on a machine, under this name of its node: it stays that."""
        if machine not in self._names and name not in self._machines:
            self._names[machine], self._machines[name] = name, machine

    def fill(self, machines: Mapping[str, NodeState], labels: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Give machines that are new to us the slots of their kinds that are free.

        machines: those that there are, with their labels. A slot is free once its machine is gone. A machine
        that comes back, or that an earlier service knew by its address, is what it was before. Returns those
        that are gone and have lost their slots to others.
        """
        replaced = []
        for machine, state in sorted(machines.items()):
            if machine in self._names:
                continue
            pool = next((pool for pool in self.pools if pool.takes(state, labels[machine])), None)
            free = [slot for slot in pool.slots if self._machines.get(slot) not in machines] if pool else []
            if not free:
                continue
            slot = min(
                free, key=lambda name: (self.addresses.get(name) != state.address, name in self._machines)
            )
            if before := self._machines.get(slot):
                del self._names[before]
                replaced.append(before)
            self._names[machine], self._machines[slot] = slot, machine
        return replaced

    def shown(self, machine: str, state: NodeState) -> NodeState:
        """A machine as the service knows it: under the name of its slot, where it has one."""
        name = self.name_of(machine)
        if name not in self.pool_of:
            return state if name == machine else replace(state, name=name)
        remark = state.remark or (f"it is {machine} of the cluster" if state.up else "")
        return replace(state, name=name, comes=True, remark=remark)

    def name_of(self, machine: str) -> str:
        """Under which name the service knows a machine."""
        return self._names.get(machine, machine)

    def machine_of(self, name: str) -> str:
        """The machine that the service knows under a name."""
        return self._machines.get(name, name)

    def empty(self, filled: Collection[str]) -> list[NodeState]:
        """All slots but those that hold a machine, as the service is shown them."""
        return [
            NodeState(
                slot,
                pool.gpu_type,
                pool.gpus,
                up=False,
                dead=True,
                why="starts when it is needed",
                comes=True,
            )
            for slot, pool in self.pool_of.items()
            if slot not in filled
        ]
