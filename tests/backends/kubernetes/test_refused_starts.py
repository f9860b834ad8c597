"""A start that a cluster refuses for now is tried again, less and less, and then its GPUs are free."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_pod

from stretto.backends.kubernetes import refused_starts
from stretto.backends.kubernetes.backend import KubernetesBackend
from stretto.backends.protocol import NotNow, WorkerStart, WorkerState

pytestmark = pytest.mark.sockets

WORKER = WorkerStart("7.1.0", "7", "k0", (0, 1), ("python", "train.py"), {}, cpus=8, memory_gb=64)
RIGHTS = 'pods is forbidden: User "stretto" cannot create resource "pods" in the namespace "jobs"'
QUOTA = 'pods "x" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=2'


async def tried_until_it_ends(backend: KubernetesBackend, worker: WorkerStart = WORKER) -> WorkerState:
    """Start a worker again and again, as a service does."""
    while True:
        try:
            return await backend.start(worker)
        except NotNow:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("plural", "code", "words"),
    [
        ("pods", 403, RIGHTS),
        ("configmaps", 403, 'namespace "jobs" is forbidden: unable to create new content'),
        ("pods", 500, "failed calling webhook: no endpoints available"),
    ],
)
async def test_a_start_that_is_refused_all_the_time_lets_go_of_its_gpus_with_the_servers_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plural: str, code: int, words: str
) -> None:
    monkeypatch.setattr(refused_starts, "FIRST_PAUSE_S", 0.05)
    async with backend_in_memory(tmp_path) as (server, backend):
        backend.refused.patience_s = 0.5
        server.fail("POST", plural, code, words, times=1000)
        with pytest.raises(NotNow, match=words.partition(" is")[0]):
            await backend.start(WORKER)
        ended = await tried_until_it_ends(backend)
        assert (ended.phase, ended.status, ended.holds_gpus, ended.stopped) == ("ended", 143, False, True)
        assert ended.why.startswith("it was given up after ")
        assert words in ended.why
        assert await backend.workers() == [ended]
        assert await backend.start(WORKER) == ended, "the same start is answered the same"
        server.faults.clear()
        other = replace(WORKER, id="8.1.0", job="8")
        assert (await backend.start(other)).phase == "starting", "its GPUs are free"
        await backend.forget(WORKER.id)
        assert [state.id for state in await backend.workers()] == ["8.1.0"]


async def test_a_refused_start_is_tried_again_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_starts, "FIRST_PAUSE_S", 30.0)
    async with backend_in_memory(tmp_path) as (server, backend):
        server.fail("POST", "pods", 403, RIGHTS, times=1000)
        for _ in range(10):
            with pytest.raises(NotNow, match="cannot create resource"):
                await backend.start(WORKER)
        assert len(server.of("POST", "pods")) == 2, "the second refusal makes it wait"


async def test_a_full_quota_is_waited_for(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        backend.refused.patience_s = 0.0
        server.fail("POST", "pods", 403, QUOTA, times=5)
        for _ in range(5):
            with pytest.raises(NotNow, match="exceeded quota"):
                await backend.start(WORKER)
        assert (await backend.start(WORKER)).phase == "starting"


# ── cores and memory ──────────────────────────────────────────────────────────────────────────────


def a_cpu_pod(name: str, owner: str = "", **requests: Any) -> dict[str, Any]:
    """A pod without GPUs on k0, as a DaemonSet or somebody else has it."""
    pod = a_pod(name, "k0")
    pod["spec"]["containers"][0]["resources"] = {"requests": requests}
    if owner:
        reference = {
            "apiVersion": "apps/v1",
            "kind": owner,
            "name": "agents",
            "uid": "u1",
            "controller": True,
        }
        pod["metadata"]["ownerReferences"] = [reference]
    return pod


async def cores_of(backend: KubernetesBackend) -> tuple[int, float]:
    node = (await backend.nodes())[0]
    return node.cpus, node.memory_gb


async def until_known(
    server: MemoryServer, backend: KubernetesBackend, name: str, there: bool = True
) -> None:
    await until(lambda: (("others", name) in backend.pod_informer.items) == there)


async def test_a_node_offers_what_daemon_sets_leave_of_its_cores_and_memory(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        assert await cores_of(backend) == (96, 1056.0)
        before = await backend.changes(0)
        server.put("pods", a_cpu_pod("agent", "DaemonSet", cpu="2500m", memory="6Gi"))
        assert await backend.changes(before, 30.0) > before
        assert await cores_of(backend) == (93, 1050.0)
        # Its next version takes its place, and what comes and goes is no property of the node.
        server.remove("pods", "agent", "others")
        server.put("pods", a_cpu_pod("agent-2", "DaemonSet", cpu=3, memory="6Gi"))
        server.put("pods", a_cpu_pod("batch", "Job", cpu="40"))
        await until_known(server, backend, "batch")
        assert await cores_of(backend) == (93, 1050.0)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (
            {"cpu": "90"},
            "node k0 has 6 of the 8 cores free that it asks for: other pods there ask for 90 of 96",
        ),
        ({"memory": "1000Gi"}, "node k0 has 56 of the 64 GiB of memory free that it asks for"),
    ],
)
async def test_a_worker_for_which_others_leave_no_cores_or_memory_says_so_and_is_no_pod(
    tmp_path: Path, requests: dict[str, str], words: str
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        server.put("pods", a_cpu_pod("batch", "Job", **requests))
        await until_known(server, backend, "batch")
        with pytest.raises(NotNow, match=words):
            await backend.start(WORKER)
        assert not server.of("POST", "pods")
        server.remove("pods", "batch", "others")
        await until_known(server, backend, "batch", there=False)
        assert (await backend.start(WORKER)).phase == "starting"


async def test_workers_count_for_each_other_and_a_priority_is_left_to_kube_scheduler(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (_, backend):
        first = replace(WORKER, id="7.1.1", gpus=(0,), cpus=60)
        second = replace(WORKER, id="7.1.2", gpus=(1,), cpus=60)
        await backend.start(first)
        with pytest.raises(NotNow, match="has 36 of the 60 cores free"):
            await backend.start(second)
        section = {"pod": {"priorityClassName": "urgent"}}
        urgent = replace(second, id="8.1.0", job="8", asks={"kubernetes": section})
        assert (await backend.start(urgent)).phase == "starting"
