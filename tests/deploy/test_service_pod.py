"""The service as a pod of a real kubelet, installed by the base of kustomize and by the chart.

Every pod of this cluster is admitted under a PodSecurityPolicy that says what Pod Security `restricted` says.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backends.kubernetes import pod_network, real_nodes
from tests.backends.kubernetes.control_plane import KUBECTL, ControlPlane, missing_kubectl
from tests.backends.kubernetes.pod_network import GATEWAY, NameServer, network_of_pods
from tests.backends.kubernetes.real_nodes import IMAGE, RealNodes, machine_paths

from stretto.client import Client
from stretto.demo.own_service import until
from stretto.demo.scene import compare_samples
from stretto.errors import StrettoError

from .service_image import write_service_image

pytest.importorskip("go_template", reason="py-go-template has no build for this machine")

from tools.render_chart import BASES, ROOT, objects

MISSING = missing_kubectl() or real_nodes.missing() or pod_network.missing()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.kubernetes,
    pytest.mark.torch,
    pytest.mark.large,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]

NODES = dict.fromkeys(("k0", "k1"), "NVIDIA-A100-SXM4-80GB")
SERVED = "k0"  # the node that has the disk of the service, and its image
NAMESPACE, POD = "stretto", "stretto-0"
ACCOUNT, OPERATOR = (f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("stretto", "stretto-operator"))
TOKEN = "/var/lib/stretto/state/admin-token"
EXAMPLES, EPOCHS, SAMPLES = ROOT / "examples", 60, 1437
PATIENCE = "--timeout=300s"
# What the chart is told: jobs have what this machine's Python is there.
VALUES = {
    "shared": {"existingClaim": "checkpoints"},
    "jobs": {"image": IMAGE},
    "extraArgs": ["--set", f"backend.python={sys.executable}"],
}
UNPRIVILEGED = {"securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532}}
POLICY = {
    "apiVersion": "policy/v1beta1",
    "kind": "PodSecurityPolicy",
    "metadata": {
        "name": "restricted",
        "annotations": {"seccomp.security.alpha.kubernetes.io/allowedProfileNames": "runtime/default"},
    },
    "spec": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": [
            *("configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"),
        ],
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "fsGroup": {"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]},
        "supplementalGroups": {"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]},
        "seLinux": {"rule": "RunAsAny"},
    },
}
# All accounts of pods may be admitted under it, and there is no other.
MAY_USE = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "restricted"},
        "rules": [
            {
                "apiGroups": ["policy"],
                "resources": ["podsecuritypolicies"],
                "resourceNames": ["restricted"],
                "verbs": ["use"],
            }
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "restricted"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "restricted"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}
        ],
    },
]
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "local",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "kubernetes.io/no-provisioner",
    "volumeBindingMode": "WaitForFirstConsumer",
}


@dataclass
class Cluster:
    """Two nodes of one GPU each, and what is installed there."""

    folder: Path
    plane: ControlPlane = field(init=False)

    @property
    def shared(self) -> Path:
        """What the claim for checkpoints has."""
        return self.folder / "shared"

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """What it prints."""
        done = self.plane.kubectl("--namespace", NAMESPACE, *arguments, text=text)
        assert done.returncode == 0, f"{done.stderr}\n{self.standing()}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of some."""
        return dict(json.loads(self.kubectl("get", *arguments, "--output=json")))

    def standing(self) -> str:
        """How all is, for messages."""
        said = [
            self.plane.kubectl("--namespace", NAMESPACE, *words.split()).stdout
            for words in ("get all,pvc -o wide", "get events", f"logs {POD} --tail=40")
        ]
        return "\n".join(said)

    def apply(self, manifests: list[dict[str, Any]]) -> None:
        """Have the cluster be like this."""
        self.kubectl("apply", "--validate=false", "-f", "-", text=yaml.safe_dump_all(manifests))

    def rolled_out(self, what: str = "statefulset/stretto") -> None:
        """Wait until all pods are new, and ready."""
        self.kubectl("rollout", "status", what, PATIENCE)

    def in_pod(self, *command: str) -> str:
        """What a command in the pod of the service prints."""
        return self.kubectl("exec", POD, "--", *command)

    @contextmanager
    def forwarded(self) -> Iterator[Client]:
        """The service, by the way that the page has from another machine."""
        command = [str(KUBECTL), "--kubeconfig", str(self.plane.kubeconfig("admin"))]
        with (self.folder / "forward.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--namespace", NAMESPACE, "port-forward", "service/stretto", "8700"],
                stdout=log,
                stderr=log,
            )
        try:
            with Client("http://127.0.0.1:8700", self.in_pod("cat", TOKEN).strip()) as client:
                until(lambda: _answers(client), what="the service is reached")
                yield client
        finally:
            process.terminate()
            process.wait()


