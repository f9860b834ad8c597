"""What a leader elsewhere has left, and what others have copied, when a service begins."""

import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import api_in_memory, kubeconfig, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_node, a_pod
from tests.backends.kubernetes.test_faults import WORKER, bind, name_of

from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes import job_secrets, manifests
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.gated_pods import PLACED_BY
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import IdUsed

pytestmark = pytest.mark.sockets


@asynccontextmanager
async def service(
    folder: Path, server: MemoryServer, job_namespaces: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[KubernetesBackend]:
    """A service with a state directory of its own. job_namespaces: as its log has them."""
    folder.mkdir(exist_ok=True)
    said = KubernetesOptions(kubeconfig=kubeconfig(folder, server.url), image="i", **options)
    backend = await open_kubernetes(said, "s1", folder / "state", None, job_namespaces)
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[MemoryServer]:
    async with api_in_memory(folder) as (server, _):
        for name in ("k0", "k1"):
            server.put("nodes", a_node(name, gpus=2))
        yield server


async def test_a_leader_takes_away_what_the_last_one_elsewhere_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_secrets, "UNUSED_S", 0.1)
    monkeypatch.setattr(job_secrets, "MOST_AT_ONCE", 1)
    async with cluster(tmp_path) as server:
        left = {("jobs", "5"), ("team-a", "6"), ("jobs", "7"), ("jobs", "8")}
        for namespace, job in left:
            name = manifests.secret_name("s1", job)
            server.put("secrets", {"metadata": {"name": name, "namespace": namespace}})
        async with service(tmp_path / "first", server) as first:
            await first.start(WORKER)  # of job 7, whose pod is there
            bind(server)
        ended = {"5": "", "6": "team-a", "7": ""}  # job 8 is another service's, as far as the log goes
        async with service(tmp_path / "second", server, ended):
            await until(lambda: len(server.objects["secrets"]) == 2)
            assert {name for _, name in server.objects["secrets"]} == {
                manifests.secret_name("s1", "7"), manifests.secret_name("s1", "8")
            }  # fmt: skip


async def test_a_secret_that_cannot_be_taken_away_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_secrets, "UNUSED_S", 0.2)
    monkeypatch.setattr(job_secrets, "MOST_AT_ONCE", 1)
    async with cluster(tmp_path) as server:
        for job in ("5", "6"):
            server.put(
                "secrets", {"metadata": {"name": manifests.secret_name("s1", job), "namespace": "jobs"}}
            )
        server.fail("DELETE", "secrets", 403, "cannot delete", times=1)
        async with service(tmp_path / "second", server, {"5": "", "6": ""}):
            await until(lambda: not server.objects["secrets"])


# ── copies ────────────────────────────────────────────────────────────────────────────────────────


def copied(server: MemoryServer, namespace: str) -> None:
    """What a tool does that restores a namespace under another name: all but what makes an object itself."""
    pod = copy.deepcopy(server.objects["pods"]["jobs", name_of()])
    for key in ("uid", "resourceVersion"):
        del pod["metadata"][key]
    if namespace == "jobs":  # first the other one goes, finalizer and all
        server.remove("pods", name_of(), namespace)
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["nodeName"] = "k1"
    server.put("pods", pod)


async def a_service_ran_a_worker(folder: Path, server: MemoryServer) -> None:
    """And has ended since; the pod runs on."""
    async with service(folder, server) as first:
        await first.start(WORKER)
        bind(server)
        await until_marked(server)


async def until_marked(server: MemoryServer) -> None:
    """Wait until the pod says which one it is."""
    pods = server.objects["pods"]
    await until(lambda: manifests.POD_UID in pods["jobs", name_of()]["metadata"]["annotations"])


@pytest.mark.parametrize("namespace", ["", "jobs"])
async def test_after_a_restart_the_pod_in_the_namespace_of_its_job_is_the_worker(
    tmp_path: Path, namespace: str
) -> None:
    async with cluster(tmp_path) as server:
        async with service(tmp_path / "first", server) as first:
            await first.start(WORKER)
            bind(server)
            copied(server, "a-copy")  # which a list has before the other one
        async with service(tmp_path / "first", server, {"7": namespace}) as again:
            (worker,) = await again.workers()
            assert again.ours[worker.id].metadata.namespace == "jobs"
            assert [node.others for node in await again.nodes()] == [0, 2], "the copy is somebody else's"
            copied(server, "another")
            await until(lambda: ("another", name_of()) in again.pod_informer.items)
            assert again.ours[worker.id].metadata.namespace == "jobs"


