"""Pods of other people that wait behind our scheduling gate, until a job of ours has nodes for them.

They exist before they are placed, and belong to a Job, a TrainJob or to no owner. So nothing is created here
and nothing deleted. A start is one patch: it names the node as a required affinity, marks the pod as ours,
and takes the gate off. kube-scheduler binds. From the mark on a pod counts as a worker of ours, never as
foreign.

The API server allows a gated pod to be narrowed only: existing terms of its affinity stay as they are.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stretto.backends.kubernetes import inventory, manifests, pods
from stretto.backends.kubernetes.api import Api, Kind, Refusal
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.objects import Node, Pod, PodSpec, SchedulingGate
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NotNow, StartRefused, WorkerStart, WorkerState
from stretto.errors import InputError
from stretto.jobfile import JobSpec
from stretto.jobfile.kubernetes_section import GATED_PODS

GATE = f"{manifests.DOMAIN}/gate"  # in `spec.schedulingGates`
OF_JOB = f"{manifests.DOMAIN}/gated-job"  # label: the job that is to place it
PLACED_BY = f"{manifests.DOMAIN}/placed-by"  # label: the service that has lifted its gate
TRIES = 5  # of a patch while others change the same pod; chosen
FAILED = 1  # the status of a worker whose pod did not succeed
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# What tells a placed pod as ours, and which worker it is.
OURS = (manifests.WORKER, manifests.REQUEST, manifests.NODE, manifests.MACHINE, manifests.GPUS)

log = logging.getLogger(__name__)


class GatedSpec(PodSpec):
    """What a pod says of where it may run; values are the API's own."""

    schedulingGates: list[SchedulingGate] = []  # noqa: N815, RUF012 - the API's name; msgspec copies it
    nodeSelector: dict[str, str] = {}  # noqa: N815, RUF012
    affinity: dict[str, Any] = {}  # noqa: RUF012
    tolerations: list[dict[str, Any]] = []  # noqa: RUF012
    topologySpreadConstraints: list[dict[str, Any]] = []  # noqa: N815, RUF012


class GatedPod(Pod):
    """A pod, with what it says of where it may run."""

    spec: GatedSpec = msgspec.field(default_factory=GatedSpec)

    @property
    def gates(self) -> list[str]:
        """Names of what it waits for before kube-scheduler looks at it."""
        return [gate.name for gate in self.spec.schedulingGates]


PODS_IN_FULL: Kind[GatedPod] = Kind("pods", GatedPod)


# ── where a pod may run ───────────────────────────────────────────────────────────────────────────


