"""The Helm chart and the bases of kustomize: one source, an unprivileged pod, and options that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes.pod_security import against_restricted
from typer.main import get_command

from stretto.cli.app import app
from stretto.kubernetes_operator.crd import definition
from stretto.service.backend_registry import backend_options
from stretto.service.http.oidc import read_oidc

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")
jsonschema = pytest.importorskip("jsonschema")

from tools.render_chart import (  # noqa: E402
    BASES,
    BESIDE,
    CHART,
    DEFINITION_FILE,
    VARIANTS,
    ChartError,
    base,
    definition_template,
    merged,
    objects,
    rendered,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow]

VALUES: list[dict[str, Any]] = [
    {},
    VARIANTS["postgresql"],
    {"jobs": {"namespaces": ["team-a", "team-b"], "image": "registry.example/torch:2"}},
    {"shared": {"existingClaim": "checkpoints"}, "extraArgs": ["--submit-rate", "5"]},
    {"ingress": {"enabled": True, "tlsSecret": "tls", "className": "nginx", "annotations": {"a": "b"}}},
    {"metrics": {"serviceMonitor": True, "tokenSecret": "scraper"}},
    {"tls": {"existingSecret": "cert"}, "metrics": {"serviceMonitor": True, "tokenSecret": "scraper"}},
    {"tls": {"existingSecret": "cert", "ca": ""}},
    {"oidc": {"existingSecret": "login"}},
    {"grow": ["h100:8:4", "l4:1:16:pool=small,zone=a"]},
    {"grow": ["h100:8:4"], "provisioningClass": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"},
    {"gate": {"namespaces": ["team-a", "team-b"]}, "tls": {"existingSecret": "certificate"}},
    {"operator": {"enabled": True, "definition": False}},
    {"operator": {"enabled": True}, "imagePullSecrets": [{"name": "registry"}]},
    {"operator": {"enabled": True, "namespaces": ["team-a", "team-b"]}, "tls": {"existingSecret": "cert"}},
    {"ingress": {"enabled": True, "namespace": "edge"}},
    {"metrics": {"serviceMonitor": True, "tokenSecret": "scraper", "namespace": ""}},
    {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
    {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "x"}], "priorityClassName": "high"},
    {
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"a": "b"},
        "state": {"storageClass": "ssd"},
    },
]


def of_kind(kind: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in objects(changes) if each["kind"] == kind]


def container(changes: dict[str, Any]) -> dict[str, Any]:
    (stateful_set,) = of_kind("StatefulSet", changes)
    (only,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bases_are_what_the_chart_gives(variant: str) -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in (BASES / variant).glob("*.yaml")}
    assert stored == base(variant), "make manifests writes them anew"


@pytest.mark.parametrize("changes", VALUES)
def test_the_schema_knows_the_values(changes: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(merged(values, changes), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values, {"polcy": "sia"}), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(values, {"state": {"size": "20"}}), schema)


@pytest.mark.parametrize("changes", VALUES)
def test_every_object_has_what_all_objects_have(changes: dict[str, Any]) -> None:
    for each in objects(changes):
        assert each["apiVersion"]
        is_definition = each["kind"] == "CustomResourceDefinition"
        assert is_definition or each["metadata"]["name"].startswith("stretto")
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "stretto"
        if not each["kind"].startswith(("Cluster", "CustomResource", "PriorityClass")):
            assert each["metadata"]["namespace"]


@pytest.mark.parametrize("changes", VALUES)
def test_all_pods_run_under_pod_security_restricted_on_a_root_that_cannot_be_written(
    changes: dict[str, Any],
) -> None:
    made = [
        each["spec"]["template"]["spec"] for each in objects(changes) if "template" in each.get("spec", {})
    ]
    others = ["gate" in changes and bool(changes["gate"]["namespaces"]), "operator" in changes]
    assert len(made) == 1 + sum(others), "the service, its gate and its operator"
    for pod in made:
        assert against_restricted(pod) == []
        assert pod["securityContext"]["runAsUser"] > 0
        assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])


@pytest.mark.parametrize("changes", VALUES)
def test_volumes_that_are_mounted_are_there_and_all_are_mounted(changes: dict[str, Any]) -> None:
    (stateful_set,) = of_kind("StatefulSet", changes)
    spec = stateful_set["spec"]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container(changes)["volumeMounts"]} == volumes


@pytest.mark.parametrize("changes", VALUES)
def test_the_service_understands_its_arguments(changes: dict[str, Any]) -> None:
    command, *arguments = container(changes)["args"]
    serve = get_command(app).commands[command]  # type: ignore[attr-defined]
    context = serve.make_context(command, list(arguments))  # refuses what it does not know
    assert context.params["backend"] == "kubernetes"
    assert Path(context.params["state"]).name == "state"


@pytest.mark.parametrize(
    ("changes", "namespaces"),
    [
        ({}, []),
        ({"ingress": {"enabled": True}}, [{"kubernetes.io/metadata.name": "ingress-nginx"}]),
        (
            {"ingress": {"enabled": True, "namespace": "edge"}, "metrics": {"serviceMonitor": True}},
            [{"kubernetes.io/metadata.name": "edge"}, {"kubernetes.io/metadata.name": "monitoring"}],
        ),
        ({"metrics": {"serviceMonitor": True, "namespace": ""}}, [{}]),
        ({"ingress": {"namespace": "edge"}, "metrics": {"namespace": "watch"}}, []),
    ],
)
def test_the_network_policy_lets_in_what_the_values_ask_for(
    changes: dict[str, Any], namespaces: list[dict[str, str]]
) -> None:
    scraped = {"tokenSecret": "scraper"} if "metrics" in changes else {}
    policies = of_kind("NetworkPolicy", merged(changes, {"metrics": scraped} if scraped else {}))
    (rule,) = policies[0]["spec"]["ingress"]
    whole = [
        peer["namespaceSelector"]["matchLabels"]
        for peer in rule["from"]
        if set(peer) == {"namespaceSelector"}
    ]
    assert whole == namespaces
    assert len(rule["from"]) == 2 + len(namespaces), "and pods of jobs, and of this namespace"


def test_with_postgresql_there_is_a_standby_and_without_one_replica() -> None:
    (alone,), (pair,) = of_kind("StatefulSet", {}), of_kind("StatefulSet", VARIANTS["postgresql"])
    assert (alone["spec"]["replicas"], pair["spec"]["replicas"]) == (1, 2)
    assert "--standby" not in container({})["args"]
    assert {"--standby", "--key-file=/etc/stretto/key"} <= set(container(VARIANTS["postgresql"])["args"])


def test_a_pair_is_updated_by_who_deletes_its_pods_since_a_standby_is_never_ready() -> None:
    one_on_a_server = {"store": {"existingSecret": "stretto-store"}, "replicas": 1}
    (alone,), (pair,) = of_kind("StatefulSet", {}), of_kind("StatefulSet", VARIANTS["postgresql"])
    (single,) = of_kind("StatefulSet", one_on_a_server)
    assert pair["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "updateStrategy" not in {**alone["spec"], **single["spec"]}
    assert of_kind("PodDisruptionBudget", VARIANTS["postgresql"]) == [], "it would refuse every drain"


def test_each_namespace_of_jobs_has_its_role_and_no_other_has() -> None:
    changes = {"jobs": {"namespaces": ["team-a", "team-b"]}}
    assert {role["metadata"]["namespace"] for role in of_kind("Role", changes)} == {"team-a", "team-b"}
    assert "--namespace=team-a" in container(changes)["args"]
    (cluster_role,) = of_kind("ClusterRole", changes)
    assert {verb for rule in cluster_role["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_nodes_of_lenders_are_the_only_ones_that_may_be_marked() -> None:
    (role,) = of_kind("ClusterRole", {"lenders": {"nodes": ["gpu-7", "gpu-8"]}})
    assert role["rules"][1:] == [
        {
            "apiGroups": [""],
            "resources": ["nodes"],
            "resourceNames": ["gpu-7", "gpu-8"],
            "verbs": ["get", "patch"],
        }
    ]


def test_the_gate_is_there_where_it_was_asked_for_and_deletes_nothing() -> None:
    assert "stretto-gate" not in {each["metadata"]["name"] for each in objects({})}
    changes = {
        "gate": {"namespaces": ["team-a", "team-b"]},
        "tls": {"existingSecret": "cert", "ca": "ca.crt"},
    }
    assert backend_settings(container(changes)["args"]) == {"gate": "true"}
    roles = [role for role in of_kind("Role", changes) if "-gate" in role["metadata"]["name"]]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
    rules = [rule for role in roles for rule in role["rules"]]
    verbs = {(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}
    assert {name for name, verb in verbs if verb in ("create", "delete")} == {"events"}
    (deployment,) = of_kind("Deployment", changes)
    pod = deployment["spec"]["template"]
    (service,) = of_kind("Service", changes)
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (operator,) = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert operator["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["name"] for mount in operator["volumeMounts"]} == {
        each["name"] for each in pod["spec"]["volumes"]
    }
    command, *arguments = operator["args"]
    known = get_command(app).commands[command]  # type: ignore[attr-defined]
    files = [each for each in arguments if not each.startswith("--token-file")]  # which is read at once
    assert known.make_context(command, files).params["gate"] is True
    assert operator["args"][2].startswith("--url=https://")


def test_the_chart_defines_the_resources_of_the_operator_and_keeps_them() -> None:
    stored = (CHART / "templates" / DEFINITION_FILE).read_text(encoding="utf-8")
    assert stored == definition_template(), "make manifests writes it anew"
    (manifest,) = of_kind("CustomResourceDefinition", {"operator": {"enabled": True}})
    assert manifest["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert {**manifest, "metadata": {"name": manifest["metadata"]["name"]}} == definition()
    assert of_kind("CustomResourceDefinition", {}) == []


def test_the_definition_can_be_left_to_others() -> None:
    changes = {"operator": {"enabled": True, "definition": False}}
    assert of_kind("CustomResourceDefinition", changes) == []
    assert [each["metadata"]["name"] for each in of_kind("Deployment", changes)] == ["stretto-operator"]


def test_the_operator_is_there_where_it_was_asked_for_and_is_unprivileged() -> None:
    assert not any("operator" in each["metadata"]["name"] for each in objects({}))
    changes = {"operator": {"enabled": True}, "tls": {"existingSecret": "cert", "ca": "ca.crt"}}
    (deployment,), (service,) = of_kind("Deployment", changes), of_kind("Service", changes)
    pod = deployment["spec"]["template"]
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    security, (container,) = pod["spec"]["securityContext"], pod["spec"]["containers"]
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {each["name"] for each in pod["spec"]["volumes"]} == {"token", "authority"}
    assert container["args"][1] == "--url=https://stretto.stretto.svc:8700"
    (policy,) = [
        each for each in of_kind("NetworkPolicy", changes) if each["metadata"]["name"] == "stretto-operator"
    ]
    labels = pod["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert "ingress" not in policy["spec"]


def test_the_operator_has_rights_in_its_namespaces_alone() -> None:
    def kinds(changes: dict[str, Any]) -> list[tuple[str, str]]:
        ours = [each for each in objects(changes) if each["metadata"]["name"].endswith("-operator")]
        named = [(each["kind"], each["metadata"].get("namespace", "")) for each in ours]
        return [each for each in named if "Role" in each[0]]

    everywhere = {"operator": {"enabled": True}}
    assert kinds(everywhere) == [("ClusterRole", ""), ("ClusterRoleBinding", "")]
    some = {"operator": {"enabled": True, "namespaces": ["team-a", "team-b"]}}
    teams = ("team-a", "team-b")
    assert kinds(some) == [(kind, team) for team in teams for kind in ("Role", "RoleBinding")]
    (deployment,) = of_kind("Deployment", some)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    files = [each for each in arguments if not each.startswith("--token-file")]  # which is read at once
    known = get_command(app).commands[command]  # type: ignore[attr-defined]
    assert tuple(known.make_context(command, files).params["namespace"]) == teams


def test_placeholders_give_way_to_all_others_where_nodes_may_come() -> None:
    changes = {"grow": ["h100:8:4"]}
    (priority,) = of_kind("PriorityClass", changes)
    assert (-10 <= priority["value"] < 0, priority["preemptionPolicy"]) == (True, "Never")
    settings = backend_settings(container(changes)["args"])
    assert settings == {"placeholder_priority_class": priority["metadata"]["name"]}
    assert of_kind("PriorityClass", {}) == []


def test_nodes_are_asked_for_by_requests_of_a_class_where_the_values_name_one() -> None:
    name = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    changes = {
        "grow": ["h100:8:4"],
        "provisioningClass": name,
        "jobs": {"namespaces": ["team-a", "team-b"]},
    }
    assert of_kind("PriorityClass", changes) == []

    arguments = container(changes)["args"]
    assert f"--set=backend.provisioning_class={name}" in arguments
    assert not any("placeholder" in each for each in arguments)

    def of_requests(changes: dict[str, Any]) -> list[tuple[str, str]]:
        """Namespaces and resources of rules that are for requests alone."""
        return [
            (role["metadata"]["namespace"], resource)
            for role in of_kind("Role", changes)
            for rule in role["rules"]
            for resource in rule["resources"]
            if resource in ("provisioningrequests", "podtemplates")
        ]

    assert of_requests(changes) == [("team-a", "provisioningrequests"), ("team-a", "podtemplates")]
    assert of_requests({"grow": ["h100:8:4"]}) == []


def backend_settings(arguments: list[str]) -> dict[str, str]:
    """What is set of the backend, as it is understood."""
    settings = dict(each.removeprefix("--set=backend.").split("=") for each in arguments if "--set=" in each)
    backend_options("kubernetes", {}, settings)
    return settings


def test_pods_of_jobs_mount_the_claim_of_the_service_unless_that_is_switched_off() -> None:
    shared = {"existingClaim": "checkpoints"}
    assert "--shared-claim=checkpoints" in container({"shared": shared})["args"]
    own = {"shared": {**shared, "mountIntoJobs": False}}
    assert not any("--shared-claim" in each for each in (*container(own)["args"], *container({})["args"]))


def test_with_a_certificate_everything_that_asks_the_service_speaks_tls() -> None:
    changes = {
        "tls": {"existingSecret": "cert"},
        "metrics": {"serviceMonitor": True, "tokenSecret": "scraper"},
    }
    pod = container(changes)
    assert "--url=https://stretto.stretto.svc:8700" in pod["args"]
    assert "--ca-file=/etc/stretto-tls/ca.crt" in pod["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert pod[probe]["httpGet"]["scheme"] == "HTTPS"
        assert "scheme" not in container({})[probe]["httpGet"]
    (monitor,) = of_kind("ServiceMonitor", changes)
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": "stretto.stretto.svc",
        "ca": {"secret": {"name": "cert", "key": "ca.crt"}},
    }
    public = {"tls": {"existingSecret": "cert", "ca": ""}}
    assert not any("--ca-file" in each for each in container(public)["args"])
    assert not any("tls" in each for each in container({})["args"])


def test_the_identity_provider_is_read_from_its_secret_as_the_page_has_it_made(tmp_path: Path) -> None:
    assert not any("oidc" in each for each in container({})["args"])
    changes = {"oidc": {"existingSecret": "stretto-oidc"}}
    command, *arguments = container(changes)["args"]
    serve = get_command(app).commands[command]  # type: ignore[attr-defined]
    file = Path(serve.make_context(command, list(arguments)).params["oidc"])
    (mount,) = [each for each in container(changes)["volumeMounts"] if each["name"] == "oidc"]
    assert mount == {"name": "oidc", "mountPath": str(file.parent), "readOnly": True}
    (stateful_set,) = of_kind("StatefulSet", changes)
    volumes = stateful_set["spec"]["template"]["spec"]["volumes"]
    (volume,) = [each for each in volumes if each["name"] == "oidc"]
    assert volume["secret"] == {"secretName": "stretto-oidc", "defaultMode": 0o440}
    page = (CHART.parents[2] / "docs" / "kubernetes-install.md").read_text(encoding="utf-8")
    (settings,) = re.findall(rf"^cat >{file.name} <<END\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    versioned = tmp_path / "..2026_11_24"  # a kubelet links each key to the version that counts
    versioned.mkdir()
    (tmp_path / "..data").symlink_to(versioned.name)
    for name, text in ((file.name, settings), ("secret", "not told\n")):
        (versioned / name).write_text(text, encoding="utf-8")
        (tmp_path / name).symlink_to(f"..data/{name}")
    oidc = read_oidc(tmp_path / file.name)
    assert (oidc.client_secret, oidc.redirect_url) == ("not told", "https://stretto.example.org")
    assert oidc.role_of(frozenset({"gpu-admins"})) == "admin"


def test_a_monitor_without_a_token_is_refused_in_words() -> None:
    with pytest.raises(ChartError, match=re.escape("metrics.tokenSecret: expected a Secret")):
        rendered({"metrics": {"serviceMonitor": True}})


@pytest.mark.parametrize("variant", VARIANTS)
def test_kustomize_builds_each_base(variant: str) -> None:
    if not (kubectl := shutil.which("kubectl")):
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", BASES / variant], capture_output=True, text=True, check=True, timeout=60
    )
    built = [each for each in yaml.safe_load_all(done.stdout) if each]
    names = {(each["kind"], each["metadata"]["name"]) for each in built}
    own = set() if variant in BESIDE else {("Namespace", "stretto")}
    beside = objects({}) if variant in BESIDE else []
    drawn = [each for each in objects(VARIANTS[variant]) if each not in beside]
    assert names == own | {(each["kind"], each["metadata"]["name"]) for each in drawn}


def test_the_page_lists_the_rights() -> None:
    page = (CHART.parents[2] / "docs" / "kubernetes-install.md").read_text(encoding="utf-8")
    where = {"ClusterRole": "cluster", "Role": "namespaces of jobs"}
    for role in (*of_kind("ClusterRole", {}), *of_kind("Role", {})):
        for rule in role["rules"]:
            resources = ", ".join(f"`{resource}`" for resource in rule["resources"])
            scope = "the first namespace of jobs" if rule["resources"] == ["leases"] else where[role["kind"]]
            assert f"| {resources} | {', '.join(rule['verbs'])} | {scope} |" in page


def test_the_page_lists_the_rights_of_the_operator() -> None:
    page = (CHART.parents[2] / "docs" / "elasticjobs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| (\w+) \| ", page, re.MULTILINE)
    roles = of_kind("ClusterRole", {"operator": {"enabled": True}})
    (role,) = [each for each in roles if each["metadata"]["name"].endswith("-operator")]
    assert rows == [
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    ]
