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


def test_where_a_node_is_in_the_network_is_written_down_and_again_where_it_changes() -> None:
    scene = Scene(nodes=1)
    for rack in ("r7", "r8"):
        node = NodeState("n0", "a100", 4, zone="a", rack=rack, nvlink_domain="7f3c.1")
        (event,) = about_nodes(scene.state, [node])
        assert isinstance(event, NodeSeen)
        scene.tell(event)
        record = scene.state.nodes[0]
        assert (record.zone, record.rack, record.nvlink_domain) == ("a", rack, "7f3c.1")
        assert about_nodes(scene.state, [node]) == []


def test_what_a_node_offers_beside_gpus_is_written_down_again_where_it_changes() -> None:
    """As where a DaemonSet takes some of it, by now."""
    scene = Scene(nodes=1)
    for cpus, memory_gb in ((96, 512.0), (93, 506.0)):
        node = NodeState("n0", "a100", 4, cpus=cpus, memory_gb=memory_gb)
        (event,) = about_nodes(scene.state, [node])
        assert isinstance(event, NodeSeen)
        scene.tell(event)
        record = scene.state.nodes[0]
        assert (record.cpus, record.memory_gb) == (cpus, memory_gb)
        assert about_nodes(scene.state, [node]) == []
