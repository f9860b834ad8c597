"""A Lease says which service leads, and a former leader writes nothing once another has commanded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory
from tests.backends.kubernetes.memory_server import MemoryServer
from tests.backends.kubernetes.test_faults import WORKER, bind, end, name_of, until_phase
from tests.backends.kubernetes.test_growing import ONE, growing, placeholders

from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes.backend import KubernetesBackend
from stretto.backends.protocol import BackendUnreachable, Fences, Remarks, StaleLeader

pytestmark = pytest.mark.sockets


def lease(server: MemoryServer) -> dict[str, Any]:
    (only,) = server.objects["leases"].values()
    return only


async def test_the_lease_names_the_leader_from_the_first_command_to_the_end(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        assert isinstance(backend, Fences)
        await backend.start(WORKER)
        assert "leases" not in server.objects, "without a leader there is none"
        backend.lease.leader = "stretto-0"
        backend.epoch = 1
        await backend.stop(WORKER.id, 5.0)
        assert lease(server)["spec"]["holderIdentity"] == "stretto-0"
        assert lease(server)["metadata"]["namespace"] == "jobs"
        backend.lease.leader = "stretto-1"
        backend.epoch = 2
        await backend.delete_logs("8")
        assert lease(server)["spec"]["holderIdentity"] == "stretto-1"
        assert lease(server)["spec"]["leaseTransitions"] == 1
        await backend.lease.release()
        assert lease(server)["spec"]["holderIdentity"] == ""


async def test_a_new_leader_is_in_the_lease_before_it_commands_anything(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend), asyncio.timeout(60.0):
        backend.lease.leader = "stretto-1"
        backend.epoch = 1
        while not server.objects.get("leases"):
            await asyncio.sleep(0.01)
        assert lease(server)["spec"]["holderIdentity"] == "stretto-1"


COMMANDS: list[Callable[[KubernetesBackend], Awaitable[Any]]] = [
    lambda backend: backend.start(replace(WORKER, id="8.1.0", job="8", node="k1")),
    lambda backend: backend.stop(WORKER.id, 5.0),
    lambda backend: backend.signal(WORKER.id, 10),
    lambda backend: backend.forget("9.1.0"),
    lambda backend: backend.delete_logs("9"),
    lambda backend: backend.wish([ONE]),
]


async def test_every_command_of_a_former_leader_is_refused(tmp_path: Path) -> None:
    ended = replace(WORKER, id="9.1.0", job="9", node="k1")
    async with backend_in_memory(tmp_path) as (server, later), growing(tmp_path, server) as former:
        former.epoch = 1
        await former.start(WORKER)
        await former.start(ended)
        bind(server)
        bind(server, ended)
        end(server, 0, ended)
        await until_phase(former, "running")
        while {state.id: state.phase for state in await former.workers()}[ended.id] != "ended":
            await asyncio.sleep(0.01)
        later.epoch = 2
        await later.stop(WORKER.id, 60.0)
        writes = sum(len(server.of(method, "pods")) for method in ("POST", "PATCH", "DELETE"))
        for command in COMMANDS:
            with pytest.raises(StaleLeader, match="leads, as leader 2: this was leader 1") as refused:
                await command(former)
            assert refused.value.epoch == 2
        assert sum(len(server.of(method, "pods")) for method in ("POST", "PATCH", "DELETE")) == writes
        await later.stop(WORKER.id, 5.0)


async def test_a_former_leader_neither_withdraws_pods_nor_asks_for_nodes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    async with (
        backend_in_memory(tmp_path, pending_s=1e6) as (server, later),
        growing(tmp_path, server, pending_s=1.0) as former,
    ):
        former.epoch = 1
        await former.start(WORKER)  # and nobody binds it
        await former.wish([ONE])
        assert len(placeholders(server)) == 1
        later.epoch = 2
        await later.signal(WORKER.id, 12)
        looks = len(server.of("GET", "leases"))
        former.growth.wishes = ()  # it would take the placeholder back
        await asyncio.sleep(1.5)  # longer than a pod may wait
        assert len(server.of("GET", "leases")) > looks + 2, "it tried"
        assert len(placeholders(server)) == 1
        assert "deletionTimestamp" not in server.objects["pods"]["jobs", name_of()]["metadata"]


async def test_commands_at_the_same_time_look_once(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        backend.epoch = 1
        while "leases" not in server.objects:
            await asyncio.sleep(0.01)
        looks = len(server.of("GET", "leases"))
        await asyncio.gather(*(backend.delete_logs(str(job)) for job in range(50)))
        assert len(server.of("GET", "leases")) == looks + 1


@pytest.mark.parametrize("code", [401, 429, 500])  # which say nothing of the Lease
async def test_nothing_is_commanded_while_the_leader_is_not_known(tmp_path: Path, code: int) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        backend.epoch = 1
        server.fail("GET", "leases", code, "etcdserver: no leader", times=50)
        with pytest.raises(BackendUnreachable, match=r"etcdserver: no leader"):
            await backend.start(WORKER)
        assert server.of("POST", "pods") == []
        server.faults.clear()
        server.fail("POST", "leases", 409, "somebody was faster")
        await backend.start(WORKER)
        assert len(server.of("POST", "leases")) == 2


FORBIDDEN = 'leases.coordination.k8s.io is forbidden: User "stretto" cannot {} resource "leases"'


@pytest.mark.parametrize(("method", "verb"), [("GET", "get"), ("POST", "create")])
async def test_a_service_without_rights_on_leases_works_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, verb: str
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend), asyncio.timeout(60.0):
        assert isinstance(backend, Remarks)
        assert backend.remark == ""
        server.fail(method, "leases", 403, FORBIDDEN.format(verb), times=1000)
        backend.epoch = 1
        assert (await backend.start(WORKER)).phase == "starting"
        await backend.signal(WORKER.id, 10)
        await backend.stop(WORKER.id, 5.0)
        warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert FORBIDDEN.format(verb) in warnings[0]
        assert backend.remark == "the API server refuses the Lease of the leader, as its log says"
        server.faults.clear()  # rights are given
        await backend.delete_logs("8")
        assert lease(server)["metadata"]["annotations"]["stretto.dev/epoch"] == "1"
        assert backend.remark == ""


async def test_a_former_leader_that_may_read_the_lease_only_is_refused_all_the_same(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, later), growing(tmp_path, server) as former:
        former.epoch = 1
        await former.start(WORKER)
        later.epoch = 2
        await later.signal(WORKER.id, 12)
        for method in ("POST", "PATCH"):
            server.fail(method, "leases", 403, FORBIDDEN.format("patch"), times=1000)
        with pytest.raises(StaleLeader, match="leads, as leader 2: this was leader 1"):
            await former.stop(WORKER.id, 5.0)
