"""The operator's reconciler: each resource is compared with its job, and both with what is wanted.

The service's log stays the truth. A resource is where a job comes in, and a mirror of what becomes of it. A
change of its spec is carried out once; what people change by other ways is shown and not fought over.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from stretto.backends.kubernetes.api import Api, Refusal
from stretto.backends.kubernetes.informer import Informer, Key, key_of
from stretto.client import Client, Refused, ServiceError
from stretto.errors import InputError, KeyTaken
from stretto.jobfile.parts import MOST_GPUS
from stretto.kubernetes_operator.elastic_job import (
    ELASTIC_JOBS,
    FINALIZER,
    GROUP,
    KIND,
    VERSION,
    ElasticJob,
    bounds_of,
    digest_of,
    job_file_of,
)
from stretto.kubernetes_operator.events import Involved, now, write_event
from stretto.kubernetes_operator.follower import Follower
from stretto.kubernetes_operator.status import ENDED, Finding, camel, status_of

SPEC_NOT_KNOWN = "unknown"  # in place of a digest: no resource has it
LOST = "LOST"  # instead of a state: the service does not know a job that had not ended
WARNINGS = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "REFUSED", LOST})

log = logging.getLogger(__name__)


class Operator(Follower):
    """Follows the resources of some namespaces, or of all, on behalf of one service."""

    def __init__(self, api: Api, service: Client, namespaces: Sequence[str] = ()) -> None:
        """service: a connection, which is closed at the end. namespaces: (): all of them."""
        super().__init__(service)
        self.api = api
        self.informers: dict[str, Informer[ElasticJob]] = {
            each: Informer(api, ELASTIC_JOBS, each, self._changed) for each in namespaces or ("",)
        }

    def follow(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Follow the resources."""
        return [informer.follow() for informer in self.informers.values()]

    def informer_of(self, namespace: str) -> Informer[ElasticJob]:
        """The informer that has the resources of a namespace."""
        return self.informers.get(namespace) or self.informers[""]

    # ── what there is to do ───────────────────────────────────────────────────────────────────────

    def _changed(self, before: ElasticJob | None, after: ElasticJob | None) -> None:
        """Look at a resource again, but for changes that are our own status."""
        resource = after if after is not None else before
        assert resource is not None
        if after is None:
            self.of_job.pop(str(resource.status.get("job", "")), None)
            return
        if job := after.status.get("job"):
            self.of_job[str(job)] = key_of(after)
        is_seen = after.metadata.generation == after.status.get("observedGeneration")
        if before is None or not is_seen or after.metadata.deletionTimestamp:
            self.look_at(key_of(after))

    def look_at_all(self) -> None:
        """Look at every resource whose job has not ended."""
        items = [item for informer in self.informers.values() for item in informer.items.items()]
        for key, resource in items:
            if resource.status.get("state") not in ENDED or resource.metadata.deletionTimestamp:
                self.look_at(key)

    # ── one resource ──────────────────────────────────────────────────────────────────────────────

    async def reconcile(self, key: Key) -> None:
        """Bring one resource and its job together. Raises BackendUnreachable, Refusal, ServiceError."""
        resource = self.informer_of(key[0]).items.get(key)
        if resource is None:
            return
        if resource.metadata.deletionTimestamp:
            await self._let_go(resource)
            return
        if FINALIZER not in resource.metadata.finalizers:
            # Ahead of the job: a resource that is deleted meanwhile would leave it behind.
            resource = await self._set_finalizers(resource, [*resource.metadata.finalizers, FINALIZER])
        finding = await self._found(resource)
        if finding.job is not None:
            self.of_job[str(finding.job["id"])] = key
        await self._show(resource, finding)

    async def _found(self, resource: ElasticJob) -> Finding:
        """The job of a resource as it stands, once what the spec asks for is done."""
        spec_digest = str(resource.status.get("specDigest", "")) or digest_of(resource)
        is_new = resource.metadata.generation != resource.status.get("observedGeneration")
        if not (job_id := resource.status.get("job")):
            try:
                return Finding(await self._submit(job_file_of(resource), resource.key), digest_of(resource))
            except KeyTaken as taken:
                # It was submitted, nothing was written down, and the spec has changed since.
                job_id, spec_digest, is_new = taken.job, SPEC_NOT_KNOWN, True
            except InputError as wrong:
                return Finding(None, digest_of(resource), refused=str(wrong))
        job = await self._described(str(job_id))
        if job is None:
            return Finding(_last_shown(resource), spec_digest)
        stale = ""
        if is_new:
            try:
                await self._carry_out(resource, job)
            except InputError as wrong:
                stale = str(wrong)
            job = await self._described(str(job_id)) or job
        elif before := _condition(resource, "UpToDate", "False"):
            stale = str(before.get("message", ""))
        if digest_of(resource) != spec_digest:
            stale = "a job that was submitted keeps its file: delete the resource and create another one"
        return Finding(job, spec_digest, stale=stale)

    async def _submit(self, text: str, key: str) -> dict[str, Any]:
        """Submit a job file; the job. Raises InputError for what is wrong with the file alone."""
        try:
            return await asyncio.to_thread(self.service.submit, text, key)
        except Refused as refusal:
            raise ServiceError(str(refusal)) from None  # our token is no fault of the resource

    async def _described(self, job_id: str) -> dict[str, Any] | None:
        """A job; None where the service does not know it any more."""
        try:
            return await asyncio.to_thread(self.service.describe, job_id)
        except Refused as refusal:
            raise ServiceError(str(refusal)) from None  # says nothing of the job: it may well run
        except InputError:
            return None

    async def _carry_out(self, resource: ElasticJob, job: Mapping[str, Any]) -> None:
        """Have a job as a changed spec says. Raises InputError."""
        if job["ended_s"] is not None:
            return
        change, name = self.service.change, str(job["id"])
        is_held = job["reason"] == "HELD" or job["state"] == "SUSPENDED"
        if resource.is_suspended != is_held:
            await asyncio.to_thread(change, name, "hold" if resource.is_suspended else "release")
        if (bounds := bounds_of(resource)) is not None:
            each = max(job["gpus_per_worker"].values(), default=1)
            fewest = -(-bounds[0] // each) * each  # in whole workers, as at its submission
            most = MOST_GPUS if bounds[1] is None else bounds[1]
            if (fewest, most) != (job["gpus_min"], min(job["gpus_max"], MOST_GPUS)):
                await asyncio.to_thread(change, name, "scale", min_gpus=fewest, max_gpus=most)
        priority = resource.spec.get("priority")
        if isinstance(priority, int) and priority != job["priority"]:
            await asyncio.to_thread(change, name, "priority", priority=priority)

    async def _let_go(self, resource: ElasticJob) -> None:
        """Cancel the job of a deleted resource, and let the resource go once it has ended."""
        if FINALIZER not in resource.metadata.finalizers:
            return
        job_id = resource.status.get("job")
        if not job_id and not _condition(resource, "Accepted", "False"):
            # It may have been submitted, with an answer that was lost: the same key finds that job.
            try:
                job_id = (await self._submit(job_file_of(resource), resource.key))["id"]
            except KeyTaken as taken:
                job_id = taken.job
            except InputError:  # then there is none
                pass
        job = await self._described(str(job_id)) if job_id else None
        if job is not None and job["ended_s"] is None:
            self.of_job[str(job["id"])] = key_of(resource)
            if job["state"] != "PREEMPTING" or resource.status.get("state") != "PREEMPTING":
                with contextlib.suppress(InputError):  # it has just ended
                    await asyncio.to_thread(self.service.change, str(job["id"]), "cancel")
            job = await self._described(str(job["id"]))
        if job is not None and job["ended_s"] is None:
            await self._show(resource, Finding(job, str(resource.status.get("specDigest", ""))))
            return
        await self._set_finalizers(
            resource, [each for each in resource.metadata.finalizers if each != FINALIZER]
        )

    async def _set_finalizers(self, resource: ElasticJob, finalizers: list[str]) -> ElasticJob:
        metadata = resource.metadata
        # A list is replaced as a whole: only in the version that we have seen.
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata.resourceVersion}}
        try:
            shown = await self.api.patch(ELASTIC_JOBS, metadata.namespace, metadata.name, patch)
        except Refusal as refusal:
            if refusal.code == 404:
                return resource
            raise
        if finalizers:
            self.informer_of(metadata.namespace).put(shown)
        return shown

    async def _show(self, resource: ElasticJob, finding: Finding) -> None:
        """Write the status, where it is new, and tell of a new state."""
        status = status_of(resource, finding, now())
        if status == resource.status:
            return
        metadata = resource.metadata
        path = f"{ELASTIC_JOBS.path(metadata.namespace, metadata.name)}/status"
        gone = {key: None for key in resource.status if key not in status}  # a merge keeps what is not said
        content = await self.api.call(
            "PATCH", path, {"status": gone | status}, content_type="application/merge-patch+json"
        )
        self.informer_of(metadata.namespace).put(self.api.decode(content, ElasticJob))
        if status["state"] != resource.status.get("state"):
            await self._tell(resource, status)

    async def _tell(self, resource: ElasticJob, status: Mapping[str, Any]) -> None:
        """Write an Event of a new state."""
        metadata, state = resource.metadata, status["state"]
        gpus = f"{status['gpus']} GPUs of {status.get('gpuType', 'any type')} on {', '.join(status['nodes'])}"
        words = status.get("message") or (gpus if status["gpus"] else camel(state))
        message = f"job {status['job']}: {words}" if status.get("job") else words
        about = Involved(f"{GROUP}/{VERSION}", KIND, metadata.namespace, metadata.name, metadata.uid)
        await write_event(self.api, about, camel(state), message, state in WARNINGS)


def _condition(resource: ElasticJob, kind: str, status: str) -> Mapping[str, Any] | None:
    """A condition of a resource, where it stands so."""
    conditions = resource.status.get("conditions") or ()
    return next((each for each in conditions if (each["type"], each["status"]) == (kind, status)), None)


def _last_shown(resource: ElasticJob) -> dict[str, Any]:
    """What a resource has shown of a job that the service does not know (any more).

    One that had not ended is lost: the service's store is another one, or the token another user's.
    """
    status, has_ended = resource.status, resource.status.get("state") in ENDED
    return {
        "id": status["job"],
        "state": status["state"] if has_ended else LOST,
        "reason": "",
        "evidence": status.get("message", "") if has_ended else f"the service knows no job {status['job']}",
        "gpus_min": status.get("minGpus", 0),
        "gpus_max": status.get("maxGpus", 0),
        **{key: status.get(key, 0) for key in ("attempt", "restarts", "resizes")},
    }
