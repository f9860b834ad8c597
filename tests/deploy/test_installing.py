"""The page on installing, followed with the real `kubectl` on a real API server, without Helm."""

import json
import re
import shlex
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.backends.kubernetes.control_plane import ControlPlane, missing_kubectl

from stretto.backends.kubernetes.manifests import labels_of
from stretto.client.target import USUAL_URL
from stretto.service.main import FIRST_TOKEN

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")

from tools.render_chart import BASES, CHART, ROOT, VARIANTS, objects

from . import service_monitor
from .test_chart import VALUES, of_kind

pytestmark = [pytest.mark.kubernetes, pytest.mark.large, pytest.mark.slow]

PAGE = ROOT / "docs" / "kubernetes-install.md"
MONITORS = "servicemonitors.monitoring.coreos.com"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if why := missing_kubectl():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        running.start()
        running.until_ready()
        for name in ("stretto", "team-a", "team-b"):
            assert running.kubectl("create", "namespace", name).returncode == 0
        kubectl(running, "apply", "-f", "-", text=yaml.safe_dump(service_monitor.definition()))
        kubectl(running, "wait", "--for=condition=Established", f"crd/{MONITORS}", "--timeout=100s")
        yield running
    finally:
        running.close()


def kubectl(plane: ControlPlane, *arguments: str, text: str | None = None) -> str:
    """What it prints."""
    done = plane.kubectl(*arguments, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("base", VARIANTS)
def test_kustomize_builds_of_a_base_what_the_chart_asks_for(plane: ControlPlane, base: str) -> None:
    built = list(yaml.safe_load_all(kubectl(plane, "kustomize", str(BASES / base))))

    def names(found: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(e["kind"], e["metadata"].get("namespace", ""), e["metadata"]["name"]) for e in found}

    known = names(objects(VARIANTS[base])) | {("Namespace", "", "stretto")}
    assert names(built) <= known
    if base != "operator":  # which stands beside another base
        assert names(built) == known


@pytest.mark.parametrize("base", VARIANTS)
def test_the_server_takes_a_base_as_it_is(plane: ControlPlane, base: str) -> None:
    # Rules of CEL are unknown to this kubectl, and to the server where it is to own their fields.
    has_rules = base == "operator"
    for how in (("--validate=false",),) if has_rules else ((), ("--server-side",)):
        done = plane.kubectl("apply", "--dry-run=server", *how, "-k", str(BASES / base))
        complaints = [line for line in done.stderr.splitlines() if not line.startswith("Warning:")]
        assert complaints == [], done.stderr
        assert "(server dry run)" in done.stdout


# Rendering by a library in Python takes seconds: the normal run has every fourth.
@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.long if number % 4 else ()) for number in range(len(VALUES))],
)
def test_the_server_takes_what_the_chart_makes_of_values(plane: ControlPlane, number: int) -> None:
    wanted = objects(VALUES[number])
    text = yaml.safe_dump_all(wanted)
    # Rules of CEL are unknown to this server, so that it checks no fields itself.
    applied = kubectl(plane, "apply", "--dry-run=server", "--validate=false", "-f", "-", text=text)
    assert len(applied.splitlines()) == len(wanted)


