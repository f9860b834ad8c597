"""Manifests of Kubeflow: a TrainJob, or a PyTorchJob with its master and workers.

What they say of a pod, such as its image and volumes, is kept under `kubernetes:` of the job.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from stretto.errors import InputError
from stretto.jobfile.kubernetes_section import CONTAINER
from stretto.jobfile.parts import LABEL, Accelerators, Elastic, Resources, Restart, shown
from stretto.jobfile.quantities import memory_gb, number, truth, whole
from stretto.jobfile.spec import JobSpec
from stretto.jobfile.stretto_file import TRUTH, WHOLE, located
from stretto.jobfile.yaml_tree import Entry, Section, Tree, as_mapping, values_of

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
PRODUCT = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
QUEUE = "kueue.x-k8s.io/queue-name"
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")

POD_SPEC = ("containers", "restartPolicy", "nodeSelector", "terminationGracePeriodSeconds")
CONTAINER_SPEC = ("name", "command", "args", "env", "resources", "workingDir", "ports")
# What a pod and its container say that is kept: by its key there, the key of `kubernetes:`.
KEPT_OF_POD = {"volumes": "volumes", "tolerations": "tolerations", "serviceAccountName": "service_account"}
PULL_SECRETS = "imagePullSecrets"
PATCHED_POD = (
    "securityContext",
    "initContainers",
    "priorityClassName",
    "runtimeClassName",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
)
KEPT_OF_CONTAINER = {"image": "image", "envFrom": "env_from", "volumeMounts": "volume_mounts"}
PATCHED_CONTAINER = ("securityContext", "imagePullPolicy")
OVERRIDES = ("podTemplateOverrides", "podSpecOverrides")  # of a TrainJob, in newer and older releases
TRAINER = "node"  # what a TrainJob calls the job, and the container, that train
MOST_REPLICAS = 1_000_000

Amount = TypeVar("Amount", int, float)


@dataclass(frozen=True, slots=True)
class _Process:
    """What one pod runs, and on what."""

    run: str
    envs: Mapping[str, str]
    gpus: int
    cpus: float
    memory_gb: float
    workdir: str = ""
    env_elsewhere: tuple[Mapping[str, Any], ...] = ()  # variables that come from Secrets and the like


def is_kubernetes(tree: Tree) -> bool:
    """Whether a document says that it is an object of Kubernetes."""
    top = as_mapping(tree)
    return "apiVersion" in top and "kind" in top


def spec_of_manifest(entry: Entry, default_name: str) -> tuple[JobSpec, tuple[str, ...]]:
    """The job of a manifest, and what of it means nothing here. Raises InputError."""
    readers = {"TrainJob": _train_job, "PyTorchJob": _pytorch_job}
    kind = entry.text("kind")
    if kind not in readers or not entry.text("apiVersion").startswith(
        ("kubeflow.org/", "trainer.kubeflow.org/")
    ):
        got = f"{entry.text('apiVersion')}, {kind}"
        raise InputError(
            f"{entry.at('kind')}: kind must be TrainJob or PyTorchJob of kubeflow.org, got {shown(got)}"
        )
    body = entry.entry("spec")
    if body is None:
        raise InputError(f"{entry.where}: missing spec")
    warnings: list[str] = []
    spec = located(entry.where, lambda: readers[kind](entry, body, default_name, warnings))
    return spec, tuple(warnings)


def _train_job(entry: Entry, body: Entry, default_name: str, warnings: list[str]) -> JobSpec:
    trainer = body.entry("trainer")
    if trainer is None or not trainer.has("command"):
        raise InputError(
            f"{body.at('trainer')}: missing spec.trainer.command; what a runtime would run is not known here"
        )
    trainer_keys = ("image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode")
    _ignored(body, ("trainer", "runtimeRef", "suspend", *OVERRIDES), warnings)
    _ignored(trainer, trainer_keys, warnings)
    _ignored_value(body, "runtimeRef", warnings)
    replicas = _replicas(trainer, "numNodes")
    process = _process(trainer, trainer.entry("resourcesPerNode"))
    pod, container = _overrides(body, warnings)
    kept = _merged_section(_kept(pod, container, ()), _kept(None, trainer, process.env_elsewhere))
    hold = body.read("suspend", truth, TRUTH, False)
    return _job(entry, process, replicas, default_name, warnings, kept, gpu_type="", hold=hold)


def _overrides(body: Entry, warnings: list[str]) -> tuple[Entry | None, Entry | None]:
    """What a TrainJob says of the pods that train, and of their container; of several the last counts."""
    pod = container = None
    for key in OVERRIDES:
        for item in body.items(key):
            if not isinstance(item, Section):
                raise body.wrong(key, "a list of keys and values", item)
            override = Entry(body.where, item, body.name(key))
            targets = [values_of(target) for target in override.items("targetJobs")]
            if targets and not any(
                isinstance(each, dict) and each.get("name") == TRAINER for each in targets
            ):
                continue
            pod = override.entry("spec") if key == OVERRIDES[0] else override
            for each in pod.items("containers") if pod else ():
                if isinstance(each, Section) and Entry(body.where, each).text("name") == TRAINER:
                    container = Entry(body.where, each, override.name("containers"))
    if pod is not None:
        known = (*KEPT_OF_POD, PULL_SECRETS, *PATCHED_POD, "containers", "targetJobs")
        _ignored(pod, known, warnings)
    if container is not None:
        _ignored(container, ("name", *KEPT_OF_CONTAINER, *PATCHED_CONTAINER), warnings)
    return pod, container


def _pytorch_job(entry: Entry, body: Entry, default_name: str, warnings: list[str]) -> JobSpec:
    _ignored(body, ("pytorchReplicaSpecs", "runPolicy", "elasticPolicy", "nprocPerNode"), warnings)
    roles = body.entry("pytorchReplicaSpecs", ("Master", "Worker"))
    processes: list[tuple[_Process, int]] = []
    kept: list[dict[str, Any]] = []
    gpu_type, grace_s = "", 30.0
    for role in ("Master", "Worker"):
        replica = roles.entry(role) if roles else None
        if replica is None:
            continue
        _ignored(replica, ("replicas", "template", "restartPolicy"), warnings)
        template = replica.entry("template")
        pod = template.entry("spec") if template else None
        containers = pod.items("containers") if pod else ()
        if pod is None or len(containers) != 1 or not isinstance(containers[0], Section):
            raise InputError(f"{replica.at('template')}: {replica.path}.template must have one container")
        container = Entry(entry.where, containers[0], f"{role}.containers")
        _ignored(pod, (*POD_SPEC, *KEPT_OF_POD, PULL_SECRETS, *PATCHED_POD), warnings)
        _ignored(container, (*CONTAINER_SPEC, *KEPT_OF_CONTAINER, *PATCHED_CONTAINER), warnings)
        process = _process(container, container.entry("resources"))
        processes.append((process, _replicas(replica, "replicas")))
        kept.append(_kept(pod, container, process.env_elsewhere))
        gpu_type = gpu_type or _product(pod)
        grace_s = pod.read("terminationGracePeriodSeconds", number, "a number", grace_s)
    if not processes:
        raise InputError(
            f"{body.at('pytorchReplicaSpecs')}: missing spec.pytorchReplicaSpecs with Master or Worker"
        )
    first = processes[0][0]
    if any((other.gpus, other.run) != (first.gpus, first.run) for other, _ in processes):
        raise InputError(
            f"{body.at('pytorchReplicaSpecs')}: Master and Worker must run the same command on as many GPUs"
        )
    if any(other.envs != first.envs for other, _ in processes):
        warnings.append("env: that of the master is taken for all")
    if any(other != kept[0] for other in kept):
        warnings.append("pods: what those of the master have is taken for all")
    run_policy = body.entry("runPolicy")
    return _job(
        entry,
        first,
        sum(count for _, count in processes),
        default_name,
        warnings,
        kept[0],
        gpu_type=gpu_type,
        hold=run_policy is not None and run_policy.read("suspend", truth, TRUTH, False),
        grace_s=grace_s,
        run_policy=run_policy,
        elastic_policy=body.entry("elasticPolicy"),
    )


def _job(
    entry: Entry,
    process: _Process,
    replicas: int,
    default_name: str,
    warnings: list[str],
    kept: Mapping[str, Any],
    *,
    gpu_type: str,
    hold: bool,
    grace_s: float = 30.0,
    run_policy: Entry | None = None,
    elastic_policy: Entry | None = None,
) -> JobSpec:
    metadata = entry.entry("metadata") or Entry(entry.where, Section(1))
    labels = metadata.texts("labels")
    queue = labels.pop(QUEUE, "")
    each = process.gpus or 1
    if not process.gpus:
        warnings.append("no GPUs asked for: each replica gets one")
    elastic, restarts = None, 0
    if elastic_policy is not None:
        _ignored(elastic_policy, ("minReplicas", "maxReplicas", "maxRestarts", "nProcPerNode"), warnings)
        least = _replicas(elastic_policy, "minReplicas", 1)
        most = _replicas(elastic_policy, "maxReplicas", replicas)
        replicas = min(max(replicas, least), most)
        elastic = Elastic(least * each, most * each)
        restarts = elastic_policy.read("maxRestarts", whole, WHOLE, 0)
    max_time_s = None
    if run_policy is not None:
        _ignored(run_policy, ("activeDeadlineSeconds", "backoffLimit", "suspend"), warnings)
        max_time_s = run_policy.read("activeDeadlineSeconds", number, "a number", None)
        restarts = run_policy.read("backoffLimit", whole, WHOLE, restarts)
    kubernetes = dict(kept)
    if namespace := metadata.text("namespace"):
        kubernetes["namespace"] = namespace
    if kubernetes:
        warnings.append(f"kept for Kubernetes, and used there alone: {', '.join(sorted(kubernetes))}")
    return JobSpec(
        run=process.run,
        kubernetes=kubernetes,
        name=metadata.text("name") or metadata.text("generateName").rstrip("-") or default_name,
        labels={key: value for key, value in labels.items() if LABEL.fullmatch(key)},
        queue=queue,
        workdir=process.workdir,
        envs=process.envs,
        resources=Resources(
            accelerators=(Accelerators(gpu_type, each * replicas),),
            gpus_per_worker=each,  # one pod is one worker
            cpus=process.cpus * replicas or None,
            memory_gb=process.memory_gb * replicas or None,
        ),
        elastic=elastic,
        preemptible=elastic is not None,
        grace_period_s=grace_s,
        max_time_s=max_time_s,
        hold=hold,
        restart=Restart(restarts),
    )


def _kept(
    pod: Entry | None, container: Entry | None, env_elsewhere: tuple[Mapping[str, Any], ...]
) -> dict[str, Any]:
    """The section `kubernetes:` that says of a pod what a manifest says."""
    section: dict[str, Any] = {}
    patch: dict[str, Any] = {}
    if pod is not None:
        section |= {ours: pod.values(key) for key, ours in KEPT_OF_POD.items() if pod.has(key)}
        secrets = [values_of(item) for item in pod.items(PULL_SECRETS)]
        if secrets:
            section["image_pull_secrets"] = [
                each.get("name", "") if isinstance(each, dict) else each for each in secrets
            ]
        patch |= {key: pod.values(key) for key in PATCHED_POD if pod.has(key)}
    own: dict[str, Any] = {}
    if container is not None:
        section |= {
            ours: container.values(key) for key, ours in KEPT_OF_CONTAINER.items() if container.has(key)
        }
        own |= {key: container.values(key) for key in PATCHED_CONTAINER if container.has(key)}
    if env_elsewhere:
        own["env"] = [dict(each) for each in env_elsewhere]
    if own:
        patch["containers"] = [{"name": CONTAINER, **own}]
    return {**section, **({"pod": patch} if patch else {})}


def _merged_section(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two sections as one; of a container each says something of its own."""
    both = {**first, **second}
    pods = [section["pod"] for section in (first, second) if "pod" in section]
    if len(pods) == 2:
        own = [each for pod in pods for each in pod.get("containers", ())]
        containers = [{key: value for each in own for key, value in each.items()}] if own else []
        both["pod"] = {**pods[0], **pods[1], **({"containers": containers} if containers else {})}
    return both


