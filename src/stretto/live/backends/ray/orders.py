"""What the service may ask of the gateway: the orders of a backend's protocol, carried out by stewards."""

import base64
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from stretto.live.agent.fence import STALE_STATUS
from stretto.live.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
)
from stretto.live.backends.ray import holding
from stretto.live.backends.ray.cluster import Cluster, asked
from stretto.model.errors import InputError

NOT_NOW = (423, 507)


@dataclass(frozen=True)
class Orders:
    """Orders over one cluster; each raises as the protocol says, and may be given again.

    epoch: of the leader that gives it, which stewards compare.
    """

    cluster: Cluster

    def start(
        self,
        worker_id: str,
        node: str,
        request: dict[str, Any],
        cpus: float,
        memory_gb: float,
        epoch: int = 0,
    ) -> dict[str, Any]:
        """Hold GPUs for a worker and start it on them, unless it was started before."""
        name = worker_id
        if self.cluster.place(node) is None:
            raise StartRefused(f"worker {name}: no node {node}, expected one of {self._names()}")
        place = self.cluster.checked(node)
        with self.cluster.begins(name):
            steward = self.cluster.steward_of(node)
            known = answered(asked(steward.start.remote(name, request, None, epoch)), StartRefused)
            if known:
                return self.cluster.take_one(place, known)
            self.cluster.check_head()
            self.cluster.wait_for_freed(place)
            bundle = holding.bundle_of(len(request["gpus"]), cpus, memory_gb, place.node.address)
            held = holding.hold(name, self.cluster.prefix, place.node.id, bundle)
            try:
                said = answered(asked(steward.start.remote(name, request, held, epoch)), StartRefused)
            except (StartRefused, NotNow, StaleLeader):
                holding.let_go(name, self.cluster.prefix)
                raise
            return self.cluster.take_one(place, said)

    def stop(self, worker_id: str, grace_s: float, epoch: int = 0) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        self._order(worker_id, {"stop": grace_s}, epoch)

    def signal(self, worker_id: str, signal: int, epoch: int = 0) -> None:
        """A signal to the worker's process group."""
        self._order(worker_id, {"signal": signal}, epoch)

    def _order(self, worker_id: str, order: dict[str, Any], epoch: int) -> None:
        found = self.cluster.place_of(worker_id)
        if found is None:
            self.cluster.check_all_known(worker_id)
            raise NoSuchWorker(f"no worker {worker_id} on any node")
        node, place = found
        if place.dead:  # it has ended with its node
            return
        self.cluster.checked(node)
        said = asked(self.cluster.steward_of(node).order.remote(worker_id, order, epoch))
        self.cluster.take_one(place, answered(said, InputError))

    def log(self, worker_id: str, offset: int, limit: int, wait_s: float) -> dict[str, Any]:
        """What is there of a log; whoever waits for more does so among the gateway's followers."""
        found = self.cluster.place_of(worker_id) or self._having_the_log(worker_id)
        if found is None:
            self.cluster.check_all_known(worker_id)
            raise NoSuchWorker(f"no worker {worker_id} on any node")
        node, place = found
        if place.dead:
            raise NoSuchWorker(f"the log of {worker_id} was lost with node {node}")
        self.cluster.checked(node)
        steward = self.cluster.steward_of(node)
        said = answered(asked(steward.log.remote(worker_id, offset, limit)), InputError)
        return {**said, "data": base64.b64encode(said["data"]).decode()}

    def _having_the_log(self, worker_id: str) -> Any:
        with self.cluster.lock:
            places = self.cluster.places.items()
            return next(((name, place) for name, place in places if worker_id in place.forgotten), None)

    def forget(self, worker_id: str, epoch: int = 0) -> None:
        """List an ended worker no more."""
        found = self.cluster.place_of(worker_id)
        if found is None:
            return
        node, place = found
        if place.dead:
            self.cluster.drop(place, None, worker_id)
            return
        self.cluster.checked(node)
        said = asked(self.cluster.steward_of(node).forget.remote(worker_id, epoch))
        if refused := said.get("refused"):
            if refused[0] == 409:  # it still runs
                return
            if refused[0] != 404:
                answered(said, InputError)
        self.cluster.drop(place, None if refused else said, worker_id)

    def wish(self, wishes: list[dict[str, Any]]) -> None:
        """Have the cluster asked for room for these, and for no others any more."""
        with self.cluster.lock:
            self.cluster.wishes = wishes

    def delete_logs(self, job: str, epoch: int = 0) -> None:
        """Remove what is left of a job's forgotten workers on all nodes that have something of it."""
        with self.cluster.lock:
            having = [
                (name, place)
                for name, place in self.cluster.places.items()
                if job in place.forgotten.values() and not place.dead
            ]
        for node, place in having:
            self.cluster.checked(node)
            answered(asked(self.cluster.steward_of(node).delete_logs.remote(job, epoch)), InputError)
            with self.cluster.lock:
                place.forgotten = {name: of for name, of in place.forgotten.items() if of != job}

    def _names(self) -> str:
        with self.cluster.lock:
            return ", ".join(sorted(self.cluster.places)) or "none"


def answered(said: dict[str, Any], refused_as: type[Exception]) -> dict[str, Any]:
    """The answer of a steward, unless it is a refusal.

    Raises NotNow, NoSuchWorker, IdUsed, StaleLeader or `refused_as`.
    """
    if "refused" not in said:
        return said
    status, why = said["refused"]
    if status == STALE_STATUS:
        raise StaleLeader(why, said["epoch"])
    if status in NOT_NOW:
        raise NotNow(why)
    if status == HTTPStatus.NOT_FOUND:
        raise NoSuchWorker(why)
    if status == HTTPStatus.GONE:
        raise IdUsed(why)
    if status >= 500:
        raise BackendUnreachable(why)
    raise refused_as(why)
