"""A cluster as the conformance suite needs it: connected to again and again, struck, and brought back.

Tests run an event loop each: a world keeps nothing that belongs to one.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from stretto.backends.protocol import Backend


class CannotRun(Exception):
    """This cluster cannot be started on this machine; says why, and the tests over it are skipped with it."""


class World(Protocol):
    """One cluster with its nodes, and what may befall them.

    lacks: names of tests that do not apply (functions, without parameters), each with the reason.
    patience_s: the longest that anything takes to show itself, a node that has died included.
    """

    name: str  # of the backend
    lacks: Mapping[str, str]
    patience_s: float
    folder: Path  # that every node sees

    async def open(self) -> Backend:
        """A new connection to the same cluster, as a restarted service makes; called several times."""
        ...

    def nodes(self) -> Sequence[str]:
        """At least two nodes (three on Ray and Slurm) of at least two GPUs each, of two types if possible."""
        ...

    async def kill_node(self, name: str) -> None:
        """As when its power fails: nothing there goes on."""
        ...

    async def return_node(self, name: str) -> None:
        """The machine is back, and empty; returns once the cluster was told, not once it is believed."""
        ...

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        """Within it nothing that takes orders for the cluster answers; workers go on."""
        ...

    def slow(self) -> AbstractAsyncContextManager[None]:
        """Within it answers come late, and some are lost after the command was carried out."""
        ...

    async def left(self) -> Sequence[str]:
        """In words, all that is there because of workers: processes, Slurm jobs, actors, placement groups.

        Of every service, the daemons themselves left out; [] once the last worker has ended and nothing more.
        """
        ...

    async def close(self) -> None:
        """Everything stopped, by process id; raises where a process is left."""
        ...


@runtime_checkable
class CountsProcesses(Protocol):
    """A cluster whose workers count their processes by themselves, as containers do."""

    def pid_of(self, worker: str, pid: int) -> int:
        """The number on this machine of a process that a worker calls by another; 0 where it is gone."""
        ...


def pid_of(world: World, note: Mapping[str, Any]) -> int:
    """The number on this machine of the process of which a worker has noted its beginning; 0: it is gone."""
    pid = int(note["pid"])
    return world.pid_of(str(note["worker"]), pid) if isinstance(world, CountsProcesses) else pid
