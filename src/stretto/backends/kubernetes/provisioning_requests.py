"""Nodes asked for by ProvisioningRequests, which Cluster Autoscaler knows (`autoscaling.x-k8s.io/v1`).

One request for each job, for all of its workers that have no room: they come together or not at all. The
autoscaler says in conditions what becomes of it. A request that has failed is taken back after a while, and
made anew.
"""

import logging
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from msgspec import field

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import MANAGER, Kind, Refusal, suppress_refusal
from stretto.backends.kubernetes.informer import Informer
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.objects import Condition, Node, Object, condition
from stretto.backends.kubernetes.placeholders import Asker, spec_of, suiting
from stretto.backends.kubernetes.pods import MOST_WORDS
from stretto.backends.protocol import BackendUnreachable, NodeRequest
from stretto.errors import InputError

GROUP = "autoscaling.x-k8s.io/v1"
WISH = f"{manifests.DOMAIN}/wish"  # annotation: a digest of what each worker is to have
# Annotations of pods that use what was provided.
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
OVER = ("Failed", "BookingExpired", "CapacityRevoked")  # conditions of a request that brings nothing any more
RETRY_S = 300.0  # of wall time, before what has failed is asked for anew; chosen

log = logging.getLogger(__name__)


class PodSet(msgspec.Struct):
    """Pods that are alike."""

    count: int = 0


class RequestSpec(msgspec.Struct):
    """What is asked for."""

    podSets: list[PodSet] = []  # noqa: N815 - the API's name


class RequestStatus(msgspec.Struct):
    """What has become of it."""

    conditions: list[Condition] = []


class ProvisioningRequest(Object):
    """One request."""

    spec: RequestSpec = field(default_factory=RequestSpec)
    status: RequestStatus = field(default_factory=RequestStatus)

    @property
    def job(self) -> str:
        """Whose workers it is for."""
        return self.metadata.annotations.get(manifests.JOB, "")

    @property
    def count(self) -> int:
        """Workers that it asks room for."""
        return sum(each.count for each in self.spec.podSets)

    @property
    def is_over(self) -> bool:
        """Whether it brings nothing any more."""
        return any(_is_true(self, name) for name in OVER)

    @property
    def words(self) -> str:
        """What the autoscaler says of it; "" for nothing yet."""
        for name in (*OVER, "Provisioned", "Accepted"):
            latest = condition(self.status.conditions, name)
            if latest is None or (latest.status != "True" and name != "Provisioned"):
                continue
            state = name if latest.status == "True" else "not yet"
            reason = latest.reason if latest.reason != name else ""
            return ": ".join(filter(None, (state, reason, latest.message)))[:MOST_WORDS]
        return ""


PROVISIONING_REQUESTS: Kind[ProvisioningRequest] = Kind(
    "provisioningrequests", ProvisioningRequest, f"apis/{GROUP}"
)


