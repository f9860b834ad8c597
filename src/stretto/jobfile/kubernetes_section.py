"""What a job file asks of Kubernetes, under `kubernetes:`.

Keys are ours. Values below `volumes`, `volume_mounts`, `env_from`, `tolerations` and `pod` are the API's own,
and checked by it. The section is kept as values of JSON, so that an accepted job file means the same whatever
release of Kubernetes it then meets.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from stretto.errors import InputError
from stretto.jobfile.parts import check_image, check_line, wrong
from stretto.jobfile.yaml_tree import Entry

TEXTS = ("image", "namespace", "service_account")
LISTS_OF_TEXTS = ("image_pull_secrets",)
LISTS_OF_OBJECTS = ("env_from", "volumes", "volume_mounts", "tolerations")
CONTAINER = "worker"  # of a worker's pod, as a patch below `pod` names it
GATED_PODS = "gated_pods"  # pods that exist already, and wait for us: each with its name and uid
KEYS = (*TEXTS, *LISTS_OF_TEXTS, *LISTS_OF_OBJECTS, "pod", GATED_PODS)
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of an object: RFC 1123, in small letters
OURS = (
    "restartPolicy",
    "affinity",
    "nodeName",
    "schedulerName",
)  # of a pod: by which it is scheduled, and ends


def kubernetes_of(entry: Entry) -> dict[str, Any]:
    """The section of a job file, checked; {} where there is none. Raises InputError."""
    section = entry.entry("kubernetes", KEYS)
    if section is None:
        return {}
    values = {key: section.values(key) for key in section.section.values if section.has(key)}
    for key in TEXTS:
        if key in values:
            values[key] = section.text(key)
    try:
        check_kubernetes(values)
    except InputError as error:
        raise InputError(f"{entry.at('kubernetes')}: {error}") from None
    return values


def check_kubernetes(values: Mapping[str, Any]) -> None:
    """Raise InputError for what no cluster would take."""
    for key, value in values.items():
        name = f"kubernetes.{key}"
        if key in TEXTS:
            if not isinstance(value, str):
                raise wrong(name, "a text", value)
            check_line(name, value)
            if key != "image" and not NAME.fullmatch(value):
                raise wrong(name, "a name of Kubernetes: small letters, digits and '-'", value)
            if key == "image":
                check_image(name, value)
        elif key in LISTS_OF_TEXTS:
            if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
                raise wrong(name, "a list of names", value)
        elif key in LISTS_OF_OBJECTS:
            if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
                raise wrong(name, "a list of objects, as the API of Kubernetes has them", value)
        elif key == GATED_PODS:
            _check_gated_pods(name, value)
        elif key == "pod":
            if not isinstance(value, dict):
                raise wrong(name, "what a pod's `spec` may say", value)
            _check_pod(name, value)
        else:
            raise wrong("kubernetes: a key", f"one of {', '.join(KEYS)}", key)


def _check_pod(name: str, pod: Mapping[str, Any]) -> None:
    """Raise InputError for a patch that decides on scheduling, or takes GPUs that are not counted."""
    for taken in OURS:
        if taken in pod:
            raise InputError(f"{name}.{taken}: is set by Stretto, which chooses the node")
    if "resourceClaims" in pod:
        raise InputError(f"{name}.resourceClaims: devices of claims are not counted, expected resources.gpus")
    if str(pod.get("priorityClassName", "")).startswith("system-"):
        raise InputError(f"{name}.priorityClassName: expected one that is not the system's")
    for containers in ("containers", "initContainers"):
        patches = pod.get(containers) or []
        if not isinstance(patches, list):
            raise wrong(f"{name}.{containers}", "a list of containers", patches)
        for each in patches:
            resources = each.get("resources") if isinstance(each, dict) else None
            for kind in ("limits", "requests"):
                asked = resources.get(kind) if isinstance(resources, dict) else None
                for resource in asked if isinstance(asked, dict) else ():
                    if is_gpu(str(resource)):
                        raise InputError(
                            f"{name}.{containers}: {kind} of {resource}: is set by Stretto, by resources.gpus"
                        )


def is_gpu(resource: str) -> bool:
    """Whether an extended resource is a GPU, or a part of one, by what device plug-ins call theirs."""
    vendor, _, device = resource.partition("/")
    return bool(device) and ("gpu" in device or "gpu" in vendor or device.startswith(("mig-", "i915", "xe")))


def tolerations_in(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a job's pods tolerate, of their own: a list in its patch takes the place of all others."""
    patched = (values.get("pod") or {}).get("tolerations")
    listed = patched if isinstance(patched, list) else values.get("tolerations", ())
    return [each for each in listed if isinstance(each, Mapping)]


def tolerates(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    """Whether a toleration is of a taint, by the rules of the API."""
    if toleration.get("effect") and toleration["effect"] != effect:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == key
    return toleration.get("key", "") == key and str(toleration.get("value", "")) == value


def tolerates_all(values: Mapping[str, Any], taints: Iterable[str]) -> bool:
    """Whether a job's pods tolerate all of these taints, as `taint_text` writes them."""
    tolerations = tolerations_in(values)
    for text in taints if tolerations else ():
        named, _, effect = text.rpartition(":")
        key, _, value = named.partition("=")
        if not any(tolerates(each, key, value, effect) for each in tolerations):
            return False
    return bool(tolerations)


def taint_text(key: str, value: str, effect: str) -> str:
    """A taint as people write it: KEY=VALUE:EFFECT, or KEY:EFFECT."""
    return f"{key}{f'={value}' if value else ''}:{effect}"


def _check_gated_pods(name: str, value: Any) -> None:
    """Raise InputError for what names no pods, or one of them twice."""
    if not (isinstance(value, list) and value and all(_is_reference(each) for each in value)):
        raise wrong(name, "a list of objects with the name and the uid of a pod", value)
    if len({each["uid"] for each in value}) != len(value):
        raise wrong(name, "each pod once", ", ".join(each["name"] for each in value))


def _is_reference(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "uid"}
        and all(isinstance(each, str) and NAME.fullmatch(each) for each in value.values())
    )