def terms_of(pod: GatedPod) -> list[dict[str, Any]]:
    """The terms of its required node affinity, of which a node has to meet one; [] for none."""
    affinity = (pod.spec.affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    return list(affinity.get("nodeSelectorTerms") or ())


def misfit(pod: GatedPod, node: Node) -> str:
    """What of a pod keeps it off a node; "" for nothing. GPUs, cores and memory are not looked at."""
    for key, value in pod.spec.nodeSelector.items():
        if node.metadata.labels.get(key) != value:
            return f"its node selector {key}={value}"
    terms = terms_of(pod)
    if terms and not any(_meets(term, node) for term in terms):
        return "its required node affinity"
    for taint in node.spec.taints:
        if inventory.keeps_away(taint, pod.spec.tolerations):
            return f"the taint {taint.key}:{taint.effect}, which it does not tolerate"
    return ""


def not_ours_to_decide(pod: GatedPod) -> str:
    """What a pod asks for that only kube-scheduler can weigh, so that we may name it a wrong node."""
    for kind in ("podAffinity", "podAntiAffinity"):
        if (pod.spec.affinity.get(kind) or {}).get(REQUIRED):
            return f"a required {kind}"
    for constraint in pod.spec.topologySpreadConstraints:
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
            return "topologySpreadConstraints with DoNotSchedule"
    return ""


def _meets(term: Mapping[str, Any], node: Node) -> bool:
    """Whether a node meets all requirements of a term; an empty term is met by none."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    return all(_has(each, node.metadata.labels) for each in labels) and all(
        _has(each, {"metadata.name": node.metadata.name}) for each in fields
    )


def _has(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """Whether labels or fields are as a requirement wants them."""
    value = values.get(str(requirement.get("key", "")))
    wanted = list(requirement.get("values") or ())
    match requirement.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            numbers = (_whole(value), _whole(wanted[0] if wanted else None))
            if numbers[0] is None or numbers[1] is None:
                return False
            return numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1]
    return False  # an operator that we do not know


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


# ── what a placed pod says of its worker ──────────────────────────────────────────────────────────


def state_of(pod: Pod, node: str, is_up: bool, is_dead: bool) -> WorkerState:
    """A worker that is other people's pod, by the phase of that pod. node: where it is or is to be.

    It has status 0 or 1 and no other, whatever its containers end with. Other statuses would have the job
    tried again, and pods that have run do not run once more.
    """
    facts: dict[str, Any] = {
        "id": pods.worker_id(pod),
        "node": node,
        "gpus": pods.gpus_of(pod),
        "job": pod.metadata.labels.get(OF_JOB, ""),
    }
    running = [each.state.running for each in pod.status.containerStatuses if each.state.running]
    if not running and pod.status.phase in ("Succeeded", "Failed"):
        did_fail = pod.status.phase == "Failed"
        return WorkerState(**facts, phase="ended", status=FAILED * did_fail, why=_words(pod) * did_fail)
    if pods.has_let_go(pod):
        return WorkerState(**facts, phase="ended", status=FAILED, why="its pod was deleted before it began")
    if is_dead:
        return WorkerState(**facts, phase="ended", status=FAILED, why="its node died")
    started_s = min(filter(None, (pods.seconds(each.startedAt) for each in running)), default=None)
    if not is_up and pod.spec.nodeName:
        return WorkerState(**facts, phase="unknown", started_s=started_s)
    if pod.metadata.deletionTimestamp and pod.metadata.deletionGracePeriodSeconds == 0:
        why = "its pod was deleted by force: it is not known whether it still runs"
        return WorkerState(**facts, phase="unknown", started_s=started_s, why=why)
    if running or pod.status.phase == "Running":
        return WorkerState(**facts, phase="running", started_s=started_s)
    trouble = pods.trouble_of(pod)
    return WorkerState(**facts, phase="starting", why=trouble.why if trouble else "")


def vanished(last: WorkerState) -> WorkerState:
    """A worker whose pod is gone, as when its owner was deleted: how it ended was not seen."""
    why = "its pod was deleted before its end was seen"
    return WorkerState(last.id, last.node, last.gpus, "ended", FAILED, job=last.job, why=why)


def where_its_log_is(pod: Pod) -> str:
    """A line in place of a log, which we do not copy."""
    metadata = pod.metadata
    return f"its log is with its pod: kubectl logs -n {metadata.namespace} {metadata.name}"


def _words(pod: Pod) -> str:
    """Why a pod has failed, in its own words."""
    name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    if pod.status.reason:
        return f"{name}: {pod.status.reason}: {pod.status.message}".rstrip(": ")[: pods.MOST_WORDS]
    for each in pod.status.containerStatuses:
        ended = each.state.terminated
        if ended is not None and ended.exitCode:
            return f"{name}: container {each.name}: {ended.reason or 'Error'}, exit status {ended.exitCode}"
    return f"{name} has failed"


# ── lifting gates ─────────────────────────────────────────────────────────────────────────────────


class GateLifter:
    """Places pods of other people on behalf of one service."""

    def __init__(self, api: Api, service: str, listed: Callable[[str, str], Pod | None]) -> None:
        """listed: a pod by namespace and name, as the watch has told of it."""
        self.api, self.service, self.listed = api, service, listed
        self.marks: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # labels, annotations; by uid

    def is_placed(self, pod: Pod) -> bool:
        """Whether a pod of other people is a worker of ours. What took its marks off since is undone."""
        metadata = pod.metadata
        if metadata.labels.get(PLACED_BY) == self.service and pods.worker_id(pod):
            annotations = {key: metadata.annotations[key] for key in OURS if key in metadata.annotations}
            labels = {key: metadata.labels[key] for key in (PLACED_BY, OF_JOB) if key in metadata.labels}
            self.marks[metadata.uid] = labels, annotations
        elif metadata.uid not in self.marks:
            return False
        labels, annotations = self.marks[metadata.uid]
        # Its GPUs are ours to count for as long as it runs, whatever is done to its labels.
        metadata.labels = {**metadata.labels, **labels}
        metadata.annotations = {**metadata.annotations, **annotations}
        return True

    def drop(self, pod: Pod) -> None:
        """A pod is gone."""
        self.marks.pop(pod.metadata.uid, None)

    async def lift(self, worker: WorkerStart, node: Node, gpus: Gpus) -> Pod:
        """Name the pod of a worker its node, and take its gate off; the pod as it then is.

        Raises NotNow, StartRefused, BackendUnreachable. What was done before is done once.
        """
        namespace, name, uid = reference_of(worker)
        for _ in range(TRIES):
            try:
                pod = await self.api.get(PODS_IN_FULL, namespace, name)
                if pod is None or pod.metadata.uid != uid:
                    raise StartRefused(f"worker {worker.id}: pod {namespace}/{name} is not there any more")
                if PLACED_BY in pod.metadata.labels:
                    return self._same(worker, pod)
                self._check(worker, pod, node, gpus)
                self._check_peers(worker, namespace)
                patch = lifting(pod, worker, node.metadata.name, self.service)
                lifted = await self.api.patch(PODS_IN_FULL, namespace, name, patch)
            except Refusal as refusal:
                if refusal.code in (404, 409):  # gone, or changed by others since: look again
                    continue
                why = f"worker {worker.id}: the API server refuses to lift pod {namespace}/{name}: {refusal}"
                raise (NotNow(why) if refusal.is_for_later else StartRefused(why)) from None
            _check_lifted(lifted, node.metadata.name)
            return lifted
        raise NotNow(f"worker {worker.id}: pod {namespace}/{name} is changed by others all the time")

    def _same(self, worker: WorkerStart, pod: GatedPod) -> Pod:
        """What was placed before; raises StartRefused where that was for something else."""
        annotations, metadata = pod.metadata.annotations, pod.metadata
        as_worker = (metadata.labels[PLACED_BY], annotations.get(manifests.WORKER))
        if as_worker != (self.service, worker.id):
            where = f"pod {metadata.namespace}/{metadata.name}"
            raise StartRefused(f"worker {worker.id}: {where} was placed before, as {as_worker[1]}")
        return pod

    def _check(self, worker: WorkerStart, pod: GatedPod, node: Node, gpus: Gpus) -> None:
        """Raise StartRefused for a pod that cannot be placed there, NotNow for one that cannot yet."""
        where = f"worker {worker.id}: pod {pod.metadata.namespace}/{pod.metadata.name}"
        if pod.metadata.deletionTimestamp:
            raise StartRefused(f"{where} is being deleted")
        if GATE not in pod.gates:
            raise StartRefused(f"{where} has no gate {GATE} any more: somebody else has lifted it")
        if others := [gate for gate in pod.gates if gate != GATE]:
            raise NotNow(f"{where} waits behind the gate {others[0]}, too")
        if pod.metadata.labels.get(OF_JOB) != worker.job:
            raise NotNow(f"{where} has no label {OF_JOB}={worker.job} yet, by which its owner's job is known")
        if (wants := inventory.gpus_requested(pod, gpus.resource)) != len(worker.gpus):
            raise StartRefused(
                f"{where} asks for {wants} {gpus.resource}, and its job for {len(worker.gpus)} a worker"
            )
        if why := misfit(pod, node) or not_ours_to_decide(pod):
            raise StartRefused(f"{where} cannot be placed on {node.metadata.name}: {why}")

    def _check_peers(self, worker: WorkerStart, namespace: str) -> None:
        """Raise unless all pods of the job can be placed, or some have been: all or none are.

        Once the first is placed, the others follow whatever happens: a part of a job must not wait for ever.
        """
        references = references_in(worker.asks[KubernetesOptions.name])
        peers = [(each["name"], each["uid"], self.listed(namespace, each["name"])) for each in references]
        there = [(name, pod) for name, uid, pod in peers if pod is not None and pod.metadata.uid == uid]
        if any(PLACED_BY in pod.metadata.labels for _, pod in there):
            return
        if missing := {name for name, _, _ in peers} - {name for name, _ in there}:
            raise StartRefused(
                f"worker {worker.id}: pod {namespace}/{min(missing)} of the same job is not there any more"
            )
        for name, pod in there:
            if pod.metadata.deletionTimestamp:
                raise StartRefused(
                    f"worker {worker.id}: pod {namespace}/{name} of the same job is being deleted"
                )
            if pod.metadata.labels.get(OF_JOB) != worker.job:
                raise NotNow(f"worker {worker.id}: pod {namespace}/{name} is not known to be of its job yet")


def lifting(pod: GatedPod, worker: WorkerStart, machine: str, service: str) -> dict[str, Any]:
    """The one patch by which a pod gets its node and loses its gate, in the version that we have seen."""
    on_node = {"key": "metadata.name", "operator": "In", "values": [machine]}
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), on_node]}
        if term.get("matchFields") or term.get("matchExpressions")
        else term  # it is met by no node, and may not be changed
        for term in terms_of(pod)
    ]
    annotations = {
        manifests.WORKER: worker.id,
        manifests.REQUEST: manifests.request_digest(worker),
        manifests.NODE: worker.node,
        manifests.GPUS: ",".join(map(str, worker.gpus)),
        **({manifests.MACHINE: machine} if machine != worker.node else {}),
    }
    affinity = {REQUIRED: {"nodeSelectorTerms": terms or [{"matchFields": [on_node]}]}}
    return {
        "metadata": {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resourceVersion,
            "labels": {PLACED_BY: service},
            "annotations": annotations,
        },
        "spec": {
            "affinity": {"nodeAffinity": affinity},
            "schedulingGates": [{"name": gate} for gate in pod.gates if gate != GATE],
        },
    }


def _check_lifted(pod: GatedPod, machine: str) -> None:
    """Raise StartRefused where the API server took the patch, and did not do what it says."""
    fields = [each for term in terms_of(pod) for each in term.get("matchFields") or ()]
    is_on_node = any(each.get("values") == [machine] for each in fields)
    if GATE in pod.gates or not is_on_node:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        raise StartRefused(f"pod {name}: the API server took its node or its gate otherwise than asked")


def references_in(section: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Pods of other people that a job is to place, by the index of its workers; () for a job of our own."""
    references: Sequence[Mapping[str, str]] = section.get(GATED_PODS, ())
    return references


def reference_of(worker: WorkerStart) -> tuple[str, str, str]:
    """(namespace, name, uid) of the pod that is this worker. Raises StartRefused for one too many."""
    section = worker.asks[KubernetesOptions.name]
    references, index = references_in(section), int(worker.id.rpartition(".")[2])
    if index >= len(references):
        raise StartRefused(f"worker {worker.id}: expected at most {len(references)}, as many as it has pods")
    return str(section["namespace"]), references[index]["name"], references[index]["uid"]


def check(spec: JobSpec, is_on: bool) -> None:
    """Raise InputError for a job of other people's pods that is none, or that this service does not place."""
    count = len(references_in(spec.kubernetes))
    key = f"kubernetes.{GATED_PODS}"
    if not is_on:
        raise InputError(f"{key}: this service places no pods of others: expected --set backend.gate=true")
    if not spec.kubernetes.get("namespace"):
        raise InputError(f"{key}: expected kubernetes.namespace with it")
    if spec.elastic is not None or spec.array is not None or spec.preemptible:
        raise InputError(f"{key}: expected a rigid job, without elastic, array or preemptible")
    if spec.image:
        raise InputError(f"image: expected none beside {key}: such pods have an image of their own")
    if spec.secrets:
        raise InputError(f"secrets: expected none beside {key}: such pods have variables of their own")
    if spec.gpus != count * spec.resources.gpus_per_worker:
        raise InputError(
            f"{key}: expected as many GPUs as {count} workers of {spec.resources.gpus_per_worker} have, "
            f"got {spec.gpus}"
        )
