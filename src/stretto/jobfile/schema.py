"""The schema of a job file: what editors, programs and the ElasticJob resource know of its keys.

Each key is declared once, with its kind. Two forms follow. One is JSON Schema (draft 2020-12) for files, in
which a number may also stand in quotes, as our reader takes it. The other is the OpenAPI schema of a
Kubernetes resource, whose API server wants one type for each value. A schema says less than the reader. What
contradicts itself is found where the file is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stretto.jobfile.parts import LR_SCALINGS, MOST_TASKS, MOST_WORTH, After, BatchPolicy, WebhookEvent
from stretto.jobfile.spec import OF_SLURM
from stretto.model import Purpose
from stretto.model.job import Kind as JobKind

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NAMED = "https://stretto.dev/job-file.schema.json"  # a name, and nothing that is fetched
UNIT = r"(ms|w|d|h|min|m|s)"
DURATION_PATTERN = rf"^\s*(\d+(\.\d+)?{UNIT}\s*)+$"
OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}  # the service checks it
INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be: in a file, and in a resource of Kubernetes."""

    in_file: Schema
    in_resource: Schema


TEXT = Kind({"type": ["string", "number", "boolean"]}, {"type": "string"})
TRUTH = Kind({"type": ["boolean", "string"]}, {"type": "boolean"})
NUMBER = Kind({"type": ["number", "string"]}, {"type": "number"})
SCALAR = Kind(TEXT.in_file, INT_OR_STRING)
DURATION = Kind({"type": "string", "pattern": DURATION_PATTERN}, INT_OR_STRING)
MOMENT = Kind({"type": "string"}, INT_OR_STRING)  # a duration, or a date with its zone
OBJECT = Kind({"type": "object"}, {"type": "object", **OPEN})
TEXTS = Kind({"type": "object", "additionalProperties": TEXT.in_file}, {"type": "object", **OPEN})
OBJECTS = Kind(
    {"type": "array", "items": {"type": "object"}}, {"type": "array", "items": {"type": "object", **OPEN}}
)


def whole(at_least: int | None = None) -> Kind:
    """A whole number."""
    bound = {} if at_least is None else {"minimum": at_least}
    return Kind({"type": ["integer", "string"], **bound}, {"type": "integer", **bound})


def wholes(at_least: int, most: int | None = None) -> Kind:
    """A list of whole numbers; in a file also one alone."""
    inner = whole(at_least)
    bound = {} if most is None else {"maxItems": most}
    listed = list_of(inner)
    return Kind(either(inner, listed).in_file, {**listed.in_resource, **bound})


def choice(members: Sequence[str] | type[StrEnum]) -> Kind:
    """One of several words."""
    words: Schema = {"type": "string", "enum": [str(member) for member in members]}
    return Kind(words, words)


def either(*kinds: Kind) -> Kind:
    """One of several kinds; a resource leaves it open, since there it would need one type."""
    return Kind({"anyOf": [kind.in_file for kind in kinds]}, OPEN)


def list_of(inner: Kind) -> Kind:
    """A list whose entries are of one kind."""
    return Kind({"type": "array", "items": inner.in_file}, {"type": "array", "items": inner.in_resource})


@dataclass(frozen=True, slots=True)
class Key:
    """A key, what it may hold, and what it is for."""

    kind: Kind
    says: str


def section(keys: Mapping[str, Key], required: Sequence[str] = ()) -> Kind:
    """Keys and their values, and no others. A resource keeps the others, for the service to name them."""
    needs = {"required": list(required)} if required else {}
    return Kind(
        {
            "type": "object",
            "properties": _in_files(keys),
            "additionalProperties": False,
            **needs,
        },
        {"type": "object", "properties": _in_resources(keys), **needs, **OPEN},
    )


def _in_files(keys: Mapping[str, Key]) -> Schema:
    return {name: {"description": key.says, **key.kind.in_file} for name, key in keys.items()}


def _in_resources(keys: Mapping[str, Key]) -> Schema:
    return {name: {"description": key.says, **key.kind.in_resource} for name, key in keys.items()}


