"""Real kubelets with containerd under a real control plane: pods are containers of this machine.

What a container has of this machine is what its runtime shows it (see `real_nodes`), and the folder of all
tests, by a claim. GPUs are numbers, which the kubelet itself gives to containers.
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.backends.kubernetes.control_plane import ControlPlane
from tests.backends.kubernetes.real_nodes import IMAGE, RealNodes, missing, process_in
from tests.conformance.world import CannotRun, World
from tests.conformance.worlds.kubernetes import BLOWS, KubernetesWorld

from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import Backend

NODES = dict.fromkeys(("k0", "k1"), "NVIDIA-A100-SXM4-80GB")  # of one type: a job may have both
GPUS = 2
CLAIM = "tests"


@dataclass
class KubeletsWorld(KubernetesWorld):
    """Two nodes of some GPUs each. products: of them, by node."""

    name: str = "kubelets"
    products: Mapping[str, str] = field(default_factory=lambda: NODES)
    gpus: int = GPUS
    blows: Mapping[str, int] = field(default_factory=lambda: {**BLOWS, "kubelet": 6})
    cluster: RealNodes = field(init=False)

    @property
    def shared(self) -> Path:
        """The folder of all tests, which pods mount where it is."""
        return self.folder.parent

    @property
    def secret_stores(self) -> tuple[Path, ...]:
        """Also the runtime of each node, which notes the variables of its containers."""
        return (
            *super().secret_stores,
            *(self.folder / "nodes" / name / "containerd" for name in self.products),
        )

    def add_nodes(self, users: Sequence[str] = ()) -> None:
        """Start everything."""
        self.begin_plane(users)
        # What is mounted here later is to be seen by nodes, too.
        subprocess.run(["mount", "--bind", self.shared, self.shared], check=True)
        subprocess.run(["mount", "--make-shared", self.shared], check=True)
        self.plane.share(self.shared, CLAIM)
        self.cluster = RealNodes(self.folder / "nodes", self.plane).start(self.products, self.gpus)
        self.serve = (
            *("--backend", "kubernetes", "--kubeconfig", str(self.kubeconfig), "--image", IMAGE),
            *("--shared-claim", CLAIM, "--set", f"backend.shared_path={self.shared}"),
            *("--set", "backend.host_network=true", "--set", f"backend.python={sys.executable}"),
        )

    async def open(self) -> Backend:
        """A new connection, once both nodes are there."""
        await asyncio.to_thread(self.cluster.until_ready, self.nodes(), self.gpus)
        options = KubernetesOptions(
            kubeconfig=str(self.kubeconfig),
            image=IMAGE,
            host_network=True,
            python=sys.executable,
            shared_claim=CLAIM,
            shared_path=str(self.shared),
        )
        return await open_kubernetes(options, "conformance", self.folder / "state")

    def nodes(self) -> Sequence[str]:
        """Both."""
        return tuple(self.products)

    def pid_of(self, worker: str, pid: int) -> int:
        """Containers count their processes by themselves."""
        return process_in(worker, pid)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the first process of the node, which takes all others along."""
        await asyncio.to_thread(self.cluster.kill, name)

    async def return_node(self, name: str) -> None:
        """The same kubelet, on what its disk has."""
        await asyncio.to_thread(self.cluster.run_again, name, self.products[name])

    def kill_kubelet(self, name: str) -> None:
        """SIGKILL to a kubelet alone: containers go on."""
        self.cluster.kill_kubelet(name)

    def bring_kubelet_back(self, name: str) -> None:
        """Another one."""
        self.cluster.bring_kubelet_back(name)

    def _containers(self, name: str) -> list[int]:
        """Processes of workers; containers of a node that was killed went with it."""
        return self.cluster.workers(name)

    async def close(self) -> None:
        """End everything; raises where a pod or process is left, or a right was missing."""
        left = [*await self.left()]
        self.wire.close()
        await asyncio.to_thread(self.cluster.close)
        await asyncio.to_thread(self.plane.close)
        subprocess.run(["umount", "-l", self.shared], check=True)
        assert not left, f"left behind: {left}"
        lacking = self.rights_that_were_missing()
        assert not lacking, f"rights that were missing: {lacking}"
        assert self.cluster.left() == []


def begin(folder: Path) -> World:
    """Two nodes of two GPUs each."""
    if why := missing():
        raise CannotRun(why)
    world = KubeletsWorld(folder, ControlPlane(folder / "plane"))
    world.add_nodes()
    return world
