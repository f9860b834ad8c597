"""A cluster whose nodes others use too, as a policy sees it: each such node is smaller by what others hold.

Every policy then keeps within what is there, whether or not it knows of others. Which of a node's GPUs those
are does not matter, since the cluster hands out the devices: a policy is shown what our jobs hold and the
lowest of the rest, numbered from 0, and what it says of them is read back the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Cluster,
    Placement,
    Plan,
    Requests,
    Snapshot,
    actions_between,
    lowest_gpus,
    no_placement,
)


@dataclass(frozen=True)
class Lens:
    """Between the nodes as they are and as they are shown. visible: by node, mask of the GPUs that are."""

    placement: Placement  # as it is
    shown: Cluster
    visible: Mapping[int, int]

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """What a policy is shown."""
        jobs = replace(snapshot.jobs, requests=_requests(snapshot.jobs.requests, self.shown))
        return replace(
            snapshot,
            cluster=self.shown,
            usable=self.usable(snapshot.usable),
            jobs=jobs,
            placement=self.inward(self.placement),
            constraints=replace(snapshot.constraints, others={}),
        )

    def plan(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """A plan for what was shown, as one for the nodes as they are."""
        placement = self.outward(plan.placement)
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

    def inward(self, placement: Placement) -> Placement:
        """What is held, on the nodes as they are shown."""
        held = {job: self._moved(one, inward=True) for job, one in placement.items()}
        return no_placement(self.shown).changed(held)

    def outward(self, planned: Placement) -> Placement:
        """What is planned, on the nodes as they are; one change away from what is held."""
        before = self.placement
        after = {job: self._moved(one, inward=False) for job, one in planned.items()}
        jobs = dict.fromkeys([*before, *after])
        return before.changed({job: after.get(job) for job in jobs if after.get(job) != before.get(job)})

    def _moved(self, allocation: Allocation, inward: bool) -> Allocation:
        if self.visible.keys().isdisjoint(allocation.nodes):
            return allocation

        def moved(masks: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(
                mask if node not in self.visible else _moved(mask, self.visible[node], inward)
                for node, mask in zip(allocation.nodes, masks, strict=True)
            )

        # Flexible GPUs are masks, too; batch sizes follow the order of the GPUs, which stays.
        flexible = moved(allocation.flexible) if allocation.flexible else ()
        return replace(allocation, masks=moved(allocation.masks), flexible=flexible)


def lens_of(placement: Placement, others: Mapping[int, int]) -> Lens:
    """The lens for a moment. others: by node, GPUs that are not ours; what our jobs hold stays visible."""
    cluster = placement.cluster
    visible: dict[int, int] = {}
    for node, theirs in sorted(others.items()):
        busy = int(placement.busy[node])
        free = ((1 << cluster.nodes[node].gpus) - 1) & ~busy
        visible[node] = busy | lowest_gpus(free, max(free.bit_count() - theirs, 0))
    sizes = tuple((node, max(mask.bit_count(), 1)) for node, mask in visible.items())
    return Lens(placement, smaller(cluster, sizes) if sizes else cluster, visible)


@lru_cache(maxsize=256)
def smaller(cluster: Cluster, sizes: tuple[tuple[int, int], ...]) -> Cluster:
    """The same nodes with other numbers of GPUs: one object each time, since much is remembered by it."""
    nodes = list(cluster.nodes)
    for node, gpus in sizes:
        nodes[node] = replace(nodes[node], gpus=gpus)
    return replace(cluster, nodes=tuple(nodes))


def _requests(requests: Requests, shown: Cluster) -> Requests:
    """The same requests of the cluster that is shown, whose types are the same: columns are kept."""
    new = Requests(requests.jobs, shown)
    vars(new).update({name: one for name, one in vars(requests).items() if isinstance(one, np.ndarray)})
    return new


def _moved(mask: int, visible: int, inward: bool) -> int:
    """A mask of visible GPUs by their places among these, or back."""
    places = [gpu for gpu in range(visible.bit_length()) if visible >> gpu & 1]
    if inward:
        return sum(1 << place for place, gpu in enumerate(places) if mask >> gpu & 1)
    return sum(1 << gpu for place, gpu in enumerate(places) if mask >> place & 1)
