from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.clusters import read_cluster, write_cluster
from stretto.model import Cluster, GpuType, InputError, Node, NodeId, topology_of

HEAD = "gpu_types: {t4: {}}\n"


def read(folder: Path, text: str) -> Cluster:
    path = folder / "box.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return read_cluster(path)


def test_nodes_fill_counted_domains_in_order_and_each_group_begins_new_ones(tmp_path: Path) -> None:
    cluster = read(
        tmp_path,
        "topology: {leaf: 4, rack: 2}\n"
        "nodes: [{type: t4, gpus: 4, count: 5}, {type: t4, gpus: 2, count: 2}]\n",
    )
    assert cluster.levels == ("leaf", "rack")
    assert cluster.topology.domain.tolist() == [[0, 0, 0, 0, 1, 2, 2], [0, 0, 1, 1, 2, 3, 3]]
    assert cluster.nodes[4].domains == ("leaf-1", "rack-2")
    assert cluster.topology.sizes == (3, 4)
    assert cluster.topology.spans((0, 2, 4)) == (2, 3)


def test_a_group_says_where_it_is_in_the_place_of_what_is_usual(tmp_path: Path) -> None:
    cluster = read(
        tmp_path,
        "topology: {leaf: 4, rack: 2}\n"
        "nodes: [{type: t4, gpus: 4, count: 4, in: {leaf: L}}, "
        "{type: t4, gpus: 4, in: {leaf: L, rack: r}}]\n",
    )
    assert [node.domains for node in cluster.nodes] == [
        ("L", "rack-0"),
        ("L", "rack-0"),
        ("L", "rack-1"),
        ("L", "rack-1"),
        ("L", "r"),
    ]


def test_a_file_without_topology_has_no_levels(tmp_path: Path) -> None:
    cluster = read(tmp_path, "nodes: [{type: t4, gpus: 4, count: 3}]\n")
    assert cluster.topology.domain.shape == (0, 3)
    assert cluster.topology.sizes == cluster.topology.spans((0, 1)) == ()


def test_equal_names_within_different_domains_are_different_ones() -> None:
    found = topology_of(("leaf", "rack"), [("a", "r1"), ("b", "r1"), ("a", "r1")])
    assert found.domain.tolist() == [[0, 1, 0], [0, 1, 0]]


def test_a_node_of_which_nothing_is_known_is_alone_but_shares_what_is_known_inside() -> None:
    found = topology_of(("zone", "rack"), [("a", ""), ("a", ""), ("", "r1"), ("", "r1"), (), ("a",)])
    assert found.domain.tolist() == [[0, 0, 1, 1, 2, 0], [0, 1, 2, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topology: leaf\nNODES", "topology must be a list of texts, got 'leaf'"),
        ("topology: [leaf, leaf]\nNODES", "topology: levels must differ, got 'leaf' twice"),
        ("topology: {leaf: 0}\nNODES", "topology: leaf must be a whole number >= 1, got 0"),
        (
            "topology: {leaf: 12, rack: 8}\nNODES",
            "nodes, entry 1: leaf must have a multiple of 8 nodes, as many as rack has, got 12",
        ),
        (
            "nodes: [{type: t4, gpus: 4, in: {rack: r1}}]",
            "nodes, entry 1: in needs levels: topology must name them, outermost first",
        ),
        (
            "topology: [leaf, rack]\nnodes: [{type: t4, gpus: 4, in: {rak: r1}}]",
            "nodes, entry 1: in: unknown key 'rak', did you mean 'rack'?",
        ),
        (
            "topology: [leaf, rack]\nnodes: [{type: t4, gpus: 4, in: {rack: r1}}]",
            "nodes, entry 1: in must say leaf, which is around rack",
        ),
        (
            "topology: [leaf]\nnodes: [{type: t4, gpus: 4, in: {leaf: 1.5}}]",
            "nodes, entry 1: in: leaf must be the name of one, or how many nodes each has, got 1.5",
        ),
        (
            "topology: [leaf]\nnodes: [{type: t4, gpus: 4, in: east}]",
            "nodes, entry 1: in: expected keys and values, got 'east'",
        ),
    ],
)
def test_a_wrong_topology_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text.replace("NODES", "nodes: [{type: t4, gpus: 4}]"))
    assert str(error.value).endswith(message)


def test_a_node_has_no_more_domains_than_there_are_levels() -> None:
    with pytest.raises(InputError, match="at most 1 domains"):
        Cluster("x", (GpuType("t4"),), (Node(NodeId("n"), "t4", 1, domains=("a", "b")),), ("leaf",))


@settings(
    max_examples=scaled(100), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(
        st.sampled_from([(), ("a",), ("a", "r1"), ("a", "r2"), ("b", "r1"), ("b", "rack-0")]),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_written_reads_back_as_an_equal_cluster(tmp_path: Path, paths: list[tuple[str, ...]]) -> None:
    nodes = tuple(Node(NodeId(f"n{at}"), "t4", 4, domains=path) for at, path in enumerate(paths))
    cluster = Cluster("x", (GpuType("t4"),), nodes, ("leaf", "rack"))
    write_cluster(cluster, tmp_path / "x.yaml")
    again = read_cluster(tmp_path / "x.yaml")
    assert again == cluster
    assert (again.topology.domain == cluster.topology.domain).all()
