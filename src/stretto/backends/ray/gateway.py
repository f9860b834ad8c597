"""The process that is connected to Ray for a service, and the commands that it carries out.

What the service may ask of the gateway: the orders of a backend's protocol, carried out by node agents.
"""

import argparse
import base64
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, BinaryIO

from stretto.agent.node import MAX_LOG_BYTES
from stretto.agent.server import STALE_STATUS
from stretto.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
)
from stretto.backends.ray import autoscaling, reservation
from stretto.backends.ray import nodes as looking
from stretto.backends.ray.autoscaling import NodeSlots
from stretto.backends.ray.cluster import Cluster, asked, reason_of
from stretto.backends.ray.connection import connect
from stretto.backends.ray.exec_lines import ExecActors
from stretto.backends.ray.log_tailers import LogTailers
from stretto.errors import InputError, StrettoError

NOT_NOW = (423, 507)


@dataclass(frozen=True)
class WorkerCommands:
    """Orders over one cluster; each raises as the protocol says, and may be given again.

    epoch: of the leader that gives it, which node agents compare.
    """

    cluster: Cluster
    lines: ExecActors = field(default_factory=ExecActors)

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
            agent = self.cluster.agent_of(node)
            earlier = answered(asked(agent.start.remote(name, request, None, epoch)), StartRefused)
            if earlier:
                return self.cluster.take_one(place, earlier)
            self.cluster.check_head()
            self.cluster.wait_for_freed(place)
            bundle = reservation.bundle_of(len(request["gpus"]), cpus, memory_gb, place.node.address)
            reserved = reservation.hold(name, self.cluster.prefix, place.node.id, bundle)
            try:
                reply = answered(asked(agent.start.remote(name, request, reserved, epoch)), StartRefused)
            except (StartRefused, NotNow, StaleLeader):
                reservation.let_go(name, self.cluster.prefix)
                raise
            return self.cluster.take_one(place, reply)

    def stop(self, worker_id: str, grace_s: float, epoch: int = 0) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        self._order(worker_id, {"stop": grace_s}, epoch)

    def signal(self, worker_id: str, signal: int, epoch: int = 0) -> None:
        """A signal to the worker's process group."""
        self._order(worker_id, {"signal": signal}, epoch)

    def _order(self, worker_id: str, order: dict[str, Any], epoch: int) -> None:
        located = self.cluster.place_of(worker_id)
        if located is None:
            self.cluster.check_not_starting(worker_id)
            self.cluster.check_all_known(worker_id)
            raise NoSuchWorker(f"no worker {worker_id} on any node")
        node, place = located
        if place.dead:  # it has ended with its node
            return
        self.cluster.checked(node)
        reply = asked(self.cluster.agent_of(node).order.remote(worker_id, order, epoch))
        self.cluster.take_one(place, answered(reply, InputError))

    def log(self, worker_id: str, offset: int, limit: int, wait_s: float) -> dict[str, Any]:
        """What is there of a log; a caller that waits for more does so among the gateway's followers."""
        located = self.cluster.place_of(worker_id) or self._having_the_log(worker_id)
        if located is None:
            self.cluster.check_all_known(worker_id)
            raise NoSuchWorker(f"no worker {worker_id} on any node")
        node, place = located
        if place.dead:
            raise NoSuchWorker(f"the log of {worker_id} was lost with node {node}")
        self.cluster.checked(node)
        agent = self.cluster.agent_of(node)
        piece = answered(asked(agent.log.remote(worker_id, offset, limit)), InputError)
        return {**piece, "data": base64.b64encode(piece["data"]).decode()}

    # A line to a program beside a worker; what may take long comes as a Future.

    def begin_line(self, worker_id: str) -> dict[str, Any]:
        """A new exec session beside a worker that runs, by the name of the line to it."""
        located = self.cluster.place_of(worker_id)
        if located is None:
            self.cluster.check_all_known(worker_id)
            raise NoSuchWorker(f"no worker {worker_id} on any node")
        node, place = located
        self.cluster.checked(node)
        worker = answered(asked(self.cluster.agent_of(node).running.remote(worker_id)), InputError)
        return {"line": self.lines.begin(place.node.id, worker["run"])}

    def read_line(self, line: str, wait_s: float) -> "Future[Any]":
        """What the program says next."""
        return self.lines.read(line, wait_s)

    def write_line(self, line: str, data: str) -> "Future[Any]":
        """Bytes for the program, in base64."""
        return self.lines.write(line, data)

    def end_line(self, line: str) -> None:
        """End what is at the other end."""
        self.lines.end(line)

    def _having_the_log(self, worker_id: str) -> Any:
        with self.cluster.lock:
            places = self.cluster.places.items()
            return next(((name, place) for name, place in places if worker_id in place.forgotten), None)

    def forget(self, worker_id: str, epoch: int = 0) -> None:
        """List an ended worker no more."""
        located = self.cluster.place_of(worker_id)
        if located is None:
            return
        node, place = located
        if place.dead:
            self.cluster.drop(place, None, worker_id)
            return
        self.cluster.checked(node)
        reply = asked(self.cluster.agent_of(node).forget.remote(worker_id, epoch))
        if refused := reply.get("refused"):
            if refused[0] == 409:  # it still runs
                return
            if refused[0] != 404:
                answered(reply, InputError)
        self.cluster.drop(place, None if refused else reply, worker_id)

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
            answered(asked(self.cluster.agent_of(node).delete_logs.remote(job, epoch)), InputError)
            with self.cluster.lock:
                place.forgotten = {name: of for name, of in place.forgotten.items() if of != job}

    def _names(self) -> str:
        with self.cluster.lock:
            return ", ".join(sorted(self.cluster.places)) or "none"