def stored(plane: ControlPlane, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the server has of an object that is applied, which goes again."""
    text = yaml.safe_dump(manifest)
    kubectl(plane, "apply", "-f", "-", text=text)
    try:
        name, namespace = (manifest["metadata"][each] for each in ("name", "namespace"))
        shown = kubectl(plane, "get", manifest["kind"], name, "--namespace", namespace, "--output=json")
        return dict(json.loads(shown)["spec"])
    finally:
        kubectl(plane, "delete", "-f", "-", text=text)


def test_the_server_keeps_every_field_of_a_service_monitor_and_knows_a_wrong_one(plane: ControlPlane) -> None:
    """By a stand-in for the definition, which is the Prometheus operator's."""
    monitors = [each for changes in VALUES for each in of_kind("ServiceMonitor", changes)]
    assert len(monitors) == 3
    assert [stored(plane, each) for each in monitors] == [each["spec"] for each in monitors]
    wrong = deepcopy(monitors[0])
    wrong["spec"]["endpoints"][0]["interval"] = "often"
    refused = plane.kubectl("apply", "-f", "-", text=yaml.safe_dump(wrong))
    assert "spec.endpoints.interval" in refused.stderr


# Whose pods ask, by the labels of their namespace and of theirs; whether they reach the service.
HOME, OTHER = {"kubernetes.io/metadata.name": "stretto"}, {"kubernetes.io/metadata.name": "team-b"}
EDGE, WATCH = ({"kubernetes.io/metadata.name": name} for name in ("ingress-nginx", "monitoring"))
OF_A_JOB = labels_of("s1", "7")
INGRESS, MONITOR = {"ingress": {"enabled": True}}, {"metrics": {"serviceMonitor": True, "tokenSecret": "t"}}


@pytest.mark.parametrize(
    ("changes", "namespace", "labels", "is_let_in"),
    [
        pytest.param({}, OTHER, OF_A_JOB, True, id="a worker, wherever it is"),
        pytest.param({}, HOME, {"app": "psql"}, True, id="a pod of the release's namespace"),
        pytest.param({}, OTHER, {"app": "psql"}, False, id="a pod of others"),
        pytest.param({}, EDGE, {}, False, id="an ingress controller that was not asked for"),
        pytest.param(INGRESS, EDGE, {}, True, id="the ingress controller"),
        pytest.param(MONITOR, WATCH, {}, True, id="Prometheus"),
        pytest.param(MONITOR, OTHER, {}, False, id="who is not Prometheus"),
    ],
)
def test_the_network_policy_that_the_server_stores_lets_in(
    plane: ControlPlane,
    changes: dict[str, Any],
    namespace: dict[str, str],
    labels: dict[str, str],
    is_let_in: bool,
) -> None:
    """By the rules of NetworkPolicies, as no server of tests enforces them."""
    (policy,) = of_kind("NetworkPolicy", changes)
    rules = stored(plane, policy)
    (stateful_set,) = of_kind("StatefulSet", changes)
    pod = stateful_set["spec"]["template"]
    assert selects(rules["podSelector"], pod["metadata"]["labels"])
    assert rules["policyTypes"] == ["Ingress"]
    (rule,) = rules["ingress"]
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {(each["port"], each["protocol"]) for each in rule["ports"]} == {(name, "TCP") for name in ports}

    def lets_in(peer: dict[str, Any]) -> bool:
        is_there = selects(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else None
        is_there = namespace == HOME if is_there is None else is_there
        return is_there and selects(peer.get("podSelector", {}), labels)

    assert any(map(lets_in, rule["from"])) == is_let_in


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether something has all labels of a selector, which says nothing else."""
    assert set(selector) <= {"matchLabels"}
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


def test_an_overlay_says_which_image(plane: ControlPlane, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (comment,) = re.findall(r"# (images: .+)", (BASES / "sqlite" / "kustomization.yaml").read_text())
    base = Path(*[".."] * len(overlay.parts[1:])) / BASES.relative_to("/") / "sqlite"
    # What is `resources` now was called so by the kustomize in this kubectl.
    (overlay / "kustomization.yaml").write_text(f"bases: [{base}]\n{comment}\n", encoding="utf-8")
    built = yaml.safe_load_all(kubectl(plane, "kustomize", str(overlay)))
    (stateful_set,) = [each for each in built if each["kind"] == "StatefulSet"]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/stretto:0.1.0"


def test_a_base_that_is_applied_twice_changes_nothing_and_goes_as_a_whole(plane: ControlPlane) -> None:
    base = str(BASES / "sqlite")
    kubectl(plane, "apply", "-k", base)
    again = kubectl(plane, "apply", "-k", base).splitlines()
    # Of a claim in a StatefulSet kubectl does not know what the server adds: it asks for the same once more.
    assert [line for line in again if not line.endswith("unchanged")] == [
        "statefulset.apps/stretto configured"
    ]
    generation = ("get", "statefulset", "stretto", "-n", "stretto", "-o", "jsonpath={.metadata.generation}")
    assert kubectl(plane, *generation) == "1"
    kubectl(plane, "diff", "-k", base)  # fails where something differs
    may = ("auth", "can-i", "--as=system:serviceaccount:stretto:stretto", "--namespace=stretto")
    assert kubectl(plane, *may, "create", "pods") == "yes\n"
    assert plane.kubectl(*may, "get", "secrets").stdout == "no\n"
    kubectl(plane, "delete", "-k", base, "--wait=false")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def commands() -> list[list[str]]:
    """Those of the section on installing, as a shell takes them apart."""
    section = PAGE.read_text(encoding="utf-8").partition("## In five commands")[2]
    block = section.partition("```\n")[2].partition("```")[0].replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]


def test_there_are_five_commands_and_none_of_them_is_two() -> None:
    assert len(commands()) == 5
    assert not {"&&", ";", "|", "||", "&"} & {word for command in commands() for word in command}


def test_the_image_is_built_from_what_is_there_and_pushed_under_the_name_that_is_installed() -> None:
    build, push, install, _, _ = commands()
    assert build[:2] == ["podman", "build"]
    file = ROOT / build[build.index("-f") + 1]
    for words in re.findall(r"^COPY (?!--from)(.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
    image = build[build.index("-t") + 1]
    assert push == ["podman", "push", image]
    repository, tag = image.rsplit(":", 1)
    assert f"image.repository={repository}" in install
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert tag == chart["appVersion"]


def test_what_is_installed_is_what_the_next_commands_wait_for_and_ask() -> None:
    _, _, install, wait, ask = commands()
    assert install[:4] == ["helm", "install", "stretto", "deploy/helm/stretto"]
    (key, _, value) = install[install.index("--set") + 1].partition("=")
    section, _, field = key.partition(".")
    (stateful_set,) = of_kind("StatefulSet", {section: {field: value}})
    namespace, name = (stateful_set["metadata"][each] for each in ("namespace", "name"))
    assert wait == ["kubectl", "rollout", "status", f"statefulset/{name}", "--namespace", namespace]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(value)
    assert ask[:6] == ["kubectl", "exec", "--namespace", namespace, f"{name}-0", "--"]
    (state,) = [each.partition("=")[2] for each in container["args"] if each.startswith("--state=")]
    assert ask[6:] == ["stretto", "nodes", "list", "--token-file", f"{state}/{FIRST_TOKEN}"]


def test_in_the_pod_commands_look_for_the_service_where_it_listens() -> None:
    (stateful_set,) = of_kind("StatefulSet", {})
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert f"--listen=0.0.0.0:{urlsplit(USUAL_URL).port}" in container["args"]
