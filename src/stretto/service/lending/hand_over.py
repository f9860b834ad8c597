"""Nodes change hands: to training once they are on loan, to their lender once nothing of ours is left there.

What is on loan is decided elsewhere, by the same rule as in a simulation. Here it is carried out: the
backend's cluster is told, where it wants to know, and then the log. Each step may be repeated after a crash.
A service that begins tells its cluster everything once more, which may have been changed there meanwhile.
Nodes of a lender that is deleted are training's, and their cluster takes every mark of it away.
A lender that waits for longer than its guarantee is told of, once.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isnan

from stretto.backends.protocol import Backend, BackendUnreachable, HandsOver
from stretto.service.eventlog import LeadLost
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.leadership import Leadership
from stretto.service.reconcile.controller import Reconciler
from stretto.service.state.events import Event, GuaranteeMissed, NodeLost, NodeSeen, NodesHandedOver
from stretto.service.state.lender_records import WHOLE, LenderRecord
from stretto.service.state.lenders import nodes_of_lenders
from stretto.service.state.state import State

AGAIN_S = 1.0  # of wall time before a cluster is asked again, or a node looked at that is not free; chosen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandOver:
    """Nodes that are to change hands together."""

    lender: str
    nodes: tuple[str, ...]
    to: str | None  # the lender; "": training, on loan; None: training, of no lender any more


def hand_overs(state: State, occupied: Container[int]) -> list[HandOver]:
    """What may change hands now. Pure. occupied: nodes on which processes of ours may be left.

    A lender may have reported a higher need since its nodes were lent. What it needs by now stays with it,
    and the next settlement takes the rest of that loan back.
    """
    spare = {lender.name: _spare_nodes(lender, state) for lender in state.lenders.values()}
    # A node that is down may not hear of it, which must not keep those that are up.
    groups: dict[tuple[str, str | None, bool], list[str]] = {}
    for index, node in enumerate(state.nodes):
        if node.is_where_it_should_be or (node.hands and index in occupied):
            continue
        if not node.hands and node.up and node.lender:
            spare[node.lender] -= 1
            if spare[node.lender] < 0:
                continue
        groups.setdefault((node.lender or node.marked_for, node.hands, node.up), []).append(node.name)
    return [HandOver(lender, tuple(names), to) for (lender, to, _), names in groups.items()]


def unconfirmed(state: State, told: Mapping[str, str]) -> list[HandOver]:
    """Nodes of lenders that stay where they are, of which the cluster was not told yet. Pure.

    told: by node, in whose hands it is as the cluster was told. Nothing is told when a service begins, of a
    node that was on loan from the first, and of one that was down since.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for node in state.nodes:
        stays = node.up and node.lender and node.hands == node.in_hands_of
        if stays and told.get(node.name) != node.in_hands_of:
            groups.setdefault((node.lender, node.in_hands_of), []).append(node.name)
    return [HandOver(lender, tuple(names), to) for (lender, to), names in groups.items()]


def _spare_nodes(lender: LenderRecord, state: State) -> float:
    """Nodes in a lender's hands that it does not need by its latest report."""
    _, at_home = nodes_of_lenders(state.nodes).get(lender.name, (0, 0))
    return inf if isnan(lender.need) else at_home - ceil(lender.need - WHOLE)


def missed_guarantees(state: State, now_s: float) -> list[GuaranteeMissed]:
    """Lenders that have waited for longer than their guarantee, and of which that is not said yet. Pure."""
    counts = nodes_of_lenders(state.nodes)
    return [
        GuaranteeMissed(lender.name, lender.asked_s, lender.guarantee_s, lender.lacking(*counts[lender.name]))
        for lender in state.lenders.values()
        if lender.guarantee_s
        and not lender.missed
        and lender.name in counts
        and now_s - lender.asked_s > lender.guarantee_s
    ]


