"""Nodes as answers and pages have them; a row is written anew only where something of its node has changed.

A look at 12,500 nodes would hold up every other request for a quarter of a second, were each row made again.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.backends.protocol import GpuUse
from stretto.model import Allocation, JobId
from stretto.service.gpu_use import mean_busy
from stretto.service.http.auth import Caller
from stretto.service.http.problems import as_json
from stretto.service.service import Service
from stretto.service.state.records import NodeRecord

Row = dict[str, Any]


@dataclass
class _Kept:
    """The row of a node as it was last made, and what it was made from."""

    node: Hashable  # the values of its record
    ending: int  # GPUs of it
    held: Mapping[JobId, Allocation]  # of the node, by job; another mapping as soon as it is another content
    uses: Sequence[GpuUse | None]
    row: Row
    text: bytes | None = None  # the row in JSON, once it was asked for


@dataclass
class NodeRows:
    """The rows of all nodes of a service. They are shared by all callers, so none is changed."""

    service: Service
    _kept: list[_Kept] = field(default_factory=list)
    _made_at: object = None  # the last change of any node that rows show

    def seen_by(self, caller: Caller) -> list[Row]:
        """Every node with what is held there; users see of its jobs only their own."""
        self._look()
        if caller.is_operator:
            return [kept.row for kept in self._kept]
        return [self._for(caller, kept.row) for kept in self._kept]

    def one(self, caller: Caller, index: int) -> Row:
        """One node, by its place among the nodes of the state."""
        self._look()
        return self._for(caller, self._kept[index].row)

    def text(self, caller: Caller) -> bytes:
        """`seen_by` as a list in JSON."""
        if not caller.is_operator:
            return as_json(self.seen_by(caller))
        self._look()
        for kept in self._kept:
            kept.text = kept.text or as_json(kept.row)
        return b"[" + b",".join(kept.text or b"" for kept in self._kept) + b"]"

    def _for(self, caller: Caller, row: Row) -> Row:
        """A row without the jobs that the caller may not see."""
        jobs = self.service.state.jobs
        if not row["jobs"] or caller.is_operator:
            return row
        return row | {"jobs": {job: gpus for job, gpus in row["jobs"].items() if caller.owns(jobs[job])}}

    def _look(self) -> None:
        """Make the rows anew of which something has changed."""
        state, uses_of = self.service.state, self.service.gpu_watch.nodes
        ending, placement = self.service.reconciler.ending_gpus(), state.placement
        is_same = self._made_at is NodeRecord.last_change  # of all nodes; then only what they hold may differ
        self._made_at = NodeRecord.last_change
        del self._kept[len(state.nodes) :]
        for index, node in enumerate(state.nodes):
            allocations: Mapping[JobId, Allocation] = {} if placement is None else placement.on(index)
            gpus_ending, uses = ending.get(index, 0).bit_count(), uses_of.get(node.name, ())
            kept = self._kept[index] if index < len(self._kept) else None
            if kept is not None:
                holds_the_same = allocations is kept.held or not (allocations or kept.held)
                holds_the_same = holds_the_same and kept.ending == gpus_ending and kept.uses == uses
                if holds_the_same and (is_same or kept.node == tuple(vars(node).values())):
                    continue
            row = _row(node, index, allocations, gpus_ending, uses)
            new = _Kept(tuple(vars(node).values()), gpus_ending, allocations, uses, row)
            self._kept[index : index + 1] = [new]


def _row(
    node: NodeRecord,
    index: int,
    allocations: Mapping[JobId, Allocation],
    gpus_ending: int,
    uses: Sequence[GpuUse | None],
) -> Row:
    """One node with all that is held there."""
    gpus_of_job = {
        job: allocation.masks[allocation.nodes.index(index)].bit_count()
        for job, allocation in allocations.items()
    }
    free = node.gpus - node.others - sum(gpus_of_job.values()) - gpus_ending
    return {
        "name": node.name,
        "gpu_type": node.gpu_type,
        "gpus": node.gpus,
        "free": max(free, 0) if node.is_ours else 0,
        "ending": gpus_ending,
        "others": node.others,
        "cpus": node.cpus,
        "memory_gb": node.memory_gb,
        "address": node.address,
        "up": node.up,
        "closed": node.closed,
        "taints": [*node.keeping_away],
        "drained": node.drained,
        "lender": node.lender,
        "on_loan": node.on_loan,
        "why": node.why,
        "zone": node.zone,
        "rack": node.rack,
        "nvlink_domain": node.nvlink_domain,
        "jobs": gpus_of_job,
        **_use_json(uses),
    }


def _use_json(uses: Sequence[GpuUse | None]) -> Row:
    """How busy the GPUs of a node are, one by one, and in the mean."""
    busy = mean_busy([use for use in uses if use is not None])
    return {
        "busy": None if busy is None else round(busy, 3),
        "gpu_use": [
            None
            if use is None
            else {
                "busy": use.busy,
                "memory_gb": round(use.used_bytes / 1e9, 2),
                "memory_total_gb": round(use.bytes / 1e9, 2),
            }
            for use in uses
        ],
    }
