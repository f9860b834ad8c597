"""Nodes of Slurm as the service sees them."""

from dataclasses import replace

import pytest

from stretto.backends.slurm import nodes
from stretto.backends.slurm.nodes import NodeResources
from stretto.backends.slurm.parsers import SlurmNode

pytestmark = [pytest.mark.slurm, pytest.mark.large]

IDLE = SlurmNode("a1", "a1", frozenset({"IDLE"}), "", {"a100": 8}, {"a100": 0}, 64, 0, 64_000, 0, ("gpu",))


@pytest.mark.parametrize(
    ("states", "up", "dead", "shut"),
    [
        ("IDLE", True, False, ""),
        ("MIXED", True, False, ""),
        ("ALLOCATED COMPLETING", True, False, ""),
        ("IDLE DRAIN", True, False, "drained in Slurm: fan"),
        ("MIXED DRAINING", True, False, "drained in Slurm: fan"),
        ("IDLE MAINTENANCE", True, False, "in maintenance in Slurm: fan"),
        ("IDLE NOT_RESPONDING", False, False, ""),
        ("DOWN NOT_RESPONDING", False, True, ""),
        ("DOWN DRAIN", False, True, ""),
        ("IDLE POWERED_DOWN CLOUD", False, True, ""),
        ("MIXED POWER_DOWN", True, False, "to be powered down in Slurm: fan"),
    ],
)
def test_a_node_is_open_shut_silent_or_dead(states: str, up: bool, dead: bool, shut: str) -> None:
    node = nodes.state_of(replace(IDLE, states=frozenset(states.split()), reason="fan"), NodeResources())
    assert (node.up, node.dead, node.shut) == (up, dead, shut)
    assert bool(node.why) == (not up)


def test_what_is_used_and_not_ours_is_held_by_others() -> None:
    used = replace(IDLE, used={"a100": 5}, used_cpus=40, used_memory_mb=40_000)
    others = nodes.held_by_others(used, NodeResources(2, 16, 16_000))
    assert others == NodeResources(3, 24, 24_000)
    assert nodes.held_by_others(IDLE, NodeResources(2, 16, 16_000)) == NodeResources()


@pytest.mark.parametrize("full", [{"used_cpus": 64}, {"used_memory_mb": 64_000}])
def test_a_node_without_a_processor_or_memory_left_has_no_gpu_for_us(full: dict[str, int]) -> None:
    taken = replace(IDLE, used={"a100": 1}, **full)  # type: ignore[arg-type]
    assert nodes.held_by_others(taken, NodeResources(0, 0, 0)).gpus == 8
    assert nodes.held_by_others(taken, NodeResources(2, 64, 64_000)).gpus == 6


def test_a_worker_job_takes_its_part_of_the_node_or_of_what_others_leave() -> None:
    assert nodes.share_of(IDLE, 2, NodeResources()) == NodeResources(2, 16, 16_000)
    assert nodes.share_of(IDLE, 8, NodeResources()) == NodeResources(8, 64, 64_000)
    assert nodes.share_of(IDLE, 2, NodeResources(0, 32, 32_000)) == NodeResources(2, 8, 8_000)
    assert nodes.share_of(IDLE, 2, NodeResources(4, 32, 32_000)) == NodeResources(2, 16, 16_000)
    assert nodes.share_of(IDLE, 2, NodeResources(4, 64, 64_000)) == NodeResources(2, 1, 8_000), (
        "and so it has to wait"
    )


def test_memory_that_slurm_was_not_told_of_is_not_asked_for() -> None:
    untold = replace(IDLE, memory_mb=1, used_memory_mb=1)
    assert nodes.share_of(untold, 8, NodeResources()) == NodeResources(8, 64, 0)
    assert nodes.held_by_others(untold, NodeResources()).gpus == 0


def test_the_type_is_the_one_that_a_node_has_most_of_as_slurm_calls_it() -> None:
    both = replace(IDLE, gpus={"a100": 4, "v100": 2}, used={"a100": 1, "v100": 2})
    assert nodes.gres_of(both, 2) == "gpu:a100:2"
    assert nodes.held_by_others(both, NodeResources()).gpus == 1
    untyped = replace(IDLE, gpus={"": 4}, used={"": 4})
    assert (nodes.gres_of(untyped, 2), nodes.state_of(untyped, NodeResources()).gpu_type) == ("gpu:2", "gpu")


def test_only_nodes_with_gpus_in_our_partitions_are_served() -> None:
    assert nodes.serves(IDLE, ("gpu", "x"))
    assert not nodes.serves(IDLE, ("x",))
    assert not nodes.serves(replace(IDLE, gpus={}), ("gpu",))


def test_a_node_that_leaves_the_partitions_is_shut_and_one_that_slurm_lists_no_more_is_dead() -> None:
    known = nodes.state_of(IDLE, NodeResources())
    left = nodes.unserved(known, replace(IDLE, partitions=("other",)))
    assert (left.up, left.dead, left.shut) == (True, False, "it has left the partitions that are used")
    down = nodes.unserved(known, replace(IDLE, states=frozenset({"DOWN"})))
    assert (down.up, down.dead, down.shut) == (False, True, "")
    assert nodes.unserved(known, None).dead