def answered(reply: dict[str, Any], refused_as: type[Exception]) -> dict[str, Any]:
    """The answer of a node agent, unless it is a refusal.

    Raises NotNow, NoSuchWorker, IdUsed, StaleLeader or `refused_as`.
    """
    if "refused" not in reply:
        return reply
    status, why = reply["refused"]
    if status == STALE_STATUS:
        raise StaleLeader(why, reply["epoch"])
    if status in NOT_NOW:
        raise NotNow(why)
    if status == HTTPStatus.NOT_FOUND:
        raise NoSuchWorker(why)
    if status == HTTPStatus.GONE:
        raise IdUsed(why)
    if status >= 500:
        raise BackendUnreachable(why)
    raise refused_as(why)


# ── the process that is connected to Ray for a service: `python -m stretto.backends.ray.gateway` ───────


LOOK_S = 1.0  # between looks at the whole cluster; chosen
LOOK_OUTSIDE_S = 2.0  # the same from outside, where each is a task; chosen
LISTEN_S = 5.0  # that a node agent waits for a change
ROUND_S = 0.1  # the longest until a new node agent is listened to
BEAT_S = 1.0
PROBE_S = 3.0
ASK_AGAIN_S = 30.0  # for room that has not come: somebody else may have asked for something since; chosen
THREADS = 48


