"""The operator's rights as an installation gives them, put into a real cluster."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.backends.kubernetes.control_plane import ControlPlane
from tests.service.running import Running

BASE = Path(__file__).parents[2] / "deploy" / "kustomize" / "operator"
ACCOUNT = "system:serviceaccount:stretto:stretto-operator"
RBAC = "apis/rbac.authorization.k8s.io/v1"


def manifests() -> list[dict[str, Any]]:
    """The operator and what it needs, in the base of kustomize, but for the definition of its resources."""
    return list(yaml.safe_load_all((BASE / "operator.yaml").read_text(encoding="utf-8")))


def of_the_base() -> list[dict[str, Any]]:
    """What gives the operator its rights there."""
    return rights_among(manifests())


def token_from(service: Running) -> str:
    """A token as the page on ElasticJob resources has it made for the operator."""
    with service.client() as client:
        made = client.make_token("kubernetes", "kubernetes", "user", scope="jobs")
    return str(made["token"])


def rights_among(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of some objects that give rights to the operator's account, or bind them to it."""
    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    return [
        each for each in objects if each["kind"] in kinds and each["metadata"]["name"].endswith("-operator")
    ]


def put(plane: ControlPlane, manifest: Mapping[str, Any]) -> None:
    """Create or replace an object of RBAC."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    namespace = manifest["metadata"].get("namespace")
    path = f"{RBAC}/{f'namespaces/{namespace}/' if namespace else ''}{kind.lower()}s"
    answer = plane.ask("POST", path, manifest)
    if answer.status_code == 409:
        answer = plane.ask("PUT", f"{path}/{name}", manifest)
    assert answer.status_code in (200, 201), answer.text


def remove(plane: ControlPlane, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Delete objects of RBAC."""
    for manifest in manifests:
        namespace = manifest["metadata"].get("namespace")
        within = f"namespaces/{namespace}/" if namespace else ""
        path = f"{RBAC}/{within}{manifest['kind'].lower()}s/{manifest['metadata']['name']}"
        assert plane.ask("DELETE", path).status_code == 200, path
