"""Real kubelets with containerd under a real control plane: pods are containers of this machine.

Only the suite of backends runs over them: a container has nothing of this machine but what is mounted into
it, which this world adds to each worker. Jobs of the suite of services would have to say it in their files.
There are no GPUs, and no device plug-in that would choose some and show them: this world shows those that
were asked for.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.backends.kubernetes.control_plane import ControlPlane
from tests.backends.kubernetes.real_nodes import IMAGE, RealNodes, machine_section, missing
from tests.conformance.world import CannotRun, World
from tests.conformance.worlds.kubernetes import LACKS as OF_KUBERNETES
from tests.conformance.worlds.kubernetes import KubernetesWorld

from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import Backend, WorkerStart, WorkerState

NODES = {"k0": "NVIDIA-A100-SXM4-80GB", "k1": "Tesla-T4"}
GPUS = 2
OWN_PIDS = (
    "a container counts its processes by itself: none can be killed from outside by the number it tells"
)
LACKS = {**OF_KUBERNETES, "test_a_worker_that_is_killed_from_outside_shows_as_killed": OWN_PIDS}


@dataclass
class OnThisMachine:
    """A `Backend` whose containers have this machine's programs, and the folder of a test."""

    inner: Backend
    section: Mapping[str, object]

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Start it with what its job's file would have to mount."""
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, worker.gpus)), **worker.env}
        asks = {"kubernetes": self.section, **worker.asks}
        return await self.inner.start(replace(worker, asks=asks, env=shown))

    def __getattr__(self, name: str) -> object:
        """All else is the backend's own."""
        return getattr(self.inner, name)


@dataclass
class KubeletsWorld(KubernetesWorld):
    """Two nodes of two GPUs each."""

    name: str = "kubelets"
    lacks: Mapping[str, str] = field(default_factory=lambda: LACKS)
    cluster: RealNodes = field(init=False)

    def add_nodes(self, users: Sequence[str] = ()) -> None:
        """Start everything."""
        self.begin_plane(users)
        self.cluster = RealNodes(self.folder / "nodes", self.plane).start(NODES, GPUS)
        self.section = machine_section([str(self.folder.parent)])

    async def open(self) -> Backend:
        """A new connection, once both nodes are there."""
        await asyncio.to_thread(self.cluster.until_ready, tuple(NODES), GPUS)
        options = KubernetesOptions(
            kubeconfig=str(self.kubeconfig), image=IMAGE, host_network=True, python=sys.executable
        )
        backend = await open_kubernetes(options, "conformance", self.folder / "state")
        return OnThisMachine(backend, self.section)  # type: ignore[return-value]

    def nodes(self) -> Sequence[str]:
        """Both."""
        return tuple(NODES)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the first process of the node, which takes all others along."""
        await asyncio.to_thread(self.cluster.kill, name)

    async def return_node(self, name: str) -> None:
        """The same kubelet, on what its disk has."""
        await asyncio.to_thread(self.cluster.run_again, name, NODES[name])

    def _containers(self, name: str) -> list[int]:
        return []  # those of pods go with them; at the end nothing may be left of any node

    async def close(self) -> None:
        """End everything; raises where a pod or process is left."""
        left = [*await self.left()]
        self.wire.close()
        await asyncio.to_thread(self.cluster.close)
        await asyncio.to_thread(self.plane.close)
        assert not left, f"left behind: {left}"
        assert self.cluster.left() == []


def begin(folder: Path) -> World:
    """Two nodes of two GPUs each, of two types."""
    if why := missing():
        raise CannotRun(why)
    world = KubeletsWorld(folder, ControlPlane(folder / "plane"))
    world.add_nodes()
    return world
