"""What the gateway knows of a Ray cluster: its nodes, the node agent of each, and their workers.

Everything here may be called from several threads. What Ray is asked is asked without the lock.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stretto import __version__
from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.protocol import BackendUnreachable, NotNow
from stretto.backends.ray import reservation
from stretto.backends.ray.autoscaling import NodeSlots
from stretto.backends.ray.node_agent import LONELY_S, NodeAgent
from stretto.backends.ray.nodes import RayNode, held_by_others, held_by_us, node_of, nodes_in

ANSWER_S = 10.0  # the longest that a node agent may think about what it can do at once; chosen
HIRE_S = 60.0  # for a process of Ray's to start on a busy node; chosen
NOTICED_S = 0.15  # until Ray counts as free what was given back; measured: a tenth of a second
FREED_S = 1.0  # the longest to wait for that
HEAD_S = 5.0  # of silence of Ray's head, after which nothing new is asked of it; chosen
AGAIN_S = 5.0  # before a node is looked at again where no node agent could begin; chosen
IDLE_S = (
    30.0  # without a running worker, after which we listen to a node agent no more, and it leaves; chosen
)
HURRY_S = 10.0  # the same, and until it leaves, on a node that goes when nobody uses it; chosen
ORPHAN_S = 20.0  # that a placement group may have no worker, as between the two steps of a start; chosen
SETTLED_S = 4.0  # that GPUs must have been in use before they count as another's: Ray's figures lag; chosen
FIRST_SETTLED_S = 1.5  # the same for a node that is new to us, on which we hardly held anything just now
AGENT_THREADS = 32
GONE_S = 60.0  # that a node is dead, with nothing of it left, before it is listed no more; chosen


@dataclass
class Place:
    """One machine as a node of ours."""

    node: RayNode
    agent: Any = None
    swept: str = ""  # the life of the raylet of which it is known that nothing of an earlier one runs
    instance: str = ""  # the life of the node agent in which versions count
    version: int = 0  # of the listing that `workers` came from
    floor: int = 0  # older listings lack what was asked of the node agent since
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)  # as shown, by id
    forgotten: dict[str, str] = field(default_factory=dict)  # jobs of workers that only have a log, by id
    heard_s: float = 0.0  # when there last was a sign of life
    lost_s: float | None = None  # since when it is dead
    gone: bool = False  # its machine says that nobody listens where its raylet did
    dead: bool = False  # and nothing of ours runs there any more
    needed_s: float = 0.0  # when its node agent was last of use
    wrong: str = ""  # why no node agent could begin
    wrong_s: float = 0.0
    freeing: set[str] = field(default_factory=set)  # workers whose group is about to go
    freed_s: float = 0.0  # when the last one went
    others: int = 0
    unsettled: tuple[int, float, float] = (0, 0.0, 0.0)  # what `others` may become, beside how many of ours,
    # and since when both have been so
    hiring: threading.Lock = field(default_factory=threading.Lock)

    @property
    def going(self) -> bool:
        """Whether a worker runs there."""
        return any(each["phase"] != "ended" for each in self.workers.values())


class Cluster:
    """The nodes by name, and the node agents on them."""

    def __init__(
        self, service_id: str, down_after_s: float, lost_after_s: float, coming: NodeSlots | None = None
    ) -> None:
        self.coming = coming or NodeSlots()  # places of nodes that come and go
        self.wishes: list[dict[str, Any]] = []  # what is to have room beside all that is in use
        self.max_log_bytes = MAX_LOG_BYTES  # that the logs of a job take on each node; 0: any amount
        self.service_id = service_id
        self.prefix = f"stretto-{service_id}/"  # of the names of our placement groups
        self.down_after_s = down_after_s  # silence after which a node counts as down
        self.lost_after_s = lost_after_s  # after which a raylet that Ray calls dead has ended for certain
        self.lock = threading.RLock()
        self.places: dict[str, Place] = {}
        self.starting: set[str] = set()  # workers between their placement group and their run directory
        self.orphans: dict[str, float] = {}  # placement groups without a worker, since when
        self.groups: set[str] = set()  # workers for which something is held, as last seen
        self.seen_s = time.monotonic()  # when Ray's head last answered
        self.has_looked = False
        self.changed = threading.Event()

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────

    def learn(self, view: dict[str, Any]) -> list[str]:
        """Take in what Ray says; workers for which more is held than is needed."""
        now_s = time.monotonic()
        with self.lock:
            self.seen_s, self.has_looked = now_s, True
            nodes = {node.name: node for node in nodes_in(view, self._names(view))}
            for name, node in nodes.items():
                self._learn_node(name, node, now_s)
            for name, place in self.places.items():
                if name not in nodes:  # a cluster that was begun anew
                    self._note_loss(place, "Ray does not know it any more", now_s)
                self._settle(place, view, now_s)
            self._let_go_of_dead(now_s)
            self.changed.set()
            return self._unneeded(view, now_s)

    def _names(self, seen: dict[str, Any]) -> dict[str, str]:
        """What nodes are called, by id: as before, or by a place of those that come and go."""
        names = {place.node.id: name for name, place in self.places.items()}
        if self.coming.types:
            new = [each for each in seen["nodes"] if each["alive"] and each["id"] not in names]
            last = {name: (place.node.address, place.dead) for name, place in self.places.items()}
            names |= self.coming.names_for([node_of(each, "", seen) for each in new], last)
        return names

    def _let_go_of_dead(self, now_s: float) -> None:
        """List nodes no more of which nothing is left, not even workers that are asked after."""
        over = [name for name, place in self.places.items() if place.dead and not place.workers]
        for name in over:
            if now_s - (self.places[name].lost_s or now_s) > self.lost_after_s + GONE_S:
                del self.places[name]

    def _is_known(self, name: str, node: RayNode) -> bool:
        """Whether a dead node is one that is asked after; Ray names those of the last days."""
        if self.coming.known.get(name) == node.address and self.coming.may_still_run(name):
            return True
        return name in self.places

    def _learn_node(self, name: str, node: RayNode, now_s: float) -> None:
        place = self.places.get(name)
        if not node.alive and not self._is_known(name, node):
            return
        if place is None:
            place = self.places[name] = Place(node)
        if not node.alive:
            if place.node.id == node.id or place.lost_s is not None or place.node.alive:
                self._note_loss(place, node.why, now_s)
            return
        if place.node.id != node.id:
            place.agent, place.instance = None, ""
            place.others, place.unsettled = 0, (0, 0.0, 0.0)
        place.node, place.heard_s, place.lost_s, place.dead, place.gone = node, now_s, None, False, False

    def _note_loss(self, place: Place, why: str, now_s: float) -> None:
        """Ray says that a raylet is dead. Its workers are, too, once it has ended for certain.

        It has where its machine says so; else after the time within which it ends itself without a cluster.
        """
        if place.lost_s is None:
            place.lost_s, place.agent = now_s, None
            place.wrong = why or "Ray says that it is dead"
        if not place.dead and now_s - place.lost_s >= (0.0 if place.gone else self.lost_after_s):
            place.dead = True
            for name, worker in place.workers.items():
                if worker["phase"] != "ended":
                    lost = {
                        "phase": "ended",
                        "status": 137,
                        "signal": 9,
                        "why": f"node {place.node.name} died",
                    }
                    place.workers[name] = {**worker, **lost}

    def to_probe(self) -> list[Place]:
        """Nodes of which it would help to know whether their raylet has ended for certain."""
        with self.lock:
            places = self.places.values()
            return [
                place for place in places if place.lost_s is not None and not place.dead and not place.gone
            ]

    def _settle(self, place: Place, view: dict[str, Any], now_s: float) -> None:
        """Believe in more GPUs of others once they have stood for a while in which we changed nothing."""
        if place.lost_s is not None:
            return
        ours = held_by_us(place.node, view["groups"], self.prefix)
        now = held_by_others(place.node, ours)
        if (now, ours) != place.unsettled[:2]:
            is_new = place.unsettled[2] == 0.0
            place.unsettled = (now, ours, now_s - (SETTLED_S - FIRST_SETTLED_S if is_new else 0.0))
        if now < place.others or now_s - place.unsettled[2] >= SETTLED_S:
            place.others = now

    def _unneeded(self, view: dict[str, Any], now_s: float) -> list[str]:
        """Workers for which a placement group is there that must go."""
        ours = {
            each["name"].removeprefix(self.prefix): each
            for each in view["groups"]
            if each["name"].startswith(self.prefix)
        }
        by_id = {place.node.id: place for place in self.places.values()}
        self.groups = set(ours)
        lonely, over = set(), []
        for name, group in ours.items():
            place = by_id.get(group["node"])
            if name in self.starting:
                continue
            if place is not None and place.lost_s is None:
                if place.swept != place.node.id:
                    continue  # what runs there is not known yet
                if worker := place.workers.get(name):
                    if worker["phase"] == "ended":
                        over.append(name)
                    continue
            lonely.add(name)
        self.orphans = {name: self.orphans.get(name, now_s) for name in lonely}
        return over + [name for name, since_s in self.orphans.items() if now_s - since_s > ORPHAN_S]

    def shown_nodes(self) -> list[dict[str, Any]]:
        """Every node as the service is shown it."""
        with self.lock:
            if not self.has_looked:
                return []
            there = [self._shown(name, place) for name, place in sorted(self.places.items())]
            return there + self.coming.empty(self.places)

    def used_by_others(self) -> list[tuple[RayNode, int]]:
        """Nodes that live, and how many GPUs of each are not ours."""
        with self.lock:
            living = [place for place in self.places.values() if place.lost_s is None]
            return [(place.node, place.others) for place in living]

    def _shown(self, name: str, place: Place) -> dict[str, Any]:
        node, why = place.node, self._why_down(place)
        return {
            "name": name,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "cpus": int(node.cpus),
            "memory_gb": node.memory_gb,
            "up": not why,
            "address": node.address,
            "why": why,
            "dead": place.dead,
            "shut": "Ray drains it" if node.draining and not why else "",
            "others": place.others if not why else 0,
            "comes": name in self.coming.type_of,
        }

    def _why_down(self, place: Place) -> str:
        """Why a node is not to be used; "" = it is."""
        silent_s = time.monotonic() - place.heard_s
        if place.lost_s is not None:
            return place.wrong
        if silent_s > self.down_after_s:
            return f"Ray has said nothing of it for {silent_s:.0f} s" if place.heard_s else "not seen yet"
        if place.swept != place.node.id:
            return place.wrong or "its node agent begins"
        return ""

    def place(self, name: str) -> Place | None:
        """A node by its name."""
        with self.lock:
            return self.places.get(name)

    def checked(self, name: str) -> Place:
        """A node that can be asked; raises BackendUnreachable."""
        with self.lock:
            place = self.places[name]
            if why := self._why_down(place):
                raise BackendUnreachable(f"node {name}: {why}")
            return place

    def check_head(self) -> None:
        """Raise BackendUnreachable while Ray's head is silent: a call to it then waits for a minute."""
        silent_s = time.monotonic() - self.seen_s
        if silent_s > HEAD_S:
            raise BackendUnreachable(f"Ray's head has not answered for {silent_s:.0f} s")

    # ── node agents ──────────────────────────────────────────────────────────────────────────────────

    def to_hire(self) -> list[str]:
        """Nodes on which a node agent is needed and none is known."""
        now_s = time.monotonic()
        with self.lock:
            return [
                name
                for name, place in self.places.items()
                if place.lost_s is None
                and place.agent is None
                and (place.swept != place.node.id or place.going)
                and now_s - place.wrong_s > AGAIN_S
            ]

    def agent_of(self, name: str) -> Any:
        """The node agent of a node, which begins if need be; raises BackendUnreachable."""
        place = self.places[name]
        with place.hiring:
            if place.agent is None:
                try:
                    self._hire(name, place)
                except BackendUnreachable as failure:
                    place.wrong, place.wrong_s = str(failure), time.monotonic()
                    raise
            place.needed_s = time.monotonic()
            return place.agent

    def _hire(self, name: str, place: Place) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = place.node
        kind = ray.remote(NodeAgent).options(
            # A name on the wire: services of older versions have begun actors of that name.
            name=f"steward-{node.id[:12]}",
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=AGENT_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        lonely_s = LONELY_S if name not in self.coming.type_of else HURRY_S
        agent = kind.remote(self.service_id, name, node.address, node.gpus, lonely_s)
        listing = asked(agent.ready.remote(), HIRE_S)
        if listing["stretto"] != __version__:
            ray.kill(agent)
            raise BackendUnreachable(f"its Stretto is {listing['stretto']}, expected {__version__} as here")
        asked(agent.keep_logs.remote(self.max_log_bytes))
        if listing["left"]:
            raise NotNow(f"workers of its earlier life still end: {', '.join(listing['left'][:3])}")
        with self.lock:
            if place.node.id != node.id:
                raise BackendUnreachable("it has just been started anew")
            place.forgotten = listing["forgotten"]
            place.agent, place.swept, place.wrong = agent, node.id, ""
            place.instance, place.floor = "", 0
            self.take(place, listing)

    def take(self, place: Place, listing: dict[str, Any]) -> list[str]:
        """Take in a listing, unless a newer answer is known; workers that have ended since."""
        with self.lock:
            if listing["instance"] == place.instance and listing["version"] < place.floor:
                return []
            before, place.workers = place.workers, {each["id"]: each for each in listing["workers"]}
            gone = [each for name, each in before.items() if name not in place.workers]
            place.forgotten |= {each["id"]: each["job"] for each in gone}
            place.instance, place.version = listing["instance"], listing["version"]
            place.floor = place.version
            place.heard_s = time.monotonic()
            self.changed.set()
            over = {name for name, each in place.workers.items() if each["phase"] == "ended"}
            over &= self.groups | {name for name in over if before.get(name, {}).get("phase") != "ended"}
            place.freeing |= over
            return sorted(over)

    def freed(self, worker_id: str) -> None:
        """Take in that nothing is held for a worker any more."""
        with self.lock:
            self.groups.discard(worker_id)
            for place in self.places.values():
                if worker_id in place.freeing:
                    place.freeing.discard(worker_id)
                    place.freed_s = time.monotonic()

    def wait_for_freed(self, place: Place) -> None:
        """Let Ray notice what was given back: a group that comes too early waits for up to a second."""
        until_s = time.monotonic() + FREED_S
        while time.monotonic() < until_s and (place.freeing or time.monotonic() < place.freed_s + NOTICED_S):
            time.sleep(0.01)

    def take_one(self, place: Place, reply: dict[str, Any]) -> dict[str, Any]:
        """Take in the answer to an order: what is shown of its worker."""
        with self.lock:
            worker: dict[str, Any] = reply["worker"]
            if reply["instance"] == place.instance and reply["version"] >= place.floor:
                place.workers[worker["id"]], place.floor = worker, reply["version"]
            place.heard_s = place.needed_s = time.monotonic()
            self.changed.set()
            return worker

    def drop(self, place: Place, reply: dict[str, Any] | None, worker_id: str) -> None:
        """Take in that a worker is forgotten."""
        with self.lock:
            worker = place.workers.pop(worker_id, None)
            if reply is not None:
                if reply["instance"] == place.instance:
                    place.floor = max(reply["version"], place.floor)
                if worker is not None:
                    place.forgotten[worker_id] = worker["job"]
            self.changed.set()

    def to_hear(self) -> Iterator[tuple[str, Any, str]]:
        """(node, node agent, what was heard last) of those to be listened to; one that idles may leave."""
        now_s = time.monotonic()
        with self.lock:
            for name, place in self.places.items():
                if place.agent is None or place.lost_s is not None:
                    continue
                if place.going or any(each in self.groups for each in place.workers):
                    place.needed_s = now_s
                if now_s - place.needed_s > (IDLE_S if name not in self.coming.type_of else HURRY_S):
                    place.agent = None
                    continue
                yield name, place.agent, f"{place.instance}:{place.version}"

    def lose_agent(self, place: Place, agent: Any) -> None:
        """A node agent has ended; another begins where one is needed."""
        with self.lock:
            if place.agent is agent:
                place.agent = None

    def place_of(self, worker_id: str) -> tuple[str, Place] | None:
        """The node that lists a worker."""
        with self.lock:
            return next(((n, p) for n, p in self.places.items() if worker_id in p.workers), None)

    def check_not_starting(self, worker_id: str) -> None:
        """Raise NotNow while a worker is started: whether there will be one is not known yet."""
        with self.lock:
            if worker_id in self.starting:
                raise NotNow(f"worker {worker_id} is being started")

    def check_all_known(self, worker_id: str) -> None:
        """Raise BackendUnreachable if a worker may be on a node of which we do not know."""
        with self.lock:
            for name, place in self.places.items():
                if not place.dead and (why := self._why_down(place)):
                    raise BackendUnreachable(f"worker {worker_id} may be on node {name}: {why}")

    @contextmanager
    def begins(self, worker_id: str) -> Iterator[None]:
        """While a worker is started, what is held for it stays."""
        with self.lock:
            self.check_not_starting(worker_id)
            self.starting.add(worker_id)
        try:
            yield
        finally:
            with self.lock:
                self.starting.discard(worker_id)


def asked(answer: Any, wait_s: float = ANSWER_S) -> dict[str, Any]:
    """What a node agent answers; raises BackendUnreachable, whatever Ray says instead of an answer."""
    import ray

    try:
        reply: dict[str, Any] = ray.get(answer, timeout=wait_s)
    except ray.exceptions.GetTimeoutError:
        raise BackendUnreachable(f"no answer within {wait_s:g} s") from None
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as failure:
        raise BackendUnreachable(reason_of(failure)) from failure
    return reply


def reason_of(failure: BaseException) -> str:
    """What is wrong, in a line: that Stretto is not installed there if it is that."""
    text = str(failure)
    for line in text.splitlines():
        if "ModuleNotFoundError" in line or "ImportError" in line:
            said = line[line.index("Error") :].partition(":")[2].strip()
            return f"Stretto cannot be imported there: {said or line.strip()}"
    return reservation.first_line(failure)
