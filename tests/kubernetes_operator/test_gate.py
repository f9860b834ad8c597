"""Gated pods of an API server in memory are placed by a real service: each gang as a whole, in its turn."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes import kube_scheduler
from tests.backends.kubernetes.in_memory import kubeconfig
from tests.backends.kubernetes.memory_server import MemoryServer, Refused, a_gated_pod, a_node, a_pod, stamp
from tests.service.running import PROGRAM, Running

from stretto.backends.kubernetes.api import Api, configuration
from stretto.backends.kubernetes.gated_pods import OF_JOB
from stretto.client import Client
from stretto.kubernetes_operator import gated_pods_controller
from stretto.kubernetes_operator.gated_pods_controller import LABEL, QUEUE, GateOperator

pytestmark = [pytest.mark.processes, pytest.mark.large]

TEAM, PATIENCE_S = "team-a", 60.0
MANY = {"k0": 2, "k1": 2}


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.02)


class Cluster:
    """An API server in memory whose kube-scheduler binds what has no gate, a service, and an operator."""

    def __init__(self, folder: Path, server: MemoryServer, *options: str) -> None:
        self.folder, self.server = folder, server
        self.config = kubeconfig(folder, server.url)
        backend = ("--backend", "kubernetes", "--kubeconfig", self.config, "--set", "backend.gate=true")
        self.service = Running(folder / "service", *backend, "--policy", "fifo", *options)
        self.binds = True
        self.operator: GateOperator | None = None
        self._task: asyncio.Task[None] | None = None

    async def kube_scheduler(self) -> None:
        while True:
            if self.binds:
                kube_scheduler.schedule(self.server)
            await asyncio.sleep(0.02)

    async def begin_service(self) -> None:
        await asyncio.to_thread(self.service.begin)

    async def kill_service(self) -> None:
        await asyncio.to_thread(self.service.kill)

    async def begin_operator(self) -> None:
        self.operator = GateOperator(Api(configuration(self.config)), self.service.client())
        self._task = asyncio.create_task(self.operator.run())
        await asyncio.wait(
            [asyncio.create_task(self.operator.pods.listed.wait()), self._task],
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def end_operator(self) -> None:
        assert self._task is not None
        assert self.operator is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.operator.api.close()

    # ── what people do ────────────────────────────────────────────────────────────────────────────

    def job(self, name: str, pods: int, *, present: int | None = None, gpus: int = 1, **spec: Any) -> None:
        """A Job of `batch/v1`, with as many of its pods as its controller has made."""
        metadata = {"name": name, "namespace": TEAM, "creationTimestamp": stamp()}
        item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        item["spec"] = {"parallelism": pods, "completions": pods}
        self.server.put("jobs", item)
        for number in range(pods if present is None else present):
            self.pod(f"{name}-{number}", name, gpus, **spec)

    def pod(self, name: str, owner: str = "", gpus: int = 1, **spec: Any) -> None:
        """A gated pod, of a Job or of nobody."""
        job = self.server.objects["jobs"][TEAM, owner] if owner else None
        self.server.put("pods", a_gated_pod(name, gpus, job, **spec))

    def delete_job(self, name: str) -> None:
        """As `kubectl delete job`: the Job goes, and then its pods are collected."""
        self.server.remove("jobs", name, TEAM)
        for pod in list(self.pods(name)):
            self.server.remove("pods", pod, TEAM)

    def pods(self, owner: str) -> dict[str, dict[str, Any]]:
        return {
            name: pod
            for (namespace, name), pod in sorted(self.server.objects.get("pods", {}).items())
            if namespace == TEAM and name.startswith(owner)
        }

    def nodes(self, owner: str) -> dict[str, str]:
        """Where the pods of an owner run."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods(owner).items()
            if pod["spec"].get("nodeName") and not kube_scheduler.is_over(pod)
        }

    def gated(self, owner: str) -> list[str]:
        return [name for name, pod in self.pods(owner).items() if kube_scheduler.gates_of(pod)]

    def is_marked(self, owner: str) -> bool:
        """Whether all pods of an owner are known to be of a job."""
        return all(OF_JOB in pod["metadata"]["labels"] for pod in self.pods(owner).values())

    def events(self, owner: str) -> list[tuple[str, str]]:
        """(reason, message) of what the owner was told."""
        return [
            (event["reason"], event["message"])
            for event in self.server.objects.get("events", {}).values()
            if event["involvedObject"]["name"] == owner
        ]

    def told(self, owner: str, reason: str) -> str:
        return next((message for word, message in self.events(owner) if word == reason), "")

    async def jobs(self) -> list[dict[str, Any]]:
        """All jobs of the service, by their submission."""
        with self.service.client() as client:
            return await asyncio.to_thread(lambda: list(client.jobs(everybody=True, ended=True)))

    async def states(self) -> list[str]:
        return [job["state"] for job in await self.jobs()]

    async def until_states(self, *states: str) -> None:
        shown: list[str] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (shown := await self.states()) != list(states):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"expected {states}, got {shown}")


