"""Which pods belong together, and how many of them their owner makes.

A gang is all pods of a Job, or of one attempt of a JobSet, as TrainJobs make them. A pod without an owner is
one by itself.
"""

# Names of fields are the API's own, in its own case.
# ruff: noqa: N815

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from msgspec import field

from stretto.backends.kubernetes import inventory
from stretto.backends.kubernetes.api import Api, Kind
from stretto.backends.kubernetes.gated_pods import GatedPod
from stretto.backends.kubernetes.informer import Key
from stretto.backends.kubernetes.objects import Object, OwnerReference, Pod, PodSpec
from stretto.kubernetes_operator.events import Involved

JOB_SET, ATTEMPT = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/restart-attempt"  # labels
COUNT = "stretto.dev/pods"  # annotation: how many an owner makes that is of a kind which we do not know


class PodTemplate(msgspec.Struct):
    """What pods are made of."""

    spec: PodSpec = field(default_factory=PodSpec)


class BatchJobSpec(msgspec.Struct):
    """How many pods a Job makes."""

    parallelism: int = 1
    completions: int | None = None
    template: PodTemplate = field(default_factory=PodTemplate)

    @property
    def at_once(self) -> int:
        """Pods that there are at the same time."""
        return self.parallelism if self.completions is None else min(self.parallelism, self.completions)


class BatchJobStatus(msgspec.Struct):
    """How many of them have ended well."""

    succeeded: int = 0


class BatchJob(Object):
    """A Job of `batch/v1`."""

    spec: BatchJobSpec = field(default_factory=BatchJobSpec)
    status: BatchJobStatus = field(default_factory=BatchJobStatus)


class JobTemplate(msgspec.Struct):
    """What Jobs are made of."""

    spec: BatchJobSpec = field(default_factory=BatchJobSpec)


class ReplicatedJob(msgspec.Struct):
    """Jobs of a JobSet that are all alike."""

    replicas: int = 1
    template: JobTemplate = field(default_factory=JobTemplate)


class JobSetSpec(msgspec.Struct):
    """The Jobs of a JobSet."""

    replicatedJobs: list[ReplicatedJob] = []


class JobSet(Object):
    """A JobSet."""

    spec: JobSetSpec = field(default_factory=JobSetSpec)


JOBS: Kind[BatchJob] = Kind("jobs", BatchJob, "apis/batch/v1")
JOB_SETS: Kind[JobSet] = Kind("jobsets", JobSet, "apis/jobset.x-k8s.io/v1alpha2")


@dataclass(frozen=True, slots=True)
class PodOwner:
    """What makes pods. pods: how many there are at once that ask for GPUs; None: it does not say."""

    about: Involved
    pods: int | None
    counts_ended: bool = False  # whether pods that have ended count, since it makes none in their place


def gpus_of(pod: Pod, resources: Collection[str] = inventory.GPU_RESOURCES) -> int:
    """GPUs that a pod asks for, by whichever of these resources; also once it has ended."""
    return max((int(inventory.requested(pod, name)) for name in resources), default=0)


def group_of(pod: Pod) -> Key:
    """(namespace, name) of the pods that belong together with this one."""
    owner, labels = controller_of(pod), pod.metadata.labels
    if owner is None:
        return pod.metadata.namespace, f"Pod/{pod.metadata.name}/{pod.metadata.uid}"
    if is_batch_job(owner) and (name := labels.get(JOB_SET)):
        return pod.metadata.namespace, f"JobSet/{name}/{labels.get(ATTEMPT, '0')}"
    return pod.metadata.namespace, f"{owner.kind}/{owner.name}/{owner.uid}"


def controller_of(item: Object) -> OwnerReference | None:
    """What made it; None where nothing did."""
    return next((each for each in item.metadata.ownerReferences if each.controller), None)


def is_batch_job(owner: OwnerReference) -> bool:
    """Whether it is a Job of Kubernetes itself."""
    return owner.kind == "Job" and owner.apiVersion.startswith("batch/")


async def owner_of(
    api: Api, pod: GatedPod, resources: Collection[str] = inventory.GPU_RESOURCES
) -> PodOwner | None:
    """The owner of a pod, as it is now; None where it is gone. Raises Refusal, BackendUnreachable."""
    metadata, owner = pod.metadata, controller_of(pod)
    if owner is None:
        return PodOwner(Involved("v1", "Pod", metadata.namespace, metadata.name, metadata.uid), 1)
    about = Involved(owner.apiVersion, owner.kind, metadata.namespace, owner.name, owner.uid)
    if not is_batch_job(owner):
        count = metadata.annotations.get(COUNT, "")
        return PodOwner(about, int(count) if count.isdecimal() and int(count) else None)
    if name := metadata.labels.get(JOB_SET):
        return await _job_set(api, metadata.namespace, name, resources)
    job = await api.get(JOBS, metadata.namespace, owner.name)
    if job is None or job.metadata.uid != owner.uid or job.metadata.deletionTimestamp:
        return None
    left = job.spec.at_once
    if job.spec.completions is not None:
        left = min(left, max(job.spec.completions - job.status.succeeded, 1))
    return PodOwner(about, left)


async def _job_set(api: Api, namespace: str, name: str, resources: Collection[str]) -> PodOwner | None:
    """A JobSet, or the TrainJob that made it. Jobs without GPUs, as those that load data, do not count."""
    job_set = await api.get(JOB_SETS, namespace, name)
    if job_set is None or job_set.metadata.deletionTimestamp:
        return None
    pods = sum(
        each.replicas * each.template.spec.at_once
        for each in job_set.spec.replicatedJobs
        if gpus_of(Pod(spec=each.template.spec.template.spec), resources)
    )
    maker = controller_of(job_set)
    if maker is not None:
        about = Involved(maker.apiVersion, maker.kind, namespace, maker.name, maker.uid)
    else:
        about = Involved(
            JOB_SETS.prefix.removeprefix("apis/"), "JobSet", namespace, name, job_set.metadata.uid
        )
    return PodOwner(about, pods, counts_ended=True)
