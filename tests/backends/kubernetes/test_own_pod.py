"""What is made only for the service's sake goes with it, where its controller is known."""

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_pod
from tests.backends.kubernetes.test_growing import ONE, growing, placeholders

from stretto.backends.kubernetes import api
from stretto.backends.kubernetes.backend import KubernetesBackend

pytestmark = pytest.mark.sockets
STATEFUL_SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "stretto", "uid": "u1"}


@pytest.fixture
def own_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a pod finds its namespace; it is not there yet."""
    monkeypatch.setattr(api, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path / "namespace"


async def has_own_pod(server: MemoryServer, backend: KubernetesBackend) -> None:
    """The service's own pod, which a StatefulSet has made."""
    pod: dict[str, Any] = a_pod(socket.gethostname(), "k1", gpus=0, namespace="jobs")
    others = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u2"}
    pod["metadata"]["ownerReferences"] = [others, {**STATEFUL_SET, "controller": True}]
    server.put("pods", pod)
    await until(lambda: ("jobs", socket.gethostname()) in backend.pod_informer.items)


async def test_a_placeholder_belongs_to_what_has_made_the_pod_of_the_service(
    tmp_path: Path, own_namespace: Path
) -> None:
    own_namespace.write_text("jobs\n", encoding="ascii")
    async with backend_in_memory(tmp_path) as (server, _), growing(tmp_path, server) as backend:
        await has_own_pod(server, backend)
        await backend.wish([ONE])
        (made,) = placeholders(server)
        assert made["metadata"]["ownerReferences"] == [STATEFUL_SET]


@pytest.mark.parametrize("where", ["stretto", ""])
async def test_a_service_elsewhere_owns_none_or_it_would_be_collected_at_once(
    tmp_path: Path, own_namespace: Path, where: str
) -> None:
    if where:
        own_namespace.write_text(where, encoding="ascii")
    async with backend_in_memory(tmp_path) as (server, _), growing(tmp_path, server) as backend:
        await has_own_pod(server, backend)
        await backend.wish([ONE])
        (made,) = placeholders(server)
        assert made["metadata"]["ownerReferences"] == []


async def test_a_request_for_nodes_belongs_to_it_too(tmp_path: Path, own_namespace: Path) -> None:
    own_namespace.write_text("jobs", encoding="ascii")
    said: dict[str, Any] = {"provisioning_class": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
    async with backend_in_memory(tmp_path) as (server, _), growing(tmp_path, server, **said) as backend:
        await has_own_pod(server, backend)
        await backend.wish([ONE])
        await until(lambda: server.objects.get("provisioningrequests"))
        (made,) = server.objects["provisioningrequests"].values()
        assert made["metadata"]["ownerReferences"] == [STATEFUL_SET]