@asynccontextmanager
async def cluster(
    folder: Path,
    gpus: dict[str, int] = MANY,
    labels: dict[str, str] | None = None,
    options: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    server = await MemoryServer().open()
    for name, count in gpus.items():
        server.put("nodes", a_node(name, gpus=count))
    namespace = {"name": TEAM, "labels": {LABEL: "true"} if labels is None else labels}
    server.put("namespaces", {"metadata": namespace})
    made = Cluster(folder, server, *options)
    binding = asyncio.create_task(made.kube_scheduler())
    try:
        await made.begin_service()
        await made.begin_operator()
        yield made
    finally:
        with suppress(AssertionError):
            await made.end_operator()
        await made.kill_service()
        binding.cancel()
        await server.close()


async def settled() -> None:
    """Long enough for what should not happen."""
    await asyncio.sleep(1.5)


# ── gangs ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_of_four_pods_is_placed_as_a_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.job("train", 4, present=3)
        await settled()
        assert (made.gated("train"), await made.jobs()) == (["train-0", "train-1", "train-2"], [])
        made.pod("train-3", "train")
        await until(lambda: len(made.nodes("train")) == 4)
        assert made.nodes("train") == {"train-0": "k0", "train-1": "k0", "train-2": "k1", "train-3": "k1"}
        await made.until_states("RUNNING")
        (job,) = await made.jobs()
        assert (job["name"], job["gpus"], job["gpus_min"]) == ("gated.team-a.train", 4, 4)
        await until(lambda: made.told("train", "Running"))
        assert made.told("train", "Running") == f"job {job['id']}: 4 GPUs on k0, k1"
        for number in range(4):
            kube_scheduler.end(made.server, f"train-{number}")
        await made.until_states("COMPLETED")


async def test_a_gang_without_room_for_all_of_it_waits_as_a_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.server.put("pods", a_pod("theirs", "k1", gpus=1))
        made.job("train", 4)
        await until(lambda: [event for event in made.events("train") if "waits" in event[1]])
        await settled()
        assert (len(made.gated("train")), await made.states()) == (4, ["PENDING"])
        made.server.remove("pods", "theirs", "others")
        await until(lambda: len(made.nodes("train")) == 4)


async def test_two_owners_are_placed_in_their_turn_and_foreign_pods_are_left_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        free = a_pod("free", "", gpus=1)
        del free["spec"]["nodeName"]
        made.server.put("pods", free)
        await until(lambda: made.server.objects["pods"]["others", "free"]["spec"].get("nodeName"))
        made.job("first", 2)
        await until(lambda: len(made.nodes("first")) == 2)
        made.job("second", 3)
        await made.until_states("RUNNING", "PENDING")
        made.job("third", 1)  # there is room for it: the policy `fifo` does not let it pass
        await made.until_states("RUNNING", "PENDING", "PENDING")
        await settled()
        assert (len(made.gated("second")), len(made.gated("third"))) == (3, 1)
        for number in range(2):
            kube_scheduler.end(made.server, f"first-{number}")
        await until(lambda: len(made.nodes("second")) == 3)
        assert len(made.gated("third")) == 1
        patched = {call.name for call in made.server.of("PATCH", "pods")}
        assert "free" not in patched
        assert made.server.of("DELETE", "pods") == []


async def test_a_bare_pod_is_a_gang_by_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.pod("alone", gpus=2)
        await until(lambda: made.nodes("alone"))
        await until(lambda: made.told("alone", "Running"))
        (job,) = await made.jobs()
        assert (job["gpus"], job["nodes"]) == (2, {"k0": 2})


async def test_a_pod_in_place_of_a_failed_one_is_placed_beside_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.job("train", 3)
        await until(lambda: len(made.nodes("train")) == 3)
        kube_scheduler.end(made.server, "train-1", code=1)
        made.pod("train-again", "train")
        await until(lambda: "train-again" in made.nodes("train"))
        for name in ("train-0", "train-2", "train-again"):
            kube_scheduler.end(made.server, name)
        await made.until_states("FAILED", "COMPLETED")


async def test_a_job_set_counts_its_jobs_with_gpus_and_its_train_job_is_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        maker = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "controller": True}
        metadata = {
            "name": "bert",
            "namespace": TEAM,
            "ownerReferences": [{**maker, "name": "tune", "uid": "t"}],
        }
        asks = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
        jobs = [
            {"replicas": 1, "template": {"spec": {"template": {"spec": {"containers": [{"name": "load"}]}}}}},
            {"replicas": 2, "template": {"spec": {"parallelism": 2, "template": {"spec": asks}}}},
        ]
        made.server.put("jobsets", {"metadata": metadata, "spec": {"replicatedJobs": jobs}})
        for number in (0, 1):
            made.job(f"bert-node-{number}", 2, present=0)
            owner = made.server.objects["jobs"][TEAM, f"bert-node-{number}"]
            for pod in (0, 1):
                if (number, pod) == (1, 1):
                    await settled()
                    assert await made.jobs() == []
                item = a_gated_pod(f"bert-node-{number}-{pod}", 1, owner)
                item["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "bert"
                made.server.put("pods", item)
        await until(lambda: len(made.nodes("bert")) == 4)
        await until(lambda: made.told("tune", "Running"))


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_operator_that_begins_again_submits_nothing_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.pod("first")
        await made.until_states("RUNNING")
        made.job("train", 4)
        await made.until_states("RUNNING", "PENDING")
        await until(lambda: made.is_marked("train"))
        await made.end_operator()
        made.job("late", 1)
        await made.begin_operator()
        await made.until_states("RUNNING", "PENDING", "PENDING")
        kube_scheduler.end(made.server, "first")
        await until(lambda: len(made.nodes("train")) == 4)
        await made.end_operator()
        await made.begin_operator()
        await settled()
        assert await made.states() == ["COMPLETED", "RUNNING", "PENDING"]


async def test_an_operator_that_died_between_two_labels_begins_the_gang_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = Client.change, set[tuple[str, str]]()

    def change_later(client: Client, job: str, what: str) -> None:
        if (job, what) not in asked:
            asked.add((job, what))
            threading.Timer(1.0, real, (client, job, what)).start()  # until then the job has not ended

    async with cluster(tmp_path) as made:
        made.server.put("pods", a_pod("theirs", "k1", gpus=1))
        made.job("train", 4)
        await made.until_states("PENDING")
        await until(
            lambda: all(
                "stretto.dev/gated-job" in p["metadata"]["labels"] for p in made.pods("train").values()
            )
        )
        await made.end_operator()
        made.server.change("pods", "train-3", {"metadata": {"labels": {OF_JOB: None}}}, TEAM)
        made.server.remove("pods", "theirs", "others")
        await settled()
        assert len(made.gated("train")) == 4
        monkeypatch.setattr(Client, "change", change_later)
        await made.begin_operator()
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("CANCELLED", "RUNNING")


async def test_labels_that_are_refused_in_the_middle_are_written_later_and_make_no_second_job(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as made:
        real, codes = made.server.answer, [0, 500, 429, 500]

        def refuses_labels(call: Any) -> Any:
            is_label = call.method == "PATCH" and call.plural == "pods" and "spec" not in call.body
            if is_label and codes and (code := codes.pop(0)):
                raise Refused(code)
            return real(call)

        made.server.answer = refuses_labels  # type: ignore[method-assign]
        made.job("train", 4)
        await until(lambda: len(made.nodes("train")) == 4)
        assert codes == []
        await made.until_states("RUNNING")


async def test_pods_whose_job_could_not_lift_them_are_queued_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.kubernetes_operator.follower.REFRESH_S", 0.3)
    async with cluster(tmp_path) as made:
        for name in MANY:
            made.server.change("nodes", name, {"metadata": {"labels": {"disk": "fast"}}})
        made.pod("first", gpus=2)
        await made.until_states("RUNNING")
        made.job("train", 4, nodeSelector={"disk": "fast"})
        await made.until_states("RUNNING", "PENDING")
        for name in MANY:
            made.server.change("nodes", name, {"metadata": {"labels": {"disk": None}}})
        kube_scheduler.end(made.server, "first")
        await made.until_states("COMPLETED", "FAILED")
        await until(lambda: made.told("train", "NoNode"))
        assert len(made.gated("train")) == 4
        for name in MANY:
            made.server.change("nodes", name, {"metadata": {"labels": {"disk": "fast"}}})
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("COMPLETED", "FAILED", "RUNNING")


async def test_a_service_that_is_killed_while_pods_run_goes_on_with_them(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.job("train", 4)
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("RUNNING")
        await made.kill_service()
        kube_scheduler.end(made.server, "train-0")
        made.job("next", 4)
        await made.begin_service()
        await made.until_states("RUNNING", "PENDING")
        await settled()
        assert len(made.gated("next")) == 4
        for number in (1, 2, 3):
            kube_scheduler.end(made.server, f"train-{number}")
        await until(lambda: len(made.nodes("next")) == 4)
        await made.until_states("COMPLETED", "RUNNING")
        assert made.service.differences()[1] == 0


async def test_a_service_that_is_killed_while_it_lifts_lifts_the_rest(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        real, lifts = made.server.answer, 0

        def second_lift_fails(call: Any) -> Any:
            nonlocal lifts
            if call.method == "PATCH" and call.plural == "pods" and "spec" in call.body:
                lifts += 1
                if lifts > 1:
                    raise Refused(500)
            return real(call)

        made.server.answer = second_lift_fails  # type: ignore[method-assign]
        made.job("train", 4)
        await until(lambda: lifts > 4)
        assert len(made.gated("train")) == 3
        await made.kill_service()
        made.server.answer = real  # type: ignore[method-assign]
        await made.begin_service()
        await until(lambda: len(made.nodes("train")) == 4)
        assert sorted(made.nodes("train").values()) == ["k0", "k0", "k1", "k1"]
        await made.until_states("RUNNING")


# ── owners that go, and jobs that are cancelled ───────────────────────────────────────────────────


async def test_an_owner_that_is_deleted_while_it_waits_takes_its_job_along(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.server.put("pods", a_pod("theirs", "k1", gpus=2))
        made.job("train", 4)
        await made.until_states("PENDING")
        made.delete_job("train")
        await made.until_states("CANCELLED")


async def test_an_owner_that_is_deleted_while_it_runs_gives_its_gpus_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.job("train", 4)
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("RUNNING")
        made.job("next", 4)
        made.server.remove("jobs", "train", TEAM)
        deletion = {"deletionTimestamp": stamp(), "deletionGracePeriodSeconds": 30}
        for name in made.pods("train"):
            made.server.change("pods", name, {"metadata": deletion}, TEAM)
        await settled()
        assert len(made.gated("next")) == 4  # they still run, within their grace
        for name in list(made.pods("train")):
            made.server.remove("pods", name, TEAM)
        await until(lambda: len(made.nodes("next")) == 4)
        await made.until_states("CANCELLED", "RUNNING")


async def test_jobs_whose_pods_went_while_no_operator_ran_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_pods_controller, "STRAY_S", 0.5)
    async with cluster(tmp_path) as made:
        made.server.put("pods", a_pod("theirs", "k1", gpus=2))
        made.job("train", 4)
        await made.until_states("PENDING")
        made.job("stays", 4)
        await made.until_states("PENDING", "PENDING")
        await until(
            lambda: all(
                "stretto.dev/gated-job" in p["metadata"]["labels"] for p in made.pods("stays").values()
            )
        )
        await made.end_operator()
        made.delete_job("train")
        await made.begin_operator()
        await made.until_states("CANCELLED", "PENDING")
        await settled()
        assert await made.states() == ["CANCELLED", "PENDING"]


async def test_a_cancelled_job_leaves_its_pods_behind_their_gate(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.server.put("pods", a_pod("theirs", "k1", gpus=2))
        made.job("train", 4)
        await made.until_states("PENDING")
        await until(
            lambda: all(
                "stretto.dev/gated-job" in p["metadata"]["labels"] for p in made.pods("train").values()
            )
        )
        with made.service.client() as client:
            await asyncio.to_thread(client.change, (await made.jobs())[0]["id"], "cancel")
        await until(lambda: made.told("train", "Cancelled"))
        made.server.remove("pods", "theirs", "others")
        await asyncio.sleep(3.5)  # longer than the pause before pods are queued once more
        assert (len(made.gated("train")), await made.states()) == (4, ["CANCELLED"])
        for name in made.pods("train"):
            made.server.change("pods", name, {"metadata": {"labels": {OF_JOB: None}}}, TEAM)
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("CANCELLED", "RUNNING")


async def test_a_cancelled_job_whose_pods_run_holds_its_gpus_until_they_end(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.job("train", 4)
        await until(lambda: len(made.nodes("train")) == 4)
        await made.until_states("RUNNING")
        with made.service.client() as client:
            await asyncio.to_thread(client.change, (await made.jobs())[0]["id"], "cancel")
        made.job("next", 4)
        await settled()
        assert (len(made.nodes("train")), len(made.gated("next"))) == (4, 4)
        assert made.server.of("DELETE", "pods") == []
        for number in range(4):
            kube_scheduler.end(made.server, f"train-{number}", code=1)
        await until(lambda: len(made.nodes("next")) == 4)
        await made.until_states("CANCELLED", "RUNNING")


# ── reasons ───────────────────────────────────────────────────────────────────────────────────────


OF_OTHERS: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}
TWO_GATES = [{"name": "stretto.dev/gate"}, {"name": "kueue.x-k8s.io/admission"}]


@pytest.mark.parametrize(
    ("labels", "cases"),  # of a namespace; what its pods ask for, and the reason and words that they get
    [
        ({}, [({}, "NamespaceNotLabelled", "namespace team-a has no label stretto.dev/gate=true")]),
        (
            {LABEL: "true"},
            [
                ({"nodeSelector": {"disk": "fast"}}, "NoNode", "its node selector disk=fast"),
                (
                    {"nodeSelector": {"kubernetes.io/hostname": "k0"}},
                    "PartOfAType",
                    "1 of the 2 nodes with h100",
                ),
                ({"gpus": 0}, "NoGpus", "pod train2-0 asks for no GPUs"),
                ({"gpus": 9}, "ServiceRefuses", "expected at most 2, as many as a node has"),
                ({"schedulingGates": TWO_GATES}, "OtherGates", "kueue.x-k8s.io/admission"),
                ({"affinity": OF_OTHERS}, "NotSupported", "a required podAntiAffinity"),
            ],
        ),
        ({LABEL: "true", QUEUE: "no.such/queue"}, [({}, "ServiceRefuses", "queue must be a name")]),
    ],
)
async def test_pods_that_cannot_be_placed_stay_gated_and_their_owner_is_told_why(
    tmp_path: Path, labels: dict[str, str], cases: list[tuple[dict[str, Any], str, str]]
) -> None:
    async with cluster(tmp_path, labels=labels) as made:
        for number, (spec, _, _) in enumerate(cases):
            made.job(f"train{number}", 1, **spec)
        for number, (_, reason, words) in enumerate(cases):
            owner = f"train{number}"
            await until(partial(made.told, owner, reason))
            assert words in made.told(owner, reason)
            assert made.gated(owner) == [f"{owner}-0"]
        assert await made.jobs() == []


def test_a_namespace_and_the_gate_are_not_said_together() -> None:
    command = [sys.executable, *PROGRAM, "operator", "--gate", "--namespace", TEAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    line = "stretto: --namespace team-a: expected none with --gate, which goes by labels\n"
    assert (done.returncode, done.stderr) == (2, line)


async def test_what_was_missing_and_comes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.kubernetes_operator.follower.REFRESH_S", 0.3)
    async with cluster(tmp_path, labels={}) as made:
        made.job("train", 1, nodeSelector={"disk": "fast"})
        await until(lambda: made.told("train", "NamespaceNotLabelled"))
        made.server.change("namespaces", TEAM, {"metadata": {"labels": {LABEL: "true", QUEUE: "research"}}})
        await until(lambda: made.told("train", "NoNode"))
        for name in MANY:
            made.server.change("nodes", name, {"metadata": {"labels": {"disk": "fast"}}})
        await until(lambda: made.nodes("train"))
        (job,) = await made.jobs()
        assert job["queue"] == "research"


async def test_a_selector_chooses_among_gpu_types(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        made.server.put("nodes", a_node("t0", gpus=2, product="Tesla-T4"))
        await asyncio.sleep(0.5)
        made.job("train", 1, nodeSelector={"nvidia.com/gpu.product": "Tesla-T4"})
        await until(lambda: made.nodes("train") == {"train-0": "t0"})
        (job,) = await made.jobs()
        assert job["gpu_type"] == "t4"
