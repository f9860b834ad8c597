"""What a kubelet tells of a pod in Events only: it is said of the worker, and ends its start."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import MemoryServer
from tests.backends.kubernetes.test_faults import WORKER, bind, name_of, pod_now, state_of, until_phase

from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes import manifests, pod_events
from stretto.backends.kubernetes.backend import KubernetesBackend
from stretto.backends.kubernetes.objects import Event
from stretto.backends.kubernetes.pod_events import trouble_in, troubles_in
from stretto.backends.protocol import WorkerState

pytestmark = pytest.mark.sockets

NO_SECRET = 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'
NO_CODE = f'MountVolume.SetUp failed for volume "stretto-code" : configmap "{manifests.CODE_MAP}1" not found'
NO_DRIVER = (
    "MountVolume.SetUp failed: driver name nfs.example not found in the list of registered CSI drivers"
)
WAITED = "Unable to attach or mount volumes: unmounted volumes=[data]: timed out waiting for the condition"
ATTACHED = 'AttachVolume.Attach succeeded for volume "data"'


def told(*words: tuple[str, str]) -> list[Event]:
    return [msgspec.convert({"reason": reason, "message": message}, Event) for reason, message in words]


@pytest.mark.parametrize(
    ("events", "why", "is_hopeless"),
    [
        ([], None, False),
        ([("Scheduled", "assigned"), ("Pulling", "an image")], None, False),
        ([("Scheduled", "assigned"), ("FailedMount", NO_SECRET)], f"FailedMount: {NO_SECRET}", True),
        ([("FailedMount", NO_SECRET), ("FailedMount", WAITED)], f"FailedMount: {NO_SECRET}", True),
        ([("FailedMount", WAITED)], f"FailedMount: {WAITED}", False),
        ([("FailedMount", NO_CODE)], f"FailedMount: {NO_CODE}", False),
        ([("FailedMount", NO_DRIVER)], f"FailedMount: {NO_DRIVER}", False),
        ([("FailedMount", NO_SECRET), ("Pulling", "an image")], None, False),
        ([("FailedAttachVolume", "in use"), ("SuccessfulAttachVolume", ATTACHED)], None, False),
        ([("Pulled", "it"), ("NetworkNotReady", "not yet")], "NetworkNotReady: not yet", False),
    ],
)
def test_what_is_wrong_is_what_was_told_last(
    events: list[tuple[str, str]], why: str | None, is_hopeless: bool
) -> None:
    trouble = trouble_in(told(*events))
    assert (trouble and trouble.why) == why
    assert trouble is None or trouble.is_hopeless == is_hopeless


def test_events_count_in_the_order_in_which_they_were_last_told_and_for_their_own_pod() -> None:
    def event(uid: str, reason: str, **more: Any) -> Event:
        return msgspec.convert({"involvedObject": {"uid": uid}, "reason": reason, **more}, Event)

    events = [
        event("a", "FailedMount", lastTimestamp="2026-11-20T10:00:05Z"),
        event("a", "Pulling", eventTime="2026-11-20T10:00:04.500000Z"),
        event("b", "FailedMount", eventTime=None, series={"lastObservedTime": "2026-11-20T10:00:01Z"}),
        event("b", "Pulling", lastTimestamp="2026-11-20T10:00:02Z"),
        event("c", "FailedMount", lastTimestamp="2026-11-20T10:00:02Z"),
    ]
    assert [*troubles_in(events, {"a", "b"})] == ["a"]


def test_that_a_pod_was_bound_within_the_same_second_says_nothing_of_its_volumes() -> None:
    about = {"involvedObject": {"uid": "a"}}
    bound = {**about, "reason": "Scheduled", "eventTime": "2026-11-20T10:00:05.900000Z"}
    failed = {**about, "reason": "FailedMount", "lastTimestamp": "2026-11-20T10:00:05Z"}
    assert [*troubles_in([msgspec.convert(each, Event) for each in (failed, bound)], {"a"})] == ["a"]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.05)
    monkeypatch.setattr(pod_events, "LOOK_S", 0.05)


def is_getting_ready(server: MemoryServer) -> None:
    """As its kubelet shows it while volumes are missing."""
    creating = [{"name": manifests.CONTAINER, "state": {"waiting": {"reason": "ContainerCreating"}}}]
    bind(server, phase="Pending", containerStatuses=creating)


def tell(server: MemoryServer, reason: str, message: str, stamp: str = "2026-11-20T10:00:00Z") -> None:
    """What a kubelet tells of the pod."""
    about = {"kind": "Pod", "uid": pod_now(server)["metadata"]["uid"]}
    server.put("events", {
        "metadata": {"name": f"{reason}-{stamp}".lower(), "namespace": "jobs"},
        "involvedObject": about, "reason": reason, "message": message, "lastTimestamp": stamp,
    })  # fmt: skip


async def until_said(words: str, backend: KubernetesBackend) -> None:
    """Wait until a worker that starts says so."""
    while (state := await state_of(backend)) is None or words not in state.why:
        assert state is None or state.phase == "starting"
        await asyncio.sleep(0.01)


async def until_taken_back(server: MemoryServer, backend: KubernetesBackend) -> WorkerState:
    """Wait until its pod is deleted, as its kubelet then lets go of it."""
    await until(lambda: "deletionTimestamp" in pod_now(server)["metadata"])
    server.change("pods", name_of(), {"metadata": {"deletionGracePeriodSeconds": 0}}, "jobs")
    return await until_phase(backend, "ended")


async def test_a_volume_that_cannot_be_mounted_is_said_and_then_ends_the_start(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0, mount_s=2.0) as (server, backend):
        await backend.start(WORKER)
        is_getting_ready(server)
        tell(server, "FailedMount", NO_DRIVER)
        number = await backend.changes(0, 0.0)
        await until_said(NO_DRIVER, backend)
        assert await backend.changes(number, 0.0) > number, "who waits is told"
        ended = await until_taken_back(server, backend)
        assert (ended.status, ended.stopped) == (143, True), "which is no failure of the job"
        assert NO_DRIVER in ended.why


async def test_a_volume_that_is_mounted_after_all_is_no_trouble_any_more(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        is_getting_ready(server)
        tell(server, "FailedMount", NO_DRIVER)
        await until_said(NO_DRIVER, backend)
        tell(server, "Pulling", "an image", "2026-11-20T10:00:09Z")
        while (state := await state_of(backend)) is None or state.why:
            await asyncio.sleep(0.01)
        assert state.phase == "starting"
        bind(server)
        await until_phase(backend, "running")


async def test_an_object_that_is_missing_ends_the_start_as_one_that_cannot_be(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        is_getting_ready(server)
        tell(server, "FailedMount", NO_SECRET)
        ended = await until_taken_back(server, backend)
        assert (ended.status, ended.stopped) == (125, False)
        assert ended.why == f"cannot start: FailedMount: {NO_SECRET}"


async def test_without_the_right_to_read_events_pods_wait_as_they_did_and_the_log_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
            server.fail("GET", "events", 403, "events is forbidden", times=1000)
            await backend.start(WORKER)
            is_getting_ready(server)
            await until(lambda: len(server.of("GET", "events")) > 3)
            assert (await until_phase(backend, "starting")).why == ""
    assert caplog.text.count("events is forbidden") == 1


async def test_events_are_not_asked_for_while_all_pods_run(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        await asyncio.sleep(1.3)
        assert server.of("GET", "events") == []
