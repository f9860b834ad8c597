"""Nodes by free GPUs, and who is on a node: always what a look at everything would find."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Allocation, JobId, no_placement
from stretto.place.free_nodes import FreeNodes
from stretto.testing.builders import a_cluster


@given(data=st.data())
def test_groups_keep_up_with_what_is_free(data: st.DataObject) -> None:
    free = np.array(data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=12)))
    nodes = np.arange(3, 3 + len(free))
    groups = FreeNodes(nodes, free, 8)
    for _ in range(data.draw(st.integers(0, 10))):
        place, now = data.draw(st.integers(0, len(free) - 1)), data.draw(st.integers(0, 8))
        groups.move(int(nodes[place]), int(free[place]), now)
        free[place] = now
    size = data.draw(st.integers(0, 8))
    fits = [node for node, count in zip(nodes.tolist(), free.tolist(), strict=True) if count >= size]
    of = dict(zip(nodes.tolist(), free.tolist(), strict=True))
    assert list(groups.tightest_first(size)) == sorted(fits, key=lambda node: (of[node], -node))
    assert list(groups.roomiest_first(False)) == sorted(of, key=lambda node: (-of[node], node))
    assert list(groups.roomiest_first(True)) == sorted(of, key=lambda node: (-of[node], -node))
    counts = data.draw(st.permutations(range(9)))
    first = next((node for count in counts for node in sorted(of) if of[node] == count), -1)
    assert groups.first_of(counts) == first


@given(data=st.data())
def test_a_placement_knows_what_is_on_each_node_whatever_was_changed(data: st.DataObject) -> None:
    """In the order in which jobs came to hold what they hold, as in the placement itself."""
    placement = no_placement(a_cluster(4, 4, 4))
    for _ in range(data.draw(st.integers(1, 8))):
        names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
        changes: dict[JobId, Allocation | None] = {}
        for name in names:  # each job has a GPU of its own on every node
            nodes = data.draw(st.lists(st.integers(0, 2), max_size=3, unique=True))
            mask = 1 << "abcd".index(name)
            changes[JobId(name)] = (
                Allocation(0, tuple(sorted(nodes)), (mask,) * len(nodes)) if nodes else None
            )
        placement.on(0)  # so that it is kept up from here
        placement = placement.changed(changes)
        for node in range(3):
            expected = [(job, held) for job, held in placement.items() if node in held.nodes]
            assert list(placement.on(node).items()) == expected
