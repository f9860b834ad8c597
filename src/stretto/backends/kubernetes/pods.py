"""What a pod says of its worker.

Its GPUs are free once all its containers have terminated, or once its kubelet has let go of a pod that never
began. A deletion that was only asked for frees nothing, nor does one that was forced: what the kubelet of a
silent node does is unknown.

Annotations may be changed from outside, and the last message may come from a training. What does not read as
Stretto writes it counts as missing.
"""

import json
import math
import signal
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stretto.agent.requests import WORKER_ID
from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.objects import ContainerStatus, Pod, Terminated, condition
from stretto.backends.protocol import WorkerState

HOPELESS = frozenset(  # reasons why a container does not begin that no wait mends
    ["InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
     "RunContainerError"]
)  # fmt: skip
HOPELESS_S = 5.0  # of such a reason, before its pod is taken back; chosen
# Which kubelets also say of a Secret or ConfigMap that they have not yet heard of.
MAY_PASS = frozenset(["CreateContainerConfigError"])
GETS_READY = frozenset(["ContainerCreating", "PodInitializing"])  # images, volumes, init containers
# What a runtime and kubelets say of a container whose end nobody saw, as when its machine lost its power.
UNTOLD = ("Unknown", "ContainerStatusUnknown")
# What a kubelet says of a pod that it does not admit, also of one that it had before it began anew: OutOf… a
# resource, and these.
REJECTIONS = ("UnexpectedAdmissionError", "NodeAffinity", "NodeShutdown")
LOST_STATUS, WITHDRAWN_STATUS, CANNOT_START_STATUS = 137, 143, 125  # as of a shell, and of a container tool
MOST_WORDS = 500  # of a message
MOST_DIGITS = 3  # of a place on a node: one with more is none that we gave; chosen


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not begin."""

    why: str
    is_hopeless: bool  # and never will
    may_pass: bool = False  # although it looks so
    is_of_mounts: bool = False  # of volumes, or the network: where it is not hopeless it takes minutes


def worker_id(pod: Pod) -> str:
    """Of the worker that it is; "" where it names none, or what would be no file in a folder of logs."""
    text = pod.metadata.annotations.get(manifests.WORKER, "")
    return text if WORKER_ID.fullmatch(text) else ""


def job_of(pod: Pod) -> str:
    """Of the job whose worker it is."""
    return pod.metadata.labels.get(manifests.JOB) or worker_id(pod).partition(".")[0]


def meant_for(pod: Pod) -> str:
    """The node that it is meant for, as the service calls it."""
    return pod.metadata.annotations.get(manifests.NODE, "")


def machine_of(pod: Pod) -> str:
    """The name in the cluster of the node that it is meant for; "" where it does not say."""
    annotations = pod.metadata.annotations
    return annotations.get(manifests.MACHINE) or annotations.get(manifests.NODE, "")


def gpus_of(pod: Pod) -> tuple[int, ...]:
    """The places on its node that the service gave it."""
    text = pod.metadata.annotations.get(manifests.GPUS, "")
    return tuple(int(each) for each in text.split(",") if each.isdecimal() and len(each) <= MOST_DIGITS)


def orders_of(pod: Pod) -> list[dict[str, Any]]:
    """What its supervisor was asked to do."""
    orders = []
    for line in pod.metadata.annotations.get(manifests.ORDERS, "").splitlines():
        with suppress(ValueError):
            orders.append(json.loads(line))
    return [order for order in orders if isinstance(order, dict)]


def was_stopped(pod: Pod) -> bool:
    """Whether we asked it to end."""
    return any("stop" in order for order in orders_of(pod))


def is_worker(pod: Pod, service: str, known: Pod | None, namespace: str = "") -> bool:
    """Whether a pod with our label is a worker of ours: by its name, and by the namespace of its job.

    known: the pod of that worker so far. namespace: of its job, by the log; "": not known, and the first pod
    is the one. Labels and annotations are easily copied, as when a namespace is restored under another
    name. A name is one pod's in its namespace, at one time.
    """
    if is_copy(pod) or not worker_id(pod):
        return False
    if namespace and pod.metadata.namespace != namespace:
        return False
    if known is not None and known.metadata.namespace != pod.metadata.namespace:
        return False
    return pod.metadata.name == manifests.pod_name(service, worker_id(pod))


def is_copy(pod: Pod) -> bool:
    """Whether it was made after a pod whose container had begun, by others: a worker does not begin twice."""
    return pod.metadata.annotations.get(manifests.POD_UID, pod.metadata.uid) != pod.metadata.uid


def takes_room_on(pod: Pod, machine: str) -> bool:
    """Whether a pod is on a machine or on its way there, as kube-scheduler counts."""
    return machine in (pod.spec.nodeName, machine_of(pod)) and pod.status.phase not in ("Succeeded", "Failed")


def moved_jobs(there: Iterable[Pod], service: str, with_pods: Set[str]) -> dict[str, str]:
    """By job that has no pod where it should have some, the namespace in which others have their names.

    with_pods: jobs that have.
    """
    moved: dict[str, str] = {}
    for pod in there:
        job = worker_id(pod).partition(".")[0]
        is_named_so = pod.metadata.labels.get(manifests.SERVICE) == service and is_worker(pod, service, None)
        if is_named_so and job not in with_pods:
            moved.setdefault(job, pod.metadata.namespace)
    return moved


def state_of(pod: Pod, node: str, node_up: bool, node_dead: bool = False) -> WorkerState:
    """A worker as its pod shows it. node: where it is, or is meant to be as long as it is not bound."""
    annotations = pod.metadata.annotations
    facts: dict[str, Any] = {
        "id": worker_id(pod),
        "node": node,
        "gpus": gpus_of(pod),
        "job": job_of(pod),
        "stopped": was_stopped(pod),
    }
    if manifests.WITHDRAWN in annotations and has_let_go(pod):
        ending = withdrawn_ending(pod, annotations[manifests.WITHDRAWN], facts["stopped"])
        return WorkerState(**{**facts, **ending}, phase="ended")
    main = container_of(pod)
    ended = end_of(main) if main else None
    if ended is not None and _all_terminated(pod):
        return WorkerState(**{**facts, **ending_of(pod, ended)}, phase="ended")
    if has_let_go(pod):
        if manifests.BEGAN in annotations:
            return WorkerState(**facts, **lost_ending(pod), phase="ended")
        return WorkerState(**{**facts, **unbegun_ending(pod, facts["stopped"])}, phase="ended")
    if node_dead:
        return WorkerState(**facts, phase="ended", status=LOST_STATUS, signal=9, why="its node died")
    started_s = seconds(main.state.running.startedAt) if main and main.state.running else None
    if not node_up and pod.spec.nodeName:
        return WorkerState(**facts, phase="unknown", started_s=started_s)
    if pod.metadata.deletionTimestamp and pod.metadata.deletionGracePeriodSeconds == 0:
        why = "its pod was deleted by force: it is not known whether it still runs"
        return WorkerState(**facts, phase="unknown", started_s=started_s, why=why)
    if started_s is not None:
        return WorkerState(**facts, phase="running", started_s=started_s)
    trouble = trouble_of(pod)
    return WorkerState(**facts, phase="starting", why=trouble.why if trouble else "")


def vanished(last: WorkerState) -> WorkerState:
    """A worker whose pod is gone: only `forget` takes finalizers off. It has run, as far as we know."""
    why = "its pod was taken away, finalizer and all"
    return WorkerState(last.id, last.node, last.gpus, "ended", LOST_STATUS, 9, job=last.job, why=why)


def container_of(pod: Pod) -> ContainerStatus | None:
    """The container that is the worker; others are its owner's."""
    return next((each for each in pod.status.containerStatuses if each.name == manifests.CONTAINER), None)


