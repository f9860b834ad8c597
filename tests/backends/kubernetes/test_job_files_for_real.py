"""A real server: it takes the pod of a job file that says everything it may, and keeps all of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.kubernetes.control_plane import ControlPlane, missing

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.inventory import quantity
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import WorkerStart
from stretto.jobfile import kubernetes_section

pytestmark = [pytest.mark.processes, pytest.mark.kubernetes, pytest.mark.large]

PODS = "api/v1/namespaces/default/pods"
SECTION: dict[str, Any] = {
    "image": "registry.example/team/train:1.2",
    "namespace": "default",
    "service_account": "trainer",
    "image_pull_secrets": ["registry"],
    "env_from": [{"secretRef": {"name": "dataset-keys"}}, {"configMapRef": {"name": "settings"}}],
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
    ],
    "volume_mounts": [
        {"name": "data", "mountPath": "/data"},
        {"name": "keys", "mountPath": "/run/keys", "readOnly": True},
    ],
    "tolerations": [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
    "pod": {
        "nodeSelector": {"pool": "gpus"},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
        "containers": [{"name": "worker", "imagePullPolicy": "Always"}],
        "initContainers": [{"name": "fetch", "image": "registry.example/fetch:1"}],
    },
}
WORKER = WorkerStart(
    "7.1.0",
    "7",
    "gpu-1",
    (0, 1),
    ("python", "train.py"),
    {manifests.TOKEN: "t", "MASTER_ADDR": "10.0.0.1"},
    cpus=8,
    memory_gb=64,
    grace_s=30.0,
    master="7.1.0",
    secrets={"WANDB_API_KEY": "s"},
    asks={"kubernetes": SECTION},
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if why := missing():
        pytest.skip(why)
    running = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        yield running.start()
    finally:
        running.close()


def lost(said: Any, kept: Any, at: str = "") -> list[str]:
    """Where an object of the server lacks what was said; what it adds to it is its matter."""
    if isinstance(said, dict) and isinstance(kept, dict):
        return [where for key, value in said.items() for where in lost(value, kept.get(key), f"{at}.{key}")]
    if isinstance(said, list) and isinstance(kept, list) and len(said) <= len(kept):
        pairs = zip(said, kept, strict=False)  # it adds tolerations at the end
        return [where for number, pair in enumerate(pairs) for where in lost(*pair, f"{at}[{number}]")]
    is_kept = said == kept or (".resources." in at and quantity(said) == quantity(kept))  # 8000m is 8
    return [] if is_kept or said in ({}, [], "", False) else [f"{at}: {said!r} became {kept!r}"]


@pytest.mark.parametrize("host_network", [False, True])
def test_every_key_of_a_job_file_reaches_the_server(plane: ControlPlane, host_network: bool) -> None:
    assert {*SECTION} == {*kubernetes_section.KEYS} - {kubernetes_section.GATED_PODS}
    kubernetes_section.check_kubernetes(SECTION)
    options = KubernetesOptions(
        image="i",
        tolerations=("spot:NoExecute",),
        shared_claim="shared",
        shared_path="/shared",
        host_network=host_network,
        run_as_non_root=True,
    )
    manifest = manifests.pod_of(WORKER, options, "s1", "default", "nvidia.com/gpu", "machine-1")
    answer = plane.ask("POST", f"{PODS}?dryRun=All", manifest)
    assert answer.status_code == 201, answer.text
    assert lost(manifest, answer.json()) == []


def test_what_a_server_drops_is_noticed(plane: ControlPlane) -> None:
    """It knows no scheduling gates."""
    manifest = manifests.pod_of(WORKER, KubernetesOptions(), "s1", "default", "nvidia.com/gpu")
    manifest["spec"]["schedulingGates"] = [{"name": "stretto.dev/gate"}]
    answer = plane.ask("POST", f"{PODS}?dryRun=All", manifest)
    assert [where.partition(":")[0] for where in lost(manifest, answer.json())] == [".spec.schedulingGates"]