@dataclass
class NodeExchange:
    """Carries out what was settled with lenders."""

    log_writer: LogWriter
    backend: Backend
    reconciler: Reconciler
    clock: Clock
    leadership: Leadership | None = None
    failures: dict[str, str] = field(default_factory=dict)  # by lender, why its nodes cannot change hands now
    leaving: frozenset[str] = frozenset()  # nodes of which the cluster is being told that they are ours
    told: dict[str, str] = field(default_factory=dict)  # by node: in whose hands it is, as the cluster knows
    _failed: set[str] = field(default_factory=set)  # lenders of `failures` since the latest look began
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self._heard)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        for _, event in told:
            if isinstance(event, NodeSeen | NodeLost):  # what comes back may be another machine of this name
                self.told.pop(event.node, None)
        if self.log_writer.state.lenders or self.log_writer.state.node_facts.some_is_marked:
            self._wake.set()

    async def run(self) -> None:
        """Look whenever something has happened, and again while a node is on its way, until cancelled."""
        while True:
            self._wake.clear()
            await self.look()
            wait_s = self.wait_s()
            try:
                async with asyncio.timeout(None if wait_s == inf else wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Hand over what can be, confirm the rest, and say which guarantees are missed."""
        state = self.log_writer.state
        self._failed.clear()
        due = hand_overs(state, self.reconciler.occupied_nodes())
        await self._say_missed()  # before the wait ends with what changes hands now
        self.leaving = frozenset(name for hand_over in due if not hand_over.to for name in hand_over.nodes)
        for hand_over in due:
            if await self._tell_cluster(hand_over):
                await self.log_writer.record(NodesHandedOver(hand_over.lender, hand_over.nodes, hand_over.to))
        self.leaving = frozenset()
        for hand_over in unconfirmed(state, self.told):
            await self._tell_cluster(hand_over)
        self.failures = {lender: why for lender, why in self.failures.items() if lender in self._failed}
        await self._say_missed()

    async def _say_missed(self) -> None:
        """Tell once of each lender that has waited for longer than its guarantee."""
        for missed in missed_guarantees(self.log_writer.state, self.clock.now_s()):
            log.warning(
                "lender %s has waited %g s for %d of its nodes, its guarantee is %g s",
                missed.lender,
                self.clock.now_s() - missed.asked_s,
                missed.lacks,
                missed.guarantee_s,
            )
            await self.log_writer.record(missed)

    async def _tell_cluster(self, hand_over: HandOver) -> bool:
        """Whether the cluster knows whose the nodes are from now on."""
        backend = self.backend
        nodes, to = hand_over.nodes, hand_over.to
        for name in nodes:  # where this fails it may be done in part
            self.told.pop(name, None)
        if not isinstance(backend, HandsOver):
            self._note_told(hand_over)
            return True
        try:
            if self.leadership is None:
                await backend.hand_over(nodes, to)
            else:
                await self.leadership.command(lambda: backend.hand_over(nodes, to))
        except LeadLost:
            return False  # the service is ending
        except BackendUnreachable as failure:
            if self.failures.get(hand_over.lender) != str(failure):
                log.warning("nodes of lender %s cannot change hands: %s", hand_over.lender, failure)
            self.failures[hand_over.lender] = str(failure)
            self._failed.add(hand_over.lender)
            return False
        self._note_told(hand_over)
        return True

    def _note_told(self, hand_over: HandOver) -> None:
        if hand_over.to is not None:
            self.told |= dict.fromkeys(hand_over.nodes, hand_over.to)

    def wait_s(self) -> float:
        """Wall time until the next look, where nothing happens before."""
        state, now_s = self.log_writer.state, self.clock.now_s()
        waits = not all(node.is_where_it_should_be for node in state.nodes) or unconfirmed(state, self.told)
        due_s = [
            lender.asked_s + lender.guarantee_s - now_s
            for lender in state.lenders.values()
            if lender.guarantee_s and not lender.missed and not isnan(lender.asked_s)
        ]
        until_missed_s = max(self.clock.wall_s(min(due_s)), 0.01) if due_s else inf
        return min(until_missed_s, AGAIN_S) if waits else until_missed_s
