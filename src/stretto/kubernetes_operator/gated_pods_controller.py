"""Other people's pods as jobs of a service: those that wait behind our gate in namespaces with our label.

A gang of gated pods is submitted once, under its owner's uid, and each of its pods gets the job's id as a
label. The label is what a service looks for before it lifts a gate, and all that an operator has to find
again. Pods are never created, changed otherwise, or deleted.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.backends.kubernetes.api import NODES, Api, Kind, suppress_refusal
from stretto.backends.kubernetes.gated_pods import GATE, OF_JOB, PLACED_BY, PODS_IN_FULL, GatedPod
from stretto.backends.kubernetes.informer import Informer, Key
from stretto.backends.kubernetes.inventory import gpu_resources
from stretto.backends.kubernetes.objects import Node, Object
from stretto.backends.kubernetes.pods import seconds
from stretto.client import Client, Refused, ServiceError
from stretto.errors import InputError, KeyTaken
from stretto.kubernetes_operator.events import Involved, write_event
from stretto.kubernetes_operator.follower import Follower
from stretto.kubernetes_operator.gated_gangs import PREFIX, Gang, Obstacle, gang_of, job_file_of
from stretto.kubernetes_operator.pod_owners import PodOwner, controller_of, gpus_of, group_of, owner_of
from stretto.kubernetes_operator.status import ENDED, camel

LABEL, QUEUE = "stretto.dev/gate", "stretto.dev/queue"  # labels of a namespace: "true", and the queue's name
GANG = "stretto.dev/gated-pods"  # annotation of a pod: how many there are of its job
FIRST_VERSION = (1, 27, 3)  # before it a gated pod without an affinity cannot be given a node
PATIENCE_S = 30.0  # with pods that are still to come, before it is told that they are missing; chosen
STRAY_S = 60.0  # after which a job is cancelled none of whose pods is there; chosen
LONGEST_PAUSE_S = 300.0  # before pods are submitted again whose job has ended without them; chosen
MOST_RETRIES = 1_000  # of these; chosen
OVER = ("Succeeded", "Failed")

log = logging.getLogger(__name__)

NAMESPACES: Kind[Object] = Kind("namespaces", Object, namespaced=False)


@dataclass
class Group:
    """Pods of one owner that ask for GPUs, and the jobs that they are of."""

    pods: dict[str, GatedPod] = field(default_factory=dict)  # by uid
    jobs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # uids of pods, by job
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)  # jobs that have, by id
    endings: int = 0  # of jobs that have left gated pods behind
    ended_s: float = 0.0  # when the last of them did; monotonic

    @property
    def matters(self) -> bool:
        """Whether any of it is ours to look after."""
        return bool(self.jobs) or any(GATE in pod.gates for pod in self.pods.values())

    @property
    def pause_s(self) -> float:
        """Until gated pods may be submitted once more."""
        pause_s = min(2.0**self.endings, LONGEST_PAUSE_S) if self.endings else 0.0
        return self.ended_s + pause_s - time.monotonic()

    def alive(self) -> list[GatedPod]:
        """Those that have neither ended nor are being deleted."""
        return [
            pod
            for pod in self.pods.values()
            if pod.status.phase not in OVER and not pod.metadata.deletionTimestamp
        ]

    def gated(self) -> list[GatedPod]:
        """Those of them that wait behind our gate."""
        return [pod for pod in self.alive() if GATE in pod.gates]


class GateOperator(Follower):
    """Follows gated pods of all namespaces on behalf of one service."""

    def __init__(self, api: Api, service: Client, gpu_resource: str = "") -> None:
        """service: a connection, which is closed at the end. gpu_resource: as for the service's backend."""
        super().__init__(service)
        self.api, self.resources = api, gpu_resources(gpu_resource)
        self.nodes: Informer[Node] = Informer(api, NODES, "", lambda *_: None)
        self.namespaces: Informer[Object] = Informer(api, NAMESPACES, "", self._namespace_changed)
        self.pods: Informer[GatedPod] = Informer(api, PODS_IN_FULL, "", self._pod_changed)
        self.groups: dict[Key, Group] = defaultdict(Group)
        self._told: dict[Key, tuple[str, str]] = {}  # reason and message of the last Event
        self._strays: dict[str, float] = {}  # jobs without pods, and since when; monotonic

    def follow(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Follow nodes and namespaces, and pods once these are known."""
        return [self.nodes.follow(), self.namespaces.follow(), self._follow_pods(), self._cancel_strays()]

    async def _follow_pods(self) -> None:
        await self.nodes.listed.wait()
        await self.namespaces.listed.wait()
        await self.pods.follow()

    # ── what there is to do ───────────────────────────────────────────────────────────────────────

    def _namespace_changed(self, before: Object | None, after: Object | None) -> None:
        namespace = after if after is not None else before
        assert namespace is not None
        for key, group in self.groups.items():
            if key[0] == namespace.metadata.name and group.matters:
                self.look_at(key)

    def _pod_changed(self, before: GatedPod | None, after: GatedPod | None) -> None:
        """Take a pod into its group, and look at the group."""
        pod = after if after is not None else before
        assert pod is not None
        is_gated, job = GATE in pod.gates, pod.metadata.labels.get(OF_JOB, "")
        if not is_gated and not job and (controller_of(pod) is None or not gpus_of(pod, self.resources)):
            return
        key = group_of(pod)
        group = self.groups[key]
        if after is None:
            group.pods.pop(pod.metadata.uid, None)
        else:
            group.pods[pod.metadata.uid] = after
        if job:
            group.jobs[job].add(pod.metadata.uid)
            self.of_job[job] = key
        if group.matters:
            self.look_at(key)
        elif not group.pods:
            self._drop(key)

    def look_at_all(self) -> None:
        """Look at every group that waits, or has jobs."""
        for key, group in list(self.groups.items()):
            if group.matters:
                self.look_at(key)

    def _drop(self, key: Key) -> None:
        """Nothing is left of a group."""
        self.groups.pop(key, None)
        self._told.pop(key, None)

    # ── one group ─────────────────────────────────────────────────────────────────────────────────

    async def reconcile(self, key: Key) -> None:
        """Bring the pods of one owner and their jobs together."""
        group = self.groups.get(key)
        if group is None:
            return
        if any([await self._look_after(key, group, job) for job in list(group.jobs)]):
            return  # its pods, and those that wait beside them, are one gang again once it has ended
        of_jobs = set().union(*group.jobs.values())
        waiting = [pod for pod in group.gated() if pod.metadata.uid not in of_jobs]
        if waiting and (pause_s := group.pause_s) > 0:
            asyncio.get_running_loop().call_later(pause_s, self.look_at, key)
        elif waiting:
            await self._admit(key, group, waiting)
        elif not group.pods and not group.jobs:
            self._drop(key)

    async def _look_after(self, key: Key, group: Group, job_id: str) -> bool:
        """Cancel a job whose pods are gone, and show what becomes of it; drop it once it has ended.

        Whether it is cancelled and has not ended yet.
        """
        is_lost = False
        job = await self._described(group, job_id)
        if job is not None and job["ended_s"] is None:
            await self._mark_all(group, job_id)  # what was left over by a failure
            is_lost = _is_lost(group, job_id)
            if is_lost:
                await self._cancel(job_id)
                job = await self._described(group, job_id)
        pods = [group.pods[uid] for uid in group.jobs[job_id] if uid in group.pods]
        if job is not None and pods:
            await self._show_job(key, pods[0], job)
        if job is not None and job["ended_s"] is None:
            return is_lost
        gated = [pod for pod in group.gated() if pod.metadata.labels.get(OF_JOB) == job_id]
        if gated and len(gated) == _size_of(gated[0]) and job is not None and job["state"] == "CANCELLED":
            return False  # somebody has cancelled it, and nothing of it is queued again
        group.jobs.pop(job_id, None)
        self.of_job.pop(job_id, None)
        if gated:
            group.endings += 1
            group.ended_s = time.monotonic()
        return False

    async def _admit(self, key: Key, group: Group, waiting: list[GatedPod]) -> None:
        """Submit gated pods that are of no job, where they make a gang; say why not where they do not."""
        namespace = self.namespaces.items.get(("", key[0]))
        labels = namespace.metadata.labels if namespace is not None else {}
        owner: PodOwner | None = None
        try:
            if labels.get(LABEL) != "true":
                line = f"namespace {key[0]} has no label {LABEL}=true: its pods stay behind their gate"
                raise Obstacle("NamespaceNotLabelled", line)
            owner = await owner_of(self.api, waiting[0], self.resources)
            if owner is None:
                return  # its pods go with it
            counts = group.pods.values() if owner.counts_ended else group.alive()
            gang = gang_of(owner, waiting, len(list(counts)), self.resources)
            await self._submit(key, group, gang, labels.get(QUEUE, ""))
        except Obstacle as obstacle:
            about = owner.about if owner is not None else _involved(waiting[0])
            if obstacle.reason != "PodsMissing" or _age_s(waiting) > PATIENCE_S:
                await self._tell(key, about, obstacle.reason, obstacle.message, not obstacle.is_patient)

    async def _submit(self, key: Key, group: Group, gang: Gang, queue: str) -> None:
        """Submit a gang, and label its pods with the job's id. Raises Obstacle."""
        nodes = await asyncio.to_thread(self.service.nodes)
        known = {name: node for (_, name), node in self.nodes.items.items()}
        text, idempotency = job_file_of(gang, queue, nodes, known), gang.key
        for _ in range(MOST_RETRIES):
            job = await self._submitted(group, text, idempotency)
            if job["ended_s"] is None:
                break
            idempotency = f"{gang.key}-{job['id']}"  # that of an earlier time has ended without them
        else:
            raise Obstacle("JobsEnd", f"{MOST_RETRIES} jobs of these pods have ended and not placed them")
        job_id = str(job["id"])
        group = self.groups[key]  # another one, where all pods went away meanwhile
        group.jobs[job_id] |= {pod.metadata.uid for pod in gang.pods}
        self.of_job[job_id] = key
        log.info("%s %s/%s: job %s", gang.owner.kind, gang.owner.namespace, gang.owner.name, job_id)
        self.look_at(key)  # whatever has happened meanwhile
        await self._mark_all(group, job_id)
        await self._show_job(key, gang.pods[0], job)

    async def _submitted(self, group: Group, text: str, key: str) -> dict[str, Any]:
        """The job of a key, as it is now. Raises Obstacle for what the service does not take."""
        try:
            return await asyncio.to_thread(self.service.submit, text, key)
        except KeyTaken as taken:  # for other pods, which have changed since
            job = await self._described(group, taken.job)
            if job is None:
                raise ServiceError(f"the service does not know job {taken.job}") from None
            if job["ended_s"] is None:
                await self._cancel(taken.job)
                raise ServiceError(f"job {taken.job} was of other pods, and is being cancelled") from None
            return job
        except InputError as wrong:
            raise Obstacle("ServiceRefuses", str(wrong)) from None

    async def _mark_all(self, group: Group, job_id: str) -> None:
        """Label gated pods as of their job; one that is gone meanwhile is noticed by the watch."""
        uids = group.jobs[job_id]
        marks = {"labels": {OF_JOB: job_id}, "annotations": {GANG: str(len(uids))}}
        for pod in group.gated():
            metadata = pod.metadata
            if metadata.uid in uids and metadata.labels.get(OF_JOB) != job_id:
                patch = {"metadata": {"uid": metadata.uid, **marks}}
                with suppress_refusal(404, 409):
                    shown = await self.api.patch(PODS_IN_FULL, metadata.namespace, metadata.name, patch)
                    self.pods.put(shown)

    async def _described(self, group: Group, job: str) -> dict[str, Any] | None:
        """A job; None where the service does not know it any more."""
        if job not in group.ended:
            try:
                described = await asyncio.to_thread(self.service.describe, job)
            except Refused as refusal:
                raise ServiceError(str(refusal)) from None  # says nothing of the job
            except InputError:
                return None
            if described["ended_s"] is None:
                return described
            group.ended[job] = described
        return group.ended[job]

    async def _cancel(self, job: str) -> None:
        with contextlib.suppress(InputError):  # it has just ended
            await asyncio.to_thread(self.service.change, job, "cancel")

    async def _cancel_strays(self) -> None:
        """Cancel jobs of pods that went away while no operator ran, until cancelled."""
        while True:
            await asyncio.sleep(STRAY_S / 2)
            if not self.pods.listed.is_set() or self.pods.is_stale:
                continue
            with contextlib.suppress(ServiceError, InputError):
                jobs = await asyncio.to_thread(lambda: list(self.service.jobs()))
                await self._look_for_strays(jobs)

    async def _look_for_strays(self, jobs: Iterable[dict[str, Any]]) -> None:
        """Cancel those that have had no pods for a while; their names tell them from jobs of other kinds."""
        now_s = time.monotonic()
        ids = [job["id"] for job in jobs if job["name"].startswith(PREFIX) and job["id"] not in self.of_job]
        self._strays = {job: self._strays.get(job, now_s) for job in ids}
        for job, since_s in self._strays.items():
            if now_s - since_s > STRAY_S:
                log.warning("job %s has no pods any more", job)
                await self._cancel(job)

    # ── what people see ───────────────────────────────────────────────────────────────────────────

    async def _show_job(self, key: Key, pod: GatedPod, job: dict[str, Any]) -> None:
        """Tell the owner of pods what becomes of their job."""
        state, name = str(job["state"]), f"job {job['id']}"
        reason, warns = camel(str(job["reason"]) or state), False
        message = f"{name} waits: {job['evidence'] or camel(str(job['reason']) or state)}"
        if state in ("STARTING", "RUNNING"):
            reason, message = camel(state), f"{name}: {job['gpus']} GPUs on {', '.join(sorted(job['nodes']))}"
            if state == "STARTING" and job["evidence"]:
                message = f"{message}: {job['evidence']}"
        elif state == "CANCELLED" and GATE in pod.gates:
            reason, warns = "Cancelled", True
            message = f"{name} was cancelled: its pods wait for ever, unless they lose the label {OF_JOB}"
        elif state in ENDED or state == "PREEMPTING":
            reason, warns = camel(state), ENDED.get(state) == "Failed"
            message = f"{name}: {job['evidence'] or camel(state)}"
        if self._told.get(key) != (reason, message):
            owner = await owner_of(self.api, pod, self.resources)
            if owner is not None:
                await self._tell(key, owner.about, reason, message, warns)

    async def _tell(self, key: Key, about: Involved, reason: str, message: str, warns: bool) -> None:
        """Write an Event, where it is another one than the last."""
        if self._told.get(key) != (reason, message):
            self._told[key] = reason, message
            await write_event(self.api, about, reason, message, warns)


def _is_lost(group: Group, job: str) -> bool:
    """Whether a job has lost its pods: one of those that all wait, or all of those that were lifted."""
    pods = [group.pods.get(uid) for uid in group.jobs[job]]
    there = [pod for pod in pods if pod is not None]
    alive = [pod for pod in group.alive() if pod in there]
    if any(PLACED_BY in pod.metadata.labels for pod in there):
        are_gone = len(there) < len(pods) or any(
            pod.metadata.deletionTimestamp and pod.status.phase not in OVER for pod in there
        )
        return not alive and are_gone
    # An operator that begins again knows by their annotation how many there were.
    return len(alive) < max([len(pods), *map(_size_of, there)])


def _size_of(pod: GatedPod) -> int:
    """How many pods there are of its job."""
    text = pod.metadata.annotations.get(GANG, "")
    return int(text) if text.isdecimal() else 0


def _involved(pod: GatedPod) -> Involved:
    """The owner of a pod, or the pod itself, as its reference says it."""
    metadata, owner = pod.metadata, controller_of(pod)
    if owner is None:
        return Involved("v1", "Pod", metadata.namespace, metadata.name, metadata.uid)
    return Involved(owner.apiVersion, owner.kind, metadata.namespace, owner.name, owner.uid)


def _age_s(pods: Iterable[GatedPod]) -> float:
    """Of the oldest."""
    return time.time() - min(seconds(pod.metadata.creationTimestamp) or time.time() for pod in pods)


def check_version(server: str, version: str) -> None:
    """Raise InputError for a release that drops scheduling gates in silence, or cannot change gated pods."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None or tuple(int(part or 0) for part in match.groups()) < FIRST_VERSION:
        least = ".".join(map(str, FIRST_VERSION))
        raise InputError(
            f"--gate: the API server {server} is Kubernetes {version}, which drops scheduling gates or does "
            f"not let them be lifted: expected {least} or newer"
        )
