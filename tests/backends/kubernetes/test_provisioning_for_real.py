"""Nodes asked for by ProvisioningRequests on real servers, with the rights of an installation."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.provisioning import DEFINITIONS, Autoscaler, definition
from tests.conformance.worlds.kubernetes import KubernetesWorld, until_closed
from tests.deploy.test_rights import put
from tests.service.http.rig import Rig, a_rig

from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import BackendUnreachable, NodeRequest
from stretto.demo.own_service import until
from stretto.model import InputError

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")

from tools.render_chart import objects

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PATIENCE_S = 240.0  # for what takes some seconds
SHORT_S = 5.0  # for what cannot come, since a right is missing
NAMESPACE, ACCOUNT = "stretto", "system:serviceaccount:stretto:stretto"
CLASS_NAME = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
PRODUCT, LABEL = "NVIDIA-L4", "nvidia.com/gpu.product"
GROW = f"l4:2:2:{LABEL}={PRODUCT}"
JOB = """
run: sleep 1
resources: {accelerators: {l4: 4}}
"""


def installed() -> list[dict[str, Any]]:
    """What the chart gives to a service that asks by requests."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return [
        each for each in objects({"grow": [GROW], "provisioningClass": CLASS_NAME}) if each["kind"] in kinds
    ]


# The rights that it has for this alone; a test of installations takes away the others.
ADDED = [
    (resource, verb)
    for each in installed()
    for rule in each.get("rules", ())
    for resource in rule["resources"]
    for verb in rule["verbs"]
    if resource in ("provisioningrequests", "podtemplates")
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesWorld]:
    path = f"apis/autoscaling.x-k8s.io/v1/namespaces/{NAMESPACE}/provisioningrequests"
    with until_closed(tmp_path_factory.mktemp("cluster"), [ACCOUNT]) as cluster:
        plane = cluster.plane
        assert plane.ask("POST", DEFINITIONS, definition()).status_code == 201
        put(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for each in installed():
            assert put(cluster, each) == 201, each
        until(lambda: plane.ask("GET", path).status_code == 200, what="requests are served")
        yield cluster


def options_of(world: KubernetesWorld) -> KubernetesOptions:
    return KubernetesOptions(
        kubeconfig=str(world.plane.kubeconfig(ACCOUNT)),
        namespace=NAMESPACE,
        image="tests",
        python=sys.executable,
        grow=(GROW,),
        provisioning_class=CLASS_NAME,
    )


@asynccontextmanager
async def service(world: KubernetesWorld, folder: Path) -> AsyncIterator[Rig]:
    """A service in this process, which asks for nodes."""
    backend = await open_kubernetes(options_of(world), "asking", folder / "kubernetes")
    async with a_rig(folder, backend=backend) as rig:
        rig.loops.append(asyncio.create_task(rig.service.autoscaler.run()))
        yield rig
    await backend.close()


async def until_job(rig: Rig, job: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with rig.client("ada") as client:
        while True:
            found: dict[str, Any] = (await client.get(f"/api/v1/jobs/{job}")).json()
            if is_so(found):
                return found
            await asyncio.sleep(0.1)


async def until_gone(autoscaler: Autoscaler) -> None:
    """Wait until no request is left, nor any PodTemplate, which the garbage collector takes."""
    while await autoscaler.requests() or await autoscaler.templates():
        await asyncio.sleep(0.1)


def test_nodes_come_for_a_request_and_the_job_runs_there(world: KubernetesWorld, tmp_path: Path) -> None:
    async def story() -> None:
        autoscaler = Autoscaler(world.plane, NAMESPACE)
        async with service(world, tmp_path) as rig:
            job = await rig.submit(text=JOB)
            request, template = await autoscaler.next_request()
            assert request["spec"]["provisioningClassName"] == CLASS_NAME
            (pod_set,) = request["spec"]["podSets"]
            assert pod_set["count"] == 4, "workers, of a GPU each"
            spec = template["template"]["spec"]
            assert spec["nodeSelector"] == {LABEL: PRODUCT}
            assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
            await autoscaler.say(request, "Accepted", "Accepted", "is looked at")
            words = "the cluster is asked for 4 x l4: Accepted: is looked at"
            await until_job(rig, job, lambda found: found["evidence"] == words)
            for name in ("l4-a", "l4-b"):
                world.add_node(name, PRODUCT)
            await autoscaler.say(request, "Provisioned", "Provisioned", "both are there")
            finished = await until_job(rig, job, lambda found: found["state"] == "COMPLETED")
            assert finished["restarts"] == 0
            await until_gone(autoscaler)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_what_cannot_be_had_is_said_of_the_job_and_taken_back_with_it(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    async def story() -> None:
        for name in [name for name in world.agents if name.startswith("l4")]:
            await asyncio.to_thread(world.plane.ask, "DELETE", f"api/v1/nodes/{name}")
            await world.kill_node(name)
        autoscaler = Autoscaler(world.plane, NAMESPACE)
        async with service(world, tmp_path) as rig:
            job = await rig.submit(text=JOB)
            request, _ = await autoscaler.next_request()
            await autoscaler.say(request, "Failed", "OutOfStock", "no l4 in zone a")
            words = "the cluster is asked for 4 x l4: Failed: OutOfStock: no l4 in zone a"
            await until_job(rig, job, lambda found: found["evidence"] == words)
            async with rig.client("ada") as client:
                await client.post(f"/api/v1/jobs/{job}/cancel")
            await until_gone(autoscaler)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


# ── rights ────────────────────────────────────────────────────────────────────────────────────────


class Missing(Exception):
    """Something that asking for nodes needs did not work."""


async def life(world: KubernetesWorld, folder: Path, patience_s: float) -> None:
    """A request from its beginning to its end, with what the autoscaler says in between. Raises Missing."""
    autoscaler = Autoscaler(world.plane, NAMESPACE)

    async def within(what: str, wait: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(wait, patience_s)
        except TimeoutError:
            raise Missing(what) from None

    try:
        backend = await within("it opens", open_kubernetes(options_of(world), "rights", folder))
    except InputError as wrong:
        raise Missing(str(wrong)) from None
    try:
        await within("a request is made", asking(backend, [NodeRequest("l4", 1, 1, job="7")]))
        request, _ = await within("with its PodTemplate", autoscaler.next_request())
        await autoscaler.say(request, "Accepted", "Accepted", "is looked at")
        await within("its conditions are read", answered(backend))
        assert backend.growth.requests is not None
        if backend.growth.requests.informer.lists > 1:
            raise Missing("changes come without another list")
        await within("it is taken back", asking(backend, []))
        await within("it is gone", until_gone(autoscaler))
    finally:
        await backend.close()


async def asking(backend: KubernetesBackend, wishes: list[NodeRequest]) -> None:
    """As the service does it, until it is done."""
    while True:
        try:
            await backend.wish(wishes)
            return
        except BackendUnreachable as failure:
            print(failure)
            await asyncio.sleep(0.1)


async def answered(backend: KubernetesBackend) -> None:
    while (await backend.answers()).get("7") != "Accepted: is looked at":
        await asyncio.sleep(0.05)


def test_the_rights_of_an_installation_are_enough_to_ask(world: KubernetesWorld, tmp_path: Path) -> None:
    asyncio.run(life(world, tmp_path, PATIENCE_S))


@pytest.mark.parametrize(("resource", "verb"), ADDED)
def test_no_right_to_ask_is_more_than_it_needs(
    world: KubernetesWorld, tmp_path: Path, resource: str, verb: str
) -> None:
    (role,) = [each for each in installed() if each["kind"] == "Role"]
    poorer = deepcopy(role)
    for rule in poorer["rules"]:
        if rule["resources"] == [resource]:
            rule["verbs"].remove(verb)
    poorer["rules"] = [rule for rule in poorer["rules"] if rule["verbs"]]
    assert put(world, poorer) == 200
    try:
        with pytest.raises(Missing) as missing:
            asyncio.run(life(world, tmp_path, SHORT_S))
        print(f"without {verb} of {resource}: {missing.value}")
    finally:
        assert put(world, role) == 200
        asyncio.run(asyncio.wait_for(clean(world), PATIENCE_S))


async def clean(world: KubernetesWorld) -> None:
    """Take back what a life without all rights has left."""
    autoscaler = Autoscaler(world.plane, NAMESPACE)
    for request in await autoscaler.requests():
        await autoscaler.ask("DELETE", f"{autoscaler.path}/{request['metadata']['name']}")
    await until_gone(autoscaler)