class Gateway:
    """One connection to Ray, and the socket to the service."""

    def __init__(self, cluster: Cluster, is_client: bool, service: socket.socket, lines: BinaryIO) -> None:
        self.cluster = cluster
        self.orders = WorkerCommands(cluster)
        self.look_s = LOOK_OUTSIDE_S if is_client else LOOK_S
        self.look = looking.looker(is_client)
        self.service, self.lines = service, lines
        mark = f"stretto-asked-{cluster.service_id}"
        self.ask = autoscaling.asker(is_client, mark)
        self.asked: autoscaling.Asked | None = None  # what the cluster was asked for last
        if not (cluster.coming.types and autoscaling.has_asked(mark)):
            self.asked = ([], [])
        self.asked_s = 0.0
        self.saying = threading.Lock()
        self.told: dict[str, Any] = {}  # what the service was shown last
        self.telling = threading.Lock()
        self.pool = ThreadPoolExecutor(THREADS)
        self.chores = ThreadPoolExecutor(8)  # apart from orders: without its head, Ray lets these wait
        self.probes = ThreadPoolExecutor(8)  # apart from these: what is dead may let them wait, too
        self.doing: set[str] = set()  # chores that have not ended, each once
        self.followers = LogTailers(cluster, self.begin)

    def run(self) -> None:
        """Serve until the service is gone."""
        for loop in (self.look_on, self.listen_on, self.tell_on, self.followers.run):
            threading.Thread(target=self.surely, args=(loop,), daemon=True).start()
        for order in orders_in(self.lines):
            self.begin(order)

    def begin(self, order: dict[str, Any]) -> None:
        """Carry out an order beside everything else."""
        self.pool.submit(self.obey, order)

    def surely(self, loop: Callable[[], None]) -> None:
        """Run a loop that never ends; if it does, so does this process, and the service starts another."""
        try:
            loop()
        except BaseException as surprise:
            print(f"{loop.__name__}: {surprise!r}", file=sys.stderr, flush=True)
        os._exit(1)

    # ── orders ────────────────────────────────────────────────────────────────────────────────────

    def obey(self, order: dict[str, Any]) -> None:
        """Carry out one order, and answer."""
        self.answer(order, lambda: getattr(self.orders, order["do"])(**order["with"]))

    def answer(self, order: dict[str, Any], do: Callable[[], Any]) -> None:
        """Say what an order gives, or why it gives nothing."""
        try:
            gives = do()
            if isinstance(gives, Future):  # no thread waits for it
                gives.add_done_callback(lambda done: self.answer(order, done.result))
                return
            if order["do"] == "log" and self.followers.answer_later(order, gives):
                return
            reply = {"id": order["id"], "gives": gives}
        except StaleLeader as later:
            reply = {
                "id": order["id"],
                "fails": type(later).__name__,
                "why": str(later),
                "epoch": later.epoch,
            }
        except StrettoError as failure:
            reply = {"id": order["id"], "fails": type(failure).__name__, "why": str(failure)}
        except Exception as surprise:  # of Ray, which has many kinds: what was asked may have happened
            why = f"{type(surprise).__name__}: {reservation.first_line(surprise)}"
            reply = {"id": order["id"], "fails": BackendUnreachable.__name__, "why": why}
        self.tell()  # first: what an order has changed is known before its answer
        self.say(reply)

    def say(self, value: dict[str, Any]) -> None:
        """One line to the service."""
        line = json.dumps(value).encode() + b"\n"
        with self.saying:
            try:
                self.service.sendall(line)
            except OSError:
                os._exit(0)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def look_on(self) -> None:
        """Look at the cluster now and then; have node agents begin, and let go of what is not needed."""
        while True:
            began_s = time.monotonic()
            try:
                unneeded = self.cluster.learn(self.look(10.0))
            except Exception as failure:  # of Ray, as above; silence shows in the age of what was seen
                print(f"cannot look: {reservation.first_line(failure)}", file=sys.stderr, flush=True)
                unneeded = []
            if self.look_s == LOOK_S:  # from outside, the addresses of nodes may be anybody's
                for place in self.cluster.to_probe():
                    self.begin_chore(self.probe, place.node.name, self.probes)
            if self.cluster.coming.types:
                self.begin_chore(self.grow, "")
            for name in unneeded:
                self.begin_chore(self.let_go, name)
            for name in self.cluster.to_hire():
                self.begin_chore(self.hire, name)
            time.sleep(max(0.0, self.look_s - (time.monotonic() - began_s)))

    def begin_chore(
        self, do: Callable[[str], None], about: str, where: ThreadPoolExecutor | None = None
    ) -> None:
        """Do something beside everything else, unless it is being done."""
        chore = f"{do.__name__} {about}"
        if chore in self.doing:
            return
        self.doing.add(chore)

        def run() -> None:
            try:
                do(about)
            except Exception as failure:  # of Ray, as above; seen to again at the next look
                print(f"{chore}: {reservation.first_line(failure)}", file=sys.stderr, flush=True)
            finally:
                self.doing.discard(chore)
                self.cluster.changed.set()

        (where or self.chores).submit(run)

    def hire(self, node: str) -> None:
        """Have a node agent begin."""
        self.cluster.agent_of(node)

    def let_go(self, worker_id: str) -> None:
        """Give back what was held for a worker that has ended."""
        reservation.let_go(worker_id, self.cluster.prefix)
        self.cluster.freed(worker_id)

    def grow(self, _: str) -> None:
        """Ask the cluster for room for what is wished, where that is not what it was asked for last."""
        with self.cluster.lock:
            wishes = list(self.cluster.wishes)
        request = autoscaling.asked_for(wishes, self.cluster.used_by_others(), self.cluster.coming.types)
        now_s = time.monotonic()
        if request != self.asked or (request[0] and now_s - self.asked_s > ASK_AGAIN_S):
            self.ask(request)
            self.asked, self.asked_s = request, now_s

    def probe(self, node: str) -> None:
        """Find out whether the raylet of a node has ended: then the machine refuses a connection to it."""
        place = self.cluster.places[node]
        try:
            socket.create_connection((place.node.address, place.node.port), PROBE_S).close()
        except ConnectionRefusedError:
            place.gone = True
        except OSError:  # silence says nothing
            return

    # ── listening ─────────────────────────────────────────────────────────────────────────────────

    def listen_on(self) -> None:
        """Hear from every node agent as soon as something of its workers has changed."""
        import ray

        waiting: dict[Any, tuple[str, Any]] = {}  # answer that is to come -> node, node agent
        while True:
            asked_of = {name for name, _ in waiting.values()}
            for name, agent, after in list(self.cluster.to_hear()):
                if name not in asked_of:
                    waiting[agent.listed.remote(after, LISTEN_S)] = (name, agent)
            if not waiting:
                time.sleep(ROUND_S)
                continue
            done, _ = ray.wait(list(waiting), timeout=ROUND_S)
            for answer in done:
                self.hear(*waiting.pop(answer), answer)

    def hear(self, name: str, agent: Any, answer: Any) -> None:
        """Take in what one node agent says."""
        place = self.cluster.place(name)
        if place is None:
            return
        try:
            ended = self.cluster.take(place, asked(answer))
        except BackendUnreachable as failure:
            if place.agent is agent:
                print(f"node {name}: {failure}", file=sys.stderr, flush=True)
            self.cluster.lose_agent(place, agent)
            return
        for worker_id in ended:
            self.begin_chore(self.let_go, worker_id)

    # ── telling ───────────────────────────────────────────────────────────────────────────────────

    def tell_on(self) -> None:
        """Tell the service what has changed, and else that we are there."""
        while True:
            changed = self.cluster.changed.wait(BEAT_S)
            self.tell() if changed else self.tell(always=True)

    def tell(self, always: bool = False) -> None:
        """Say what is seen, unless that was said."""
        with self.telling:
            self.cluster.changed.clear()
            nodes = self.cluster.shown_nodes()
            with self.cluster.lock:
                workers = {name: list(place.workers.values()) for name, place in self.cluster.places.items()}
            listing = {"nodes": nodes, "workers": workers}
            if listing != self.told:
                self.told = listing
                self.say(listing)
            elif always:
                self.say({})


