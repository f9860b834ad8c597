"""The pod that a worker is asked for as.

kube-scheduler still binds it: the node is a required affinity, not `nodeName`. So taints, quotas, volumes and
GPUs that others hold count as for every pod. A race that is lost is a pod that waits, not one that failed.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from stretto.agent import exec_session, pod_supervisor, supervisor
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.kubernetes.pod_privileges import container_security, own_security, pod_security
from stretto.backends.protocol import WorkerStart
from stretto.jobfile import kubernetes_section

DOMAIN = "stretto.dev"
SERVICE, JOB, WORKER = f"{DOMAIN}/service", f"{DOMAIN}/job", f"{DOMAIN}/worker"  # labels, and an annotation
REQUEST, GPUS = f"{DOMAIN}/request", f"{DOMAIN}/gpus"  # annotations: a digest of what was asked; indices
NODE = f"{DOMAIN}/node"  # annotation: where it is meant to run
MACHINE = f"{DOMAIN}/machine"  # annotation: the name of that node in the cluster, where we call it otherwise
PLACEHOLDER = f"{DOMAIN}/placeholder"  # label of pods that ask for nodes, and are no workers
ORDERS = f"{DOMAIN}/orders"  # annotation: what the supervisor is to do, a JSON object a line
WITHDRAWN = f"{DOMAIN}/withdrawn"  # annotation: JSON of how it counts, for one that never began
BEGAN = f"{DOMAIN}/began"  # annotation: when its container began, which a kubelet that rejects it forgets
POD_UID = f"{DOMAIN}/pod-uid"  # annotation: its own, from when its container began; a copy has another one
FINALIZER = f"{DOMAIN}/worker"  # until we have written down how it ended
CODE_MAP = "stretto-supervisor-"  # how the names of ConfigMaps with the supervisor begin
ON_LOAN = f"{DOMAIN}/on-loan"  # taint of a lender's node while training has it
LENDER = f"{DOMAIN}/lender"  # annotation of a node that is with its lender
TOKEN = "STRETTO_TOKEN"

ROOT = "/var/run/stretto"  # in a pod
CODE, RUN, INFO = f"{ROOT}/code", f"{ROOT}/run", f"{ROOT}/info"
CONTAINER = kubernetes_section.CONTAINER
SHARED_MEMORY = "/dev/shm"
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LONGEST_NAME = 63  # of what is a host's name, too


def digest_of(value: object) -> str:
    """A short name of a value that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def safe_name(text: str, mark: str) -> str:
    """A name that any object may have: small letters, digits and '-', with a mark that tells apart."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"{plain[: LONGEST_NAME - len(mark) - 1].strip('-') or 'x'}-{mark}"


def pod_name(service: str, worker_id: str) -> str:
    """Of the pod of a worker: always the same, so that it is made once."""
    return safe_name(worker_id, digest_of([service, worker_id])[:8])


def secret_name(service: str, job: str) -> str:
    """Of the Secret with a job's token, and with the secrets that it names."""
    return safe_name(f"stretto-{job}", digest_of([service, job])[:8])


def code_files() -> dict[str, str]:
    """What runs as PID 1 of a pod: plain files, since images of users do not have Stretto."""
    return {
        "supervisor.py": _source_of(supervisor.__file__),
        "pod_supervisor.py": _source_of(pod_supervisor.__file__),
        "exec_session.py": _source_of(exec_session.__file__),  # what `stretto exec` runs beside it
    }


def _source_of(path: str | None) -> str:
    assert path is not None
    return Path(path).read_text(encoding="utf-8")


def code_map(namespace: str) -> dict[str, Any]:
    """The ConfigMap with the supervisor, named by what it contains."""
    files = code_files()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{CODE_MAP}{digest_of(files)[:10]}", "namespace": namespace},
        "immutable": True,
        "data": files,
    }


def network_name(service: str) -> str:
    """Of the headless Service that gives names to the pods of all jobs, and the domain of these names."""
    return safe_name("stretto-workers", digest_of([service])[:8])


def network(namespace: str, service: str) -> dict[str, Any]:
    """The headless Service by which workers find each other: a name for each pod, from its start on."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": network_name(service),
            "namespace": namespace,
            "labels": labels_of(service, ""),
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {SERVICE: service}},
    }


def address_of(service: str, worker_id: str, namespace: str) -> str:
    """The name under which pods of a cluster reach a worker."""
    return f"{pod_name(service, worker_id)}.{network_name(service)}.{namespace}"


def token_secret(namespace: str, service: str, worker: WorkerStart) -> dict[str, Any]:
    """The Secret with what opens the channel of a job's workers, and with the secrets that the job names."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(service, worker.job),
            "namespace": namespace,
            "labels": labels_of(service, worker.job),
        },
        "type": "Opaque",
        "stringData": {**worker.secrets, TOKEN: worker.env.get(TOKEN, "")},
    }


