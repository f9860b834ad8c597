"""Real servers: with the StatefulSet of the service goes what only asks for nodes, and no pod of a job."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.control_plane import ControlPlane, missing
from tests.backends.kubernetes.provisioning import DEFINITIONS, Autoscaler, definition

from stretto.backends.kubernetes import api, manifests
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NodeRequest, WorkerStart
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
NAMESPACE, OWN_POD, NODE = "training", "stretto-0", "gpu-1"
WITHIN = f"api/v1/namespaces/{NAMESPACE}"
SETS = f"apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
WISH = NodeRequest("l4", 1, 2, cpus=1.0, memory_gb=1.0)
WORKER = WorkerStart("7.1.0", "7", NODE, (0,), "true", {})
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the controller of StatefulSets, a node that nothing runs on, and requests for nodes."""
    if why := missing():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"), more_controllers=("statefulset",))
    try:
        running.start()
        asked(running, "POST", DEFINITIONS, definition())
        asked(running, "POST", "api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        labels = {"nvidia.com/gpu.product": "Tesla-T4"}
        # Nothing is bound to it: no kubelet would let go of what is deleted.
        node = {"metadata": {"name": NODE, "labels": labels}, "spec": {"unschedulable": True}}
        asked(running, "POST", "api/v1/nodes", node)
        room = {"nvidia.com/gpu": "2", "pods": "9"}
        status = {"status": {"capacity": room, "allocatable": room}}
        asked(running, "PATCH", f"api/v1/nodes/{NODE}/status", status, MERGE)
        requests = Autoscaler(running, NAMESPACE).path
        until(lambda: running.ask("GET", requests).status_code == 200, what="requests are served")
        yield running
    finally:
        running.close()


def asked(plane: ControlPlane, method: str, path: str, *more: Any) -> Any:
    """What the API server answers, which is no refusal."""
    answer = plane.ask(method, path, *more)
    assert answer.status_code < 400, answer.text
    return answer.json()


async def ask(plane: ControlPlane, method: str, path: str, *more: Any) -> Any:
    return await asyncio.to_thread(asked, plane, method, path, *more)


async def names(plane: ControlPlane, path: str) -> list[str]:
    """Of objects that there are."""
    return [each["metadata"]["name"] for each in (await ask(plane, "GET", path))["items"]]


async def until_so(is_so: Callable[[], Awaitable[bool]]) -> None:
    while not await is_so():
        await asyncio.sleep(0.1)


def stateful_set() -> dict[str, Any]:
    """What makes the pod of the service."""
    labels = {"app": "stretto"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "stretto", "image": "stretto"}]},
    }
    spec = {
        "serviceName": "stretto",
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": template,
    }
    return {"metadata": {"name": "stretto"}, "spec": spec}


async def until_collected(plane: ControlPlane) -> None:
    """Wait until the garbage collector has looked at all that there is: it takes what comes last."""
    gone = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "never-was"}
    manifest = {"metadata": {"name": "orphan", "ownerReferences": [gone]}}
    await ask(plane, "POST", f"{WITHIN}/configmaps", manifest)

    async def is_gone() -> bool:
        return "orphan" not in await names(plane, f"{WITHIN}/configmaps")

    await until_so(is_gone)


@pytest.mark.parametrize("provisioning_class", ["", "check-capacity.autoscaling.x-k8s.io"])
def test_what_asks_for_nodes_goes_with_the_stateful_set_of_the_service_and_workers_stay(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provisioning_class: str
) -> None:
    """provisioning_class: of requests; "": by placeholders."""
    (tmp_path / "namespace").write_text(NAMESPACE, encoding="ascii")
    monkeypatch.setattr(api, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: OWN_POD)
    options = KubernetesOptions(
        kubeconfig=str(plane.kubeconfig("admin")),
        namespace=NAMESPACE,
        image="i",
        grow=("l4:2:1",),
        provisioning_class=provisioning_class,
    )
    asks = Autoscaler(plane, NAMESPACE).path if provisioning_class else f"{WITHIN}/pods"

    async def asking() -> list[str]:
        """Names of what asks for nodes."""
        return [name for name in await names(plane, asks) if name.startswith("stretto-w")]

    async def story() -> None:
        uid = (await ask(plane, "POST", SETS, stateful_set()))["metadata"]["uid"]
        backend = await open_kubernetes(options, "owned", tmp_path / "state")
        try:
            await until_so(lambda: is_known(backend))
            await backend.start(WORKER)
            await backend.wish([WISH])
            (made,) = await asking()
            (owner,) = (await ask(plane, "GET", f"{asks}/{made}"))["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("StatefulSet", uid)
            await until_collected(plane)
            assert await asking() == [made], "its owner is there"
        finally:
            await backend.close()
        await ask(plane, "DELETE", f"{SETS}/stretto", {"propagationPolicy": "Background"})

        async def nothing_asks() -> bool:
            return not await asking() and OWN_POD not in await names(plane, f"{WITHIN}/pods")

        await until_so(nothing_asks)
        await until_collected(plane)
        worker = manifests.pod_name("owned", WORKER.id)
        assert await names(plane, f"{WITHIN}/pods") == [worker], "it has no owner"
        let_go = {"metadata": {"finalizers": None}}
        await ask(plane, "PATCH", f"{WITHIN}/pods/{worker}", let_go, MERGE)
        await ask(plane, "DELETE", f"{WITHIN}/pods/{worker}", {"gracePeriodSeconds": 0})

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


async def is_known(backend: KubernetesBackend) -> bool:
    """Whether the service has seen its own pod."""
    return (NAMESPACE, OWN_POD) in backend.pod_informer.items
