"""Which service leads: a Lease that people see, and that a leader compares with its own number.

`kubectl get lease` names the leader, and an annotation has its number. Before each command a service compares
the numbers. It takes the Lease where its own is the larger one. The log alone decides which service leads. So
a service that may not have a Lease works without it, and says so.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import field

from stretto.backends.kubernetes import manifests, objects
from stretto.backends.kubernetes.api import MANAGER, Api, Refusal
from stretto.backends.protocol import BackendUnreachable, StaleLeader

GROUP = "coordination.k8s.io/v1"
EPOCH = f"{manifests.DOMAIN}/epoch"  # annotation: the number of the leader
RENEW_S = 10.0  # between two signs of life; chosen
LASTS_S = 30  # said to hold without one; chosen
TRIES = 5  # of a change that others make at the same time
REFUSED = "the API server refuses the Lease of the leader"

log = logging.getLogger(__name__)


class LeaseSpec(msgspec.Struct):
    """Which process leads."""

    leader: str = field(default="", name="holderIdentity")
    leaseTransitions: int = 0  # noqa: N815  (as the API names it)


class Lease(objects.Object):
    """What is looked at of a Lease."""

    spec: LeaseSpec = field(default_factory=LeaseSpec)


class LeaderLease:
    """The Lease of one service."""

    def __init__(self, api: Api, namespace: str, service: str) -> None:
        self.api, self.namespace, self.service = api, namespace, service
        self.name = manifests.safe_name("stretto-leader", manifests.digest_of([service])[:8])
        self.path = f"apis/{GROUP}/namespaces/{namespace}/leases"
        self._epoch = 0
        self._leads = asyncio.Event()  # since its number was last told
        self.leader = socket.gethostname()
        self._look: asyncio.Task[None] | None = None  # that has not begun yet
        self._looks: set[asyncio.Task[None]] = set()  # all that have not ended
        self._looking = asyncio.Lock()
        self.remark = ""  # while it is refused

    @property
    def epoch(self) -> int:
        """The number of this service as a leader; 0: no leader is known, and nothing is compared."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch = number
        self._leads.set()

    async def admit(self) -> None:
        """Return where no later leader is known to have commanded, by a look that begins from now on.

        Raises StaleLeader, and BackendUnreachable where that cannot be known just now.
        """
        if not self.epoch:
            return
        if self._look is None:
            self._look = asyncio.create_task(self._compare())
            self._looks.add(self._look)
            self._look.add_done_callback(self._looks.discard)
        await asyncio.shield(self._look)

    async def _compare(self) -> None:
        async with self._looking:
            self._look = None  # a caller that asks from here on is told of a later moment than this
            try:
                for _ in range(TRIES):
                    if await self._take():
                        self._note(None)
                        return
            except Refusal as refusal:
                if refusal.is_busy:
                    why = f"the API server does not show the Lease of the leader: {refusal}"
                    raise BackendUnreachable(why) from None
                self._note(refusal)
                return
            raise BackendUnreachable("others change the Lease of the leader all the time")

    def _note(self, refusal: Refusal | None) -> None:
        """Say once that there is to be no Lease, and once that there is one again."""
        if refusal is not None and not self.remark:
            log.warning("%s: %s. Until it is granted the store alone guards", REFUSED, refusal)
        elif refusal is None and self.remark:
            log.info("the API server grants the Lease of the leader again")
        self.remark = f"{REFUSED}, as its log says" if refusal is not None else ""

    async def _take(self) -> bool:
        """Have our number in the Lease; False where it was changed meanwhile. Raises StaleLeader."""
        lease = await self._read()
        number = int(lease.metadata.annotations.get(EPOCH, "0")) if lease is not None else 0
        if number > self.epoch:
            assert lease is not None
            leader = lease.spec.leader or "another service"
            raise StaleLeader(f"{leader} leads, as leader {number}: this was leader {self.epoch}", number)
        try:
            if lease is None:
                metadata = {
                    "name": self.name,
                    "labels": manifests.labels_of(self.service, ""),
                    "annotations": {EPOCH: str(self.epoch)},
                }
                manifest = {
                    "apiVersion": GROUP,
                    "kind": "Lease",
                    "metadata": metadata,
                    "spec": self._spec(now=True, transitions=0),
                }
                await self.api.call("POST", self.path, manifest, params={"fieldManager": MANAGER})
            elif number < self.epoch:
                await self._patch(lease, self._spec(now=True, transitions=lease.spec.leaseTransitions + 1))
        except Refusal as refusal:
            if refusal.code != 409:
                raise
            return False
        return True

    def _spec(self, *, now: bool, transitions: int) -> dict[str, Any]:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = {"acquireTime": stamp, "leaseTransitions": transitions} if now else {}
        return {
            "holderIdentity": self.leader,
            "leaseDurationSeconds": LASTS_S,
            "renewTime": stamp,
            **taken,
        }

    async def _read(self) -> Lease | None:
        """The Lease as it is; None where there is none yet."""
        try:
            answer = await self.api.call("GET", f"{self.path}/{self.name}")
            return msgspec.json.decode(answer, type=Lease)
        except msgspec.DecodeError as wrong:
            raise BackendUnreachable(f"the Lease of the leader cannot be read: {wrong}") from None
        except Refusal as refusal:
            if refusal.code == 404:
                return None
            raise

    async def _patch(self, lease: Lease, spec: Mapping[str, Any]) -> None:
        """Change it, unless it was changed since it was read."""
        metadata = {
            "resourceVersion": lease.metadata.resourceVersion,
            "annotations": {EPOCH: str(self.epoch)},
        }
        patch = {"metadata": metadata, "spec": spec}
        content_type = "application/merge-patch+json"
        await self.api.call("PATCH", f"{self.path}/{self.name}", patch, content_type=content_type)

    async def renew(self) -> None:
        """Take it as soon as this service leads, and renew it now and then, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._leads.wait()
            is_new = self._leads.is_set()
            self._leads.clear()
            if not self.epoch:
                continue
            try:
                await self.admit()
                if not is_new and (lease := await self._read()):
                    await self._patch(lease, self._spec(now=False, transitions=0))
            except (BackendUnreachable, Refusal, StaleLeader) as failure:
                log.info("the Lease is not renewed: %s", failure)

    async def release(self) -> None:
        """Look no more, and say that this service leads no more, if it was the one."""
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        with suppress(BackendUnreachable, Refusal, TimeoutError):
            async with asyncio.timeout(RENEW_S):
                lease = await self._read() if self.epoch else None
                if lease is not None and lease.metadata.annotations.get(EPOCH) == str(self.epoch):
                    await self._patch(lease, {"holderIdentity": ""})