def labels_of(service: str, job: str) -> dict[str, str]:
    """By which our objects are found."""
    labels = {"app.kubernetes.io/managed-by": "stretto", SERVICE: service}
    return {**labels, JOB: job} if LABEL.fullmatch(job) else labels


def wanted_of(worker: WorkerStart) -> Mapping[str, Any]:
    """What the job's file asks of Kubernetes: image, volumes, tolerations and so on."""
    return worker.asks.get(KubernetesOptions.name, {})


def image_of(worker: WorkerStart, options: KubernetesOptions) -> str:
    """The image of a worker; "" where none is named."""
    return str(worker.image or wanted_of(worker).get("image") or options.image)


def namespace_for(worker: WorkerStart, options: KubernetesOptions, default: str) -> str:
    """The namespace of a worker's pod."""
    return str(wanted_of(worker).get("namespace") or options.namespace or default)


def has_addresses(worker: WorkerStart, options: KubernetesOptions) -> bool:
    """Whether the pod of a worker has an address of its own, and not that of its node."""
    return not (options.host_network or wanted_of(worker).get("pod", {}).get("hostNetwork"))


def tolerations_of(worker: WorkerStart, options: KubernetesOptions, resource: str) -> list[dict[str, str]]:
    """Which taints do not keep it away: the job's, the service's, and that of nodes kept for GPUs."""
    ours = tolerations_for(options, resource) if worker.gpus else options.parsed_tolerations
    return [*wanted_of(worker).get("tolerations", ()), *ours]


def tolerations_for(options: KubernetesOptions, resource: str) -> list[dict[str, str]]:
    """Which taints keep no pod of ours away that has GPUs."""
    keys = (resource, ON_LOAN)
    kept_for_us = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return [*options.parsed_tolerations, *kept_for_us]


def millicores(cpus: float) -> str:
    """Cores as a quantity of the API."""
    return f"{max(round(cpus * 1000), 1)}m"


def mebibytes(memory_gb: float) -> str:
    """Memory as a quantity of the API."""
    return f"{max(round(memory_gb * 1024), 1)}Mi"


def pod_of(
    worker: WorkerStart,
    options: KubernetesOptions,
    service: str,
    namespace: str,
    resource: str,
    machine: str = "",
) -> dict[str, Any]:
    """The manifest of a worker's pod.

    resource: by which its node gives GPUs, such as nvidia.com/gpu. machine: that node's name in the cluster,
    "" where it is the worker's word for it.
    """
    wanted = wanted_of(worker)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": _on(machine or worker.node)},
        "tolerations": tolerations_of(worker, options, resource),
        "terminationGracePeriodSeconds": max(int(worker.grace_s), 1),
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(wanted.get("service_account")),
        "securityContext": pod_security(options.run_as_non_root),
        "containers": [_container(worker, options, service, namespace, resource)],
        "volumes": _volumes(worker, options, namespace),
    }
    if has_addresses(worker, options):
        spec |= {"hostname": pod_name(service, worker.id), "subdomain": network_name(service)}
    others = {
        "hostNetwork": options.host_network,
        "priorityClassName": options.priority_class,
        "serviceAccountName": wanted.get("service_account"),
        "imagePullSecrets": [{"name": each} for each in wanted.get("image_pull_secrets", ())],
    }
    spec |= {name: value for name, value in others.items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(service, worker.id),
            "namespace": namespace,
            "labels": labels_of(service, worker.job),
            "annotations": {
                WORKER: worker.id,
                REQUEST: request_digest(worker),
                NODE: worker.node,
                GPUS: ",".join(map(str, worker.gpus)),
                ORDERS: "",
                **({MACHINE: machine} if machine not in ("", worker.node) else {}),
            },
            "finalizers": [FINALIZER],
        },
        "spec": merged(spec, wanted.get("pod", {})),
    }


def _container(
    worker: WorkerStart, options: KubernetesOptions, service: str, namespace: str, resource: str
) -> dict[str, Any]:
    """The one container: our supervisor, which runs the worker's command."""
    wanted = wanted_of(worker)
    limits: dict[str, str] = {resource: str(len(worker.gpus))} if worker.gpus else {}
    requests = {}
    if worker.cpus:
        requests["cpu"] = millicores(worker.cpus)
    if worker.memory_gb:
        requests["memory"] = limits["memory"] = mebibytes(worker.memory_gb)
    mounts = [
        {"name": "stretto-code", "mountPath": CODE, "readOnly": True},
        {"name": "stretto-info", "mountPath": INFO, "readOnly": True},
        {"name": "stretto-run", "mountPath": RUN},
        *wanted.get("volume_mounts", ()),
    ]
    if not _mounts_at(worker, SHARED_MEMORY):
        mounts.append({"name": "stretto-shm", "mountPath": SHARED_MEMORY})
    if _shares_claim(worker, options):
        mounts.append({"name": "stretto-shared", "mountPath": options.shared_path})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image_of(worker, options),
        "command": [options.python, "-E", "-S", f"{CODE}/pod_supervisor.py", RUN, f"{INFO}/orders"],
        "env": _environment(worker, options, service, namespace if has_addresses(worker, options) else ""),
        "envFrom": list(wanted.get("env_from", ())),
        "resources": {"limits": limits, "requests": {**limits, **requests}},
        "terminationMessagePolicy": "File",
        "securityContext": container_security(own_security(wanted.get("pod", {}), CONTAINER)),
        "volumeMounts": mounts,
    }
    return container | ({"workingDir": worker.cwd} if worker.cwd else {})