class ProvisioningRequests:
    """The requests of one service, in one namespace."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.api, self.options = asker.api, asker.options
        self.service, self.namespace = asker.service, asker.namespace
        silence_s = asker.options.silence_s
        self.informer = Informer(asker.api, PROVISIONING_REQUESTS, asker.namespace, self._changed, silence_s)
        self.of_job: dict[str, ProvisioningRequest] = {}
        self._words: dict[str, str] = {}  # by job, the last that were said, also of one that is taken back
        self._taken_back: Counter[str] = Counter()  # requests that are gone, by job: each has its own name
        self._templated: set[str] = set()  # uids of those whose pods we have described
        self._over_since_s: dict[str, float] = {}  # monotonic; by uid

    async def check(self) -> None:
        """Raise InputError where the cluster knows no such requests, or does not show them."""
        try:
            await self.api.call("GET", PROVISIONING_REQUESTS.path(self.namespace), params={"limit": 1})
        except Refusal as refusal:
            why = f"the cluster knows no ProvisioningRequest of {GROUP}" if refusal.code == 404 else refusal
            name = self.options.provisioning_class
            raise InputError(f"backend.provisioning_class {name}: {why}") from None

    def _changed(self, before: ProvisioningRequest | None, after: ProvisioningRequest | None) -> None:
        """Take in what became of one."""
        request = after if after is not None else before
        assert request is not None
        if request.metadata.labels.get(manifests.SERVICE) != self.service:
            return
        uid = request.metadata.uid
        if after is None:
            known = self.of_job.get(request.job)
            if known is not None and known.metadata.uid == uid:
                del self.of_job[request.job]
            self._taken_back[request.job] += 1
            self._over_since_s.pop(uid, None)
            self._templated.discard(uid)
            return
        self.of_job[after.job] = after
        if after.words and self._words.get(after.job) != after.words:
            self._words[after.job] = after.words
            level = logging.WARNING if after.is_over else logging.INFO
            log.log(level, "job %s: ProvisioningRequest %s: %s", after.job, after.metadata.name, after.words)
        if after.is_over:
            self._over_since_s.setdefault(uid, time.monotonic())

    def answers(self) -> Mapping[str, str]:
        """What the autoscaler says, by job."""
        return self._words

    def annotations_for(self, job: str, namespace: str) -> dict[str, str]:
        """Of a pod of a job, by which the autoscaler knows that it uses what was provided for it."""
        request = self.of_job.get(job)
        if request is None or namespace != self.namespace:
            return {}
        return {CONSUMES: request.metadata.name, CLASS: self.options.provisioning_class}

    async def have(
        self,
        wishes: Sequence[NodeRequest],
        missing: Sequence[NodeRequest],
        running: Mapping[str, int],
        machines: Sequence[tuple[Node, Gpus]],
    ) -> None:
        """Have a request for each job with workers that have no room, until its workers run.

        missing: those workers, one each. running: workers that run, by job. machines: as for placeholders.
        Raises BackendUnreachable, also where a request is refused.
        """
        manifest_of = self._manifests(missing, machines)
        waiting = {wish.job for wish in wishes if running.get(wish.job, 0) < wish.workers}
        gone = [
            request for job, request in self.of_job.items()
            if not request.metadata.deletionTimestamp
            and (job not in waiting or self._is_outdated(request, manifest_of.get(job)))
        ]  # fmt: skip
        new = [job for job in manifest_of if job not in self.of_job]
        self._words = {job: words for job, words in self._words.items() if job in waiting}
        self._taken_back = Counter({job: self._taken_back[job] for job in waiting})
        if not gone and not new and not self._undescribed(manifest_of):
            return
        await self.asker.lease.admit()
        try:
            for request in gone:
                path = PROVISIONING_REQUESTS.path(self.namespace, request.metadata.name)
                await self.api.delete(path, uid=request.metadata.uid)
            for job in new:
                with suppress_refusal(409):  # its name is taken by one that is just going away
                    made, _ = manifest_of[job]
                    self.informer.put(await self.api.create(PROVISIONING_REQUESTS, self.namespace, made))
            for request in self._undescribed(manifest_of):
                await self._describe_pods(request, manifest_of[request.job][1])
        except Refusal as refusal:
            raise BackendUnreachable(f"the API server refuses a ProvisioningRequest: {refusal}") from refusal

    def _undescribed(self, jobs: Container[str]) -> list[ProvisioningRequest]:
        """Requests for these jobs whose PodTemplate may be missing."""
        return [
            request
            for job, request in self.of_job.items()
            if job in jobs and request.metadata.uid not in self._templated
        ]

    def _is_outdated(
        self, request: ProvisioningRequest, wanted: tuple[dict[str, Any], dict[str, Any]] | None
    ) -> bool:
        """Whether it asks for something else or for too little, or has brought nothing for a while."""
        since_s = self._over_since_s.get(request.metadata.uid)
        if since_s is not None and time.monotonic() - since_s > RETRY_S:
            return True
        if wanted is None:  # there is room by now, and its workers are to come
            return False
        manifest, _ = wanted
        count = manifest["spec"]["podSets"][0]["count"]
        same = request.metadata.annotations.get(WISH) == manifest["metadata"]["annotations"][WISH]
        return not same or request.count < count

    def _manifests(
        self, missing: Sequence[NodeRequest], machines: Iterable[tuple[Node, Gpus]]
    ) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """By job, the request and the `spec` of its pods."""
        there = list(machines)
        by_job: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        for wish, count in Counter(missing).items():
            if (nodes := suiting(wish, self.options, there)) is not None:
                spec = spec_of(wish, self.options, *nodes)
                by_job[wish.job] = self._manifest(wish, count), spec
        return by_job

    def _manifest(self, wish: NodeRequest, count: int) -> dict[str, Any]:
        """The request for all workers of a job that have no room. wish: for one of them."""
        # Labels are no part of it: they may be known only once the first node is there.
        digest = manifests.digest_of(asdict(wish))
        # Another name than that of one that was taken back, whose PodTemplate may not be gone yet.
        mark = manifests.digest_of([self.service, wish.job, digest, self._taken_back[wish.job]])[:8]
        name = manifests.safe_name(f"stretto-wants-{wish.job}", mark)
        parameters = dict(pair.split("=", 1) for pair in self.options.provisioning_parameters)
        return {
            "apiVersion": GROUP,
            "kind": "ProvisioningRequest",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": manifests.labels_of(self.service, ""),
                "annotations": {manifests.JOB: wish.job, WISH: digest},
                "ownerReferences": [*self.asker.owners()],
            },
            "spec": {
                "provisioningClassName": self.options.provisioning_class,
                "podSets": [{"count": count, "podTemplateRef": {"name": name}}],
                **({"parameters": parameters} if parameters else {}),
            },
        }

    async def _describe_pods(self, request: ProvisioningRequest, spec: Mapping[str, Any]) -> None:
        """The PodTemplate that a request names; it goes with the request."""
        metadata = request.metadata
        owner = {"apiVersion": GROUP, "kind": "ProvisioningRequest", "controller": True}
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "labels": manifests.labels_of(self.service, ""),
                "ownerReferences": [{**owner, "name": metadata.name, "uid": metadata.uid}],
            },
            "template": {
                "metadata": {"labels": manifests.labels_of(self.service, "")},
                "spec": dict(spec),
            },
        }
        path = f"api/v1/namespaces/{metadata.namespace}/podtemplates"
        with suppress_refusal(409):
            await self.api.call("POST", path, template, params={"fieldManager": MANAGER})
        self._templated.add(metadata.uid)


def _is_true(request: ProvisioningRequest, name: str) -> bool:
    latest = condition(request.status.conditions, name)
    return latest is not None and latest.status == "True"
