"""A generation as the service tells it: which workers train together, in the order of ranks."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a generation."""

    id: str
    node: str = ""
    address: str = "127.0.0.1"
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class RequestedBatch:
    """The batch that the service wants; None: the script's own bounds decide."""

    total: int  # samples a step, over all workers
    accumulation: int | None = None  # micro-batches of each worker in a step


@dataclass(frozen=True, slots=True)
class Generation:
    """One document of the channel."""

    number: int
    members: tuple[Member, ...] = ()
    store: str | None = None  # host:port
    source: str | None = None  # the survivor that newcomers take the state from
    batch: RequestedBatch | None = None
    until_s: float | None = None  # seconds left to answer
    leave: bool = False
    secret: str = field(default="", repr=False)  # that its members alone know; "" = the service tells none

    @property
    def world(self) -> int:
        """How many train together."""
        return len(self.members)

    @property
    def nodes(self) -> int:
        """Distinct nodes."""
        return len({member.node for member in self.members})

    @property
    def gpus(self) -> int:
        """Of all members."""
        return sum(member.gpus for member in self.members)

    def rank_of(self, worker: str) -> int | None:
        """Its rank, or None where it is not a member."""
        return next((rank for rank, member in enumerate(self.members) if member.id == worker), None)


def read_generation(document: Mapping[str, Any]) -> Generation:
    """From the JSON of the channel; keys that are not known are for later versions and ignored."""
    batch = document.get("batch")
    return Generation(
        number=int(document["generation"]),
        members=tuple(read_member(each) for each in document.get("workers") or ()),
        store=document.get("store"),
        source=document.get("source"),
        batch=RequestedBatch(int(batch["total"]), batch.get("accumulation")) if batch else None,
        until_s=document.get("until_s"),
        leave=bool(document.get("leave")),
        secret=str(document.get("secret") or ""),
    )


def as_document(generation: Generation) -> dict[str, Any]:
    """What `read_generation` reads, without the secret, which each member has from the service."""
    return {
        "generation": generation.number,
        "workers": [asdict(member) for member in generation.members],
        "store": generation.store,
        "source": generation.source,
        "batch": asdict(generation.batch) if generation.batch else None,
        "until_s": generation.until_s,
        "leave": generation.leave,
    }


def read_member(document: Mapping[str, Any]) -> Member:
    """One worker of the document; `gpus` is their number or a list of them."""
    gpus = document.get("gpus", 1)
    return Member(
        id=str(document["id"]),
        node=str(document.get("node") or ""),
        address=str(document.get("address") or "127.0.0.1"),
        gpus=len(gpus) if isinstance(gpus, (list, tuple)) else int(gpus),
    )


def fixed(world: int, local_world: int) -> Generation:
    """The only generation of a run without a service: `world` members, `local_world` on each node."""
    return Generation(
        number=0, members=tuple(Member(str(rank), str(rank // max(1, local_world))) for rank in range(world))
    )
