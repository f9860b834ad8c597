"""What the roles of the gate allow is enough, and no verb of it is too much. Its policy gates what it should.

Real servers with scheduling gates are not at hand. So an API server in memory keeps to the roles.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes import kube_scheduler
from tests.backends.kubernetes.in_memory import kubeconfig
from tests.backends.kubernetes.memory_server import MemoryServer, a_gated_pod, a_node

from stretto.backends.kubernetes.api import Api, configuration
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.gated_pods import GATE
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import BackendUnreachable, NotNow, StartRefused, WorkerStart
from stretto.kubernetes_operator.gated_pods_controller import LABEL, GateOperator, check_version
from stretto.model import InputError

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parents[2]
BASE, POLICY = ROOT / "deploy" / "kustomize" / "gate", ROOT / "examples" / "kubernetes" / "gate-policy.yaml"
TEAM, PATIENCE_S, SHORT_S = "team-a", 30.0, 2.0
OPERATOR, SERVICE = "stretto-gate", "stretto"
Right = tuple[str, str, str]  # whose, verb, plural


def rights() -> set[Right]:
    """What the base allows to both accounts, whatever the namespace."""
    objects = [
        each
        for file in ("gate.yaml", "rbac.yaml")
        for each in yaml.safe_load_all((BASE / file).read_text(encoding="utf-8"))
    ]
    rules = {(each["kind"], each["metadata"]["name"]): each.get("rules", []) for each in objects}
    return {
        (binding["subjects"][0]["name"], verb, resource)
        for binding in objects
        if binding["kind"].endswith("Binding")
        for rule in rules[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def of_the_gate() -> list[Right]:
    """Those that the gate adds."""
    objects = yaml.safe_load_all((BASE / "gate.yaml").read_text(encoding="utf-8"))
    roles = [(each["kind"], each["metadata"]["name"], each["rules"]) for each in objects if "rules" in each]
    return [
        (SERVICE if (kind, name) == ("Role", "stretto-gate") else OPERATOR, verb, resource)
        for kind, name, rules in roles
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


class OneService:
    """Takes every job, and starts it at once."""

    def __init__(self) -> None:
        self.addresses, self.verify = ["http://127.0.0.1:9"], True  # nobody tells what happens
        self.http = SimpleNamespace(headers={}, close=lambda: None)
        self.submitted: list[dict[str, Any]] = []

    def submit(self, text: str, key: str) -> dict[str, Any]:
        self.submitted.append(json.loads(text))
        return self.describe(str(len(self.submitted)))

    def describe(self, job: str) -> dict[str, Any]:
        shown = {"id": job, "state": "RUNNING", "reason": "", "evidence": "", "ended_s": None}
        return {**shown, "gpus": 1, "nodes": {"k0": 1}}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"name": "k0", "gpu_type": "h100", "gpus": 8, "closed": False}]

    def queues(self) -> list[dict[str, Any]]:
        return []

    def jobs(self) -> list[dict[str, Any]]:
        return []


class Missing(Exception):
    """Something did not work."""


async def until(operator: GateOperator, is_so: Callable[[], Any], patience_s: float) -> None:
    end_s = time.monotonic() + patience_s
    while not is_so():
        for informer in (operator.nodes, operator.pods, operator.namespaces):
            if "forbidden" in informer.failure:
                raise Missing(informer.failure)
        if time.monotonic() > end_s:
            raise Missing("not in time")
        await asyncio.sleep(0.01)


def put_pods(server: MemoryServer) -> list[str]:
    """A Job and a JobSet with one gated pod each."""
    asks = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    replicated = [{"replicas": 1, "template": {"spec": {"template": {"spec": asks}}}}]
    metadata = {"name": "set", "namespace": TEAM}
    server.put("jobsets", {"metadata": metadata, "spec": {"replicatedJobs": replicated}})
    for name in ("plain", "set-0"):
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": TEAM}}
        server.put("jobs", {**job, "spec": {"parallelism": 1, "completions": 1}})
        pod = a_gated_pod(f"{name}-pod", 1, server.objects["jobs"][TEAM, name])
        if name == "set-0":
            pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "set"
        server.put("pods", pod)
    return ["plain-pod", "set-0-pod"]


async def lift(backend: KubernetesBackend, number: int, job: dict[str, Any]) -> None:
    """As the service does it, again and again for a while."""
    asks = {"kubernetes": job["kubernetes"]}
    worker = WorkerStart(f"{number}.1.0", str(number), "k0", (number,), "x", {}, asks=asks)
    end_s = time.monotonic() + SHORT_S
    while True:
        try:
            await backend.start(worker)
            return
        except (NotNow, BackendUnreachable, StartRefused) as wrong:
            if time.monotonic() > end_s:
                raise Missing(str(wrong)) from None
        await asyncio.sleep(0.01)


async def live(folder: Path, allowed: set[Right], patience_s: float) -> None:
    """Gated pods from their beginning until their gates are off and their owners told. Raises Missing."""
    server = await MemoryServer().open()
    for token in (OPERATOR, SERVICE):
        server.rights[token] = {(verb, plural) for whose, verb, plural in allowed if whose == token}
    server.put("nodes", a_node("k0", gpus=8))
    server.put("namespaces", {"metadata": {"name": TEAM, "labels": {LABEL: "true"}}})
    names = put_pods(server)
    service = OneService()
    config = kubeconfig(folder, server.url, OPERATOR)
    operator = GateOperator(Api(configuration(config)), service)  # type: ignore[arg-type]
    running = asyncio.create_task(operator.run())
    options = KubernetesOptions(kubeconfig=kubeconfig(folder, server.url, SERVICE), gate=True)
    backend = await open_kubernetes(options, "s1", folder / "state")
    try:
        await until(operator, lambda: len(service.submitted) == 2, patience_s)
        await until(operator, lambda: len(server.objects.get("events", {})) == 2, patience_s)
        for number, job in enumerate(service.submitted, 1):
            await lift(backend, number, job)
        watched = {"nodes": 2, "pods": 2, "namespaces": 1}
        await until(operator, lambda: watched.items() <= server.watching.items(), patience_s)
        for name in names:
            assert kube_scheduler.node_of(server.objects["pods"][TEAM, name]) == "k0"
    finally:
        await backend.close()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await operator.api.close()
        await server.close()


async def test_what_the_roles_allow_is_enough(tmp_path: Path) -> None:
    await live(tmp_path, rights(), PATIENCE_S)


@pytest.mark.parametrize("right", of_the_gate(), ids=" ".join)
async def test_no_right_is_too_much(tmp_path: Path, right: Right) -> None:
    with pytest.raises((Missing, InputError)):
        await live(tmp_path, rights() - {right}, SHORT_S)


@pytest.mark.parametrize("version", ["v1.20.2", "v1.26.9", "v1.27.2", "v1.27.2-gke.1", "1.9", "main"])
def test_releases_without_gates_that_can_be_lifted_are_refused(version: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"is Kubernetes {version}, which drops")):
        check_version("https://k", version)


@pytest.mark.parametrize("version", ["v1.27.3", "v1.27.10-eks-1", "v1.34.0+k3s1", "v1.36.1", "v2.0.0"])
def test_releases_with_gates_are_taken(version: str) -> None:
    check_version("https://k", version)


# ── the policy that adds the gate ─────────────────────────────────────────────────────────────────


def policy() -> tuple[list[str], str]:
    """Its conditions and what it does, as expressions of CEL."""
    rules, binding = yaml.safe_load_all(POLICY.read_text(encoding="utf-8"))
    assert binding["spec"]["policyName"] == rules["metadata"]["name"]
    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] == {LABEL: "true"}
    conditions = [each["expression"] for each in rules["spec"]["matchConditions"]]
    (mutation,) = rules["spec"]["mutations"]
    return conditions, mutation["jsonPatch"]["expression"]


def admitted(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod as an API server with this policy keeps it: types of the API are maps here."""
    cel = pytest.importorskip("cel", reason="common-expression-language has no build for this machine")
    conditions, mutation = policy()
    if not all(cel.evaluate(each, {"object": pod}) is True for each in conditions):
        return pod
    plain = re.sub(r"(JSONPatch|Object[.\w]*)\{", "{", mutation)
    plain = re.sub(r"([{,]\s*)(op|path|value|name):", r'\1"\2":', plain)
    (patch,) = cel.evaluate(plain, {"object": pod})
    assert patch["op"] == "add"
    if patch["path"] == "/spec/schedulingGates/-":
        gates = [*pod["spec"]["schedulingGates"], patch["value"]]
    else:
        assert patch["path"] == "/spec/schedulingGates"
        assert "schedulingGates" not in pod["spec"]
        gates = patch["value"]
    return {**pod, "spec": {**pod["spec"], "schedulingGates": gates}}


def ungated(gpus: int = 1, **metadata: Any) -> dict[str, Any]:
    pod = a_gated_pod("p", gpus)
    del pod["spec"]["schedulingGates"]
    pod["metadata"] |= metadata
    return pod


@pytest.mark.parametrize(
    ("pod", "gates"),
    [
        (ungated(), [GATE]),
        ({"metadata": {"name": "p"}, "spec": ungated()["spec"]}, [GATE]),
        (ungated(0), []),
        (ungated(labels={"stretto.dev/service": "s1"}), []),
        (a_gated_pod("p"), [GATE]),
        (a_gated_pod("p", schedulingGates=[{"name": "other"}]), ["other", GATE]),
    ],
)
def test_the_policy_gates_pods_with_gpus_once(pod: dict[str, Any], gates: list[str]) -> None:
    assert kube_scheduler.gates_of(admitted(pod)) == gates
