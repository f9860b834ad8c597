"""Clusters that are told whose a lender's node is: again where that may have been lost, and one by one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.service.emulated.stage import MemoryWriter
from tests.service.scene import Scene

from stretto.backends.protocol import BackendUnreachable
from stretto.service.eventlog.clock import Clock
from stretto.service.lending.hand_over import AGAIN_S, NodeExchange
from stretto.service.state import events as happened

LENT = ("n1", "n2", "n3")


@dataclass
class Cluster:
    """It knows whose each node is, and may refuse some."""

    hands: dict[str, str | None] = field(default_factory=dict)
    asked: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """One node after the other, as agents are told."""
        self.asked.append((tuple(nodes), to))
        for name in nodes:
            if name in self.refused:
                raise BackendUnreachable(f"node {name} does not answer")
            self.hands[name] = to


@dataclass
class Exchange:
    """Four nodes, three of them a lender's, and what tells their cluster of it."""

    cluster: Cluster = field(default_factory=Cluster)
    scene: Scene = field(default_factory=lambda: Scene(nodes=4))
    lent: tuple[str, ...] = LENT
    occupied: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.log_writer = MemoryWriter(self.scene.state, Clock())
        if self.lent and not self.scene.state.lenders:
            self.tell(happened.Configured("lyra", settings={"lend.rule": "lyra"}))
            self.tell(happened.LenderSet("inference", self.lent))
        reconciler = cast("Any", SimpleNamespace(occupied_nodes=lambda: self.occupied))
        writer, cluster = cast("Any", self.log_writer), cast("Any", self.cluster)
        self.exchange = NodeExchange(writer, cluster, reconciler, self.log_writer.clock)

    def tell(self, *events: happened.Event) -> None:
        self.log_writer.record(*events)

    def settle(self, **loans: list[str]) -> None:
        self.tell(happened.Decided(self.log_writer.state.seq, 0.0, (), (), loans=loans))

    def look(self) -> list[tuple[tuple[str, ...], str | None]]:
        """What the cluster is told now."""
        self.cluster.asked.clear()
        asyncio.run(self.exchange.look())
        return [*self.cluster.asked]

    def begun_anew(self) -> "Exchange":
        """The next service of the same log, over the same cluster."""
        return Exchange(self.cluster, self.scene, lent=())

    def in_hands(self) -> dict[str, str]:
        """Nodes of the lender, as the log has it."""
        return {node.name: node.in_hands_of for node in self.log_writer.state.nodes if node.name in LENT}


@pytest.fixture
def lent() -> Exchange:
    """The first two nodes are with their lender, the third is on loan."""
    exchange = Exchange()
    exchange.look()
    exchange.settle(lent=["n3"])
    exchange.look()
    assert exchange.in_hands() == {"n1": "inference", "n2": "inference", "n3": ""}
    return exchange


def test_a_service_that_begins_tells_its_cluster_once_more_and_records_nothing(lent: Exchange) -> None:
    lent.cluster.hands = {"n1": "", "n2": "inference"}  # somebody has changed what stood there
    again = lent.begun_anew()
    assert again.look() == [(("n1", "n2"), "inference"), (("n3",), "")]
    assert again.cluster.hands == again.in_hands()
    assert again.look() == []
    assert again.log_writer.log == []


def test_a_node_that_is_on_loan_from_the_first_is_told_of() -> None:
    scene = Scene(nodes=4)
    scene.submit("1", gpus=4)
    scene.give(_1={"n2": 0b1111})
    exchange = Exchange(scene=scene, lent=("n1", "n2"), occupied={2})
    assert exchange.look() == [(("n1",), "inference"), (("n2",), "")]


def test_a_node_that_comes_back_is_told_of_anew_and_others_are_not(lent: Exchange) -> None:
    lent.tell(happened.NodeLost("n2", "it is silent"))
    assert lent.look() == []
    lent.tell(happened.NodeSeen("n2", "a100", 4))
    assert lent.look() == [(("n2",), "inference")]


def test_a_node_that_is_down_does_not_keep_others_from_their_lender(lent: Exchange) -> None:
    lent.settle(lent=["n1", "n2"])
    lent.look()
    lent.tell(happened.NodeLost("n1", "it is silent"))
    lent.cluster.refused = {"n1"}
    lent.settle(returned=["n1", "n2"])
    lent.look()
    assert lent.in_hands() == {"n1": "", "n2": "inference", "n3": ""}
    assert lent.exchange.wait_s() == AGAIN_S
    lent.cluster.refused = set()
    lent.look()
    assert lent.cluster.hands == lent.in_hands() == {"n1": "inference", "n2": "inference", "n3": ""}


def test_what_was_done_in_part_and_is_not_wanted_any_more_is_undone(lent: Exchange) -> None:
    lent.cluster.refused = {"n2"}
    lent.settle(lent=["n1", "n2"])
    lent.look()
    assert lent.cluster.hands["n1"] == ""
    assert lent.in_hands()["n1"] == "inference"
    lent.cluster.refused = set()
    lent.settle(returned=["n1", "n2"])  # as nodes are settled again before the cluster has taken it
    lent.look()
    assert lent.cluster.hands == lent.in_hands() == {"n1": "inference", "n2": "inference", "n3": ""}


def test_a_refusal_is_shown_until_the_cluster_takes_it(lent: Exchange) -> None:
    lent.cluster.refused = {"n2"}
    again = lent.begun_anew()
    again.look()
    assert again.exchange.failures == {"inference": "node n2 does not answer"}
    assert again.exchange.wait_s() == AGAIN_S
    lent.cluster.refused = set()
    again.look()
    assert again.exchange.failures == {}


def test_of_a_lender_that_is_deleted_no_mark_is_left_on_any_node(lent: Exchange) -> None:
    lent.tell(happened.LenderDeleted("inference"))
    assert lent.look() == [(LENT, None)]
    assert lent.in_hands() == dict.fromkeys(LENT, "")
    assert lent.exchange.wait_s() == inf
    assert lent.look() == []
    again = lent.begun_anew()
    assert again.look() == []
    assert again.log_writer.log == []


def test_of_nodes_that_a_lender_has_no_more_the_mark_goes_and_others_keep_theirs(lent: Exchange) -> None:
    lent.tell(happened.LenderSet("inference", ("n2",)))
    assert lent.look() == [(("n1", "n3"), None)]
    assert lent.cluster.hands == {"n1": None, "n2": "inference", "n3": None}


def test_a_mark_that_could_not_be_removed_is_removed_later_also_by_the_next_service(lent: Exchange) -> None:
    lent.tell(happened.NodeLost("n1", "it is silent"))
    lent.cluster.refused = {"n3"}
    lent.tell(happened.LenderDeleted("inference"))
    lent.look()
    assert lent.exchange.failures == {"inference": "node n3 does not answer"}
    assert lent.exchange.wait_s() == AGAIN_S
    again = lent.begun_anew()
    lent.cluster.refused = set()
    again.look()
    assert lent.cluster.hands["n3"] is None
    again.tell(happened.NodeSeen("n1", "a100", 4))
    again.look()
    assert lent.cluster.hands == dict.fromkeys(LENT)


def test_a_node_without_a_mark_gets_one_when_it_is_on_loan_of_the_next_lender(lent: Exchange) -> None:
    lent.tell(happened.LenderDeleted("inference"))
    lent.look()
    lent.scene.submit("1", gpus=4)
    lent.scene.give(_1={"n3": 0b1111})
    lent.tell(happened.LenderSet("vision", ("n3",)))
    assert lent.look() == [(("n3",), "")]
