"""The command `stretto operator` over a real API server: what `kubectl` would do, and with which rights."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.control_plane import ControlPlane, missing
from tests.backends.kubernetes.memory_server import a_gated_pod
from tests.service.running import PROGRAM, Running

from stretto.demo.own_service import until
from stretto.kubernetes_operator.crd import definition

from .installation import ACCOUNT, of_the_base, put

pytestmark = [pytest.mark.kubernetes, pytest.mark.large]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "elasticjob.yaml"
RESOURCES = "apis/stretto.dev/v1alpha1/namespaces/default/elasticjobs"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if why := missing():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        running.start([ACCOUNT])
        running.until_ready()
        answer = running.ask("POST", "apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        assert answer.status_code == 201, answer.text
        for each in of_the_base():
            put(running, each)
        until(lambda: running.ask("GET", RESOURCES).status_code == 200, what="the resource is served")
        yield running
    finally:
        running.close()


@pytest.fixture
def operator(
    plane: ControlPlane, service: Running, token: str, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with the rights of an installation and no more."""
    command = [sys.executable, *PROGRAM, "operator", "--url", f"http://127.0.0.1:{service.port}"]
    command += ["--kubeconfig", str(plane.kubeconfig(ACCOUNT))]
    log = tmp_path / "operator.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "STRETTO_TOKEN": token}
        )
    try:
        until(
            lambda: "following ElasticJob" in log.read_text() or process.poll() is not None, what="it follows"
        )
        assert process.poll() is None, log.read_text()
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


class Resource:
    """One resource, as an administrator sees it."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name

    def create(self, spec: dict[str, Any]) -> int:
        body = {
            "apiVersion": "stretto.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        return self.plane.ask("POST", RESOURCES, body).status_code

    def change(self, spec: dict[str, Any]) -> None:
        answer = self.plane.ask("PATCH", f"{RESOURCES}/{self.name}", {"spec": spec}, MERGE)
        assert answer.status_code == 200, answer.text

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.ask("GET", f"{RESOURCES}/{self.name}").json()
        return found

    def status(self) -> dict[str, Any]:
        return dict(self.get().get("status", {}))

    def is_so(self, kind: str) -> bool:
        conditions = self.status().get("conditions", ())
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)


@pytest.mark.usefixtures("operator")
def test_a_resource_lives_as_kubectl_expects(plane: ControlPlane, service: Running) -> None:
    resource = Resource(plane, "train")
    assert resource.create({"run": "sleep 900", "elastic": {"min": 1, "max": 2}, "suspend": True}) == 201
    until(lambda: resource.is_so("Suspended"), what="it is held")
    resource.change({"suspend": False})
    until(lambda: resource.is_so("Running"), what="it runs")
    scaled = plane.ask("PATCH", f"{RESOURCES}/train/scale", {"spec": {"replicas": 1}}, MERGE)
    assert scaled.status_code == 200, scaled.text
    assert scaled.json()["spec"]["replicas"] == 1
    until(lambda: resource.status()["maxGpus"] == 1, what="its bound follows")
    job = resource.status()["job"]
    assert plane.ask("DELETE", f"{RESOURCES}/train").status_code == 200
    until(lambda: plane.ask("GET", f"{RESOURCES}/train").status_code == 404, what="it is gone")
    with service.client() as client:
        assert client.describe(job)["state"] == "CANCELLED"
    reasons = [
        event["reason"]
        for event in plane.ask("GET", "api/v1/namespaces/default/events").json()["items"]
        if event["involvedObject"]["name"] == "train"
    ]
    assert "Running" in reasons


def test_a_resource_that_comes_while_no_operator_runs_is_submitted_later(
    plane: ControlPlane, service: Running, request: pytest.FixtureRequest
) -> None:
    resource = Resource(plane, "early")
    assert resource.create({"run": "true"}) == 201
    assert resource.status() == {}
    request.getfixturevalue("operator")
    until(lambda: resource.is_so("Complete"), what="it has completed")
    with service.client() as client:
        assert client.describe(resource.status()["job"])["name"] == "early"


def test_the_api_server_takes_the_example_and_refuses_what_the_schema_forbids(plane: ControlPlane) -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    del example["metadata"]["namespace"]
    dry = plane.ask("POST", f"{RESOURCES}?dryRun=All", example)
    assert dry.status_code == 201, dry.text
    assert dry.json()["spec"] == example["spec"], "nothing was pruned"
    for wrong in ({"run": ""}, {}, {"run": "x", "elastic": {"min": 0}}, {"run": "x", "suspend": "yes"}):
        refused = plane.ask("POST", f"{RESOURCES}?dryRun=All", {**example, "spec": wrong})
        assert refused.status_code == 422, refused.text


def test_without_the_definition_the_command_says_how_to_get_it(tmp_path: Path, plane: ControlPlane) -> None:
    plane.allow("stretto", [{"apiGroups": ["stretto.dev"], "resources": ["none"], "verbs": ["list"]}])
    command = [sys.executable, *PROGRAM, "operator", "--kubeconfig", str(plane.kubeconfig("stretto"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("stretto: ElasticJob resources at ")
    assert "forbidden" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_that_drops_scheduling_gates_is_refused_in_one_line(plane: ControlPlane) -> None:
    pod = a_gated_pod("gated", namespace="default")
    created = plane.ask("POST", "api/v1/namespaces/default/pods?dryRun=All", {"apiVersion": "v1", **pod})
    assert created.status_code == 201, created.text
    assert "schedulingGates" not in created.json()["spec"]
    config = str(plane.kubeconfig(ACCOUNT))
    command = [sys.executable, *PROGRAM, "operator", "--gate", "--kubeconfig", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("stretto: --gate: the API server ")
    assert "is Kubernetes v1.20.2" in done.stderr
    assert "expected 1.27.3 or newer" in done.stderr
    assert done.stderr.count("\n") == 1
