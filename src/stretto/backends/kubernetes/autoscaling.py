"""What is asked of a cluster that grows: by placeholders, or by ProvisioningRequests of a class."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.objects import Node
from stretto.backends.kubernetes.placeholders import Asker, Placeholders, still_missing
from stretto.backends.kubernetes.provisioning_requests import ProvisioningRequests
from stretto.backends.protocol import NodeRequest, NodeState, WorkerState

ADOPT_S = 60.0  # for which what an earlier service has asked for stays, until this one has asked; chosen


class NodeGrowth:
    """Nodes that one service wishes for."""

    def __init__(self, asker: Asker) -> None:
        self.lease = asker.lease
        self.placeholders = Placeholders(asker)
        self.requests = ProvisioningRequests(asker) if asker.options.provisioning_class else None
        self.wishes: tuple[NodeRequest, ...] | None = None  # None: this service has not asked yet
        self._began_s = time.monotonic()
        self.one_by_one = asyncio.Lock()  # else one call creates what another has just deleted

    async def wish(self, wishes: Sequence[NodeRequest], ask: Callable[[], Awaitable[None]]) -> None:
        """Ask for nodes from now on. ask: what looks at the cluster, and calls `ask_for` with that."""
        await self.lease.admit()
        self.wishes = tuple(wishes)
        await ask()

    def answers(self) -> Mapping[str, str]:
        """What the cluster's autoscaler says of what it was asked for; nothing where it sees placeholders."""
        return self.requests.answers() if self.requests is not None else {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be asked for, nor taken back."""
        if self.wishes is not None:
            return False
        earlier = self.placeholders.pods or (self.requests is not None and self.requests.of_job)
        return not earlier or time.monotonic() - self._began_s < ADOPT_S

    async def ask_for(
        self,
        nodes: Sequence[NodeState],
        workers: Sequence[tuple[WorkerState, bool]],
        machines: Sequence[tuple[Node, Gpus]],
    ) -> None:
        """Ask for each worker that is wished for and has no room, and for no others.

        To be called by one after the other, with what is there then. workers: those that have a pod, each
        with whether it was told to end. machines: that are or were there. Raises BackendUnreachable,
        StaleLeader.
        """
        wishes = self.wishes or ()
        missing = still_missing(wishes, nodes, workers)
        if self.requests is None:
            await self.placeholders.have(missing, machines)
            return
        await self.placeholders.have((), machines)  # of a time when nodes were asked for by them
        if not self.requests.informer.is_stale:
            running = Counter(worker.job for worker, _ in workers if worker.phase == "running")
            await self.requests.have(wishes, missing, running, machines)