# ── the keys, in the order of the documentation ───────────────────────────────────────────────────────


MOST_SIZES = 1_000  # of elastic.sizes in a resource, whose rules may not cost too much; chosen

BY_TYPE = either(whole(1), Kind({"type": "object", "additionalProperties": whole(1).in_file}, OPEN))

RESOURCES = {
    "accelerators": Key(
        either(SCALAR, list_of(SCALAR), TEXTS),
        "GPUs that are asked for: 8, a100:8, or a list or map of alternatives, the most wanted first.",
    ),
    "gpus_per_worker": Key(BY_TYPE, "GPUs of one worker, all on one node; or a map from GPU type to that."),
    "heterogeneous": Key(TRUTH, "Whether the job may hold GPUs of several types at once."),
    "within": Key(TEXT, "The level of the network, such as rack, of which all nodes must be in one domain."),
    "cpus": Key(NUMBER, "Cores, for as many GPUs as are asked for."),
    "memory": Key(TEXT, "Memory like 64GB or 512MiB, for as many GPUs as are asked for."),
}
ELASTIC = {
    "min": Key(whole(1), "The fewest GPUs with which the job runs."),
    "max": Key(whole(1), "The most GPUs that it may have; without it as many as there are."),
    "sizes": Key(wholes(1, MOST_SIZES), "Only these numbers of GPUs, ascending."),
}
BATCH = {
    "policy": Key(choice(BatchPolicy), "Whether the scheduler may choose the batch size (with the SDK)."),
    "init": Key(whole(1), "Samples of one step on all GPUs together, for which the script was tuned."),
    "max": Key(whole(1), "The largest batch that may be tried."),
    "per_gpu": Key(BY_TYPE, "The most samples that fit on one GPU; or a map from GPU type to that."),
    "lr_scaling": Key(choice(LR_SCALINGS), "How the learning rate follows the batch size."),
}
SERVING = {
    "latency": Key(DURATION, "Within this time each request is answered."),
    "requests_per_s": Key(NUMBER, "Up to so many requests a second."),
}
REWARD = {
    "by": Key(MOMENT, "Done by then: so long after the submission, or a date with its zone."),
    "worth": Key(
        NUMBER, f"What that is worth, up to {MOST_WORTH:g}; a strict deadline outweighs all such rewards."
    ),
}
STOP = {
    "steps": Key(whole(1), "Done after so many steps."),
    "epochs": Key(whole(1), "Done after so many epochs."),
    "metric": Key(TEXT, "Done once this metric, as the script reports it, reaches `target`."),
    "target": Key(NUMBER, "The value that `metric` has to reach."),
    "max": Key(whole(1), "Epochs after which it is done at the latest, with `metric`."),
}
CHECKPOINT = {
    "dir": Key(TEXT, "The folder of checkpoints; without it one that the service chooses."),
    "every": Key(DURATION, "How often a checkpoint is written."),
}
DEPENDENCY = {
    "job": Key(TEXT, "The id or the name of a job or an array."),
    "when": Key(choice(After), "What must have become of it."),
}
RESTART = {
    "max": Key(whole(0), "How often the job is tried again after a failure."),
    "on_exit": Key(wholes(1), "Only after these exit statuses."),
}
NOTICE = {
    "url": Key(TEXT, "The address that is told."),
    "on": Key(either(choice(WebhookEvent), list_of(choice(WebhookEvent))), "Of what it is told."),
}
OF_KUBERNETES = {
    "image": Key(TEXT, "The container image of the workers, as `image` says it for every backend."),
    "namespace": Key(TEXT, "The namespace of the pods."),
    "service_account": Key(TEXT, "The service account of the pods."),
    "image_pull_secrets": Key(list_of(TEXT), "Secrets with which the image is pulled."),
    "env_from": Key(OBJECTS, "Variables from Secrets and ConfigMaps, as the API has them."),
    "volumes": Key(OBJECTS, "Volumes of the pods, as the API has them."),
    "volume_mounts": Key(OBJECTS, "Where the worker's container mounts them, as the API has it."),
    "tolerations": Key(OBJECTS, "Tolerations of the pods, as the API has them."),
    "pod": Key(OBJECT, "A patch of the pod's spec, merged as `kubectl patch` merges."),
    "gated_pods": Key(OBJECTS, "Pods that exist already and wait behind the gate; written by the operator."),
}