def orders_in(lines: BinaryIO) -> Iterator[dict[str, Any]]:
    """Orders as they come, until the service is gone, whatever it had not read, or not written to its end."""
    with suppress(OSError):
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)


def main() -> int:
    """Connect, and serve."""
    asked_for = options().parse_args()
    faulthandler.register(signal.SIGUSR1)  # to see what it waits for where Ray hangs
    service = socket.socket(fileno=asked_for.socket)
    service.set_inheritable(False)

    def say(value: dict[str, Any]) -> None:
        with suppress(OSError):
            service.sendall(json.dumps(value).encode() + b"\n")

    try:
        is_client = connect(asked_for.address, f"stretto-{asked_for.service_id}")
    except InputError as failure:
        say({"refused": str(failure)})
        return 2
    except Exception as failure:
        say({"refused": reason_of(failure)})
        return 2
    lines = service.makefile("rb")
    first = json.loads(lines.readline() or b"{}")
    coming = NodeSlots(coming_types(asked_for.grow), first.get("known", {}), asked_for.lost_after_s)
    cluster = Cluster(asked_for.service_id, asked_for.down_after_s, asked_for.lost_after_s, coming)
    cluster.wishes, cluster.max_log_bytes = first.get("wishes", []), asked_for.max_log_bytes
    say({"hello": True})
    Gateway(cluster, is_client, service, lines).run()
    os._exit(0)  # threads may be waiting for Ray


def coming_types(words: list[str]) -> tuple[autoscaling.NodeType, ...]:
    """Nodes that may come: as people say, else as the autoscaler was told."""
    if words == [autoscaling.NEVER]:
        return ()
    if words:
        return tuple(autoscaling.types_said(words))
    try:
        return tuple(autoscaling.types_in(autoscaling.config_of_autoscaler()))
    except Exception as failure:  # of Ray, as above, or of a configuration in other words
        print(
            f"no configuration of an autoscaler: {reservation.first_line(failure)}",
            file=sys.stderr,
            flush=True,
        )
        return ()


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stretto.backends.ray.gateway", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--service-id", required=True)
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the way to the service")
    parser.add_argument("--down-after-s", type=float, required=True)
    parser.add_argument("--lost-after-s", type=float, required=True)
    parser.add_argument("--max-log-bytes", type=int, default=MAX_LOG_BYTES)
    parser.add_argument("--grow", nargs="*", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
