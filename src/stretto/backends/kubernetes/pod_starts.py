"""Pods that are created for workers, also where that was done before and the answer was lost."""

from collections.abc import Mapping
from typing import Any

from stretto.backends.kubernetes import manifests, pods
from stretto.backends.kubernetes.api import PODS, Api, Refusal
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.protocol import IdUsed, NotNow, StartRefused, WorkerStart


async def create(
    api: Api, namespace: str, worker: WorkerStart, manifest: Mapping[str, Any], known: str = ""
) -> Pod:
    """The pod of a worker, also where it was created before. known: its uid then, "" where it is not known.

    Raises Refusal, NotNow, StartRefused where that was for something else, and IdUsed where it is gone and
    others have put a copy in its place.
    """
    try:
        return await api.create(PODS, namespace, manifest)
    except Refusal as refusal:
        if refusal.code != 409:
            raise
    existing = await api.get(PODS, namespace, manifest["metadata"]["name"])
    if existing is None:
        raise NotNow(f"worker {worker.id}: its pod is just going away")
    if pods.is_copy(existing) or known not in ("", existing.metadata.uid):
        raise IdUsed(f"worker {worker.id} has run before: what is there is a copy of its pod")
    check_same(worker, existing)
    return existing


def check_same(worker: WorkerStart, pod: Pod) -> None:
    """Raise StartRefused where a pod was created for another request of the same id."""
    if pod.metadata.annotations.get(manifests.REQUEST) != manifests.request_digest(worker):
        raise StartRefused(f"worker {worker.id} was started with another request")
