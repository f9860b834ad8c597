"""Changes of pods of ours, by their annotations: notes, and orders to their supervisors."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import PODS, Api, Refusal, suppress_refusal
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.protocol import BackendUnreachable

Answer = TypeVar("Answer")


class PodChanges:
    """Writes into pods, one after the other where one would replace another."""

    def __init__(self, api: Api, shown: Callable[[Pod], None], pod_of: Callable[[str], Pod | None]) -> None:
        """shown: is told of each pod as it then is. pod_of: the pod of a worker, as it is now."""
        self.api, self.shown, self.pod_of = api, shown, pod_of
        self.ordering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by worker

    async def order(self, worker_id: str, order: dict[str, Any]) -> None:
        """Add an order to those that a pod has; one after the other, or one would replace the other."""
        async with self.ordering[worker_id]:
            pod = self.pod_of(worker_id)
            if pod is not None:
                text = pod.metadata.annotations.get(manifests.ORDERS, "") + json.dumps(order) + "\n"
                await self.annotate(pod, {manifests.ORDERS: text})

    async def annotate(self, pod: Pod, annotations: dict[str, str]) -> None:
        """Write annotations of a pod, if it is still this one."""
        patch = {"metadata": {"annotations": annotations, "uid": pod.metadata.uid}}
        with suppress_refusal(404, 409):
            self.shown(await asked(self.api.patch(PODS, pod.metadata.namespace, pod.metadata.name, patch)))

    def drop(self, worker_id: str) -> None:
        """A worker is forgotten."""
        self.ordering.pop(worker_id, None)


async def asked(call: Awaitable[Answer]) -> Answer:
    """What a call answers; a refusal that concerns no job is silence to the caller."""
    try:
        return await call
    except Refusal as refusal:
        if refusal.code in (404, 409):
            raise
        raise BackendUnreachable(f"the API server refuses: {refusal}") from refusal
