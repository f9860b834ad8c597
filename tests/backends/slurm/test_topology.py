"""Switches and blocks of Slurm as racks, zones and NVLink domains."""

import asyncio
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import SlurmCluster
from tests.backends.slurm.stories import opened

from stretto.backends.node_topology import NodeTopology
from stretto.backends.slurm.topology import hosts_in, topology_in

pytestmark = [pytest.mark.slurm, pytest.mark.large]

TREE = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=a1,v1
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=a[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=a[1-3],v1 Switches=leaf[1-2]
SwitchName=core Level=2 LinkSpeed=1 Nodes=a[1-3],v1 Switches=spine
"""
BLOCKS = """BlockName=block1 BlockIndex=0 Nodes=a[01-02] BlockSize=2
BlockName=block2 BlockIndex=1 Nodes=a03 BlockSize=2
AggregatedBlock=block[1-2] BlockIndex=2 Nodes=a[01-03] BlockSize=4
"""


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("a1", ["a1"]),
        ("a1,v1", ["a1", "v1"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[1,3-4],v1", ["a1", "a3", "a4", "v1"]),
        ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_a_hostlist_is_read_as_slurm_means_it(hostlist: str, hosts: list[str]) -> None:
    assert list(hosts_in(hostlist)) == hosts


def test_a_leaf_switch_is_a_rack_and_the_switch_above_it_a_zone() -> None:
    assert topology_in(TREE) == {
        "a1": NodeTopology(zone="spine", rack="leaf1"),
        "v1": NodeTopology(zone="spine", rack="leaf1"),
        "a2": NodeTopology(zone="spine", rack="leaf2"),
        "a3": NodeTopology(zone="spine", rack="leaf2"),
    }


def test_a_block_is_an_nvlink_domain() -> None:
    assert topology_in(BLOCKS) == {
        "a01": NodeTopology(nvlink_domain="block1"),
        "a02": NodeTopology(nvlink_domain="block1"),
        "a03": NodeTopology(nvlink_domain="block2"),
    }


@pytest.mark.parametrize("text", ["", "\n", "No topology information available\n", "SwitchName=x Level=0\n"])
def test_without_a_topology_nothing_is_known(text: str) -> None:
    assert topology_in(text) == {}


@pytest.mark.parametrize("json", [True, False], ids=["json", "text"])
def test_nodes_of_a_real_slurm_are_where_its_switches_are(
    cluster: SlurmCluster, shared: Path, json: bool
) -> None:
    async def story() -> None:
        async with opened(cluster, shared, json=json) as backend:
            shown = [(node.name, node.rack, node.zone, node.nvlink_domain) for node in await backend.nodes()]
            assert shown == [
                ("a1", "leaf-a100", "spine", ""),
                ("a2", "leaf-a100", "spine", ""),
                ("v1", "leaf-v100", "spine", ""),
            ]

    asyncio.run(story())
