"""Which machine is in which place of a cluster that grows."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.backends.ray.autoscaling import NodeType, shown
from stretto.backends.ray.nodes import RayNode


@dataclass
class NodeSlots:
    """Places for machines that come and go.

    known: addresses of nodes by name, as the service has seen them in the life of an earlier gateway. What
    was in such a place may still run for a while, although Ray does not show it any more.
    """

    types: tuple[NodeType, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    kept_s: float = 0.0  # for which a place is kept for what was in it
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Know all names."""
        self.type_of = {name: one for one in self.types for name in one.places}

    def names_for(self, nodes: Iterable[RayNode], last: Mapping[str, tuple[str, bool]]) -> dict[str, str]:
        """Names by id for nodes that have none yet: of those that are of a type that comes and goes.

        last: by name, the address of what was or is in a place, and whether that is over. A machine that
        comes back is what it was before.
        """
        found: dict[str, str] = {}
        given: set[str] = set()
        was = {name: (address, not self.may_still_run(name)) for name, address in self.known.items()}
        was |= last
        for node in sorted(nodes, key=lambda one: one.address):
            of_type = next((one for one in self.types if one.takes(node)), None)
            free = [name for name in of_type.places if name not in given] if of_type is not None else []
            own = [name for name in free if was.get(name, ("", True))[0] == node.address]
            over = [name for name in free if was.get(name, ("", True))[1]]
            if own or over:
                found[node.id] = (own or over)[0]
                given.add(found[node.id])
        return found

    def may_still_run(self, name: str) -> bool:
        """Whether what was in a place before we began may be there still, whatever Ray says."""
        return name in self.known and time.monotonic() - self.began_s < self.kept_s

    def empty(self, taken: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Places in which nobody is, as the service is shown them."""
        found = [shown(one, name) for name, one in self.type_of.items() if name not in taken]
        return [
            {**each, "dead": False, "why": "not seen yet"} if self.may_still_run(each["name"]) else each
            for each in found
        ]
