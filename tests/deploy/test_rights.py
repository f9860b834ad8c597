"""What the roles of an installation allow is enough, and no verb of it is too much, by a real API server."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.control_plane import Asked
from tests.conformance.worlds.kubernetes import MANIFESTS, PRODUCTS, KubernetesWorld, until_closed

from stretto.agent.exec_session import EXIT, FRAME, START, frame
from stretto.backends.kubernetes import pod_events
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import BackendUnreachable, NotNow, StartRefused, WorkerStart
from stretto.model import InputError

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")

from tools.render_chart import objects

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large]

NAMESPACE, ACCOUNT = "stretto", "system:serviceaccount:stretto:stretto"
GROUP = "apis/rbac.authorization.k8s.io/v1"
PATIENCE_S = 90.0  # for what takes a second
SHORT_S = 6.0  # for what cannot come, since a right is missing
SCRIPT = (
    "echo reached by $MASTER_ADDR; trap 'echo told' USR1; trap 'exit 3' TERM; echo begun; "
    "while :; do sleep 0.1; done"
)

NO_VOLUME = {"kubernetes": {"volumes": [{"name": "keys", "secret": {"secretName": "none"}}]}}
OF_NEWER_SERVERS = ("pods/exec", "create")  # from 1.35 on; those of tests only ask for `get`
FIRST_NODE = next(iter(PRODUCTS))
INSTALLED = [
    each
    for file in ("namespace.yaml", "rbac.yaml")
    for each in yaml.safe_load_all((MANIFESTS / file).read_text(encoding="utf-8"))
]
VERBS = [
    (role["kind"], index, resource, verb)
    for role in INSTALLED
    for index, rule in enumerate(role.get("rules", []))
    for resource in rule["resources"]
    for verb in rule["verbs"]
    if (resource, verb) != OF_NEWER_SERVERS
]


class Missing(Exception):
    """Something that the service needs did not work."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesWorld]:
    with until_closed(tmp_path_factory.mktemp("cluster"), [ACCOUNT]) as cluster:
        for each in INSTALLED:
            assert put(cluster, each) == 201, each
        for each in INSTALLED:
            heeded(cluster, each)
        yield cluster


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "LOOK_S", 0.5)


