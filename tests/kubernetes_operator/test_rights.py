"""What the operator's roles allow is enough, and no verb of them is too much, by a real API server."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from tests.backends.kubernetes.control_plane import ControlPlane, missing
from tests.service.running import Running

from stretto.backends.kubernetes.api import Api, configuration
from stretto.client import Client
from stretto.demo.own_service import until
from stretto.kubernetes_operator.controller import Operator
from stretto.kubernetes_operator.crd import definition
from stretto.kubernetes_operator.elastic_job import FINALIZER

from .installation import ACCOUNT, manifests, of_the_base, put, remove, rights_among

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")

from tools.render_chart import objects

pytestmark = [pytest.mark.kubernetes, pytest.mark.large, pytest.mark.processes]

RESOURCES = "apis/stretto.dev/v1alpha1/namespaces/default/elasticjobs"
PATIENCE_S = 60.0  # for what takes a second
SHORT_S = 5.0  # for what cannot come, since a right is missing
LISTED = "the resources are listed"
HELD_BACK = "a resource stays until its job has ended"
SHOWN = "the status shows what became of the job"
FOLLOWED = "a change is noticed without another list"
TOLD = "an Event tells of it"
NEEDED_FOR = {
    ("elasticjobs", "list"): LISTED,
    ("elasticjobs", "watch"): FOLLOWED,
    ("elasticjobs", "patch"): HELD_BACK,
    ("elasticjobs/status", "patch"): SHOWN,
    ("events", "create"): TOLD,
}
# Of all namespaces, as the base of kustomize has it, and of one.
SCOPES: dict[str, tuple[str, ...]] = {"ClusterRole": (), "Role": ("default",)}

# What people may do, whom an administrator lets edit or view a namespace.
EVERYTHING = {"create", "delete", "get", "list", "patch", "update", "watch"}
PEOPLE: dict[str, tuple[str, dict[str, set[str]]]] = {
    "editor": ("edit", {"elasticjobs": EVERYTHING, "elasticjobs/scale": {"get", "patch", "update"}}),
    "viewer": ("view", {"elasticjobs": {"get", "list", "watch"}}),
}

PARTS = ("elasticjobs/scale", "elasticjobs/status")


@cache
def installed(kind: str) -> list[dict[str, Any]]:
    """The role of this kind and what binds it."""
    if kind == "ClusterRole":
        return of_the_base()
    return rights_among(objects({"operator": {"enabled": True, "namespaces": list(SCOPES[kind])}}))


RIGHTS = [
    (kind, resource, verb)
    for kind in SCOPES
    for each in installed(kind)
    for rule in each.get("rules", ())
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


class Missing(Exception):
    """Something that an operator is for did not work."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if why := missing():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        running.start([ACCOUNT, *PEOPLE])
        running.until_ready()
        answer = running.ask("POST", "apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        assert answer.status_code == 201, answer.text
        until(lambda: running.ask("GET", RESOURCES).status_code == 200, what="the resource is served")
        yield running
    finally:
        running.close()


class Look:
    """What an administrator sees of resources."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def create(self, name: str, **more: object) -> None:
        body = {"apiVersion": "stretto.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
        answer = self.plane.ask("POST", RESOURCES, {**body, "spec": {"run": "true", **more}})
        assert answer.status_code == 201, answer.text

    def get(self, name: str) -> dict[str, Any]:
        return dict(self.plane.ask("GET", f"{RESOURCES}/{name}").json())

    def has_completed(self, name: str) -> bool:
        return bool(self.get(name).get("status", {}).get("state") == "COMPLETED")

    def is_held_back(self, name: str) -> bool:
        return FINALIZER in self.get(name)["metadata"].get("finalizers", ())

    def has_event(self, name: str) -> bool:
        events = self.plane.ask("GET", "api/v1/namespaces/default/events").json()["items"]
        return any((e["involvedObject"]["name"], e["reason"]) == (name, "Completed") for e in events)

    def clear(self) -> None:
        """Remove all resources, whoever holds them back."""
        for item in self.plane.ask("GET", RESOURCES).json()["items"]:
            path = f"{RESOURCES}/{item['metadata']['name']}"
            patch = {"metadata": {"finalizers": None}}
            self.plane.ask("PATCH", path, patch, content_type="application/merge-patch+json")
            self.plane.ask("DELETE", path)


async def expect(what: str, is_so: Callable[[], bool], patience_s: float) -> None:
    """Raise Missing where something is not so in time."""
    end_s = time.monotonic() + patience_s
    while not await asyncio.to_thread(is_so):
        if time.monotonic() > end_s:
            raise Missing(what)
        await asyncio.sleep(0.05)


async def life(plane: ControlPlane, service: Client, kind: str, patience_s: float) -> None:
    """Resources before and after the operator begins, until they are gone. Raises Missing."""
    look = Look(plane)
    await asyncio.to_thread(look.create, "early")
    api = Api(configuration(str(plane.kubeconfig(ACCOUNT))))
    operator = Operator(api, service, SCOPES[kind])
    (informer,) = operator.informers.values()
    running = asyncio.create_task(operator.run())
    try:
        await expect(LISTED, informer.listed.is_set, patience_s)
        await expect(HELD_BACK, lambda: look.is_held_back("early"), patience_s)
        await expect(SHOWN, lambda: look.has_completed("early"), patience_s)
        await asyncio.to_thread(look.create, "later")
        await expect(FOLLOWED, lambda: look.has_completed("later") and informer.lists == 1, patience_s)
        await expect(TOLD, lambda: look.has_event("later"), patience_s)
        for name in ("early", "later"):
            await asyncio.to_thread(plane.ask, "DELETE", f"{RESOURCES}/{name}")
        await expect(
            "deleted resources go", lambda: not plane.ask("GET", RESOURCES).json()["items"], patience_s
        )
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await api.close()
        await asyncio.to_thread(look.clear)
        # Events of an earlier life would tell of this one, too.
        await asyncio.to_thread(plane.ask, "DELETE", "api/v1/namespaces/default/events")


@pytest.mark.parametrize("kind", SCOPES)
def test_resources_live_with_the_rights_of_an_installation(
    plane: ControlPlane, service: Running, token: str, kind: str
) -> None:
    rights = installed(kind)
    for each in rights:
        put(plane, each)
    try:
        asyncio.run(life(plane, Client(service.url, token), kind, PATIENCE_S))
    finally:
        remove(plane, rights)


@pytest.mark.parametrize(("kind", "resource", "verb"), RIGHTS)
def test_no_right_of_an_installation_is_more_than_it_needs(
    plane: ControlPlane, service: Running, token: str, kind: str, resource: str, verb: str
) -> None:
    rights = deepcopy(installed(kind))
    (role,) = [each for each in rights if "rules" in each]
    (rule,) = [each for each in role["rules"] if each["resources"] == [resource]]
    rule["verbs"].remove(verb)
    role["rules"] = [each for each in role["rules"] if each["verbs"]]
    for each in rights:
        put(plane, each)
    try:
        with pytest.raises(Missing, match=NEEDED_FOR[resource, verb]):
            asyncio.run(life(plane, Client(service.url, token), kind, SHORT_S))
    finally:
        remove(plane, rights)


def answer_to(plane: ControlPlane, user: str, verb: str, part: str) -> int:
    """The status of the answer to one request of somebody. part: of the resource `shown`, or ""."""
    one = f"{RESOURCES}/shown{part}"
    whole = plane.ask("GET", one).json()
    other = {**whole, "metadata": {"name": "other"}}
    requests: dict[str, tuple[str, str, object]] = {
        "create": ("POST", f"{RESOURCES}?dryRun=All", other),
        "delete": ("DELETE", f"{one}?dryRun=All", None),
        "get": ("GET", one, None),
        "list": ("GET", RESOURCES, None),
        "patch": ("PATCH", f"{one}?dryRun=All", {}),
        "update": ("PUT", f"{one}?dryRun=All", whole),
        "watch": ("GET", f"{RESOURCES}?watch=true&timeoutSeconds=1", None),
    }
    method, path, body = requests[verb]
    kind = "application/merge-patch+json" if verb == "patch" else "application/json"
    return plane.ask(method, path, body, kind, user).status_code


@pytest.mark.parametrize("user", PEOPLE)
def test_people_who_may_edit_submit_and_scale_and_who_may_view_look(plane: ControlPlane, user: str) -> None:
    ends, allowed = PEOPLE[user]
    (role,) = [each for each in manifests() if each["metadata"]["name"].endswith(f"-elasticjobs-{ends}")]
    assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{ends}"] == "true"
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": "default"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    look = Look(plane)
    look.create("shown", elastic={"max": 2})  # without which there is no scale to show
    try:
        for each in (role, binding):
            put(plane, each)
        asked = {"elasticjobs": EVERYTHING, **{part: {"get", "patch", "update"} for part in PARTS}}
        for resource, verbs in asked.items():
            for verb in sorted(verbs):
                code = answer_to(plane, user, verb, resource.removeprefix("elasticjobs"))
                is_allowed = verb in allowed.get(resource, ())
                assert (code in (200, 201)) if is_allowed else code == 403, (resource, verb, code)
    finally:
        remove(plane, [binding, role])
        look.clear()
