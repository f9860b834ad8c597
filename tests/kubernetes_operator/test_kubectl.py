"""What people do to ElasticJobs with the real `kubectl`, and what it shows them; and `kubectl stretto`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.control_plane import ControlPlane, missing_kubectl
from tests.service.running import PROGRAM, Running

from stretto.demo.own_service import until
from stretto.kubernetes_operator.crd import definition_text

from .installation import ACCOUNT, of_the_base, put

pytestmark = [pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

NAMESPACE = "team-a"  # of the example
EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "elasticjob.yaml"
PATIENCE = "--timeout=100s"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the definition as the page has it applied."""
    if why := missing_kubectl():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        running.start([ACCOUNT])
        applied = kubectl(running, "apply", "-f", "-", "--validate=false", text=definition_text())
        assert applied == "customresourcedefinition.apiextensions.k8s.io/elasticjobs.stretto.dev created\n"
        kubectl(running, "wait", "--for=condition=Established", "crd/elasticjobs.stretto.dev", PATIENCE)
        kubectl(running, "create", "namespace", NAMESPACE)
        for each in of_the_base():
            put(running, each)
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def _operator(
    plane: ControlPlane, service: Running, token: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The command, with the rights of an installation and no more."""
    command = [sys.executable, *PROGRAM, "operator", "--url", f"http://127.0.0.1:{service.port}"]
    command += ["--kubeconfig", str(plane.kubeconfig(ACCOUNT))]
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with log.open("ab") as file:
        env = {**os.environ, "STRETTO_TOKEN": token}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
    try:
        until(lambda: "following ElasticJob resources" in log.read_text(), what="it follows")
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def kubectl(plane: ControlPlane, *arguments: str, text: str | None = None) -> str:
    """What it prints."""
    done = plane.kubectl(*arguments, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_team(plane: ControlPlane, *arguments: str, text: str | None = None) -> str:
    return kubectl(plane, "--namespace", NAMESPACE, *arguments, text=text)


def resource(name: str, **spec: Any) -> str:
    body = {"apiVersion": "stretto.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}}
    return yaml.safe_dump({**body, "spec": {"resources": {"accelerators": 1}, **spec}})


def state_of(plane: ControlPlane, name: str) -> str:
    return in_team(plane, "get", "ej", name, "-o", "jsonpath={.status.state}")


@pytest.mark.usefixtures("_operator")
def test_a_resource_is_applied_looked_at_scaled_and_deleted(plane: ControlPlane, service: Running) -> None:
    spec = {"run": "sleep 900", "elastic": {"min": 1, "max": 2}}
    text = resource("train", **spec)
    assert in_team(plane, "apply", "-f", "-", text=text) == "elasticjob.stretto.dev/train created\n"
    assert in_team(plane, "apply", "-f", "-", text=text) == "elasticjob.stretto.dev/train unchanged\n"
    in_team(plane, "wait", "--for=condition=Running", "elasticjob/train", PATIENCE)

    until(lambda: "2" in in_team(plane, "get", "ej", "train", "--no-headers").split(), what="it has grown")
    header, row = in_team(plane, "get", "ej", "train").splitlines()
    assert header.split() == ["NAME", "STATE", "GPUS", "TYPE", "REASON", "AGE"]
    assert row.split()[:4] == ["train", "RUNNING", "2", "cpu"]
    header, row = in_team(plane, "get", "elasticjobs", "train", "-o", "wide").splitlines()
    assert {"JOB", "NODES"} <= {*header.split()}
    assert "elasticjob.stretto.dev/train" in in_team(plane, "get", "all")

    described = in_team(plane, "describe", "ej", "train")
    for words in ("Type:                  Running", "Normal  Running", "Gpus:"):
        assert words in described, described

    assert "train scaled" in in_team(plane, "scale", "ej/train", "--replicas=1")
    bound = ("get", "ej", "train", "-o", "jsonpath={.status.maxGpus}")
    until(lambda: in_team(plane, *bound) == "1", what="its bound follows")
    in_team(plane, "patch", "ej", "train", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    in_team(plane, "wait", "--for=condition=Suspended", "ej/train", PATIENCE)
    assert state_of(plane, "train") in ("PREEMPTING", "SUSPENDED", "PENDING")

    job = in_team(plane, "get", "ej", "train", "-o", "jsonpath={.status.job}")
    assert '"train" deleted' in in_team(plane, "delete", "ej", "train", PATIENCE)
    with service.client() as client:
        assert client.describe(job)["state"] == "CANCELLED"
    assert in_team(plane, "get", "ej", "--ignore-not-found") == ""


@pytest.mark.usefixtures("_operator")
def test_its_end_can_be_waited_for(plane: ControlPlane) -> None:
    in_team(plane, "apply", "-f", "-", text=resource("short", run="true"))
    in_team(plane, "wait", "--for=condition=Complete", "ej/short", PATIENCE)
    in_team(plane, "apply", "-f", "-", text=resource("breaks", run="exit 3", restart={"max": 0}))
    in_team(plane, "wait", "--for=condition=Failed", "ej/breaks", PATIENCE)
    events = in_team(plane, "get", "events", "--field-selector", "involvedObject.name=breaks,type=Warning")
    assert "Failed" in events
    in_team(plane, "delete", "ej", "short", "breaks", PATIENCE)


@pytest.mark.usefixtures("_operator")
def test_a_spec_that_the_service_does_not_take_is_told_why(plane: ControlPlane) -> None:
    in_team(plane, "apply", "-f", "-", text=resource("wrong", run="true", grace_period="soon"))
    until(lambda: state_of(plane, "wrong") == "REFUSED", what="it is refused")
    described = in_team(plane, "describe", "ej", "wrong")
    assert "Warning  Refused" in described
    assert "grace_period" in described
    in_team(plane, "delete", "ej", "wrong", PATIENCE)


def test_the_example_and_what_the_schema_forbids_are_known_before_anything_is_made(
    plane: ControlPlane,
) -> None:
    applied = kubectl(plane, "apply", "--dry-run=server", "-f", str(EXAMPLE))
    assert applied == "elasticjob.stretto.dev/digits created (server dry run)\n"
    refused = plane.kubectl("apply", "--dry-run=server", "-f", "-", text=resource("x", run=""))
    assert refused.returncode == 1
    assert "spec.run" in refused.stderr
    assert "Hold the job" in kubectl(plane, "explain", "elasticjob.spec.suspend")


def test_the_command_line_is_a_plug_in(
    plane: ControlPlane, service: Running, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token, encoding="ascii")
    folder = str(Path(sys.executable).parent)
    plugins = plane.kubectl("plugin", "list", path=folder)
    assert str(Path(folder) / "kubectl-stretto") in plugins.stdout
    with service.client() as client:
        (node,) = client.nodes()
    url = ("--url", service.url, "--token-file", str(file))
    done = plane.kubectl("stretto", "nodes", "list", *url, path=folder)
    assert done.returncode == 0, done.stderr
    assert node["name"] in done.stdout
    wrong = plane.kubectl("stretto", "nodse", path=folder)
    assert wrong.returncode == 2
