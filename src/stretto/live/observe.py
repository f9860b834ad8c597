"""A state and a time make a snapshot: what a decision may look at."""

from dataclasses import dataclass, field

import numpy as np

from stretto.live.eligible import Reason, why_not_yet
from stretto.live.knowledge import known
from stretto.live.records import JobRecord
from stretto.live.state import State
from stretto.model import JobTable, Requests, Snapshot, Trigger, View, ints


@dataclass
class Observer:
    """Makes snapshots; keeps the columns of requests while the same jobs are there."""

    views: frozenset[View]
    _jobs: list[object] = field(default_factory=list)
    _requests: Requests | None = None

    def observe(self, state: State, now_s: float, due: frozenset[Trigger]) -> Snapshot:
        """Every job that may run now, in the order of submission. Needs a node to have been seen."""
        assert state.cluster is not None
        assert state.placement is not None
        records = eligible(state, now_s)
        jobs: list[object] = [record.job for record in records]
        requests = self._requests
        if requests is None or requests.cluster is not state.cluster or not _same(self._jobs, jobs):
            requests = Requests([record.job for record in records], state.cluster)
            self._jobs, self._requests = jobs, requests
        held = [state.placement.get(record.job.id) for record in records]
        table = JobTable(
            requests=requests,
            rows=np.arange(len(records), dtype=np.int64),
            held_gpus=ints([one.gpus if one else 0 for one in held]),
            held_nodes=ints([len(one.nodes) if one else 0 for one in held]),
            held_kind=ints([one.kind if one else -1 for one in held]),
            **known(records, state.cluster, self.views, now_s),
        )
        return Snapshot(
            version=state.version,
            now_s=now_s,
            cluster=state.cluster,
            usable=state.usable(),
            jobs=table,
            placement=state.placement,
            due=due,
            memory=state.memory,
            seed=state.configured.seed,
        )


def eligible(state: State, now_s: float) -> list[JobRecord]:
    """Jobs that the policy may give GPUs to, or that hold some."""
    return [record for record in state.open_jobs() if why_not_yet(state, record, now_s) is Reason.NONE]


def _same(before: list[object], after: list[object]) -> bool:
    return len(before) == len(after) and all(one is other for one, other in zip(before, after, strict=True))
