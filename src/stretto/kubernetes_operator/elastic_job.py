"""The `ElasticJob` custom resource: its spec is a job file, and `suspend` is hold."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from stretto.backends.kubernetes.api import Kind
from stretto.backends.kubernetes.objects import Object
from stretto.errors import InputError
from stretto.jobfile.kubernetes_section import GATED_PODS
from stretto.jobfile.parts import wrong

GROUP, VERSION, PLURAL, KIND = "stretto.dev", "v1alpha1", "elasticjobs", "ElasticJob"
FINALIZER = "stretto.dev/elastic-job"  # keeps a deleted resource until its job has ended
# Keys of the spec that may change while the job runs; all others hold for its whole life.
MUTABLE = ("suspend", "elastic", "priority")


class ElasticJob(Object):
    """One resource."""

    spec: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it for each object
    status: dict[str, Any] = {}  # noqa: RUF012

    @property
    def is_suspended(self) -> bool:
        """Whether its job is to hold no GPUs."""
        return bool(self.spec.get("suspend"))

    @property
    def key(self) -> str:
        """Of idempotency: a resource that is seen again, or by another operator, is the same job."""
        return f"elasticjob-{self.metadata.uid}"


ELASTIC_JOBS: Kind[ElasticJob] = Kind(PLURAL, ElasticJob, f"apis/{GROUP}/{VERSION}")


def job_file_of(resource: ElasticJob) -> str:
    """The job file that a resource stands for, as JSON. Raises InputError.

    Its pods are of the resource's own namespace: a user who may create resources in one namespace gets pods
    in no other. What a resource adds to a job file is `suspend`.
    """
    metadata, entries = resource.metadata, dict(resource.spec)
    if "array" in entries:
        raise InputError("spec.array: expected none, since a resource is one job; `stretto submit` takes it")
    if "hold" in entries:
        raise InputError("spec.hold: expected `suspend`, as resources of Kubernetes say it")
    entries["hold"] = bool(entries.pop("suspend", False))
    entries.setdefault("name", metadata.name)
    section = entries.get("kubernetes") or {}
    if not isinstance(section, Mapping):
        raise wrong("spec.kubernetes", "an object", section)
    if section.get("namespace", metadata.namespace) != metadata.namespace:
        raise wrong("spec.kubernetes.namespace", metadata.namespace, section["namespace"])
    if GATED_PODS in section:
        raise InputError(f"spec.kubernetes.{GATED_PODS}: expected none, since the operator alone writes it")
    entries["kubernetes"] = {**section, "namespace": metadata.namespace}
    return json.dumps(entries)


def digest_of(resource: ElasticJob) -> str:
    """Of everything in the spec that a running job cannot change."""
    fixed = {key: value for key, value in resource.spec.items() if key not in MUTABLE}
    elastic = resource.spec.get("elastic")
    if isinstance(elastic, Mapping):
        fixed["elastic"] = {"sizes": elastic.get("sizes")}  # bounds may change, a list of sizes may not
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def bounds_of(resource: ElasticJob) -> tuple[int, int | None] | None:
    """(fewest, most) GPUs that the spec allows; None where its job is rigid, or its sizes are listed.

    Fewest is 1 where the spec does not say it, as in a job file; most is None where there is no upper bound.
    Raises InputError for bounds that contradict each other.
    """
    elastic = resource.spec.get("elastic")
    if not isinstance(elastic, Mapping) or "sizes" in elastic:
        return None
    fewest, most = elastic.get("min", 1), elastic.get("max")
    if not (isinstance(fewest, int) and fewest >= 1) or not (
        most is None or (isinstance(most, int) and fewest <= most)
    ):
        raise InputError(f"spec.elastic: expected min from 1 to max, got {fewest!r} and {most!r}")
    return fewest, most