def _volumes(worker: WorkerStart, options: KubernetesOptions, namespace: str) -> list[dict[str, Any]]:
    """What the container mounts: ours, and those of the job file."""
    # The supervisor reads its orders from an annotation, which its kubelet shows it as a file.
    orders = {"path": "orders", "fieldRef": {"fieldPath": f"metadata.annotations['{ORDERS}']"}}
    volumes: list[dict[str, Any]] = [
        {"name": "stretto-code", "configMap": {"name": code_map(namespace)["metadata"]["name"]}},
        {"name": "stretto-run", "emptyDir": {}},
        {"name": "stretto-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "stretto-info", "downwardAPI": {"items": [orders]}},
        *wanted_of(worker).get("volumes", ()),
    ]
    if _shares_claim(worker, options):
        claim = {"claimName": options.shared_claim}
        volumes.append({"name": "stretto-shared", "persistentVolumeClaim": claim})
    return volumes


def _shares_claim(worker: WorkerStart, options: KubernetesOptions) -> bool:
    """Whether the service's volume is mounted: nothing else of the job file is in its place."""
    return bool(options.shared_claim) and not _mounts_at(worker, options.shared_path)


def _mounts_at(worker: WorkerStart, path: str) -> bool:
    """Whether the job file itself mounts something there."""
    return any(mount.get("mountPath") == path for mount in wanted_of(worker).get("volume_mounts", ()))


def request_digest(worker: WorkerStart) -> str:
    """By which a repeated start is told from another one with the same id."""
    return digest_of({**worker.request(), "node": worker.node})


def _environment(
    worker: WorkerStart, options: KubernetesOptions, service: str, namespace: str
) -> list[dict[str, Any]]:
    """What the worker finds in its environment; its token and secrets come out of a Secret.

    namespace: in which pods have addresses of their own; "" where they have those of their nodes.
    """
    start = {**worker.request(), "env": {}, "grace_s": pod_supervisor.KUBELET_KILLS_S}
    for name in ("account", "own", "secrets"):
        start.pop(name, None)
    ours = {"STRETTO_WORKER_ID": worker.id, "STRETTO_SETUP_DIR": RUN}
    if "STRETTO_UPLOAD" in worker.env:
        ours["STRETTO_PYTHON"] = options.python  # which fetches it
    if namespace and worker.master and "MASTER_ADDR" in worker.env:
        ours["MASTER_ADDR"] = address_of(service, worker.master, namespace)
    plain = {name: value for name, value in {**worker.env, **ours}.items() if name != TOKEN}
    sealed = [name for name in sorted(worker.secrets) if name not in plain]
    variables: list[dict[str, Any]] = [
        {"name": name, "value": _literal(value)} for name, value in sorted(plain.items())
    ]
    for name in [*sealed, TOKEN] if TOKEN in worker.env else sealed:
        reference = {"name": secret_name(service, worker.job), "key": name}
        variables.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return [
        *variables,
        {"name": "STRETTO_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": pod_supervisor.START, "value": _literal(json.dumps(start))},
    ]


def _literal(value: str) -> str:
    """A value as it is: Kubernetes would replace $(NAME) in it."""
    return value.replace("$(", "$$(")


def _on(node: str) -> dict[str, Any]:
    """This node and no other, as a required affinity."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}
    }


def merged(base: Any, patch: Any) -> Any:
    """A pod's specification with a patch over it, as `kubectl patch` merges.

    Objects merge key by key, null takes a key away, and lists of named things merge by name.
    """
    if isinstance(base, dict) and isinstance(patch, Mapping):
        result = dict(base)
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result[key], value) if key in result else deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(patch, list) and _are_named([*base, *patch]):
        by_name = {each["name"]: each for each in base}
        for each in patch:
            by_name[each["name"]] = merged(by_name.get(each["name"], {}), each)
        return list(by_name.values())
    return deepcopy(patch)


def _are_named(values: Iterable[Any]) -> bool:
    return all(isinstance(each, Mapping) and "name" in each for each in values)
