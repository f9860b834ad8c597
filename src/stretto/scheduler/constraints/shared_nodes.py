"""A cluster whose nodes others use too, as a policy sees it: each such node is smaller by what others hold.

Every policy then keeps within what is there, whether or not it knows of others. Which of a node's GPUs those
are does not matter, since the cluster hands out the devices. A policy is shown what our jobs hold and the
lowest of the rest, numbered from 0. What it says of them is read back the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Cluster,
    IntArray,
    Placement,
    Plan,
    Requests,
    Snapshot,
    actions_between,
    lowest_gpus,
    no_placement,
)


@dataclass(frozen=True)
class SharedNodeView:
    """Between the nodes as they are and as they are shown, each with the GPUs that may be used."""

    placement: Placement  # as it is
    shown: Cluster
    visible: Mapping[int, int]  # by node that is smaller, mask of the GPUs that are shown

    def show(self, snapshot: Snapshot) -> Snapshot:
        """What a policy is shown."""
        jobs = replace(snapshot.jobs, requests=_requests(snapshot.jobs.requests, self.shown))
        return replace(
            snapshot,
            cluster=self.shown,
            usable=self.usable(snapshot.usable),
            jobs=jobs,
            placement=self.to_shown(self.placement),
            constraints=replace(snapshot.constraints, others={}),
        )

    def read_back(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """A plan for what was shown, as one for the nodes as they are. snapshot: of these."""
        placement = self.from_shown(plan.placement)
        return replace(
            plan,
            placement=placement,
            actions=actions_between(snapshot.placement, placement),
            jobs=snapshot.jobs,
        )

    def usable(self, usable: BoolArray) -> BoolArray:
        """(nodes,) may hold jobs; those of which nothing is left may not."""
        usable = usable.copy()
        usable[[node for node, mask in self.visible.items() if not mask]] = False
        return usable

    def to_shown(self, placement: Placement) -> Placement:
        """What jobs hold, on the nodes as they are shown."""
        allocations = {job: self._renumber(each, to_shown=True) for job, each in placement.items()}
        return no_placement(self.shown).changed(allocations)

    def from_shown(self, planned: Placement) -> Placement:
        """What is planned, on the nodes as they are; one change away from what jobs hold."""
        before = self.placement
        after = {job: self._renumber(each, to_shown=False) for job, each in planned.items()}
        jobs = dict.fromkeys([*before, *after])
        return before.changed({job: after.get(job) for job in jobs if after.get(job) != before.get(job)})

    def _renumber(self, allocation: Allocation, to_shown: bool) -> Allocation:
        if self.visible.keys().isdisjoint(allocation.nodes):
            return allocation

        def renumber(masks: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(
                mask if node not in self.visible else _renumber(mask, self.visible[node], to_shown)
                for node, mask in zip(allocation.nodes, masks, strict=True)
            )

        # Flexible GPUs are masks, too; batch sizes follow the order of the GPUs, which stays.
        flexible = renumber(allocation.flexible) if allocation.flexible else ()
        return replace(allocation, masks=renumber(allocation.masks), flexible=flexible)


def less_foreign_use(placement: Placement, others: Mapping[int, int]) -> SharedNodeView:
    """The nodes at a moment, less what others use. others: by node, GPUs that are not ours.

    What our jobs hold stays visible.
    """
    busy, visible = placement.busy, dict[int, int]()
    for node, foreign_gpus in sorted(others.items()):
        ours = int(busy[node])
        free = ((1 << placement.cluster.nodes[node].gpus) - 1) & ~ours
        visible[node] = ours | lowest_gpus(free, max(free.bit_count() - foreign_gpus, 0))
    return SharedNodeView(placement, _smaller(placement.cluster, visible), visible)


def only_gpus(placement: Placement, open_gpus: IntArray) -> SharedNodeView:
    """The nodes with what jobs hold and some other GPUs only. open_gpus: (nodes,) masks of these."""
    cluster = placement.cluster
    full = (np.int64(1) << cluster.node_gpus) - 1
    hidden = full & ~open_gpus & ~placement.busy
    visible = {node: int(full[node] & ~hidden[node]) for node in np.flatnonzero(hidden).tolist()}
    return SharedNodeView(placement, _smaller(cluster, visible), visible)


def _smaller(cluster: Cluster, visible: Mapping[int, int]) -> Cluster:
    """The same nodes with as many GPUs as are visible; one of which nothing is left keeps one, unusable."""
    if not visible:
        return cluster
    return _resized(cluster, tuple((node, max(mask.bit_count(), 1)) for node, mask in visible.items()))


@lru_cache(maxsize=256)
def _resized(cluster: Cluster, sizes: tuple[tuple[int, int], ...]) -> Cluster:
    """The same nodes with other numbers of GPUs: one object each time, since much is remembered by it."""
    nodes = list(cluster.nodes)
    for node, gpus in sizes:
        nodes[node] = replace(nodes[node], gpus=gpus)
    return replace(cluster, nodes=tuple(nodes))


def _requests(requests: Requests, shown: Cluster) -> Requests:
    """The same requests of the cluster that is shown, whose types are the same: columns are kept."""
    new = Requests(requests.jobs, shown)
    vars(new).update(
        {name: column for name, column in vars(requests).items() if isinstance(column, np.ndarray)}
    )
    return new


def _renumber(mask: int, visible: int, to_shown: bool) -> int:
    """A mask of visible GPUs by their places among these, or back."""
    places = [gpu for gpu in range(visible.bit_length()) if visible >> gpu & 1]
    if to_shown:
        return sum(1 << place for place, gpu in enumerate(places) if mask >> gpu & 1)
    return sum(1 << gpu for place, gpu in enumerate(places) if mask >> place & 1)
