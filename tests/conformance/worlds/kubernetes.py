"""A real API server, scheduler and controller manager of Kubernetes; pods of its nodes are processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.control_plane import ControlPlane, missing
from tests.backends.kubernetes.node_agent import family
from tests.conformance.world import CannotRun, World
from tests.conformance.worlds.proxy import Proxy

from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.manifests import ON_LOAN
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import Backend

AGENT = Path(__file__).parents[2] / "backends" / "kubernetes" / "node_agent.py"
MANIFESTS = Path(__file__).parents[3] / "deploy" / "kustomize" / "sqlite"
PRODUCTS = {"k0": "NVIDIA-A100-SXM4-80GB", "k1": "NVIDIA-A100-SXM4-80GB", "k2": "Tesla-T4"}
GPUS = 2
STATUS_OUTSIDE = "what a command has left running is seen in its pod only; the pod holds its GPUs until then"
# That fall on no other cluster, and how often where two hundred jobs run.
BLOWS = {"api_server": 4, "watch": 6, "silence": 3, "container": 10, "eviction": 6}
LACKS = {
    "test_a_child_that_outlives_its_parent_keeps_the_gpus_until_it_is_gone": STATUS_OUTSIDE,
}


def rights() -> list[Mapping[str, Any]]:
    """What the roles of an installation allow whose nodes all belong to lenders."""
    texts = (MANIFESTS / "rbac.yaml").read_text(encoding="utf-8")
    roles = [rule for each in yaml.safe_load_all(texts) for rule in each.get("rules", [])]
    marks = {
        "apiGroups": [""],
        "resources": ["nodes"],
        "resourceNames": [*PRODUCTS],
        "verbs": ["get", "patch"],
    }
    return [*roles, marks]


def taints_of_others(node: Mapping[str, Any]) -> list[str]:
    """What keeps our pods away; the taint of a loan does not."""
    return [each["key"] for each in node["spec"].get("taints") or () if each["key"] != ON_LOAN]


@dataclass
class KubernetesWorld:
    """One cluster, and what befalls it."""

    folder: Path
    plane: ControlPlane
    name: str = "kubernetes"
    lacks: Mapping[str, str] = field(default_factory=lambda: LACKS)
    patience_s: float = 120.0
    program: Sequence[str] = ("-m", "stretto.cli.app")
    serve: Sequence[str] = ()
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    wire: Proxy = field(default_factory=Proxy)
    blows: Mapping[str, int] = field(default_factory=lambda: BLOWS)

    @property
    def secret_stores(self) -> tuple[Path, ...]:
        """Where the cluster itself keeps the Secrets of jobs."""
        return (self.plane.folder / "etcd",)

    def begin_plane(self, users: Sequence[str] = ()) -> None:
        """Start the control plane, and the way to it that a service takes."""
        self.plane.start(users)
        self.plane.allow("stretto", rights())  # those of an installation, and no more
        self.wire.server = ("127.0.0.1", self.plane.port)
        self.kubeconfig = self.plane.kubeconfig("stretto", f"https://127.0.0.1:{self.wire.port}")

    def begin(self, users: Sequence[str] = ()) -> None:
        """Start everything."""
        self.begin_plane(users)
        key, certificate = self.folder / "kubelet.key", self.folder / "kubelet.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet", "-days", "2",
             "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        for name, product in PRODUCTS.items():
            self.add_node(name, product)
        self.serve = (
            *("--backend", "kubernetes", "--kubeconfig", str(self.kubeconfig), "--image", "tests"),
            *("--set", f"backend.python={sys.executable}"),
        )

    def add_node(self, name: str, product: str) -> None:
        """Start the agent of a node, which may be new to the cluster. product: of its GPUs."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        settings = {
            "api": self.plane.url,
            "token": self.plane.tokens["agent"],
            "node": name,
            "folder": str(folder),
            "gpus": GPUS,
            "labels": {"nvidia.com/gpu.product": product},
            "certificate": str(self.folder / "kubelet.crt"),
            "key": str(self.folder / "kubelet.key"),
        }
        path = folder / "settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        with (folder / "agent.log").open("ab") as log:
            self.agents[name] = subprocess.Popen([sys.executable, AGENT, path], stdout=log, stderr=log)

    async def open(self) -> Backend:
        """A new connection, once all nodes are there."""
        until_s = time.monotonic() + self.patience_s
        while True:
            answer = await asyncio.to_thread(self.plane.ask, "GET", "api/v1/nodes")
            ready = [
                node
                for node in answer.json()["items"]
                if not taints_of_others(node) and node["status"].get("allocatable", {}).get("nvidia.com/gpu")
            ]
            if len(ready) == len(PRODUCTS):
                break
            assert time.monotonic() < until_s, answer.text
            await asyncio.sleep(0.2)
        options = KubernetesOptions(kubeconfig=str(self.kubeconfig), image="tests", python=sys.executable)
        return await open_kubernetes(options, "conformance", self.folder / "state")

    def nodes(self) -> Sequence[str]:
        """All three."""
        return tuple(PRODUCTS)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the agent and to all containers."""
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()
        for pid in self._containers(name):
            for each in family(pid):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)

    async def return_node(self, name: str) -> None:
        """Another agent."""
        if name not in self.agents:
            self.add_node(name, PRODUCTS[name])

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Suspend the API server."""
        self.plane.signal("kube-apiserver", signal.SIGSTOP)
        try:
            yield
        finally:
            self.plane.signal("kube-apiserver", signal.SIGCONT)

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        """Answers of the API server come late, and connections are cut."""
        self.wire.slow = True
        try:
            yield
        finally:
            self.wire.slow = False

    # ── blows ─────────────────────────────────────────────────────────────────────────────────────

    def kill_api_server(self) -> None:
        """SIGKILL to the API server."""
        self.plane.kill("kube-apiserver")

    def begin_api_server(self) -> None:
        """The next one, on what is stored; it takes its time to be ready."""
        self.plane.run_again("kube-apiserver")

    def kill_container(self, worker: str) -> bool:
        """SIGKILL to all of the container of a worker; whether there was one."""
        for pid in (pid for name in self.nodes() for pid in self._containers(name)):
            if _has_variable(pid, f"STRETTO_WORKER_ID={worker}"):
                for each in family(pid):
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                return True
        return False

    def pods(self, node: str = "") -> list[tuple[str, str]]:
        """(namespace, name) of our pods, of one node or of all."""
        listed = self.plane.ask("GET", "api/v1/pods").json()["items"]
        return [
            (pod["metadata"]["namespace"], pod["metadata"]["name"])
            for pod in listed
            if "stretto.dev/service" in pod["metadata"].get("labels", {})
            and node in ("", pod["spec"].get("nodeName", ""))
        ]

    def evict(self, namespace: str, name: str) -> bool:
        """Have a pod evicted, as `kubectl drain` has; whether that was granted."""
        eviction = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = f"api/v1/namespaces/{namespace}/pods/{name}/eviction"
        return self.plane.ask("POST", path, eviction).status_code == 201

    def cordon(self, node: str, closed: bool = True) -> None:
        """Keep new pods away from a node, or no more, as `kubectl cordon` does."""
        patch, kind = {"spec": {"unschedulable": closed}}, "application/merge-patch+json"
        answer = self.plane.ask("PATCH", f"api/v1/nodes/{node}", patch, kind)
        assert answer.status_code == 200, answer.text

    def kept(self) -> list[str]:
        """Names of ConfigMaps of ours: one has the supervisor, and stays with its namespace."""
        listed = self.plane.ask("GET", "api/v1/configmaps").json()["items"]
        names = (one["metadata"]["name"] for one in listed)
        return [name for name in names if name.startswith("stretto")]

    def _containers(self, name: str) -> list[int]:
        """First processes of containers that live."""
        found = []
        for path in (self.folder / name / "pods").glob("*/pid"):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                if str(path.parent) in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
                    found.append(pid)
        return found

    async def left(self) -> Sequence[str]:
        """Pods of ours, secrets, and processes."""
        pods = await asyncio.to_thread(self.plane.ask, "GET", "api/v1/pods")
        secrets = await asyncio.to_thread(self.plane.ask, "GET", "api/v1/secrets")
        ours = [
            f"{kind} {each['metadata']['name']}"
            for kind, answer in (("pod", pods), ("secret", secrets))
            for each in answer.json()["items"]
            if "stretto.dev/service" in each["metadata"].get("labels", {})
        ]
        return [
            *ours,
            *(f"process {pid} of {name}" for name in self.nodes() for pid in self._containers(name)),
        ]

    def forget_workers(self) -> None:
        """Services know their own pods by their name."""

    def rights_that_were_missing(self) -> Sequence[str]:
        """What services have asked for that their roles do not allow.

        What was refused says less: an API server that has just begun does not know any role yet.
        """
        granted = {
            (verb, group, resource)
            for rule in rights()
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        asked = {(one.verb, one.group, one.resource) for one in self.plane.asked("stretto")}
        return sorted(" ".join(filter(None, right)) for right in asked - granted)

    async def close(self) -> None:
        """End everything; raises where a pod or process is left, or a right was missing."""
        left = [*await self.left()]
        for name in list(self.agents):
            await self.kill_node(name)
        self.wire.close()
        await asyncio.to_thread(self.plane.close)
        assert not left, f"left behind: {left}"
        lacking = self.rights_that_were_missing()
        assert not lacking, f"rights that were missing: {lacking}"


def _has_variable(pid: int, variable: str) -> bool:
    with suppress(OSError):
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def begin(folder: Path, users: Sequence[str] = ()) -> World:
    """Three nodes of two GPUs each, of two types. users: more that the API server knows."""
    if why := missing():
        raise CannotRun(why)
    world = KubernetesWorld(folder, ControlPlane(folder / "plane"))
    world.begin(users)
    return world


@contextmanager
def until_closed(folder: Path, users: Sequence[str] = ()) -> Iterator[KubernetesWorld]:
    """The same for the tests of one file, once all nodes are there; they are skipped where it cannot be."""

    async def all_are_there() -> None:
        await (await world.open()).close()

    try:
        world = begin(folder, users)
    except CannotRun as why:
        pytest.skip(str(why))
    assert isinstance(world, KubernetesWorld)
    try:
        asyncio.run(all_are_there())
        yield world
    finally:
        asyncio.run(world.close())
