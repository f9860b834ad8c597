"""Nodes asked for by ProvisioningRequests: made, read, taken back, and made anew where they failed."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, kubeconfig, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_node
from tests.backends.kubernetes.test_faults import WORKER, bind, end, name_of, state_of

from stretto.backends.kubernetes import autoscaling, manifests, provisioning_requests
from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import AnswersRequests, BackendUnreachable, NodeRequest, WorkerStart
from stretto.model import InputError

pytestmark = pytest.mark.sockets

REQUESTS, TEMPLATES = "provisioningrequests", "podtemplates"
CLASS_NAME = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
T4 = "Tesla-T4"
PATIENCE_S = 60.0
TWO = NodeRequest("t4", 2, 2, cpus=3.0, memory_gb=8.0, job="7")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)


@asynccontextmanager
async def asking(folder: Path, server: MemoryServer, **options: Any) -> AsyncIterator[KubernetesBackend]:
    """The backend over a server whose cluster may have three nodes of two T4 each."""
    said = {"image": "i", "grow": ("t4:2:3",), "provisioning_class": CLASS_NAME, **options}
    config = KubernetesOptions(kubeconfig=kubeconfig(folder, server.url), **said)
    backend = await open_kubernetes(config, "s1", folder / "state")
    try:
        yield backend
    finally:
        await backend.close()


def requests(server: MemoryServer) -> list[Any]:
    return [each for _, each in sorted(server.objects.get(REQUESTS, {}).items())]


def the_request(server: MemoryServer) -> Any:
    (only,) = requests(server)
    return only


def says(server: MemoryServer, kind: str, reason: str = "", message: str = "", status: str = "True") -> None:
    """The autoscaler sets one condition."""
    one = {"type": kind, "status": status, "reason": reason or kind, "message": message}
    name = the_request(server)["metadata"]["name"]
    server.change(REQUESTS, name, {"status": {"conditions": [one]}}, "jobs")


def come(server: MemoryServer, *names: str) -> None:
    for name in names:
        server.put("nodes", a_node(name, gpus=2, product=T4))


async def until_is(backend: KubernetesBackend, phase: str, worker: WorkerStart) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (state := await state_of(backend, worker)) is None or state.phase != phase:
            await asyncio.sleep(0.01)


async def test_a_request_names_all_workers_of_a_job_and_what_their_pods_are_like(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _):
        parameters = ("ValidUntilSeconds=600",)
        async with asking(tmp_path, server, provisioning_parameters=parameters) as backend:
            await backend.wish([TWO])
            request = the_request(server)
            assert request["spec"] == {
                "provisioningClassName": CLASS_NAME,
                "parameters": {"ValidUntilSeconds": "600"},
                "podSets": [{"count": 2, "podTemplateRef": {"name": request["metadata"]["name"]}}],
            }
            (template,) = server.objects[TEMPLATES].values()
            assert template["metadata"]["name"] == request["metadata"]["name"]
            (owner,) = template["metadata"]["ownerReferences"]
            assert owner["uid"] == request["metadata"]["uid"]
            (container,) = template["template"]["spec"]["containers"]
            assert container["resources"]["requests"] == {
                "nvidia.com/gpu": "2", "cpu": "3000m", "memory": "8192Mi"
            }  # fmt: skip
            assert not server.objects.get("pods"), "no placeholder beside it"
            await backend.wish([TWO])
            assert the_request(server) is request, "the same wish changes nothing"
            await backend.wish([])
            assert requests(server) == []


async def test_each_job_has_a_request_of_its_own(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        await backend.wish([TWO, replace(TWO, workers=1, job="8")])
        jobs = [each["metadata"]["annotations"][manifests.JOB] for each in requests(server)]
        assert sorted(jobs) == ["7", "8"]
        await backend.wish([replace(TWO, workers=1, job="8")])
        assert the_request(server)["metadata"]["annotations"][manifests.JOB] == "8"


async def test_what_the_autoscaler_says_is_told_by_job(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        assert isinstance(backend, AnswersRequests)
        await backend.wish([TWO])
        assert await backend.answers() == {}
        for kind, reason, message, status, words in (
            ("Accepted", "", "is looked at", "True", "Accepted: is looked at"),
            ("Provisioned", "CapacityIsNotFound", "none", "False", "not yet: CapacityIsNotFound: none"),
            ("Failed", "OutOfStock", "no t4 in zone a", "True", "Failed: OutOfStock: no t4 in zone a"),
        ):
            says(server, kind, reason, message, status)
            async with asyncio.timeout(PATIENCE_S):
                while await backend.answers() != {"7": words}:
                    await asyncio.sleep(0.01)
        await backend.wish([])
        assert await backend.answers() == {}


async def test_a_request_stays_while_its_nodes_come_and_until_its_workers_run(tmp_path: Path) -> None:
    first = replace(WORKER, id="7.1.0", node="t4x2-1", gpus=(0, 1))
    second = replace(first, id="7.1.1", node="t4x2-2")
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        await backend.wish([TWO])
        request = the_request(server)
        come(server, "gke-a")
        await until(lambda: ("", "gke-a") in backend.node_informer.items)
        await backend.wish([TWO])
        assert the_request(server) is request, "half of it is there: a smaller one would begin anew"
        come(server, "gke-b")
        says(server, "Provisioned")
        await until(lambda: ("", "gke-b") in backend.node_informer.items)
        await backend.nodes()
        for worker in (first, second):
            await backend.start(worker)
            pod = server.objects["pods"]["jobs", name_of(worker)]
            assert (
                pod["metadata"]["annotations"][provisioning_requests.CONSUMES]
                == (request["metadata"]["name"])
            )
            assert pod["metadata"]["annotations"][provisioning_requests.CLASS] == CLASS_NAME
        assert len(requests(server)) == 1, "none of them runs yet"
        for worker, machine in ((first, "gke-a"), (second, "gke-b")):
            bind(server, replace(worker, node=machine))
            await until_is(backend, "running", worker)
        await until(lambda: requests(server) == [])


async def test_workers_of_other_jobs_do_not_count_as_its_own(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        come(server, "gke-a")
        await until(lambda: ("", "gke-a") in backend.node_informer.items)
        await backend.nodes()
        running = replace(WORKER, id="5.1.0", job="5", node="t4x2-1", gpus=(0, 1))
        await backend.start(running)
        bind(server, replace(running, node="gke-a"))
        await until_is(backend, "running", running)
        await backend.wish([replace(TWO, workers=1, job="5"), replace(TWO, workers=1)])
        assert the_request(server)["metadata"]["annotations"][manifests.JOB] == "7"


async def test_more_workers_than_were_asked_for_are_asked_for_anew(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        await backend.wish([replace(TWO, workers=1)])
        before = the_request(server)["metadata"]["name"]
        await backend.wish([TWO])
        await until(lambda: [each["spec"]["podSets"][0]["count"] for each in requests(server)] == [2])
        assert the_request(server)["metadata"]["name"] != before
        names = {name for _, name in server.objects[TEMPLATES]}
        await until(
            lambda: the_request(server)["metadata"]["name"] in {n for _, n in server.objects[TEMPLATES]}
        )
        assert before in names, "which the garbage collector takes"


@pytest.mark.parametrize("condition", ["Failed", "BookingExpired", "CapacityRevoked"])
async def test_a_request_that_brings_nothing_any_more_is_made_anew_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        await backend.wish([TWO])
        failed = the_request(server)["metadata"]["uid"]
        says(server, condition, "OutOfStock", "none is left")
        await until(
            lambda: backend.growth.requests is not None and backend.growth.requests.of_job["7"].is_over
        )
        await backend.wish([TWO])
        assert the_request(server)["metadata"]["uid"] == failed, "not at once"
        monkeypatch.setattr(provisioning_requests, "RETRY_S", 0.0)
        await until(lambda: [each["metadata"]["uid"] for each in requests(server)] not in ([failed], []))
        assert (await backend.answers())["7"] == f"{condition}: OutOfStock: none is left", (
            "until it says else"
        )


async def test_a_refusal_is_said_and_the_request_is_made_again(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        server.fail("POST", REQUESTS, 403, "exceeded quota: provisioning")
        with pytest.raises(BackendUnreachable, match="refuses a ProvisioningRequest: exceeded quota"):
            await backend.wish([TWO])
        await until(lambda: len(requests(server)) == 1)


async def test_a_pod_template_that_could_not_be_made_is_made_later(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        server.fail("POST", TEMPLATES, 500)
        with pytest.raises(BackendUnreachable):
            await backend.wish([TWO])
        await until(lambda: server.objects.get(TEMPLATES))
        assert len(requests(server)) == 1


async def test_a_request_whose_answer_was_lost_is_not_made_twice(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        server.lose("POST", REQUESTS)
        with pytest.raises(BackendUnreachable):
            await backend.wish([TWO])
        await until(lambda: server.objects.get(TEMPLATES))
        assert len(requests(server)) == 1


async def test_requests_of_an_earlier_service_are_gone_on_with_and_go_where_nothing_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend_in_memory(tmp_path) as (server, _):
        async with asking(tmp_path, server) as backend:
            await backend.wish([TWO])
        request = the_request(server)
        async with asking(tmp_path, server) as backend:
            await backend.wish([TWO])
            assert the_request(server) is request
        monkeypatch.setattr(autoscaling, "ADOPT_S", 0.1)
        async with asking(tmp_path, server):
            await until(lambda: requests(server) == [])


async def test_placeholders_go_where_nodes_are_asked_for_by_requests_from_now_on(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _):
        async with asking(tmp_path, server, provisioning_class="") as backend:
            await backend.wish([TWO])
            assert len(server.objects["pods"]) == 2
        async with asking(tmp_path, server) as backend:
            await backend.wish([TWO])
            await until(lambda: not server.objects["pods"])
            assert len(requests(server)) == 1


async def test_requests_of_another_service_are_left_alone(tmp_path: Path) -> None:
    labels = {manifests.SERVICE: "s2"}
    theirs = {"metadata": {"name": "theirs", "namespace": "jobs", "labels": labels}, "spec": {}}
    async with backend_in_memory(tmp_path) as (server, _):
        server.put(REQUESTS, theirs)
        async with asking(tmp_path, server) as backend:
            await backend.wish([TWO])
            await backend.wish([])
            assert [each["metadata"]["name"] for each in requests(server)] == ["theirs"]


async def test_a_cluster_without_such_requests_is_said_in_a_line(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _):
        server.fail("GET", REQUESTS, 404, "the server could not find the requested resource")
        line = f"backend.provisioning_class {CLASS_NAME}: the cluster knows no ProvisioningRequest"
        with pytest.raises(InputError, match=re.escape(line)):
            async with asking(tmp_path, server):
                pass


def test_what_is_said_of_requests_is_checked() -> None:
    with pytest.raises(InputError, match="provisioning_parameters ValidUntilSeconds: expected KEY=VALUE"):
        KubernetesOptions(grow=("t4:2:3",), provisioning_parameters=("ValidUntilSeconds",))
    with pytest.raises(InputError, match="expected --grow with it"):
        KubernetesOptions(provisioning_class=CLASS_NAME)


async def test_a_worker_that_ended_is_asked_for_anew(tmp_path: Path) -> None:
    worker = replace(WORKER, node="t4x2-1", gpus=(0, 1))
    async with backend_in_memory(tmp_path) as (server, _), asking(tmp_path, server) as backend:
        come(server, "gke-a")
        await until(lambda: ("", "gke-a") in backend.node_informer.items)
        await backend.nodes()
        await backend.start(worker)
        bind(server, replace(worker, node="gke-a"))
        await until_is(backend, "running", worker)
        server.remove("nodes", "gke-a")
        await until_is(backend, "ended", worker)
        await backend.wish([replace(TWO, workers=1)])
        assert len(requests(server)) == 1
        end(server, 137, replace(worker, node="gke-a"))