def end_of(container: ContainerStatus) -> Terminated | None:
    """How a container ended; None for one that has not.

    Nothing of ours is started twice. So one that has a last state has ended, though its kubelet has it wait:
    it was gone before its kubelet saw how it ended.
    """
    return container.state.terminated or container.lastState.terminated


def _all_terminated(pod: Pod) -> bool:
    return all(end_of(each) is not None for each in pod.status.containerStatuses)


def has_let_go(pod: Pod) -> bool:
    """Whether nothing of it runs nor will, although its container has no ending.

    Either it was deleted before it was bound, or its kubelet has let go of it before its container began, or
    has never taken it. Or its kubelet has begun anew, and rejects what it had before.
    """
    begun = any(each.state.running or end_of(each) for each in pod.status.containerStatuses)
    if begun:
        return False
    if pod.status.phase in ("Failed", "Succeeded"):
        return True
    deleted = bool(pod.metadata.deletionTimestamp)
    return deleted and (not pod.spec.nodeName or pod.metadata.deletionGracePeriodSeconds == 0)


def ending_of(pod: Pod, ended: Terminated) -> dict[str, Any]:
    """How a worker ended, as its supervisor says, else its kubelet."""
    report = _report_in(ended.message)
    nobody_saw = not report and ended.reason in UNTOLD
    if nobody_saw:
        report = {"status": LOST_STATUS, "signal": signal.SIGKILL}
    status = int(report.get("status", ended.exitCode))
    number = _signal(report.get("signal", ended.signal or (status - 128 if status > 128 else None)))
    started_s, ended_s = seconds(ended.startedAt), seconds(ended.finishedAt)
    lasted_s = report.get("lasted_s")
    return {
        "status": status,
        "signal": number,
        # Also where others asked: who saves after an eviction and leaves with 0 is not done.
        "stopped": was_stopped(pod) or bool(report.get("stopped")),
        "started_s": report.get("started_s", started_s),
        "ended_s": report.get("ended_s", ended_s),
        "lasted_s": lasted_s if lasted_s is not None else _between(started_s, ended_s),
        "why": report.get("why") or _words_of(pod, ended, has_report=bool(report)),
        "is_nodes_fault": nobody_saw and not was_stopped(pod),
    }


