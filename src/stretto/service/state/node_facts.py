"""What decisions ask of all nodes together, worked out once and kept until a node changes.

At 12,500 nodes each of them would take milliseconds of every decision, although nodes hardly ever change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.service.state.records import NodeRecord


@dataclass(frozen=True)
class NodeFacts:
    """Of the nodes of a state, by their places in it."""

    as_of: object  # `NodeRecord.last_change` when these were worked out
    open_to_all: "np.ndarray[Any, np.dtype[np.bool_]]"  # (nodes,) up, ours, and takes new jobs
    up_and_ours: "np.ndarray[Any, np.dtype[np.bool_]]"  # (nodes,) the like, but some are closed
    closed: frozenset[int]
    by_taints: Mapping[tuple[str, ...], tuple[int, ...]]  # nodes that are closed for these taints alone
    others: Mapping[int, int]  # GPUs that work of others holds, of nodes that are up and have such work
    capacity: int  # GPUs that there are for jobs
    silent: tuple[NodeRecord, ...]  # down, but not yet dead
    some_is_marked: bool  # the cluster may keep a lender's mark on one

    @classmethod
    def of(cls, nodes: Sequence[NodeRecord]) -> "NodeFacts":
        """Look at every node."""
        by_taints: dict[tuple[str, ...], list[int]] = {}
        for index, node in enumerate(nodes):
            if node.taints and not node.cordoned and node.up:
                by_taints.setdefault(node.taints, []).append(index)
        up_and_ours = np.array([node.up and node.is_ours for node in nodes], dtype=np.bool_)
        closed = np.array([node.closed for node in nodes], dtype=np.bool_)
        return cls(
            NodeRecord.last_change,
            up_and_ours & ~closed,
            up_and_ours,
            frozenset(np.flatnonzero(closed).tolist()),
            {taints: tuple(indices) for taints, indices in by_taints.items()},
            {index: node.others for index, node in enumerate(nodes) if node.others and node.up},
            sum(node.gpus - node.others for node in nodes if node.up and node.is_ours),
            tuple(node for node in nodes if not node.up and not node.dead),
            any(node.marked_for for node in nodes),
        )

    def holds_for(self, nodes: Sequence[NodeRecord]) -> bool:
        """Whether no node has come or changed since."""
        return self.as_of is NodeRecord.last_change and len(nodes) == len(self.up_and_ours)
