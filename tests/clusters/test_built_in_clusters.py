import pytest

from stretto.catalogue import read_gpus
from stretto.clusters import built_in_clusters, read_cluster, read_cluster_file
from stretto.model.cluster import node_groups

SIZES = {
    "sia-hetero-64": [("t4", 6, 4), ("a100", 2, 8), ("rtx2080ti", 3, 8)],
    "sia-homo-64": [("t4", 16, 4)],
    "sia-physical-44": [("rtx2080ti", 3, 8), ("a100", 2, 8), ("quad", 1, 4)],
    "sia-hetero-128": [("t4", 12, 4), ("a100", 4, 8), ("rtx2080ti", 6, 8)],
    "sia-hetero-2048": [("t4", 192, 4), ("a100", 64, 8), ("rtx2080ti", 96, 8)],
    "gpu8-256": [("v100", 32, 8)],
    "gpu8-960": [("v100", 120, 8)],
    "ones-16": [("v100", 4, 4)],
    "ones-64": [("v100", 16, 4)],
    "lyra": [("v100", 443, 8), ("t4", 520, 8)],
}


@pytest.mark.parametrize(("name", "groups"), SIZES.items())
def test_built_in_clusters_have_the_nodes_of_their_papers(
    name: str, groups: list[tuple[str, int, int]]
) -> None:
    assert list(node_groups(read_cluster(name))) == groups


@pytest.mark.parametrize("name", built_in_clusters())
def test_every_built_in_cluster_can_be_read_and_has_the_gpus_of_its_name(name: str) -> None:
    cluster = read_cluster(name)
    own = sum(node.gpus for node in cluster.nodes if not node.lender)
    expected = {"lyra": "3544"}.get(name, name.rpartition("-")[2])
    assert (cluster.name, str(own)) == (name, expected)


def test_a_job_spans_as_few_nodes_at_every_scale_of_sia() -> None:
    for scale in (64, 128, 256, 512, 1024, 2048):
        limits = [gpu_type.max_nodes_per_job for gpu_type in read_cluster(f"sia-hetero-{scale}").types]
        assert limits == [16, 2, 3]


def test_types_are_known_under_the_names_of_the_profiles() -> None:
    aliases = {
        gpu_type.name: gpu_type.aliases
        for name in built_in_clusters()
        for gpu_type in read_cluster(name).types
    }
    assert aliases == {
        "t4": ("aws",),
        "a100": ("dgx-ext",),
        "rtx2080ti": ("rtx",),
        "quad": (),
        "v100": ("azure",),
    }


def test_lyra_lends_its_inference_servers_but_for_the_headroom() -> None:
    (lender,) = read_cluster_file("lyra").lenders
    assert (lender.name, lender.gpu_type, lender.count, lender.headroom) == ("inference", "t4", 520, 0.02)
    assert {node.gpu_type for node in read_cluster("lyra").nodes if node.lender} == {"t4"}


@pytest.mark.parametrize("name", ["sia-hetero-64", "sia-physical-44"])
def test_relative_speeds_on_mixed_clusters_are_those_of_the_catalogue(name: str) -> None:
    for gpu_type in read_cluster(name).types:
        assert gpu_type.speed == pytest.approx(read_gpus()[gpu_type.name].speed, rel=0.01)
