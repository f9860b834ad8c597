"""What is worked out of all nodes together is kept, and is never older than the nodes."""

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from tests.service.scene import Scene

from stretto.service.state.events import NodeCordoned, NodeLost, NodeSeen
from stretto.service.state.node_facts import NodeFacts
from stretto.service.state.records import NodeRecord


def plain(facts: NodeFacts) -> dict[str, Any]:
    """Facts as values that can be compared, without the time at which they were worked out."""
    values = {one.name: getattr(facts, one.name) for one in fields(facts) if one.name != "as_of"}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }


def test_they_are_kept_until_a_node_changes() -> None:
    scene = Scene(nodes=3)
    before = scene.state.node_facts
    scene.submit("1", gpus=1)
    scene.give(_1={"n1": 0b1})
    assert scene.state.node_facts is before
    scene.tell(NodeCordoned("n1", closed=True, drain=False))
    assert scene.state.node_facts is not before
    assert scene.state.node_facts.closed == {1}
    assert scene.state.usable().tolist() == [True, False, True]


def test_they_are_worked_out_anew_when_a_node_comes_and_when_it_goes() -> None:
    scene = Scene(nodes=1)
    assert scene.state.node_facts.capacity == scene.state.nodes[0].gpus
    scene.tell(NodeSeen("later", "a100", 6))
    assert scene.state.node_facts.capacity == scene.state.nodes[0].gpus + 6
    scene.tell(NodeLost("later"))
    assert scene.state.node_facts.capacity == scene.state.nodes[0].gpus
    assert [node.name for node in scene.state.node_facts.silent] == ["later"]


CHANGES: dict[str, tuple[Any, ...]] = {
    "up": (True, False),
    "dead": (True, False),
    "cordoned": (True, False),
    "shut": ("", "tainted"),
    "taints": ((), ("gone=now:NoSchedule",)),
    "others": (0, 1, 2),
    "lender": ("", "serving"),
    "on_loan": (True, False),
    "marked_for": ("", "serving"),
    "gpus": (4, 8),
}


@pytest.mark.parametrize("seed", range(5))
def test_after_any_change_they_are_what_a_look_at_all_nodes_gives(seed: int) -> None:
    draw = random.Random(seed)
    nodes = [NodeRecord(f"n{index}", "a100", 4) for index in range(6)]
    kept = NodeFacts.of(nodes)
    for _ in range(100):
        field = draw.choice([*CHANGES])
        setattr(draw.choice(nodes), field, draw.choice(CHANGES[field]))
        assert not kept.holds_for(nodes)
        kept = NodeFacts.of(nodes)
        assert kept.holds_for(nodes)
        for index, node in enumerate(nodes):
            open_to_all = node.up and node.is_ours and not node.closed
            assert kept.open_to_all[index] == open_to_all
            assert (index in kept.closed) == node.closed
        assert plain(kept) == plain(NodeFacts.of([*nodes]))