JOB_FILE: Mapping[str, Key] = {
    "run": Key(
        Kind({**TEXT.in_file, "minLength": 1}, {"type": "string", "minLength": 1}),
        "A shell command, run once for each worker.",
    ),
    "name": Key(TEXT, "What people call the job; without it the file's name."),
    "labels": Key(TEXTS, "Texts that are kept and shown."),
    "queue": Key(TEXT, "The queue whose quota counts for it."),
    "priority": Key(SCALAR, "A whole number, larger is sooner; or the name of a priority class."),
    "setup": Key(TEXT, "A shell command, run once on each node before the workers of an attempt."),
    "workdir": Key(TEXT, "Where `run` starts."),
    "image": Key(TEXT, "The container image that workers run in, such as registry.example/team/train:1.2."),
    "envs": Key(TEXTS, "Environment variables of the workers."),
    "secrets": Key(
        either(TEXTS, list_of(TEXT)),
        "Secrets of yours that workers get as variables: names, or VARIABLE: NAME.",
    ),
    "resources": Key(section(RESOURCES), "What the job asks for first."),
    "elastic": Key(section(ELASTIC), "The sizes that it may have; without it exactly what it asks for."),
    "batch": Key(section(BATCH), "Samples that are trained on in one step."),
    "serving": Key(
        section(SERVING, ("latency", "requests_per_s")), "What a job with the purpose `serving` promises."
    ),
    "deadline": Key(MOMENT, "When it has to be done: so long after submission, or a date with its zone."),
    "rewards": Key(
        list_of(section(REWARD, ("by", "worth"))), "A soft deadline in steps, instead of `deadline`."
    ),
    "stop": Key(section(STOP), "When the training is done, as far as that is known beforehand."),
    "checkpoint": Key(section(CHECKPOINT), "Where the script keeps its state, and how often."),
    "preemptible": Key(TRUTH, "Whether other jobs may cause it to be stopped or moved once it runs."),
    "grace_period": Key(DURATION, "The time between SIGTERM and SIGKILL; 30s unless said."),
    "max_time": Key(DURATION, "The longest that it may run, restarts included."),
    "start_after": Key(MOMENT, "Not before: so long after submission, or a date with its zone."),
    "array": Key(
        either(SCALAR, Kind({"type": "array", "maxItems": MOST_TASKS, "items": whole(0).in_file}, OPEN)),
        "One job for each index: 0-9, 1,3,8-10, or 0-99%4 for four at a time.",
    ),
    "depends_on": Key(
        either(TEXT, list_of(either(TEXT, section(DEPENDENCY, ("job",))))), "What must come first."
    ),
    "restart": Key(section(RESTART), "What follows a failure."),
    "notify": Key(either(TEXT, list_of(either(TEXT, section(NOTICE, ("url",))))), "Addresses that are told."),
    "expected_time": Key(DURATION, "How long it takes on what it asks for, as its owner believes."),
    "slurm": Key(TEXTS, f"What its worker jobs ask of Slurm: {', '.join(OF_SLURM)}."),
    "kubernetes": Key(section(OF_KUBERNETES), "What its pods are, where the service runs on Kubernetes."),
    "kind": Key(choice(JobKind), "`interactive` where a person waits for it."),
    "purpose": Key(choice(Purpose), "What the job does with its model: it trains, infers, or serves."),
    "hold": Key(TRUTH, "Whether it waits until it is released."),
    "model": Key(TEXT, "What it trains; jobs of one model share what was measured of its speed."),
}


def file_schema() -> Schema:
    """The JSON Schema of a job file."""
    return {
        "$schema": DRAFT,
        "$id": NAMED,
        "title": "Job file of Stretto",
        **section(JOB_FILE, ("run",)).in_file,
    }


def resource_properties() -> Schema:
    """By key, what a resource of Kubernetes may say of a job."""
    return _in_resources(JOB_FILE)