def _process(container: Entry, resources: Entry | None) -> _Process:
    envs: dict[str, str] = {}
    elsewhere = []
    for item in container.items("env"):
        if not isinstance(item, Section):
            raise container.wrong("env", "a list of names and values", item)
        variable = Entry(container.where, item, container.name("env"))
        name = variable.text("name")
        if variable.has("valueFrom"):
            elsewhere.append({"name": name, "valueFrom": variable.values("valueFrom")})
        else:
            envs[name] = variable.text("value")
    words = [*_words(container, "command"), *_words(container, "args")]
    if not container.has("command"):
        raise InputError(
            f"{container.at('args')}: missing {container.name('command')}; an image's own is not known here"
        )
    run = shlex.join(_expanded(word, envs) for word in words)
    limits = resources.entry("limits") if resources else None
    requests = resources.entry("requests") if resources else None
    quantities = {**_texts(requests), **_texts(limits)}
    return _Process(
        run=run,
        envs=envs,
        gpus=sum(
            _quantity(container, key, quantities[key], whole, "a whole number")
            for key in GPUS
            if key in quantities
        ),
        cpus=_quantity(container, "cpu", quantities.get("cpu", "0"), _cores, 'cores like "4" or "500m"'),
        memory_gb=_quantity(
            container, "memory", quantities.get("memory", "0"), _bytes_gb, 'a size like "64Gi"'
        ),
        workdir=container.text("workingDir"),
        env_elsewhere=tuple(elsewhere),
    )