async def test_pods_of_a_time_when_jobs_had_another_namespace_are_workers_still(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        await a_service_ran_a_worker(tmp_path / "first", server)
        async with service(tmp_path / "first", server, {"7": ""}, namespace="elsewhere") as again:
            assert [state.phase for state in await again.workers()] == ["running"]
            assert [node.others for node in await again.nodes()] == [0, 0]


@pytest.mark.parametrize("namespace", ["jobs", "restored"])
async def test_a_copy_of_a_pod_that_went_while_no_service_ran_is_not_the_worker(
    tmp_path: Path, namespace: str
) -> None:
    async with cluster(tmp_path) as server:
        await a_service_ran_a_worker(tmp_path / "first", server)
        copied(server, namespace)
        server.objects["pods"].pop(("jobs", name_of()) if namespace != "jobs" else ("", ""), None)
        async with service(tmp_path / "first", server, {"7": ""}) as again:
            assert await again.workers() == []
            assert [node.others for node in await again.nodes()] == [0, 2], "the copy is somebody else's"


async def test_a_copy_that_takes_the_place_of_a_pod_does_not_bring_its_worker_back(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as server, service(tmp_path / "first", server) as running:
        await running.start(WORKER)
        bind(server)
        await until_marked(server)
        copied(server, "jobs")
        copy_uid = server.objects["pods"]["jobs", name_of()]["metadata"]["uid"]
        known = running.pod_informer.items
        await until(lambda: known["jobs", name_of()].metadata.uid == copy_uid)
        (worker,) = await running.workers()
        assert (worker.phase, worker.why) == ("ended", "its pod was taken away, finalizer and all")
        await running.forget(worker.id)
        assert await running.workers() == []
        assert ("jobs", name_of()) in server.objects["pods"], "what others own is left alone"


async def test_a_start_that_finds_a_copy_in_its_place_has_been_made_before(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as server:
        await a_service_ran_a_worker(tmp_path / "first", server)
        copied(server, "jobs")
        async with service(tmp_path / "second", server, {"7": ""}) as again:
            with pytest.raises(IdUsed, match=r"worker 7\.1\.0 has run before: what is there is a copy"):
                await again.start(WORKER)
            assert await again.workers() == []


# A copy of a pod that had not begun does not say of which pod it is one.


def copied_before_it_began(server: MemoryServer) -> str:
    """The uid of the copy."""
    assert manifests.POD_UID not in server.objects["pods"]["jobs", name_of()]["metadata"]["annotations"]
    copied(server, "jobs")
    return str(server.objects["pods"]["jobs", name_of()]["metadata"]["uid"])


async def test_a_copy_of_a_pod_that_had_not_begun_is_not_the_worker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server, service(tmp_path / "first", server) as running:
        await running.start(WORKER)
        copy_uid = copied_before_it_began(server)
        known = running.pod_informer.items
        await until(lambda: known["jobs", name_of()].metadata.uid == copy_uid)
        (worker,) = await running.workers()
        assert (worker.phase, worker.why) == ("ended", "its pod was taken away, finalizer and all")
        await running.forget(worker.id)
        server.change("pods", name_of(), {"metadata": {"labels": {"x": "y"}}}, "jobs")
        await until(lambda: "x" in known["jobs", name_of()].metadata.labels)
        assert await running.workers() == []
        assert [node.others for node in await running.nodes()] == [0, 2], "the copy is somebody else's"


async def test_a_copy_of_a_pod_that_had_not_begun_is_not_the_worker_after_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path) as server:
        async with service(tmp_path / "first", server) as first:
            await first.start(WORKER)
        copied_before_it_began(server)
        async with service(tmp_path / "first", server, {"7": ""}) as again:
            assert await again.workers() == []
            with pytest.raises(IdUsed, match="what is there is a copy of its pod"):
                await again.start(WORKER)
            assert await again.workers() == []
            assert ("jobs", name_of()) in server.objects["pods"], "what others own is left alone"


@pytest.mark.parametrize("worker_id", ["../7.1.0", "/etc/7.1.0", ".7", "", "7.1.0\n"])
async def test_a_pod_whose_worker_could_be_no_file_of_a_log_is_no_worker(
    tmp_path: Path, worker_id: str
) -> None:
    async with cluster(tmp_path) as server, service(tmp_path / "first", server) as running:
        labels = {manifests.SERVICE: "s1", PLACED_BY: "s1"}
        for name, more in ((manifests.pod_name("s1", worker_id), 1), ("placed", 2)):
            pod = a_pod(name, "k1", gpus=1, namespace="jobs")
            pod["metadata"] |= {"labels": dict([*labels.items()][:more]), "annotations": {}}
            pod["metadata"]["annotations"] = {manifests.WORKER: worker_id, manifests.NODE: "k1"}
            server.put("pods", pod)
        await until(lambda: len(running.pod_informer.items) == 2)
        assert await running.workers() == []
        assert [node.others for node in await running.nodes()] == [0, 2]