def put(cluster: KubernetesWorld, manifest: dict[str, Any]) -> int:
    """Create or replace an object; the status of the answer."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    namespace = manifest["metadata"].get("namespace")
    prefix = GROUP if "rbac" in manifest["apiVersion"] else "api/v1"
    path = f"{prefix}/{f'namespaces/{namespace}/' if namespace else ''}{kind.lower()}s"
    answer = cluster.plane.ask("POST", path, manifest)
    if answer.status_code == 409:
        answer = cluster.plane.ask("PUT", f"{path}/{name}", manifest)
    return answer.status_code


def heeded(cluster: KubernetesWorld, role: dict[str, Any], *, is_allowed: bool = True) -> None:
    """Wait until the API server heeds all that a role allows; or nothing of it."""
    if "rules" in role:
        namespace = role["metadata"].get("namespace", "")
        cluster.plane.until_may(ACCOUNT, role["rules"], namespace, is_allowed=is_allowed)


async def until(backend: KubernetesBackend, what: str, condition: Any, patience_s: float) -> Any:
    end_s = time.monotonic() + patience_s
    while True:
        if value := await condition():
            return value
        for informer in (backend.node_informer, backend.pod_informer):
            if "forbidden" in informer.failure:
                raise Missing(informer.failure)
        if time.monotonic() > end_s:
            raise Missing(f"not in time: {what}")
        await asyncio.sleep(0.05)


async def life(cluster: KubernetesWorld, number: int, patience_s: float) -> None:
    """A worker from its start to its end, with everything that a service asks of it. Raises Missing."""
    kubeconfig = cluster.plane.kubeconfig(ACCOUNT)
    options = KubernetesOptions(
        kubeconfig=str(kubeconfig), namespace=NAMESPACE, image="tests", python=sys.executable
    )
    worker = WorkerStart(
        f"r{number}.1.0",
        f"r{number}",
        next(iter(PRODUCTS)),
        (0,),
        SCRIPT,
        {"STRETTO_TOKEN": "t", "MASTER_ADDR": "10.9.9.9"},  # its node's; its pod has another one
        grace_s=5.0,
        master=f"r{number}.1.0",
    )
    folder = cluster.folder / f"rights-{number}"
    try:
        backend = await open_kubernetes(options, f"rights-{number}", folder)
    except (InputError, BackendUnreachable) as wrong:
        raise Missing(str(wrong)) from None
    backend.epoch = 1
    try:
        await _life(backend, worker, patience_s)
    except (BackendUnreachable, NotNow, StartRefused) as wrong:
        raise Missing(str(wrong)) from None
    finally:
        await backend.close()


async def _life(backend: KubernetesBackend, worker: WorkerStart, patience_s: float) -> None:
    async def phase() -> str:
        (state,) = [state for state in await backend.workers() if state.id == worker.id]
        return state.phase

    async def is_running() -> bool:
        return await phase() == "running"

    async def has_ended() -> bool:
        return await phase() == "ended"

    async def has_begun() -> bool:
        log = (await backend.log(worker.id)).data
        return b"reached by 127.0.0.1" in log and b"begun" in log

    async def was_told() -> bool:
        return b"told" in (await backend.log(worker.id)).data

    await backend.start(worker)
    await until(backend, "it runs", is_running, patience_s)
    backend.ours.clear()  # as after a start whose answer was lost: the pod is there, and we do not know it
    backend.pod_informer.items.clear()
    await backend.start(worker)
    await until(backend, "its log is copied", has_begun, patience_s)
    await run_beside(backend, worker)
    backend.epoch = 2  # another leader
    await backend.signal(worker.id, 10)
    await until(backend, "a signal comes", was_told, patience_s)
    await backend.stop(worker.id, 3.0)
    await until(backend, "it ends", has_ended, patience_s)
    await backend.forget(worker.id)
    await unmounted(backend, replace(worker, id=f"{worker.job}.2.0", asks=NO_VOLUME), patience_s)
    if backend.remark:  # all this works without a Lease
        raise Missing(backend.remark)


async def unmounted(backend: KubernetesBackend, worker: WorkerStart, patience_s: float) -> None:
    """What keeps a worker from its volume is said of it."""

    async def is_said() -> bool:
        return any("FailedMount" in state.why for state in await backend.workers())

    async def has_ended() -> bool:
        return all(state.phase == "ended" for state in await backend.workers())

    backend.events.begins_s = 0.0
    await backend.start(worker)
    await until(backend, "what keeps it from its volume is said", is_said, patience_s)
    await backend.stop(worker.id, 1.0)
    await until(backend, "it ends without having begun", has_ended, patience_s)
    await backend.forget(worker.id)


async def run_beside(backend: KubernetesBackend, worker: WorkerStart) -> None:
    """A program beside a worker; raises Missing where its pod cannot be reached."""
    try:
        line = await backend.reach(worker.id)
    except InputError as refused:
        raise Missing(str(refused)) from None
    try:
        line.write(frame(START, json.dumps({"argv": ["true"]}).encode()))
        letter, length = FRAME.unpack(await line.readexactly(FRAME.size))
        assert (letter, json.loads(await line.readexactly(length))) == (EXIT, {"status": 0, "why": ""})
    finally:
        line.close()  # its connection is gone once the backend is closed


def granted() -> set[Asked]:
    """Every request that the roles of an installation allow."""
    return {
        Asked(verb, group, resource, role["metadata"].get("namespace", ""), is_allowed=True)
        for role in INSTALLED
        for rule in role.get("rules", ())
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"])
        if (resource, verb) != OF_NEWER_SERVERS
    }


def test_a_worker_lives_with_the_rights_of_an_installation_and_uses_each(world: KubernetesWorld) -> None:
    before = world.plane.asked(ACCOUNT)
    asyncio.run(life(world, 0, PATIENCE_S))
    assert {*(world.plane.asked(ACCOUNT) - before)} == granted()
    left = world.plane.ask("GET", f"api/v1/namespaces/{NAMESPACE}/secrets").json()["items"]
    assert [each for each in left if "stretto.dev/service" in each["metadata"].get("labels", {})] == []


@pytest.mark.parametrize(("kind", "index", "resource", "verb"), VERBS)
def test_no_right_of_an_installation_is_more_than_it_needs(
    world: KubernetesWorld,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    index: int,
    resource: str,
    verb: str,
) -> None:
    monkeypatch.setattr("stretto.backends.kubernetes.backend.FIRST_S", SHORT_S)
    (role,) = [each for each in INSTALLED if each["kind"] == kind]
    poorer = deepcopy(role)
    rule = poorer["rules"][index]
    rules = [{**rule, "resources": [each]} for each in rule["resources"]]
    for each in rules:
        if each["resources"] == [resource]:
            each["verbs"] = [other for other in each["verbs"] if other != verb]
    poorer["rules"][index : index + 1] = [each for each in rules if each["verbs"]]
    number = 1 + VERBS.index((kind, index, resource, verb))
    taken = {**rule, "resources": [resource], "verbs": [verb]}
    assert put(world, poorer) == 200
    try:
        heeded(world, {**role, "rules": [taken]}, is_allowed=False)
        with pytest.raises(Missing) as missing:
            asyncio.run(life(world, number, SHORT_S))
        print(f"without {verb} of {resource}: {missing.value}")
    finally:
        assert put(world, role) == 200
        heeded(world, role)
        clean(world)


# ── nodes of lenders ──────────────────────────────────────────────────────────────────────────────


def of_lenders(*verbs: str) -> dict[str, Any]:
    """The ClusterRole of a chart that names the first node as a lender's; with these verbs on it alone."""
    changes = {"lenders": {"nodes": [FIRST_NODE]}}
    (role,) = [each for each in objects(changes) if each["kind"] == "ClusterRole"]
    (rule,) = [each for each in role["rules"] if "resourceNames" in each]
    assert set(rule["verbs"]) == {"get", "patch"}
    rule["verbs"] = list(verbs)
    return dict(role)


