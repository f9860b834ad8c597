"""A world without physics, to see what a policy decides when: jobs run at full speed on what they asked for.

No placement rules, no restart costs. For worked examples of policies; the simulator is in `stretto.sim`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Cluster,
    Durations,
    FloatArray,
    Job,
    JobId,
    JobTable,
    Placement,
    Policy,
    Requests,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    lowest_gpus,
    no_placement,
    no_speeds,
)
from stretto.scheduler.check import check_shares
from stretto.testing.builders import some_progress


@dataclass(frozen=True)
class Played:
    """What came of it."""

    ended_s: Mapping[str, float]  # by job
    decisions: Sequence[tuple[float, Mapping[str, int]]]  # time, GPUs by job that has some


def play(
    policy: Policy,
    duration_s: Mapping[str, float],
    jobs: Sequence[Job],
    cluster: Cluster,
    requested_per_s: Mapping[str, Sequence[float]] | None = None,
    until_s: float = inf,
) -> Played:
    """Run jobs of known durations to their ends, asking the policy whenever one of its triggers fires.

    requested_per_s: by job, steps per second on each type, for policies that look at them. A job runs at full
    speed on what it is given. Raises RuntimeError where nothing more would ever happen.
    """
    world = _World(policy, [duration_s[job.id] for job in jobs], jobs, cluster, requested_per_s or {})
    while world.active.any() or world.to_come.any():
        if world.now_s >= until_s:
            break
        world.advance()
    return Played(dict(world.ended_s), tuple(world.decisions))


class _World:
    def __init__(
        self,
        policy: Policy,
        duration_s: Sequence[float],
        jobs: Sequence[Job],
        cluster: Cluster,
        per_s: Mapping[str, Sequence[float]],
    ) -> None:
        self.policy, self.cluster, self.per_s = policy, cluster, per_s
        order = sorted(range(len(jobs)), key=lambda row: (jobs[row].submitted_s, jobs[row].id))
        self.requests = Requests([jobs[row] for row in order], cluster)
        self.duration_s = np.array([duration_s[row] for row in order])
        self.remaining_s = self.duration_s.copy()
        count = len(order)
        self.to_come, self.active = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        self.executed_s, self.attained_gpu_s = np.zeros(count), np.zeros(count)
        self.first_start_s, self.last_stop_s = np.full(count, np.nan), np.full(count, np.nan)
        self.placement = no_placement(cluster)
        self.memory, self.wake_s, self.now_s = None, inf, 0.0
        self.ended_s: dict[str, float] = {}
        self.decisions: list[tuple[float, Mapping[str, int]]] = []

    def advance(self) -> None:
        """Go to the next thing that happens, and let the policy decide if it wants to."""
        held_gpus = self._held()
        running = held_gpus > 0
        round_s = self.policy.triggers.round_s
        arrival_s = self.requests.submitted_s[self.to_come].min(initial=inf)
        tick_s = (self.now_s // round_s + 1) * round_s if round_s and self.active.any() else inf
        end_s = self.now_s + self.remaining_s[running].min(initial=inf)
        then_s = float(min(arrival_s, tick_s, end_s, self.wake_s))
        if then_s == inf:
            raise RuntimeError(f"at {self.now_s} s {self.active.sum()} jobs wait and nothing will happen")
        passed_s = then_s - self.now_s
        self.remaining_s[running] -= passed_s
        self.executed_s[running] += passed_s
        self.attained_gpu_s += held_gpus * passed_s
        self.now_s = then_s

        due = {
            Trigger.COMPLETION: self._end(running & (self.remaining_s <= 1e-9)),
            Trigger.ARRIVAL: self._arrive(),
            Trigger.ROUND: then_s == tick_s,
            Trigger.WAKE: then_s >= self.wake_s,
        }
        fired = frozenset(trigger for trigger, is_due in due.items() if is_due)
        if fired & (self.policy.triggers.on | {Trigger.WAKE}):
            self._decide(fired)

    def _end(self, done: BoolArray) -> bool:
        for row in np.flatnonzero(done).tolist():
            job = self.requests.jobs[row].id
            self.ended_s[job] = self.now_s
            self.placement = self.placement.changed({job: None})
        self.active &= ~done
        return bool(done.any())

    def _arrive(self) -> bool:
        new = self.to_come & (self.requests.submitted_s <= self.now_s)
        self.active |= new
        self.to_come &= ~new
        return bool(new.any())

    def _decide(self, due: frozenset[Trigger]) -> None:
        snapshot = replace(self._snapshot(), due=due)
        visible = snapshot.limited_to(self.policy.views)
        shares = self.policy.allocate(visible, self._speeds(snapshot))
        check_shares(snapshot, shares)
        self.memory = shares.memory
        self.wake_s = inf if shares.wake_s is None else shares.wake_s
        before = self.placement
        self.placement = _placed(snapshot, shares)
        for row in np.flatnonzero(self.active).tolist():
            job = self.requests.jobs[row].id
            if job in self.placement and np.isnan(self.first_start_s[row]):
                self.first_start_s[row] = self.now_s
            if job in before and job not in self.placement:
                self.last_stop_s[row] = self.now_s
        self.decisions.append(
            (self.now_s, {job: allocation.gpus for job, allocation in self.placement.items()})
        )

    def _held(self) -> FloatArray:
        held = [self.placement[job.id].gpus if job.id in self.placement else 0 for job in self.requests.jobs]
        return np.array(held, dtype=np.float64)

    def _snapshot(self) -> Snapshot:
        rows = np.flatnonzero(self.active)
        grants = [self.placement.get(self.requests.jobs[row].id) for row in rows.tolist()]
        durations = Durations(self.duration_s[rows], self.remaining_s[rows])
        table = JobTable(
            requests=self.requests,
            rows=rows,
            held_gpus=np.array([grant.gpus if grant else 0 for grant in grants], dtype=np.int64),
            held_nodes=np.array([len(grant.nodes) if grant else 0 for grant in grants], dtype=np.int64),
            held_kind=np.array([grant.kind if grant else -1 for grant in grants], dtype=np.int64),
            known_durations=durations,
            known_estimates=durations,
            known_work=self.remaining_s[rows],
            known_tables=[],
            known_progress=some_progress(
                len(rows),
                executed_s=self.executed_s[rows],
                attained_gpu_s=self.attained_gpu_s[rows],
                first_start_s=self.first_start_s[rows],
                last_stop_s=self.last_stop_s[rows],
            ),
        )
        usable = np.ones(len(self.cluster.nodes), dtype=np.bool_)
        return Snapshot(1, self.now_s, self.cluster, usable, table, self.placement, memory=self.memory)

    def _speeds(self, snapshot: Snapshot) -> Speeds:
        types = len(self.cluster.types)
        none = no_speeds(len(snapshot.jobs), types, self.policy.configurations(self.cluster))
        known = [self.per_s.get(job, [np.nan] * types) for job in snapshot.jobs.ids]
        return replace(none, requested_per_s=np.array(known, dtype=np.float64).reshape(-1, types))


def _placed(snapshot: Snapshot, shares: Shares) -> Placement:
    """Any placement of the shares that leaves alone what does not change."""
    jobs, cluster = snapshot.jobs, snapshot.cluster
    new = (shares.gpus != jobs.held_gpus) | (shares.kind != jobs.held_kind)
    stopped: dict[JobId, Allocation | None] = {
        jobs.ids[row]: None for row in np.flatnonzero(new & (jobs.held_gpus > 0))
    }
    placement = snapshot.placement.changed(stopped)
    for row in np.flatnonzero(new & (shares.gpus > 0)).tolist():
        missing, nodes, masks = int(shares.gpus[row]), [], []
        for node in np.flatnonzero((cluster.kind == shares.kind[row]) & (placement.free > 0)).tolist():
            free_mask = ~int(placement.busy[node]) & ((1 << int(cluster.node_gpus[node])) - 1)
            mask = lowest_gpus(free_mask, min(missing, free_mask.bit_count()))
            nodes.append(node)
            masks.append(mask)
            missing -= mask.bit_count()
            if not missing:
                break
        grant = Allocation(int(shares.kind[row]), tuple(nodes), tuple(masks))
        placement = placement.changed({jobs.ids[row]: grant})
    return placement
