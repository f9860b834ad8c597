"""ProvisioningRequests of tests: what defines them on a real API server, and who plays the autoscaler."""

import asyncio
from typing import Any

import httpx2 as httpx
from tests.backends.kubernetes.control_plane import ControlPlane

GROUP, PLURAL = "autoscaling.x-k8s.io", "provisioningrequests"
DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
NAME: dict[str, Any] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 253}
TEXTS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}}


def definition() -> dict[str, Any]:
    """Written for these tests by the words of `autoscaling.x-k8s.io/v1`: what it asks for, and no more."""
    pod_set = {
        "type": "object",
        "required": ["count", "podTemplateRef"],
        "properties": {
            "count": {"type": "integer", "format": "int32", "minimum": 1},
            "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": NAME}},
        },
    }
    spec = {
        "type": "object",
        "required": ["podSets", "provisioningClassName"],
        "properties": {
            "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": pod_set},
            "provisioningClassName": {"type": "string", "maxLength": 253},
            "parameters": TEXTS,
        },
    }
    condition = {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {key: {"type": "string"} for key in ("message", "reason", "status", "type")}
        | {"lastTransitionTime": {"type": "string", "format": "date-time"}},
    }
    conditions = {
        "type": "array",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    status = {"type": "object", "properties": {"conditions": conditions}}
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"kind": "ProvisioningRequest", "plural": PLURAL, "singular": "provisioningrequest"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            # Without it API servers refuse to take groups of Kubernetes itself.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"
            },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "shortNames": ["provreq", "provreqs"]},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


class Autoscaler:
    """Plays Cluster Autoscaler: looks at requests, and says in conditions what becomes of them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"apis/{GROUP}/v1/namespaces/{namespace}/{PLURAL}"

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One call as an administrator."""
        answer: httpx.Response = await asyncio.to_thread(self.plane.ask, method, path, body, kind)
        assert answer.status_code < 400, answer.text
        return answer.json()

    async def requests(self) -> list[dict[str, Any]]:
        """All that there are."""
        return list((await self.ask("GET", self.path))["items"])

    async def templates(self) -> list[dict[str, Any]]:
        """All PodTemplates."""
        return list((await self.ask("GET", f"api/v1/namespaces/{self.namespace}/podtemplates"))["items"])

    async def next_request(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for a request that nothing was said of, and whose PodTemplate is there; both of them."""
        while True:
            templates = {each["metadata"]["name"]: each for each in await self.templates()}
            for request in await self.requests():
                (pod_set,) = request["spec"]["podSets"]
                name = pod_set["podTemplateRef"]["name"]
                if "status" not in request and name in templates:
                    return request, templates[name]
            await asyncio.sleep(0.1)

    async def say(self, request: dict[str, Any], kind: str, reason: str, message: str) -> None:
        """Set a condition beside those that there are."""
        path = f"{self.path}/{request['metadata']['name']}"
        now = {"lastTransitionTime": "2026-11-20T10:00:00Z", "status": "True"}
        before = (await self.ask("GET", path)).get("status", {}).get("conditions", [])
        conditions = [*before, {**now, "type": kind, "reason": reason, "message": message}]
        await self.ask("PATCH", f"{path}/status", {"status": {"conditions": conditions}}, MERGE)
