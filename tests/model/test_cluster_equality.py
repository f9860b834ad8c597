"""Clusters as keys of memo tables: equal ones are compared node by node once."""

from dataclasses import replace

from stretto.testing.builders import a_cluster


def test_equal_clusters_share_their_nodes_once_they_were_compared() -> None:
    first, second = a_cluster(8, 4), a_cluster(8, 4)
    assert first.nodes is not second.nodes
    assert first == second
    assert second.nodes is first.nodes
    assert {first: "kept"}[second] == "kept"


def test_clusters_that_differ_in_a_node_a_type_or_the_name_are_not_equal() -> None:
    first = a_cluster(8, 4)
    assert first != a_cluster(8, 2)
    assert first != replace(first, name="other")
    assert first != replace(first, types=(replace(first.types[0], speed=2.0),))
    assert first != replace(first, levels=("rack",))
    assert first != "tiny"
    other = a_cluster(4, 8)
    assert (first == other, other.nodes[0].gpus) == (False, 4)
