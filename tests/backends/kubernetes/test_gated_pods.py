"""Pods of other people behind our gate: each is lifted once, to the node that was chosen, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes import kube_scheduler
from tests.backends.kubernetes.in_memory import backend_in_memory, kubeconfig, until
from tests.backends.kubernetes.memory_server import MemoryServer, Refused, a_gated_pod, a_node, a_pod
from tests.backends.kubernetes.memory_server import Request as Call

from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.gated_pods import GATE, OF_JOB, PLACED_BY, REQUIRED, GatedPod, misfit
from stretto.backends.kubernetes.objects import Node
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NotNow, StartRefused, WorkerStart, WorkerState
from stretto.jobfile import JobSpec
from stretto.model import InputError

pytestmark = pytest.mark.sockets

NODES = ("k0", "k0", "k1", "k1")  # of four workers of one GPU each
TEAM = "team-a"


@asynccontextmanager
async def placing(folder: Path) -> AsyncIterator[tuple[MemoryServer, KubernetesBackend]]:
    async with backend_in_memory(folder, gate=True) as (server, backend):
        yield server, backend


def gated(server: MemoryServer, count: int = 4, job: str = "7", **spec: Any) -> list[dict[str, Any]]:
    """Pods that the operator has marked as of a job."""
    made = []
    for number in range(count):
        pod = a_gated_pod(f"train-{number}", **spec)
        if job:
            pod["metadata"]["labels"][OF_JOB] = job
        made.append(server.put("pods", pod))
    return made


def workers_of(pods: Sequence[dict[str, Any]], nodes: Sequence[str] = NODES) -> list[WorkerStart]:
    references = [{"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
    asks = {"kubernetes": {"namespace": TEAM, "gated_pods": references}}
    used: dict[str, int] = {}
    workers = []
    for number, node in enumerate(nodes[: len(pods)]):
        gpu = used[node] = used.get(node, -1) + 1
        workers.append(WorkerStart(f"7.1.{number}", "7", node, (gpu,), "pods of others", {}, asks=asks))
    return workers


async def listed(server: MemoryServer, backend: KubernetesBackend) -> None:
    """Wait until the backend has seen what the server has."""

    def is_seen() -> bool:
        newest = {name: pod["metadata"]["resourceVersion"] for name, pod in server.objects["pods"].items()}
        known = {name: pod.metadata.resourceVersion for name, pod in backend.pod_informer.items.items()}
        return newest == known

    await until(is_seen)


def pod_called(server: MemoryServer, name: str) -> dict[str, Any]:
    return server.objects["pods"][TEAM, name]


def lifted(server: MemoryServer) -> dict[str, str]:
    """The node of each pod whose gate is off."""
    return {
        name: kube_scheduler.node_of(pod)
        for (_, name), pod in server.objects["pods"].items()
        if not kube_scheduler.gates_of(pod)
    }


async def states(backend: KubernetesBackend) -> dict[str, WorkerState]:
    return {state.id: state for state in await backend.workers()}


async def others(backend: KubernetesBackend) -> int:
    return sum(node.others for node in await backend.nodes())


async def start_until_done(backend: KubernetesBackend, workers: Sequence[WorkerStart]) -> None:
    """As a service does: side by side, and again what was not taken."""

    async def start(worker: WorkerStart) -> None:
        while True:
            try:
                await backend.start(worker)
                return
            except NotNow:
                await asyncio.sleep(0.01)

    await asyncio.gather(*map(start, workers))


# ── a gang ────────────────────────────────────────────────────────────────────────────────────────


async def test_each_pod_gets_its_node_and_loses_its_gate_in_one_patch(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        pods = gated(server)
        await listed(server, backend)
        assert kube_scheduler.schedule(server) == []  # kube-scheduler leaves gated pods alone
        for worker in workers_of(pods):
            await backend.start(worker)
        assert lifted(server) == {f"train-{number}": node for number, node in enumerate(NODES)}
        assert len(server.of("PATCH", "pods")) == 4
        assert server.of("POST", "pods") == []
        assert kube_scheduler.schedule(server) == [f"train-{number}" for number in range(4)]
        await until(lambda: all(pod.spec.nodeName for pod in backend.ours.values()))
        assert {state.phase for state in (await states(backend)).values()} == {"running"}
        assert [state.node for state in (await states(backend)).values()] == list(NODES)


async def test_a_pod_is_foreign_or_ours_and_never_both(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        server.put("pods", a_pod("theirs", "k1", gpus=1))
        pods = gated(server, 2)
        await listed(server, backend)
        assert (await others(backend), len(backend.ours)) == (1, 0)
        for worker in workers_of(pods, ("k0", "k0")):
            await backend.start(worker)
        kube_scheduler.schedule(server)
        await listed(server, backend)
        assert (await others(backend), len(backend.ours)) == (1, 2)
        stripped = dict.fromkeys((PLACED_BY, OF_JOB))
        server.change("pods", "train-0", {"metadata": {"labels": stripped, "annotations": None}}, TEAM)
        await listed(server, backend)
        assert (await others(backend), len(backend.ours)) == (1, 2)


async def test_nothing_is_lifted_before_all_pods_are_known_to_be_of_the_job(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        pods = gated(server)
        server.change("pods", "train-3", {"metadata": {"labels": {OF_JOB: None}}}, TEAM)
        await listed(server, backend)
        workers = workers_of(pods)
        for worker in workers:
            with pytest.raises(NotNow, match="train-3"):
                await backend.start(worker)
        assert lifted(server) == {}
        server.change("pods", "train-3", {"metadata": {"labels": {OF_JOB: "7"}}}, TEAM)
        await listed(server, backend)
        await start_until_done(backend, workers)
        assert len(lifted(server)) == 4


async def test_a_gang_that_has_lost_a_pod_is_not_lifted_at_all(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        pods = gated(server)
        server.remove("pods", "train-2", TEAM)
        await listed(server, backend)
        for worker in workers_of(pods):
            with pytest.raises(StartRefused, match="train-2"):
                await backend.start(worker)
        assert lifted(server) == {}


async def test_a_pod_of_another_job_is_not_lifted(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        pods = gated(server, 1, job="8")
        await listed(server, backend)
        with pytest.raises(NotNow, match="gated-job=7"):
            await backend.start(workers_of(pods)[0])
        assert lifted(server) == {}


@pytest.mark.parametrize("is_silent", [False, True])
async def test_another_pod_of_the_same_name_is_not_lifted(tmp_path: Path, is_silent: bool) -> None:
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1))
        await listed(server, backend)
        server.is_silent = is_silent  # then the watch has not told of it
        server.remove("pods", "train-0", TEAM)
        gated(server, 1)
        if not is_silent:
            await listed(server, backend)
        with pytest.raises(StartRefused, match="not there any more"):
            await backend.start(worker)
        assert lifted(server) == {}


# ── faults in the middle ──────────────────────────────────────────────────────────────────────────


class Fickle(MemoryServer):
    """Refuses the second, third and fourth patch of a pod."""

    codes: list[int]
    patches: int

    def answer(self, call: Call) -> dict[str, Any]:
        if (call.method, call.plural) == ("PATCH", "pods"):
            self.patches += 1
            if self.patches > 1 and self.codes:
                raise Refused(self.codes.pop(0))
        return super().answer(call)


@pytest.mark.parametrize("codes", [[409, 409, 409], [429, 500, 429], [500, 500, 500], [403, 409, 500]])
async def test_refusals_in_the_middle_leave_no_pod_behind_and_move_none(
    tmp_path: Path, codes: list[int]
) -> None:
    server = Fickle()
    server.codes, server.patches = list(codes), 0
    await server.open()
    for name in ("k0", "k1"):
        server.put("nodes", a_node(name, gpus=2))
    options = KubernetesOptions(kubeconfig=kubeconfig(tmp_path, server.url), gate=True)
    backend = await open_kubernetes(options, "s1", tmp_path / "state")
    try:
        pods = gated(server)
        await listed(server, backend)
        await start_until_done(backend, workers_of(pods))
        assert server.codes == []
        assert lifted(server) == {f"train-{number}": node for number, node in enumerate(NODES)}
    finally:
        await backend.close()
        await server.close()


async def test_a_lift_whose_answer_was_lost_is_the_same_lift(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1))
        await listed(server, backend)
        server.is_silent = True  # the watch does not tell of it either
        server.lose("PATCH", "pods")
        with pytest.raises(Exception, match="did not answer"):
            await backend.start(worker)
        assert lifted(server) == {"train-0": "k0"}
        assert (await backend.start(worker)).phase == "starting"
        assert len(server.of("PATCH", "pods")) == 1
        with pytest.raises(StartRefused, match=r"placed before, as 7\.1\.0"):
            await backend.start(replace(worker, id="7.2.0", node="k1"))


async def test_a_pod_that_others_change_meanwhile_is_patched_in_its_newest_version(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1))
        await listed(server, backend)
        read = server.answer
        here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
        required = {REQUIRED: {"nodeSelectorTerms": [here]}}
        changes = [{"spec": {"affinity": {"nodeAffinity": required}}}]

        def changed_after_read(call: Call) -> dict[str, Any]:
            pod = msgspec.json.decode(msgspec.json.encode(read(call)))
            if (call.method, call.name) == ("GET", "train-0") and changes:
                server.change("pods", "train-0", changes.pop(), TEAM)
            return dict(pod)

        server.answer = changed_after_read  # type: ignore[method-assign]
        await backend.start(worker)
        (term,) = pod_called(server, "train-0")["spec"]["affinity"]["nodeAffinity"][REQUIRED][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"] == here["matchExpressions"]
        assert lifted(server) == {"train-0": "k0"}


async def test_a_gate_that_somebody_else_has_lifted_is_said(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1))
        server.change("pods", "train-0", {"spec": {"schedulingGates": []}}, TEAM)
        await listed(server, backend)
        with pytest.raises(StartRefused, match="somebody else has lifted it"):
            await backend.start(worker)
        assert server.of("PATCH", "pods") == []


# ── where a pod may run ───────────────────────────────────────────────────────────────────────────


async def test_terms_that_a_pod_has_are_kept_and_narrowed(tmp_path: Path) -> None:
    fast = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    slow = {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["slow"]}]}
    required = {REQUIRED: {"nodeSelectorTerms": [fast, {}, slow]}}
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1, affinity={"nodeAffinity": required}))
        await listed(server, backend)
        await backend.start(worker)
        terms = pod_called(server, "train-0")["spec"]["affinity"]["nodeAffinity"]
        on_k0 = [{"key": "metadata.name", "operator": "In", "values": ["k0"]}]
        assert terms[REQUIRED]["nodeSelectorTerms"] == [
            {**fast, "matchFields": on_k0},
            {},
            {**slow, "matchFields": on_k0},
        ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeSelector": {"zone": "z9"}}, "node selector zone=z9"),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "topologySpreadConstraints"),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}},
            "podAntiAffinity",
        ),
    ],
)
async def test_a_pod_is_not_lifted_to_a_node_where_it_cannot_run(
    tmp_path: Path, spec: dict[str, Any], words: str
) -> None:
    async with placing(tmp_path) as (server, backend):
        (worker,) = workers_of(gated(server, 1, **spec))
        await listed(server, backend)
        with pytest.raises(StartRefused, match=words):
            await backend.start(worker)
        assert lifted(server) == {}


def a_pod_that_wants(**spec: Any) -> GatedPod:
    return msgspec.convert({"spec": spec}, GatedPod)


def requirement(operator: str, key: str = "cores", *values: str) -> GatedPod:
    expression = {"key": key, "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {REQUIRED: terms}
    return a_pod_that_wants(affinity={"nodeAffinity": required})


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        (a_pod_that_wants(), True),
        (a_pod_that_wants(nodeSelector={"cores": "96"}), True),
        (a_pod_that_wants(nodeSelector={"cores": "8"}), False),
        (requirement("In", "cores", "8", "96"), True),
        (requirement("In", "cores", "8"), False),
        (requirement("NotIn", "cores", "96"), False),
        (requirement("NotIn", "disk", "slow"), True),
        (requirement("Exists"), True),
        (requirement("Exists", "disk"), False),
        (requirement("DoesNotExist", "disk"), True),
        (requirement("DoesNotExist"), False),
        (requirement("Gt", "cores", "95"), True),
        (requirement("Gt", "cores", "96"), False),
        (requirement("Lt", "cores", "97"), True),
        (requirement("Lt", "disk", "97"), False),
        (requirement("Near", "cores", "97"), False),
    ],
)
def test_a_node_meets_what_a_pod_wants_as_kube_scheduler_reads_it(pod: GatedPod, fits: bool) -> None:
    node = msgspec.convert({"metadata": {"name": "k0", "labels": {"cores": "96"}}}, Node)
    assert (misfit(pod, node) == "") == fits


def test_a_taint_keeps_pods_away_that_do_not_tolerate_it() -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    node = msgspec.convert({"metadata": {"name": "k0"}, "spec": {"taints": [taint]}}, Node)
    assert "team:NoSchedule" in misfit(a_pod_that_wants(), node)
    tolerations = [{"key": "team", "operator": "Equal", "value": "b", "tolerationSeconds": 30}]
    assert misfit(a_pod_that_wants(tolerations=tolerations), node) == ""


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────


async def run_one(server: MemoryServer, backend: KubernetesBackend) -> WorkerStart:
    (worker,) = workers_of(gated(server, 1))
    await listed(server, backend)
    await backend.start(worker)
    kube_scheduler.schedule(server)
    await listed(server, backend)
    assert (await states(backend))["7.1.0"].phase == "running"
    return worker


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 1), (137, 1), (143, 1)])
async def test_its_end_is_that_of_its_pod_and_forgetting_it_leaves_the_pod(
    tmp_path: Path, code: int, status: int
) -> None:
    async with placing(tmp_path) as (server, backend):
        await run_one(server, backend)
        kube_scheduler.end(server, "train-0", code)
        await listed(server, backend)
        state = (await states(backend))["7.1.0"]
        assert (state.phase, state.status) == ("ended", status)
        assert (f"exit status {code}" in state.why) == (code > 0)
        log = await backend.log("7.1.0")
        assert b"kubectl logs -n team-a train-0" in log.data
        assert log.complete, "and nobody waits for more"
        await backend.forget("7.1.0")
        assert await states(backend) == {}
        assert server.of("DELETE", "pods") == []
        server.change("pods", "train-0", {"metadata": {"labels": {"theirs": "1"}}}, TEAM)
        await listed(server, backend)
        assert await states(backend) == {}


async def test_a_stop_and_a_signal_do_nothing_to_it(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        await run_one(server, backend)
        before = pod_called(server, "train-0")["metadata"]["resourceVersion"]
        await backend.stop("7.1.0", 0.0)
        await backend.signal("7.1.0", 10)
        assert pod_called(server, "train-0")["metadata"]["resourceVersion"] == before
        assert (await states(backend))["7.1.0"].phase == "running"


async def test_a_pod_that_is_deleted_holds_its_gpu_until_it_is_gone(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        await run_one(server, backend)
        deletion = {"deletionTimestamp": "2026-11-24T00:00:00Z", "deletionGracePeriodSeconds": 30}
        server.change("pods", "train-0", {"metadata": deletion}, TEAM)
        await listed(server, backend)
        assert (await states(backend))["7.1.0"].holds_gpus
        server.remove("pods", "train-0", TEAM)
        await until(lambda: "7.1.0" in backend.vanished)
        state = (await states(backend))["7.1.0"]
        assert (state.phase, state.status) == ("ended", 1)


async def test_a_lifted_pod_that_waits_for_its_node_is_not_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.backends.kubernetes.backend.LOOK_S", 0.02)
    async with backend_in_memory(tmp_path, gate=True, pending_s=1.0) as (server, backend):
        (worker,) = workers_of(gated(server, 1))
        await listed(server, backend)
        await backend.start(worker)
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
        server.change("pods", "train-0", {"status": {"conditions": [waits]}}, TEAM)
        await asyncio.sleep(1.3)
        state = (await states(backend))["7.1.0"]
        assert (state.phase, state.why) == ("starting", "Unschedulable: 0/2 nodes")
        assert server.of("DELETE", "pods") == []


async def test_a_service_that_begins_again_finds_its_pods_by_their_label(tmp_path: Path) -> None:
    async with placing(tmp_path) as (server, backend):
        worker = await run_one(server, backend)
        options = replace(backend.options)
        again = await open_kubernetes(options, "s1", tmp_path / "state")
        other = await open_kubernetes(options, "s2", tmp_path / "other")
        try:
            state = (await states(again))["7.1.0"]
            assert (state.phase, state.node, state.gpus, state.job) == ("running", "k0", (0,), "7")
            assert await again.start(worker) == state
            assert await states(other) == {}
            assert await others(other) == 1
        finally:
            await again.close()
            await other.close()


# ── what a job may say ────────────────────────────────────────────────────────────────────────────


def a_spec(**changes: Any) -> JobSpec:
    pods = [{"name": "train-0", "uid": "u0"}, {"name": "train-1", "uid": "u1"}]
    section = {"namespace": TEAM, "gated_pods": pods, **changes.pop("kubernetes", {})}
    accelerators = [{"gpu_type": "", "gpus": changes.pop("gpus", 4)}]
    resources = {"accelerators": accelerators, "gpus_per_worker": 2}
    return JobSpec.from_json({"run": "pods", "kubernetes": section, "resources": resources, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preemptible": True}, "expected a rigid job"),
        ({"gpus": 2}, "as many GPUs as 2 workers of 2 have, got 2"),
        ({"kubernetes": {"gated_pods": []}}, "a list of objects with the name and the uid"),
        ({"kubernetes": {"gated_pods": [{"name": "a"}]}}, "a list of objects with the name and the uid"),
        ({"kubernetes": {"gated_pods": [{"name": "a", "uid": "u"}] * 2}}, "each pod once"),
    ],
)
async def test_what_is_no_job_of_gated_pods_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    async with placing(tmp_path) as (_, backend):
        await backend.check(a_spec())
        with pytest.raises(InputError, match=words):
            await backend.check(a_spec(**changes))


async def test_without_the_option_no_pod_of_others_is_placed(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        with pytest.raises(InputError, match=r"expected --set backend\.gate=true"):
            await backend.check(a_spec())
        (worker,) = workers_of(gated(server, 1))
        await listed(server, backend)
        with pytest.raises(NotNow, match=r"backend\.gate"):
            await backend.start(worker)
        assert GATE in kube_scheduler.gates_of(pod_called(server, "train-0"))