def _answers(client: Client) -> bool:
    try:
        return bool(client.nodes())
    except StrettoError:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ready nodes that have the image of the service, and volumes as an administrator makes them."""
    found = Cluster(tmp_path_factory.mktemp("pods"))
    (found.folder / "nodes" / SERVED).mkdir(parents=True)
    write_service_image(found.folder / "nodes" / SERVED / "service.tar")
    with network_of_pods():
        found.plane = ControlPlane(
            found.folder / "plane", port=443, serves_pods=True, admission=("PodSecurityPolicy",)
        )
        plugin = pod_network.write_plugin(found.folder / "plugin")
        nodes = RealNodes(found.folder / "nodes", found.plane, plugin=plugin, name_server=GATEWAY)
        names = None
        try:
            found.plane.start([ACCOUNT, OPERATOR])
            names = NameServer(found.plane)
            nodes.start(NODES, gpus=1)
            found.plane.kubectl("create", "namespace", NAMESPACE)
            volume = _volume_of_the_state(found.folder / "state", SERVED)
            found.apply([POLICY, *MAY_USE, STORAGE, volume])
            found.shared.mkdir()
            found.shared.chmod(0o777)
            found.plane.share(found.shared, "checkpoints", NAMESPACE)
            found.plane.share(Path("/"), "machine", NAMESPACE)
            yield found
        finally:
            nodes.close()
            if names is not None:
                names.close()
            found.plane.close()
        assert nodes.left() == []


def _volume_of_the_state(folder: Path, node: str) -> dict[str, Any]:
    """A disk of one node, whose group its kubelet sets."""
    folder.mkdir()
    folder.chmod(0o755)
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "state"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def a_training(seen: str) -> dict[str, Any]:
    """A job file of a network that learns digits, in a container that has this machine's programs."""
    volumes = [{"name": "machine", "persistentVolumeClaim": {"claimName": "machine", "readOnly": True}}]
    mounts = [
        {"name": "machine", "mountPath": path, "subPath": path[1:], "readOnly": True}
        for path in machine_paths()
    ]
    return {
        "name": "digits",
        "run": f"exec {sys.executable} digits_cnn.py --channels 32 --epochs {EPOCHS} --target 0"
        f" --seen {seen}",
        "workdir": str(EXAMPLES),
        "resources": {"accelerators": 1},
        "elastic": {"min": 1, "max": 2},
        "batch": {"init": 64},
        "checkpoint": {"every": "1m"},
        "grace_period": "20s",
        "envs": {"OMP_NUM_THREADS": "1", "HOME": "/shared", "PYTHONDONTWRITEBYTECODE": "1"},
        "kubernetes": {"volumes": volumes, "volume_mounts": mounts, "pod": UNPRIVILEGED},
    }


