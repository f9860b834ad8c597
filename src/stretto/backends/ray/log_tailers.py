"""Requests that wait for more of a log: hundreds of them, and one thread here and one in each node agent."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from stretto.backends.protocol import BackendUnreachable
from stretto.backends.ray.cluster import Cluster, asked

LISTEN_S = (
    1.0  # that a node agent waits for one of its logs to grow; who joins meanwhile waits as long; chosen
)
ROUND_S = (
    0.05  # the longest until a new follower's node agent is asked, and between looks at who waits too long
)
LOST_S = 0.5  # before who cannot be told anything is asked about again; chosen

Order = dict[str, Any]


@dataclass(frozen=True)
class LogTailer:
    """An order that is answered once the log of a worker is longer than `offset`, or time is up."""

    order: Order
    node: str
    worker_id: str
    offset: int
    until_s: float


class LogTailers:
    """again: carries out an order whose time has come."""

    def __init__(self, cluster: Cluster, again: Callable[[Order], None]) -> None:
        self.cluster = cluster
        self.again = again
        self.lock = threading.Lock()
        self.waiting: list[LogTailer] = []

    def answer_later(self, order: Order, piece: dict[str, Any]) -> bool:
        """Whether an order for a piece of a log is to wait, since there is nothing yet."""
        wait_s = order["with"]["wait_s"]
        if piece["data"] or piece["complete"] or wait_s <= 0:
            return False
        worker_id = order["with"]["worker_id"]
        located = self.cluster.place_of(worker_id)
        if located is None:
            return False
        with self.lock:
            later = LogTailer(order, located[0], worker_id, piece["next"], time.monotonic() + wait_s)
            self.waiting.append(later)
        return True

    def wake(self, is_due: Callable[[LogTailer], bool]) -> None:
        """Have all of these asked again; they wait no longer than they wanted to."""
        with self.lock:
            due = [one for one in self.waiting if is_due(one)]
            self.waiting = [one for one in self.waiting if not is_due(one)]
        for one in due:
            left_s = max(one.until_s - time.monotonic(), 0.0)
            self.again({**one.order, "with": {**one.order["with"], "offset": one.offset, "wait_s": left_s}})

    def run(self) -> None:
        """Listen to the node agent of every node on which a log is followed."""
        import ray

        listening: dict[Any, str] = {}  # answer that is to come -> node
        later_s: dict[str, float] = {}  # node -> when it is asked again
        while True:
            now_s = time.monotonic()
            self.wake(lambda tailer: tailer.until_s <= time.monotonic())
            for node in self.nodes() - set(listening.values()):
                if later_s.get(node, 0.0) <= now_s and (answer := self.listen(node)) is not None:
                    listening[answer] = node
            if not listening:
                time.sleep(ROUND_S)
                continue
            done, _ = ray.wait(list(listening), timeout=ROUND_S)
            for answer in done:
                node = listening.pop(answer)
                try:
                    grown = set(asked(answer)["grown"])
                except BackendUnreachable:  # who orders is told so, unless it is over
                    later_s[node] = time.monotonic() + LOST_S
                    self.wake(partial(follows, node))
                    continue
                self.wake(partial(follows, node, among=grown))

    def nodes(self) -> set[str]:
        """Nodes on which a log is followed."""
        with self.lock:
            return {one.node for one in self.waiting}

    def listen(self, node: str) -> Any:
        """Ask a node agent which logs grow; None where it has none, and then those that wait are told why."""
        place = self.cluster.place(node)
        if place is None or place.agent is None:
            self.wake(partial(follows, node))
            return None
        offsets: dict[str, int] = {}
        with self.lock:
            for tailer in self.waiting:
                if tailer.node == node:
                    offsets[tailer.worker_id] = min(
                        tailer.offset, offsets.get(tailer.worker_id, tailer.offset)
                    )
        return place.agent.grown.remote(offsets, LISTEN_S)


def follows(node: str, one: LogTailer, among: set[str] | None = None) -> bool:
    """Whether one of these logs of a node is followed, or any of it."""
    return one.node == node and (among is None or one.worker_id in among)