REPORTED: Mapping[str, type | tuple[type, ...]] = {  # by a supervisor, or in a withdrawal, of its end
    "status": int,
    "signal": (int, type(None)),
    "stopped": bool,
    "started_s": (int, float),
    "ended_s": (int, float),
    "lasted_s": (int, float),
    "why": str,
}


def _report_in(text: str) -> dict[str, Any]:
    """What a text says of an end; {} where it is no report, or says something else than such."""
    report: Any = None
    with suppress(ValueError, RecursionError):
        report = json.loads(text)
    if not isinstance(report, dict) or report.get("status") is None:
        return {}
    known = {key: value for key, value in report.items() if key in REPORTED and value is not None}
    return known if all(isinstance(value, REPORTED[key]) for key, value in known.items()) else {}


def _signal(number: int | None) -> int | None:
    return number if number in {*signal.Signals} else None


def withdrawn_ending(pod: Pod, text: str, was_asked: bool) -> dict[str, Any]:
    """How a worker counts whose pod was taken back before it began, by what was noted then."""
    report = _report_in(text)
    if not report:
        return unbegun_ending(pod, was_asked)
    return {
        "status": report["status"],
        "signal": _signal(report.get("signal")),
        "stopped": report.get("stopped", was_asked),
        "why": report.get("why", "")[:MOST_WORDS],
    }


def _between(started_s: float | None, ended_s: float | None) -> float | None:
    return None if started_s is None or ended_s is None else max(ended_s - started_s, 0.0)