def test_the_base_as_it_is_runs_unprivileged_and_ready_and_its_token_logs_in(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-k", str(BASES / "sqlite"))
    cluster.rolled_out()
    pod = cluster.get("pod", POD)
    assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == "restricted"
    (state,) = pod["status"]["containerStatuses"]
    assert (state["ready"], state["started"], state["restartCount"]) == (True, True, 0)
    assert state["image"] == "docker.io/library/stretto:0.1.0"
    status = dict(line.split(":\t", 1) for line in cluster.in_pod("cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == status["Gid"].split() == ["65532"] * 4
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), "of seccomp: a filter"
    touched = cluster.plane.kubectl("-n", NAMESPACE, "exec", POD, "--", "touch", "/opt/stretto/new")
    assert "Read-only file system" in touched.stderr
    listed = cluster.in_pod("stretto", "nodes", "list", "--token-file", TOKEN)
    assert [name in listed for name in NODES] == [True, True]
    with cluster.forwarded() as client:
        assert {node["name"] for node in client.nodes()} == {*NODES}


def test_values_of_the_chart_roll_out_over_the_base_and_keep_its_log(cluster: Cluster) -> None:
    before, token = cluster.get("pod", POD)["metadata"]["uid"], cluster.in_pod("cat", TOKEN)
    cluster.apply(objects(VALUES))
    cluster.rolled_out()
    assert cluster.get("pod", POD)["metadata"]["uid"] != before
    assert cluster.in_pod("cat", TOKEN) == token
    cluster.in_pod("touch", "/shared/written")


def workers(cluster: Cluster) -> dict[str, str]:
    """Pods of workers by their name, and which each one is."""
    listed = cluster.get("pods", "--selector=app.kubernetes.io/managed-by=stretto")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed}


def _has_ended(client: Client, job: str) -> bool:
    try:
        return client.describe(job)["state"] in ("COMPLETED", "FAILED", "CANCELLED")
    except StrettoError:
        return False


def trains_on(client: Client, job: str) -> int:
    """GPUs on which a training trains; 0 while anything is on its way."""
    try:
        shown = client.describe(job)
    except StrettoError:
        return 0
    assert shown["state"] not in ("FAILED", "CANCELLED"), (shown, "".join(client.log(job))[-2000:])
    is_steady = shown["state"] == "RUNNING" and shown["training_gpus"] == shown["gpus"]
    return int(shown["gpus"]) if is_steady else 0


def test_a_training_is_resized_and_goes_on_while_the_pod_of_the_service_is_deleted(cluster: Cluster) -> None:
    seen = "/shared/seen"
    with cluster.forwarded() as client:
        job = str(client.submit(json.dumps(a_training(seen)))["id"])
        for gpus in (1, 2):
            client.change(job, "scale", min_gpus=gpus, max_gpus=gpus)
            until(lambda: trains_on(client, job) == gpus, what=f"trains on {gpus}")  # noqa: B023
        before = workers(cluster)
        assert len(before) == 2
    first = cluster.get("pod", POD)["metadata"]["uid"]
    cluster.kubectl("delete", "pod", POD)
    cluster.rolled_out()
    assert cluster.get("pod", POD)["metadata"]["uid"] != first
    with cluster.forwarded() as client:
        until(lambda: trains_on(client, job) == 2, what="it is followed again")
        assert workers(cluster) == before, "no worker began again"
        client.change(job, "scale", min_gpus=1, max_gpus=1)
        until(lambda: trains_on(client, job) == 1, what="trains on 1")
        until(lambda: _has_ended(client, job), 600, what="it ends")
        ended = client.describe(job)
        assert ended["state"] == "COMPLETED", "".join(client.log(job))[-2000:]
        assert (ended["attempt"], ended["failures"]) == (1, 0)
    exact, said = compare_samples(EXAMPLES, cluster.shared / "seen", cluster.shared / "seen")
    assert (exact, said) == (True, f"{EPOCHS * SAMPLES} samples in {EPOCHS} epochs: each once")
    replayed = cluster.in_pod("stretto", "simulate", "--from-log", "/var/lib/stretto/state")
    print(replayed)
    assert " 0 differ" in replayed


def test_the_service_has_asked_for_nothing_that_its_roles_do_not_allow(cluster: Cluster) -> None:
    asked = cluster.plane.asked(ACCOUNT)
    assert {one.resource for one in asked} >= {"nodes", "pods", "pods/log", "secrets", "leases"}
    assert [one for one in asked if not one.is_allowed] == []