def give(cluster: KubernetesWorld, role: dict[str, Any], without: str = "") -> None:
    """Have the API server heed a role. without: a verb on the first node that it does not have."""
    assert put(cluster, role) == 200
    heeded(cluster, role)
    if without:
        marks = {"apiGroups": [""], "resources": ["nodes"], "resourceNames": [FIRST_NODE], "verbs": [without]}
        heeded(cluster, {**role, "rules": [marks]}, is_allowed=False)


async def hand_over(cluster: KubernetesWorld, node: str) -> None:
    """Give a node to a lender, and take every mark off it again. Raises BackendUnreachable."""
    options = KubernetesOptions(kubeconfig=str(cluster.plane.kubeconfig(ACCOUNT)), namespace=NAMESPACE)
    backend = await open_kubernetes(options, "lending", cluster.folder / "lending")
    try:
        for to in ("llm", "", None):
            await backend.hand_over([node], to)
    finally:
        await backend.close()


@pytest.fixture
def _role_back(world: KubernetesWorld) -> Iterator[None]:
    yield
    (role,) = [each for each in INSTALLED if each["kind"] == "ClusterRole"]
    assert put(world, role) == 200


@pytest.mark.usefixtures("_role_back")
def test_the_rights_on_nodes_of_lenders_are_enough_for_these_and_no_others(world: KubernetesWorld) -> None:
    give(world, of_lenders("get", "patch"))
    asyncio.run(hand_over(world, FIRST_NODE))
    other = [*PRODUCTS][1]
    with pytest.raises(BackendUnreachable, match="forbidden"):
        asyncio.run(hand_over(world, other))


@pytest.mark.usefixtures("_role_back")
@pytest.mark.parametrize(("left", "missing"), [("get", "patch"), ("patch", "get")])
def test_no_right_on_nodes_of_lenders_is_more_than_it_needs(
    world: KubernetesWorld, left: str, missing: str
) -> None:
    give(world, of_lenders(left), without=missing)
    with pytest.raises(BackendUnreachable, match=f"cannot {missing} resource"):
        asyncio.run(hand_over(world, FIRST_NODE))


def clean(world: KubernetesWorld) -> None:
    """End what a life without all rights has left."""
    pods = world.plane.ask("GET", f"api/v1/namespaces/{NAMESPACE}/pods").json()["items"]
    for pod in pods:
        path = f"api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        patch = {"metadata": {"finalizers": None}}
        world.plane.ask("PATCH", path, patch, content_type="application/merge-patch+json")
        world.plane.ask("DELETE", path, {"gracePeriodSeconds": 1})
    for secret in world.plane.ask("GET", f"api/v1/namespaces/{NAMESPACE}/secrets").json()["items"]:
        world.plane.ask("DELETE", f"api/v1/namespaces/{NAMESPACE}/secrets/{secret['metadata']['name']}")
    end_s = time.monotonic() + PATIENCE_S
    while world.plane.ask("GET", f"api/v1/namespaces/{NAMESPACE}/pods").json()["items"]:
        assert time.monotonic() < end_s, "pods are left"
        time.sleep(0.1)


def test_the_server_takes_every_object_of_an_installation(world: KubernetesWorld) -> None:
    """By a dry run."""
    for path in sorted(Path(MANIFESTS).parent.glob("*/*.yaml")):
        if path.name in ("kustomization.yaml", "namespace.yaml"):
            continue
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if needed := manifest["metadata"].get("namespace"):
                put(world, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": needed}})
            if manifest["kind"] != "CustomResourceDefinition":  # whose name follows from its words
                manifest["metadata"]["name"] += "-dry"
            group = manifest["apiVersion"]
            namespace = manifest["metadata"].get("namespace")
            plural = {"NetworkPolicy": "networkpolicies"}.get(
                manifest["kind"], f"{manifest['kind'].lower()}s"
            )
            within = f"namespaces/{namespace}/" if namespace else ""
            prefix = f"apis/{group}" if "/" in group else f"api/{group}"
            answer = world.plane.ask("POST", f"{prefix}/{within}{plural}?dryRun=All", manifest)
            assert answer.status_code == 201, f"{path.parent.name}/{path.name}: {answer.text}"
