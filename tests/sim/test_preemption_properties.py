"""Whatever is submitted: no preemption goes in circles or is in vain, and no queue loses its guarantee."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.sim.made_worlds import NO_RESTARTS, a_workload

from stretto.model import Adaptivity, Constraints, Job, JobId, Placement, Plan, Queue, Snapshot
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate
from stretto.testing.builders import a_cluster
from stretto.traces.workload import Workload

GPUS = 4
QUEUES = {"a": Queue("a", 2, 2), "b": Queue("b", 1, 3)}
SIZES = (1, 2, 4)  # which every policy can place on a node of four
# They keep sizes, resize, share time, solve programmes. None makes a job wait that is alone in its level.
POLICIES = ("fifo", "srtf", "tiresias", "sia", "afs", "optimus", "gavel", "cornucopia", "lyra")
BY_ORDER = ("fifo", "srtf", "tiresias")  # others may themselves give a queue's GPUs to others of its level


def drawn(seed: int) -> Workload:
    """Jobs of all sorts, none larger than its queue may ever hold."""
    rng = np.random.default_rng([seed, 5])
    timed = []
    for number in range(int(rng.integers(3, 12))):
        queue = str(rng.choice(["a", "b", ""]))
        gpus = int(rng.choice(SIZES))
        is_elastic = bool(rng.random() < 0.4)
        job = Job(
            JobId(f"j{number}"),
            float(rng.integers(0, 3_000)),
            gpus,
            min_gpus=1 if is_elastic else gpus,
            max_gpus=gpus,
            adaptivity=Adaptivity.STRONG_SCALING if is_elastic else Adaptivity.RIGID,
            priority=int(rng.integers(-1, 4)),
            preempts=bool(rng.random() < 0.8),
            preemptible=bool(rng.random() < 0.8),
            queue=queue,
        )
        timed.append((job, float(rng.integers(300, 6_000))))
    return a_workload(*timed)


@dataclass
class Witness:
    """Looks at every decision of a run."""

    took: dict[tuple[JobId, JobId], float] = field(default_factory=dict)  # (victim, by) -> when last stopped
    ran: dict[JobId, float] = field(default_factory=dict)  # when a job last held GPUs, before this decision
    preemptions: int = 0
    policy: str = ""

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        jobs = {job.id: job for job in (snapshot.jobs[row] for row in range(len(snapshot.jobs)))}
        lost: dict[str, int] = {}  # by queue, to jobs of others
        for one in plan.preemptions:
            self.preemptions += 1
            victim, by = jobs[one.job], jobs[one.by]
            held = snapshot.placement[victim.id].gpus
            assert victim.priority < by.priority
            assert victim.preemptible
            assert plan.placement[by.id].gpus > 0
            assert one.gpus in (0, *range(victim.min_gpus, held))
            assert (by.id, victim.id) not in self.took
            if not one.gpus:
                before_s = self.took.get((victim.id, by.id), -1.0)
                assert snapshot.now_s > before_s, "stopped again before it could run at all"
                self.took[victim.id, by.id] = snapshot.now_s
            if victim.queue != by.queue:
                lost[victim.queue] = lost.get(victim.queue, 0) + held - one.gpus
        self._check_guarantees(snapshot, plan, jobs, lost)
        self._check_nobody_waits_in_vain(snapshot, plan, jobs)

    def _check_guarantees(
        self, snapshot: Snapshot, plan: Plan, jobs: Mapping[JobId, Job], lost: Mapping[str, int]
    ) -> None:
        for name in lost if self.policy in BY_ORDER else ():
            if name in QUEUES:
                before, after = (gpus_of(one, jobs, name) for one in (snapshot.placement, plan.placement))
                assert after >= min(before, QUEUES[name].quota_gpus or 0)

    def _check_nobody_waits_in_vain(self, snapshot: Snapshot, plan: Plan, jobs: Mapping[JobId, Job]) -> None:
        """A job that is alone in its level and in no queue waits only where it could not start."""
        for job in jobs.values():
            alone = sum(one.priority == job.priority for one in jobs.values()) == 1
            if job.id in plan.placement or job.queue or not alone or not job.preempts:
                continue
            could = [could_start(job, one, jobs) for one in (snapshot.placement, plan.placement)]
            assert not all(could), f"{job.id} at {snapshot.now_s}"


def gpus_of(placement: Placement, jobs: Mapping[JobId, Job], queue: str) -> int:
    return sum(held.gpus for name, held in placement.items() if jobs[name].queue == queue)


def could_start(job: Job, placement: Placement, jobs: Mapping[JobId, Job]) -> bool:
    """Whether what is free, and what lower jobs would have to give up, is enough for all that it asks."""
    spare: dict[str, int] = {}
    for name, held in placement.items():
        other = jobs[name]
        if other.priority < job.priority and other.preemptible:
            spare[other.queue] = spare.get(other.queue, 0) + held.gpus
    for label, queue in QUEUES.items():  # what is beyond a quota can be taken in whole jobs only
        beyond = gpus_of(placement, jobs, label) - (queue.quota_gpus or 0)
        spare[label] = spare.get(label, 0) if spare.get(label, 0) <= beyond else 0
    return int(placement.free.sum()) + sum(spare.values()) >= job.gpus


def check(policy: str, seed: int) -> int:
    witness = Witness(policy=policy)
    setup = Setup(
        a_cluster(GPUS), load_policy(policy), NO_RESTARTS, constraints=Constraints(queues=QUEUES), seed=seed
    )
    result = simulate(drawn(seed), setup, record=witness.record)
    assert np.isfinite(result.completed_s).all()
    return witness.preemptions


@pytest.mark.parametrize("policy", POLICIES)
def test_random_workloads_with_priorities_and_quotas(policy: str) -> None:
    assert sum(check(policy, seed) for seed in range(5)) > 0


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_a_thousand_random_workloads_with_priorities_and_quotas(policy: str) -> None:
    """Together with those of the other policies: a hundred and twelve of each."""
    assert sum(check(policy, seed) for seed in range(100, 212)) > 0