def _words_of(pod: Pod, ended: Terminated, has_report: bool) -> str:
    """Kubernetes' own words for an end that is more than its exit status."""
    disruption = condition(pod.status.conditions, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return f"Kubernetes says {disruption.reason}: {disruption.message}"[:MOST_WORDS]
    if pod.status.reason:
        return f"Kubernetes says {pod.status.reason}: {pod.status.message}".rstrip(": ")[:MOST_WORDS]
    if ended.reason not in ("", "Completed", "Error"):
        words = "" if has_report else f": {ended.message}".rstrip(": ")
        return f"Kubernetes says {ended.reason}{words}"[:MOST_WORDS]
    if not was_stopped(pod) and pod.metadata.deletionTimestamp:
        return "its pod was deleted by somebody else"
    return ""


def unbegun_ending(pod: Pod, was_asked: bool) -> dict[str, Any]:
    """How a worker ended whose container never began."""
    reason = pod.status.reason or ("" if was_asked else "deleted by somebody else")
    words = f"{reason}: {pod.status.message}".strip(": ")
    why = f"it was withdrawn before it began{f'. Kubernetes says {words}' if words else ''}"
    return {"status": WITHDRAWN_STATUS, "signal": 15, "stopped": True, "why": why[:MOST_WORDS]}


def mark_due(pod: Pod) -> dict[str, str]:
    """What is to be noted in a pod whose container runs: when it began, and which pod it is."""
    main = container_of(pod)
    if main is None or not main.state.running:
        return {}
    marks = {manifests.BEGAN: main.state.running.startedAt, manifests.POD_UID: pod.metadata.uid}
    return {name: text for name, text in marks.items() if name not in pod.metadata.annotations}


def lost_ending(pod: Pod) -> dict[str, Any]:
    """How a worker ended that began, and whose kubelet says nothing of its container any more."""
    reason = pod.status.reason
    words = f"{reason}: {pod.status.message}".strip(": ")
    is_rejected = reason in REJECTIONS or reason.startswith("OutOf")
    return {
        "status": LOST_STATUS,
        "signal": signal.SIGKILL,
        "started_s": seconds(pod.metadata.annotations[manifests.BEGAN]),
        "why": f"Kubernetes says {words}"[:MOST_WORDS] if words else "its kubelet tells no more of it",
        "is_nodes_fault": is_rejected and not was_stopped(pod),
    }


def says_new(before: Pod, after: Pod) -> bool:
    """Whether a pod says more than before; our own marks once it began are no news."""

    def told(pod: Pod) -> tuple[object, ...]:
        annotations = {
            name: text
            for name, text in pod.metadata.annotations.items()
            if name not in (manifests.BEGAN, manifests.POD_UID)
        }
        deletion = (pod.metadata.deletionTimestamp, pod.metadata.deletionGracePeriodSeconds)
        return pod.metadata.uid, pod.metadata.labels, annotations, *deletion, pod.spec, pod.status

    return told(before) != told(after)


def trouble_of(pod: Pod) -> Trouble | None:
    """What keeps a pod from beginning, in Kubernetes' own words; None for nothing that it says."""
    for each in (*pod.status.initContainerStatuses, *pod.status.containerStatuses):
        waiting = each.state.waiting
        if waiting and waiting.reason and waiting.reason not in GETS_READY:
            words = f"{waiting.reason}: {waiting.message}".strip(": ")
            return Trouble(words[:MOST_WORDS], waiting.reason in HOPELESS, waiting.reason in MAY_PASS)
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return Trouble(f"{scheduled.reason}: {scheduled.message}".strip(": ")[:MOST_WORDS], False)
    return None


def patience_s(
    pod: Pod, trouble: Trouble | None, pending_s: float, begin_s: float, mount_s: float = math.inf
) -> float:
    """How long a pod may wait before it is taken back.

    pending_s: for a node, and with a trouble that may pass. begin_s: while its node gets it ready. mount_s:
    while that node says that it cannot.
    """
    if trouble is not None and trouble.is_of_mounts and not trouble.is_hopeless:
        return min(mount_s, begin_s)
    if trouble is not None:
        return HOPELESS_S if trouble.is_hopeless and not trouble.may_pass else pending_s
    statuses = (*pod.status.initContainerStatuses, *pod.status.containerStatuses)
    runs = any(each.state.running for each in statuses)  # an init container does
    return begin_s if runs or is_getting_ready(pod) else pending_s


def is_getting_ready(pod: Pod) -> bool:
    """Whether its node pulls its image, attaches volumes or runs init containers, as far as a pod says."""
    statuses = (*pod.status.initContainerStatuses, *pod.status.containerStatuses)
    return any(each.state.waiting and each.state.waiting.reason in GETS_READY for each in statuses)


def withdrawal(trouble: Trouble | None, waited_s: float) -> Mapping[str, Any]:
    """How a worker counts whose pod is taken back since it did not begin."""
    words = trouble.why if trouble else "its kubelet did not begin it"
    why = f"its pod did not begin within {waited_s:.0f} s: {words}"
    image = trouble is not None and (trouble.is_hopeless or "Image" in trouble.why.partition(":")[0])
    if image or (trouble is not None and trouble.is_hopeless):
        return {
            "status": CANNOT_START_STATUS,
            "signal": None,
            "stopped": False,
            "why": f"cannot start: {words}",
        }
    return {"status": WITHDRAWN_STATUS, "signal": 15, "stopped": True, "why": why}


def seconds(stamp: str | None) -> float | None:
    """A time of the API as seconds since 1970; None for none."""
    if not stamp:
        return None
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    return None


def key_of_job(pod: Pod) -> tuple[str, str]:
    """Namespace and job of a worker's pod."""
    return pod.metadata.namespace, job_of(pod)
