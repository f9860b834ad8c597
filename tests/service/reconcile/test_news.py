"""What is written down of what a backend shows."""

from tests.service.scene import Scene

from stretto.backends.protocol import NodeState
from stretto.service.reconcile.diff import about_nodes
from stretto.service.state.events import NodeSeen


def test_a_remark_about_a_node_is_written_down_once_and_shown_until_it_is_taken_back() -> None:
    scene = Scene(nodes=1)
    for remark in ("set aside 1.1.0: start.json is missing", ""):
        node = NodeState("n0", "a100", 4, remark=remark)
        (event,) = about_nodes(scene.state, [node])
        assert isinstance(event, NodeSeen)
        scene.tell(event)
        assert scene.state.nodes[0].why == remark
        assert scene.state.nodes[0].up
        assert not scene.state.nodes[0].closed
        assert about_nodes(scene.state, [node]) == []
