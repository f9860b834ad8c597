"""The pod that a worker is asked for as."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.backends.kubernetes.pod_security import against_restricted

from stretto.agent import pod_supervisor
from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import WorkerStart

OPTIONS = KubernetesOptions(image="registry.example/base:1", tolerations=("team=ml:NoSchedule",))
WORKER = WorkerStart(
    "7.1.0",
    "7",
    "n1",
    (2, 3),
    ("/bin/sh", "-c", "python train.py"),
    {"A": "costs $(B) and $5", "STRETTO_TOKEN": "7.secret"},
    grace_s=45.0,
    cpus=2.5,
    memory_gb=1.5,
)


def pod(worker: WorkerStart = WORKER, options: KubernetesOptions = OPTIONS) -> dict[str, Any]:
    return manifests.pod_of(worker, options, "s1", "team", "nvidia.com/gpu")


def container(worker: WorkerStart = WORKER) -> dict[str, Any]:
    found: dict[str, Any] = pod(worker)["spec"]["containers"][0]
    return found


def variables(worker: WorkerStart = WORKER) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in container(worker)["env"]}


def asking(**section: object) -> WorkerStart:
    return replace(WORKER, asks={"kubernetes": section})


def worker_patch(**container: object) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **container}]}


def test_the_scheduler_of_the_cluster_binds_it_to_the_node_that_we_chose() -> None:
    spec = pod()["spec"]
    assert "nodeName" not in spec
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


def test_its_name_follows_from_the_worker_and_is_one_for_every_kind_of_object() -> None:
    names = {manifests.pod_name("s1", worker) for worker in ("7.1.0", "7.1_0", "7-1.0", "7.1.1")}
    assert len(names) == 4
    assert manifests.pod_name("s1", "7.1.0") == pod()["metadata"]["name"] != manifests.pod_name("s2", "7.1.0")
    longest = manifests.pod_name("s1", "J" * 200 + ".1.0")
    assert len(longest) <= 63
    assert longest == longest.lower()


def test_the_token_is_in_a_secret_and_nowhere_in_the_pod() -> None:
    assert "7.secret" not in json.dumps(pod())
    secret = manifests.token_secret("team", "s1", WORKER)
    assert secret["stringData"] == {"STRETTO_TOKEN": "7.secret"}
    reference = variables()["STRETTO_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": secret["metadata"]["name"], "key": "STRETTO_TOKEN"}


def test_secrets_of_a_job_are_in_its_secret_and_nowhere_in_the_pod() -> None:
    worker = replace(WORKER, secrets={"HF_TOKEN": "hf_value"})
    assert "hf_value" not in json.dumps(pod(worker))
    secret = manifests.token_secret("team", "s1", worker)
    assert secret["stringData"] == {"STRETTO_TOKEN": "7.secret", "HF_TOKEN": "hf_value"}
    reference = variables(worker)["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": secret["metadata"]["name"], "key": "HF_TOKEN"}
    newer = replace(WORKER, secrets={"HF_TOKEN": "newer"})
    assert manifests.request_digest(worker) == manifests.request_digest(newer)
    assert manifests.request_digest(worker) != manifests.request_digest(WORKER)


def test_values_of_variables_are_taken_as_they_are() -> None:
    assert variables()["A"]["value"] == "costs $$(B) and $5"
    start = json.loads(variables()[pod_supervisor.START]["value"])
    assert start["command"] == ["/bin/sh", "-c", "python train.py"]
    assert start["grace_s"] == pod_supervisor.KUBELET_KILLS_S
    assert "account" not in start


def test_it_asks_for_gpus_cores_and_memory() -> None:
    limits = {"nvidia.com/gpu": "2", "memory": "1536Mi"}
    assert container()["resources"] == {"limits": limits, "requests": {**limits, "cpu": "2500m"}}
    assert container(replace(WORKER, gpus=(), cpus=0, memory_gb=0))["resources"] == {
        "limits": {},
        "requests": {},
    }


def test_it_is_kept_until_its_end_was_written_down_and_ends_with_its_grace() -> None:
    made = pod()
    assert made["metadata"]["finalizers"] == [manifests.FINALIZER]
    assert made["spec"]["terminationGracePeriodSeconds"] == 45
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["spec"]["automountServiceAccountToken"] is False


def test_the_image_of_a_job_comes_before_that_of_the_service() -> None:
    assert container(replace(WORKER, image="registry.example/own:3"))["image"] == "registry.example/own:3"
    assert container()["image"] == OPTIONS.image


def test_a_job_file_names_image_volumes_and_what_it_tolerates() -> None:
    worker = asking(
        image="registry.example/own:2",
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        volume_mounts=[{"name": "data", "mountPath": "/data"}],
        tolerations=[{"key": "spot", "operator": "Exists"}],
        image_pull_secrets=["registry"],
        service_account="trainer",
        env_from=[{"secretRef": {"name": "s3"}}],
    )
    spec = pod(worker)["spec"]
    assert container(worker)["image"] == "registry.example/own:2"
    assert container(worker)["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert {"name": "data", "mountPath": "/data"} in container(worker)["volumeMounts"]
    assert [each["name"] for each in spec["volumes"]][-1] == "data"
    keys = ["spot", "team", "nvidia.com/gpu", manifests.ON_LOAN]
    assert [each["key"] for each in spec["tolerations"]] == keys
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", True)


def test_a_patch_changes_the_pod_and_leaves_the_rest() -> None:
    patch = {
        "securityContext": {"runAsUser": 1000},
        "containers": [{"name": "worker", "imagePullPolicy": "Always"}, {"name": "sidecar", "image": "x"}],
        "enableServiceLinks": None,
    }
    spec = pod(asking(pod=patch))["spec"]
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000}
    worker, sidecar = spec["containers"]
    assert (worker["imagePullPolicy"], worker["image"]) == ("Always", "registry.example/base:1")
    assert sidecar == {"name": "sidecar", "image": "x"}
    assert "enableServiceLinks" not in spec


def test_a_repeated_start_is_told_from_another_one() -> None:
    assert manifests.request_digest(WORKER) == manifests.request_digest(replace(WORKER))
    for other in (replace(WORKER, node="n2"), replace(WORKER, gpus=(1, 2)), replace(WORKER, env={})):
        assert manifests.request_digest(other) != manifests.request_digest(WORKER)


def test_what_runs_first_in_a_pod_needs_only_a_few_files() -> None:
    config = manifests.code_map("team")
    assert set(config["data"]) == {"supervisor.py", "pod_supervisor.py", "exec_session.py"}
    assert config["immutable"] is True
    assert sum(map(len, config["data"].values())) < 1 << 20, "as much as a ConfigMap may have"


def test_a_volume_of_the_job_takes_the_place_of_our_shared_memory() -> None:
    def mounts_of(worker: WorkerStart) -> list[str]:
        return [
            mount["name"]
            for mount in container(worker)["volumeMounts"]
            if mount["mountPath"] == manifests.SHARED_MEMORY
        ]

    assert mounts_of(WORKER) == ["stretto-shm"]
    own = asking(
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        volume_mounts=[{"name": "shm", "mountPath": "/dev/shm"}],
    )
    assert mounts_of(own) == ["shm"], "the API refuses two mounts at one path"


def test_a_variable_from_a_secret_joins_ours() -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    patched = asking(pod={"containers": [{"name": "worker", "env": [key]}]})
    assert variables(patched) == {**variables(), "KEY": key}


def test_a_worker_is_reached_by_the_name_of_its_pod() -> None:
    env = {**WORKER.env, "MASTER_ADDR": "10.0.0.1"}
    second = replace(WORKER, id="7.1.1", env=env, master="7.1.0")
    named = pod()["spec"]
    service = manifests.network("team", "s1")
    assert variables(second)["MASTER_ADDR"]["value"] == ".".join(
        (named["hostname"], service["metadata"]["name"], "team")
    )
    assert named["hostname"] == pod()["metadata"]["name"]
    assert named["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod()["metadata"]["labels"].items()


def test_on_the_network_of_its_node_a_worker_is_reached_by_the_nodes_address() -> None:
    env = {**WORKER.env, "MASTER_ADDR": "10.0.0.1"}
    second = replace(WORKER, id="7.1.1", env=env, master="7.1.0")
    patched = replace(second, asks={"kubernetes": {"pod": {"hostNetwork": True}}})
    for worker, options in ((second, replace(OPTIONS, host_network=True)), (patched, OPTIONS)):
        spec = pod(worker, options)["spec"]
        (address,) = [each for each in spec["containers"][0]["env"] if each["name"] == "MASTER_ADDR"]
        assert address["value"] == "10.0.0.1"
        assert (spec["hostNetwork"], "subdomain" in spec) == (True, False)


def test_a_claim_for_all_jobs_is_mounted_where_the_service_has_it_unless_a_job_mounts_its_own() -> None:
    options = replace(OPTIONS, shared_claim="checkpoints", shared_path="/shared")
    spec = pod(options=options)["spec"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/shared"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints"}
    own = asking(
        volumes=[{"name": "mine", "emptyDir": {}}], volume_mounts=[{"name": "mine", "mountPath": "/shared"}]
    )
    spec = pod(own, options)["spec"]
    mounts = [each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/shared"]
    assert [each["name"] for each in mounts] == ["mine"]
    assert "checkpoints" not in str(spec["volumes"])
    assert "checkpoints" not in str(pod()["spec"])


# ── Pod Security ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "patch", "against"),
    [
        ({}, {}, ["runAsNonRoot"]),
        ({"run_as_non_root": True}, {}, []),
        ({}, {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}, []),
        (
            {"run_as_non_root": True},
            worker_patch(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
            ["add"],
        ),
        (
            {"run_as_non_root": True},
            worker_patch(securityContext={"privileged": True}),
            ["privileged", "allowPrivilegeEscalation", "drop"],
        ),
        ({"run_as_non_root": True}, worker_patch(securityContext=None), ["allowPrivilegeEscalation", "drop"]),
        ({"run_as_non_root": True}, {"securityContext": {"runAsNonRoot": None}}, ["runAsNonRoot"]),
        ({"run_as_non_root": True}, {"securityContext": {"seccompProfile": None}}, ["seccompProfile"]),
    ],
)
def test_a_pod_is_restricted_where_its_job_does_not_say_otherwise(
    options: dict[str, Any], patch: dict[str, Any], against: list[str]
) -> None:
    spec = pod(asking(pod=patch), replace(OPTIONS, **options))["spec"]
    assert against_restricted(spec) == against


def test_what_an_api_server_takes_from_nobody_is_not_asked_for() -> None:
    """One that may become more than it was may be privileged, or administer the system; no other may."""
    for own in ({"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}):
        security = pod(asking(pod=worker_patch(securityContext=own)))["spec"]["containers"][0][
            "securityContext"
        ]
        assert "allowPrivilegeEscalation" not in security