def _words(container: Entry, key: str) -> list[str]:
    words = []
    for item in container.items(key):
        if not isinstance(item, str | None):
            raise container.wrong(key, "a list of texts", item)
        words.append(item or "")
    return words


def _expanded(word: str, envs: Mapping[str, str]) -> str:
    """With $(NAME) replaced as a kubelet does; a name that is not known stays."""
    return REFERENCE.sub(lambda found: "$" if found[1] is None else envs.get(found[1], found[0]), word)


def _texts(entry: Entry | None) -> dict[str, str]:
    return {key: entry.text(key) for key in entry.section.values} if entry else {}


def _quantity(entry: Entry, key: str, text: str, read: Callable[[str], Amount], expected: str) -> Amount:
    try:
        return read(text)
    except ValueError:
        raise InputError(f"{entry.at('resources')}: {key} must be {expected}, got {shown(text)}") from None


def _cores(text: str) -> float:
    return number(text[:-1]) / 1_000 if text.endswith("m") else number(text)


def _bytes_gb(text: str) -> float:
    return memory_gb(text, bare="b")


def _replicas(entry: Entry, key: str, default: int = 1) -> int:
    count = entry.read(key, whole, WHOLE, default)
    if not 1 <= count <= MOST_REPLICAS:
        raise entry.wrong(key, f"a whole number from 1 to {MOST_REPLICAS}", str(count))
    return count


def _product(pod: Entry) -> str:
    selector = pod.entry("nodeSelector")
    return next((selector.text(key) for key in PRODUCT if selector and selector.has(key)), "")


def _ignored(entry: Entry, known: tuple[str, ...], warnings: list[str]) -> None:
    warnings += [f"{entry.name(key)}: means nothing here" for key in entry.section.values if key not in known]


def _ignored_value(entry: Entry, key: str, warnings: list[str]) -> None:
    if entry.has(key):
        warnings.append(f"{entry.name(key)}: means nothing here")
