"""Faults of an API server cost no worker, and start none twice."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import api_in_memory, backend_in_memory, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_node, a_pod

from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes import job_secrets, manifests
from stretto.backends.kubernetes.api import PODS, Refusal
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.machines import SILENT
from stretto.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    NotNow,
    StartRefused,
    WorkerStart,
    WorkerState,
)

pytestmark = pytest.mark.sockets

WORKER = WorkerStart("7.1.0", "7", "k0", (0, 1), ("python", "train.py"), {manifests.TOKEN: "7.secret"})


def name_of(worker: WorkerStart = WORKER) -> str:
    return manifests.pod_name("s1", worker.id)


def bind(server: MemoryServer, worker: WorkerStart = WORKER, **status: Any) -> None:
    """What kube-scheduler and a kubelet do."""
    running = [{"name": manifests.CONTAINER, "state": {"running": {"startedAt": "2026-11-20T10:00:00Z"}}}]
    status = status or {"phase": "Running", "containerStatuses": running}
    server.change("pods", name_of(worker), {"spec": {"nodeName": worker.node}, "status": status}, "jobs")


def end(server: MemoryServer, code: int = 0, worker: WorkerStart = WORKER) -> None:
    terminated = {"exitCode": code, "startedAt": "2026-11-20T10:00:00Z", "finishedAt": "2026-11-20T10:01:00Z"}
    bind(server, worker, phase="Failed", containerStatuses=[
        {"name": manifests.CONTAINER, "state": {"terminated": terminated}}
    ])  # fmt: skip


def pod_now(server: MemoryServer) -> dict[str, Any]:
    (pod,) = server.objects["pods"].values()
    return pod


async def state_of(backend: KubernetesBackend, worker: WorkerStart = WORKER) -> WorkerState | None:
    return next((state for state in await backend.workers() if state.id == worker.id), None)


async def until_phase(backend: KubernetesBackend, phase: str) -> WorkerState:
    while (state := await state_of(backend)) is None or state.phase != phase:
        await asyncio.sleep(0.01)
    return state


# ── starts ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_start_whose_answer_was_lost_is_the_same_start_when_repeated(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        server.lose("POST", "pods")
        with pytest.raises(BackendUnreachable):
            await backend.start(WORKER)
        assert (await backend.start(WORKER)).phase == "starting"
        assert [name for _, name in server.objects["pods"]] == [name_of()]


async def test_a_start_that_another_service_of_the_same_name_made_differently_is_refused(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        server.lose("POST", "pods")
        with pytest.raises(BackendUnreachable):
            await backend.start(WORKER)
        with pytest.raises(StartRefused, match="was started with another request"):
            await backend.start(replace(WORKER, command=("other",)))


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (403, "exceeded quota: team, requested: requests.nvidia.com/gpu=2", NotNow),
        (429, "too many requests", NotNow),
        (500, "failed calling webhook: timeout", NotNow),
        (422, "spec.containers[0].image: Required value", StartRefused),
        (400, "unknown field", StartRefused),
        (503, "no endpoints available", BackendUnreachable),
    ],
)
async def test_what_refuses_a_pod_says_whether_it_is_for_now_or_for_good(
    tmp_path: Path, code: int, message: str, expected: type[Exception]
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        server.fail("POST", "pods", code, message)
        with pytest.raises(expected, match=message.partition("[")[0]):
            await backend.start(WORKER)
        assert server.objects.get("pods", {}) == {}
        assert (await backend.start(WORKER)).phase == "starting"


async def test_a_busy_server_is_asked_again_when_it_says_so(tmp_path: Path) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        server.fail("GET", "pods", 429, retry_after_s=1)
        before_s = asyncio.get_running_loop().time()
        assert await api.list(PODS) == ([], "100")
        assert asyncio.get_running_loop().time() - before_s >= 1.0
        server.fail("GET", "pods", 429, "busy", times=9)
        with pytest.raises(Refusal, match="busy"):  # without a time to come back at, the caller decides
            await api.list(PODS)
        assert len(server.of("GET", "pods")) == 3


async def test_a_token_is_in_a_secret_that_goes_with_the_last_pod_of_its_job(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        assert "7.secret" not in json.dumps([*server.objects["pods"].values()])
        (secret,) = server.objects["secrets"].values()
        assert secret["stringData"] == {manifests.TOKEN: "7.secret"}
        end(server)
        await until_phase(backend, "ended")
        await backend.forget(WORKER.id)
        assert server.objects["secrets"] == {} == server.objects["pods"]


async def test_workers_that_start_after_a_secret_was_set_anew_have_the_new_value(tmp_path: Path) -> None:
    def worker(index: int, value: str) -> WorkerStart:
        gpus = (0, 1)[index : index + 1]  # of the node, which has two
        return replace(WORKER, id=f"7.1.{index}", gpus=gpus, secrets={"HF_TOKEN": value})

    async with backend_in_memory(tmp_path) as (server, backend):
        for index, value in enumerate(("hf_first", "hf_second")):
            await backend.start(worker(index, value))
            (secret,) = server.objects["secrets"].values()
            assert secret["stringData"]["HF_TOKEN"] == value
        later = await open_kubernetes(backend.options, "s1", tmp_path / "state")
        try:
            await later.start(worker(2, "hf_third"))  # of the Secret that is there it knows nothing
        finally:
            await later.close()
        (secret,) = server.objects["secrets"].values()
        assert secret["stringData"]["HF_TOKEN"] == "hf_third"
        assert "hf_" not in json.dumps([*server.objects["pods"].values()])


async def test_a_secret_goes_with_the_last_pod_though_its_deletion_fails_and_the_service_is_killed(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        end(server)
        await until_phase(backend, "ended")
        server.fail("DELETE", "secrets", 500, "etcd is away")
        with pytest.raises(BackendUnreachable):
            await backend.forget(WORKER.id)
        later = await open_kubernetes(backend.options, "s1", tmp_path / "state")
        try:
            await later.forget(WORKER.id)
            assert server.objects["secrets"] == {} == server.objects["pods"]
        finally:
            await later.close()


async def test_a_job_whose_pods_are_refused_leaves_no_secret_and_has_one_when_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    async with backend_in_memory(tmp_path) as (server, backend):
        server.fail("POST", "pods", 403, "exceeded quota")
        with pytest.raises(NotNow, match="exceeded quota"):
            await backend.start(WORKER)
        assert len(server.objects["secrets"]) == 1, "it is tried again soon"
        monkeypatch.setattr(job_secrets, "UNUSED_S", 0.1)
        await until(lambda: not server.objects["secrets"])
        await backend.start(WORKER)
        await asyncio.sleep(0.3)
        assert len(server.objects["secrets"]) == 1


async def test_a_worker_that_starts_while_the_last_other_one_is_forgotten_finds_the_secret(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        second = replace(WORKER, id="7.1.1", gpus=(1,), node="k1")
        for _ in range(20):
            await backend.start(WORKER)
            end(server)
            await until_phase(backend, "ended")
            await asyncio.gather(backend.forget(WORKER.id), backend.start(second))
            assert len(server.objects["secrets"]) == 1
            end(server, worker=second)
            while {state.id: state.phase for state in await backend.workers()}[second.id] != "ended":
                await asyncio.sleep(0.01)
            await backend.forget(second.id)
            assert server.objects["secrets"] == {}
            backend.logs.delete([WORKER.id, second.id])


async def test_a_worker_that_starts_while_the_secret_is_being_deleted_has_another_which_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        secrets = job_secrets.JobSecrets(api, "s1", tmp_path / "notes")
        is_asked, is_answered, delete = asyncio.Event(), asyncio.Event(), api.delete

        async def slowly(path: str, grace_s: int | None = None, uid: str = "") -> bool:
            is_asked.set()
            await is_answered.wait()
            return await delete(path, grace_s, uid)

        async def start() -> None:
            async with secrets.during("jobs", WORKER):
                assert len(server.objects["secrets"]) == 1

        monkeypatch.setattr(api, "delete", slowly)
        await start()
        dropped = asyncio.create_task(secrets.drop("jobs", WORKER.job, lambda: False))
        await is_asked.wait()
        started = asyncio.create_task(start())
        await asyncio.sleep(0)
        is_answered.set()
        await asyncio.gather(dropped, started)
        async with secrets.during("jobs", WORKER):
            await secrets.drop("jobs", WORKER.job, lambda: False)
            assert len(server.objects["secrets"]) == 1, "it is needed"
        await secrets.drop("jobs", WORKER.job, lambda: False)
        assert server.objects["secrets"] == {}
        assert not secrets.starting


async def test_of_workers_that_are_forgotten_together_the_last_takes_the_secret_along(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        second = replace(WORKER, id="7.1.1", gpus=(1,), node="k1")
        for worker in (WORKER, second):
            await backend.start(worker)
            end(server, worker=worker)
        while {state.phase for state in await backend.workers()} != {"ended"}:
            await asyncio.sleep(0.01)
        await asyncio.gather(backend.forget(WORKER.id), backend.forget(second.id))
        assert server.objects["secrets"] == {} == server.objects["pods"]


# ── silence ───────────────────────────────────────────────────────────────────────────────────────


async def test_while_the_api_server_is_away_nodes_and_workers_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.backends.kubernetes.informer.STALE_S", 0.0)
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        for kind in ("nodes", "pods"):
            server.fail("WATCH", kind, 403, "RBAC is not ready", times=10**6)
            server.fail("GET", kind, 403, "RBAC is not ready", times=10**6)
        server.cut()
        await until(lambda: backend.node_informer.is_stale and backend.pod_informer.is_stale)
        shown = {node.name: (node.up, node.remark) for node in await backend.nodes()}
        assert shown == dict.fromkeys(("k0", "k1"), (True, SILENT))
        assert (await state_of(backend)).phase == "running"  # type: ignore[union-attr]
        server.faults.clear()
        await until(lambda: not backend.node_informer.is_stale)
        assert {node.remark for node in await backend.nodes()} == {""}


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


async def test_an_ended_pod_that_somebody_deletes_stays_until_its_end_was_written_down(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        await backend.api.delete(PODS.path("jobs", name_of()), 30)
        state = await state_of(backend)
        assert state is not None
        assert state.phase == "running", "its containers have not terminated yet"
        end(server, 3)
        await backend.api.delete(PODS.path("jobs", name_of()), 0)  # as its kubelet does in the end
        ended = await until_phase(backend, "ended")
        assert (ended.status, ended.stopped) == (3, False)
        assert server.objects["pods"]
        await backend.forget(WORKER.id)
        assert not server.objects["pods"]


async def test_a_worker_that_ran_under_an_earlier_service_is_told_as_lost_where_its_kubelet_rejects_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until(lambda: manifests.BEGAN in pod_now(server)["metadata"]["annotations"])
        for task in backend.tasks:
            task.cancel()
        rejected: dict[str, Any] = {
            "reason": "OutOfnvidia.com/gpu",
            "message": "Pod Node didn't have enough resource",
        }
        bind(server, phase="Failed", containerStatuses=None, **rejected)
        later = await open_kubernetes(backend.options, "s1", tmp_path / "of another service")
        try:
            ended = await until_phase(later, "ended")
        finally:
            await later.close()
        assert (ended.status, ended.is_nodes_fault) == (137, True)
        assert ended.why == "Kubernetes says OutOfnvidia.com/gpu: Pod Node didn't have enough resource"


async def test_a_stop_is_a_deletion_with_grace_of_that_very_pod(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        await backend.stop(WORKER.id, 12.0)
        (pod,) = server.objects["pods"].values()
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 12
        (call,) = server.of("DELETE", "pods")
        assert call.body["preconditions"] == {"uid": pod["metadata"]["uid"]}


async def test_a_pod_whose_finalizer_somebody_took_off_counts_as_lost_and_not_as_done(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        server.remove("pods", name_of(), "jobs")
        ended = await until_phase(backend, "ended")
        assert (ended.status, ended.signal) == (137, 9)
        assert "finalizer" in ended.why
        await backend.forget(WORKER.id)
        assert await state_of(backend) is None


async def test_what_a_watch_tells_late_of_a_forgotten_pod_brings_it_not_back(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        end(server)
        await until_phase(backend, "ended")
        late = backend.ours[WORKER.id]
        backend.tasks[1].cancel()  # its watch has fallen behind
        await backend.forget(WORKER.id)
        backend.pod_informer.put(late)
        assert await state_of(backend) is None
        with pytest.raises(IdUsed):
            await backend.start(WORKER)


async def test_a_log_that_is_still_read_when_its_worker_is_forgotten_is_kept_to_its_end(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        server.logs["jobs", name_of()] = b"2026-11-20T10:00:30.5Z the last words\n"
        server.fail("GET", "pods", 500, "no kubelet answers", times=1)
        end(server)
        await until_phase(backend, "ended")
        await backend.forget(WORKER.id)
        assert not server.objects["pods"]
        assert (await backend.log(WORKER.id)).data == b"the last words\n"
        with pytest.raises(IdUsed):
            await backend.start(WORKER)


async def test_a_follower_that_ends_after_its_log_was_finished_leaves_it_complete(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        server.logs["jobs", name_of()] = b"2026-11-20T10:00:30.5Z words\n"
        bind(server)
        await until_phase(backend, "running")
        backend.logs.finish(WORKER.id)
        end(server)
        await asyncio.wait_for(backend.logs.followers[WORKER.id], 60.0)
        assert backend.logs.is_complete(WORKER.id)


async def test_a_pod_that_does_not_begin_is_taken_back_with_the_words_of_the_scheduler(
    tmp_path: Path,
) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        words = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu"
        unbound = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
        server.change("pods", name_of(), {"status": {"conditions": [unbound]}}, "jobs")
        ended = await until_phase(backend, "ended")
        assert ended.stopped, "which is no failure of the job"
        assert words in ended.why


async def test_a_pod_that_its_node_just_gets_ready_is_left_alone(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        creating = [{"name": manifests.CONTAINER, "state": {"waiting": {"reason": "ContainerCreating"}}}]
        bind(server, phase="Pending", containerStatuses=creating)
        await asyncio.sleep(3 * backends.LOOK_S + 1.0)
        assert manifests.WITHDRAWN not in pod_now(server)["metadata"]["annotations"]
        backoff = [{"name": manifests.CONTAINER, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
        bind(server, phase="Pending", containerStatuses=backoff)

        def noted() -> str:
            return str(pod_now(server)["metadata"]["annotations"].get(manifests.WITHDRAWN, ""))

        await until(noted)
        assert "ImagePullBackOff" in noted()


async def test_what_pods_share_is_put_there_again_after_one_that_could_not_begin(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path, pending_s=1.0) as (server, backend):
        await backend.start(WORKER)
        for plural in ("configmaps", "services"):
            for _, name in list(server.objects[plural]):
                server.remove(plural, name, "jobs")
        await until_phase(backend, "ended")
        await backend.start(replace(WORKER, id="7.2.0"))
        assert server.objects["configmaps"]
        assert server.objects["services"]


async def test_two_orders_at_once_are_both_given(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        await asyncio.gather(backend.signal(WORKER.id, 10), backend.signal(WORKER.id, 12))
        orders = pod_now(server)["metadata"]["annotations"][manifests.ORDERS].splitlines()
        assert sorted(json.loads(order)["signal"] for order in orders) == [10, 12]


async def test_finalizers_of_others_stay_when_a_pod_is_let_go(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        finalizers = [*pod_now(server)["metadata"]["finalizers"], "example.com/books"]
        server.change("pods", name_of(), {"metadata": {"finalizers": finalizers}}, "jobs")
        end(server)
        await until_phase(backend, "ended")
        await backend.forget(WORKER.id)
        assert pod_now(server)["metadata"]["finalizers"] == ["example.com/books"]


# ── pods that only look like ours ─────────────────────────────────────────────────────────────────


def looking_like(worker: WorkerStart, name: str, node: str = "k1", **status: Any) -> dict[str, Any]:
    """A pod of somebody else with the labels and annotations of one of ours."""
    pod = a_pod(name, node, gpus=2)
    pod["metadata"]["labels"] = {manifests.SERVICE: "s1", manifests.JOB: worker.job}
    pod["metadata"]["annotations"] = {manifests.WORKER: worker.id, manifests.NODE: node}
    pod["status"] |= status
    return pod


@pytest.mark.parametrize("name", ["another", name_of()])
async def test_a_pod_with_our_label_that_we_did_not_start_ends_nobody_s_worker(
    tmp_path: Path, name: str
) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        server.put("pods", looking_like(WORKER, name))
        await until(lambda: backend.foreign.by_node["k1"])
        assert [node.others for node in await backend.nodes()] == [0, 2], "its GPUs count"
        ended = [{"name": manifests.CONTAINER, "state": {"terminated": {"exitCode": 0}}}]
        status = {"phase": "Succeeded", "containerStatuses": ended}
        server.change("pods", name, {"status": status}, "others")
        await until(lambda: not backend.foreign.by_node["k1"])
        server.remove("pods", name, "others")
        await until(lambda: len(backend.pod_informer.items) == 1)
        shown = await state_of(backend)
        assert shown is not None
        assert shown.phase == "running"


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────


async def test_pods_of_others_count_from_when_they_are_bound_until_they_are_over(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):

        async def others() -> list[int]:
            return [node.others for node in await backend.nodes()]

        pod = a_pod("theirs", "", gpus=2)
        server.put("pods", pod)
        await until(lambda: backend.pod_informer.items)
        assert await others() == [0, 0]
        server.change("pods", "theirs", {"spec": {"nodeName": "k1"}}, "others")
        await until(lambda: backend.foreign.by_node["k1"])
        assert await others() == [0, 2]
        server.change("pods", "theirs", {"metadata": {"deletionTimestamp": "2026-11-20T10:00:00Z"}}, "others")
        server.change("pods", "theirs", {"status": {"phase": "Succeeded"}}, "others")
        await until(lambda: not backend.foreign.by_node["k1"])
        assert await others() == [0, 0]


async def test_while_a_device_plugin_is_away_workers_keep_their_gpus_and_none_is_started(
    tmp_path: Path,
) -> None:
    other = replace(WORKER, id="8.1.0", gpus=(2, 3))
    async with backend_in_memory(tmp_path) as (server, backend):
        server.put("nodes", a_node("k0", gpus=4))
        await until(lambda: backend.machines.gpus_of(backend.node_informer.items["", "k0"]).count == 4)
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")

        async def shown() -> tuple[int, int, bool]:
            node = (await backend.nodes())[0]
            return node.gpus, node.others, node.up

        def give(gpus: str) -> None:
            status = {"capacity": {"nvidia.com/gpu": gpus}, "allocatable": {"nvidia.com/gpu": gpus}}
            server.change("nodes", "k0", {"status": status})

        give("0")  # as a kubelet that was started again
        await until(lambda: backend.machines.gpus_of(backend.node_informer.items["", "k0"]).withheld)
        assert await shown() == (4, 2, True)
        assert (await until_phase(backend, "running")).gpus == (0, 1)
        with pytest.raises(NotNow, match="node k0: it gives 0 of its 4 GPUs: is its device plug-in there"):
            await backend.start(other)
        give("4")
        await until(lambda: not backend.machines.gpus_of(backend.node_informer.items["", "k0"]).withheld)
        assert await shown() == (4, 0, True)
        assert (await backend.start(other)).phase == "starting"


async def test_workers_of_a_silent_node_are_unknown_and_of_one_that_is_gone_dead(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        await until_phase(backend, "running")
        silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "silent"}
        server.change("nodes", "k0", {"status": {"conditions": [silent]}})
        assert (await until_phase(backend, "unknown")).holds_gpus
        server.remove("nodes", "k0")
        ended = await until_phase(backend, "ended")
        assert (ended.status, ended.why) == (137, "its node died")
        assert [node.dead for node in await backend.nodes()] == [True, False]
        server.put("nodes", a_node("k0", gpus=2))
        assert (await until_phase(backend, "running")).why == ""


async def test_two_services_leave_each_other_alone(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        await backend.start(WORKER)
        bind(server)
        pod = next(iter(server.objects["pods"].values()))
        labels = {manifests.SERVICE: "s2", manifests.JOB: "7"}
        name = manifests.pod_name("s2", WORKER.id)
        metadata = {
            "name": name,
            "namespace": "jobs",
            "labels": labels,
            "annotations": pod["metadata"]["annotations"],
        }
        spec = json.loads(json.dumps(pod["spec"])) | {"nodeName": "k1"}
        server.put("pods", {"metadata": metadata, "spec": spec, "status": pod["status"]})
        await until(lambda: backend.foreign.by_node["k1"])
        assert [state.node for state in await backend.workers()] == ["k0"]
        assert [node.others for node in await backend.nodes()] == [0, 2]
