"""Where nodes are in the network reaches decisions, as far as the log says that it is to."""

from dataclasses import replace

from tests.service.scene import Scene

from stretto.service.state.events import NodeSeen


def where(scene: Scene) -> tuple[tuple[str, ...], list[list[int]]]:
    assert scene.state.cluster is not None
    topology = scene.state.cluster.topology
    return topology.levels, topology.domain.tolist()


def a_scene() -> Scene:
    scene = Scene(nodes=0)
    scene.tell(replace(scene.state.configured, topology="near"))
    for at, rack in enumerate(("r1", "r2", "r1", "")):
        scene.tell(NodeSeen(f"n{at}", "a100", 4, rack=rack))
    return scene


def test_the_levels_are_those_that_some_node_has_a_domain_of() -> None:
    scene = a_scene()
    assert where(scene) == (("rack",), [[0, 1, 0, 2]])
    scene.tell(NodeSeen("n3", "a100", 4, zone="a", rack="r1", nvlink_domain="x"))
    levels, domain = where(scene)
    assert levels == ("zone", "rack", "nvlink_domain")
    assert domain[1] == [0, 1, 0, 2]  # another r1, in a zone of its own


def test_a_node_that_is_moved_to_another_rack_is_there_from_then_on() -> None:
    scene = a_scene()
    scene.submit("1", gpus=4)
    scene.give(_1={"n1": 0b1111})
    scene.tell(NodeSeen("n1", "a100", 4, rack="r1"))
    assert where(scene) == (("rack",), [[0, 0, 0, 1]])
    assert scene.state.wanted("1") is not None


def test_logs_that_do_not_say_so_decide_without_topology_until_a_newer_service_goes_on() -> None:
    scene = a_scene()
    scene.tell(replace(scene.state.configured, topology="ignored"))
    assert where(scene) == ((), [])
    scene.tell(replace(scene.state.configured, topology="near"))
    assert where(scene)[0] == ("rack",)
