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
# Runs in which a policy would give GPUs that a queue is guaranteed to jobs of others.
TEMPTING = (
    ("sia", 100),
    ("sia", 118),
    ("gavel", 102),
    ("fifo", 204),
    ("optimus", 163),
    ("gavel", 157),
    ("tiresias", 143),
    ("afs", 140),
)


def quota_of(queue: str) -> int:
    return QUEUES[queue].quota_gpus or 0


def drawn(seed: int) -> Workload:
    """Jobs of all sorts, none larger than what it may ever hold in its queue."""
    rng = np.random.default_rng([seed, 5])
    timed = []
    for number in range(int(rng.integers(3, 12))):
        queue = str(rng.choice(["a", "b", ""]))
        gpus = int(rng.choice(SIZES))
        is_elastic = bool(rng.random() < 0.4)
        least = 1 if is_elastic else gpus
        job = Job(
            JobId(f"j{number}"),
            float(rng.integers(0, 3_000)),
            gpus,
            min_gpus=least,
            max_gpus=gpus,
            adaptivity=Adaptivity.STRONG_SCALING if is_elastic else Adaptivity.RIGID,
            priority=int(rng.integers(-1, 4)),
            preempts=bool(rng.random() < 0.8),
            preemptible=bool(rng.random() < 0.8) or (queue != "" and least > quota_of(queue)),
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

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        jobs = {job.id: job for job in (snapshot.jobs[row] for row in range(len(snapshot.jobs)))}
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
        for queue in QUEUES.values():
            self._check_guarantee(queue, snapshot.placement, plan.placement, jobs)
            self._check_lent(queue, plan.placement, jobs)
        self._check_nobody_waits_in_vain(snapshot, plan, jobs)
        self._check_entitled(snapshot, plan, jobs)

    def _check_guarantee(
        self, queue: Queue, before: Placement, after: Placement, jobs: Mapping[JobId, Job]
    ) -> None:
        """Jobs of other queues do not push a queue below its quota, nor below what it held.

        A queue keeps min(quota, what it held), which is at most its demand. Three losses are nobody else's:
        GPUs that stay idle; what its own jobs leave over, too little for those that they stopped; and what
        goes with a whole job where the queue gives back what it borrowed, and the job cannot be shrunk.
        """
        had, has = (gpus_of(one, jobs, queue.name) for one in (before, after))
        lacking = min(had, queue.quota_gpus or 0) - has
        if lacking <= 0:
            return
        changes = [
            (jobs[name], held.gpus, after[name].gpus if name in after else 0) for name, held in before.items()
        ]
        lost = [one for one in changes if one[0].queue == queue.name and one[2] < one[1]]
        total, borrowed = sum(held - now for _, held, now in lost), had - (queue.quota_gpus or 0)
        whole = [held for job, held, now in lost if not now and job.min_gpus == held]
        if any(total - held < borrowed for held in whole):
            return
        for job, held, now in lost:
            size = min(held, now + lacking)
            assert size < job.min_gpus or int(after.free.sum()) >= size - now, f"{queue.name} lost {job.id}"

    def _check_lent(self, queue: Queue, placement: Placement, jobs: Mapping[JobId, Job]) -> None:
        """What a queue holds beyond its quota can be taken back: it is held by jobs that can be preempted."""
        fixed = {name: held.gpus for name, held in placement.items() if not jobs[name].preemptible}
        assert sum(gpus for name, gpus in fixed.items() if jobs[name].queue == queue.name) <= (
            queue.quota_gpus or 0
        )

    def _check_entitled(self, snapshot: Snapshot, plan: Plan, jobs: Mapping[JobId, Job]) -> None:
        """A rigid job that is alone in its level does not wait within its quota for what others borrow."""
        for job in jobs.values():
            alone = sum(one.priority == job.priority for one in jobs.values()) == 1
            if job.id in plan.placement or not job.queue or not alone or job.min_gpus < job.gpus:
                continue
            could = [entitled(job, one, jobs) for one in (snapshot.placement, plan.placement)]
            assert not all(could), f"{job.id} at {snapshot.now_s}"

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


def entitled(job: Job, placement: Placement, jobs: Mapping[JobId, Job]) -> bool:
    """Whether a job is within its quota, and what is free or borrowed by other queues is enough for it."""
    held = {label: gpus_of(placement, jobs, label) for label in QUEUES}
    borrowed = sum(max(held[label] - quota_of(label), 0) for label in QUEUES if label != job.queue)
    within = held[job.queue] + job.gpus <= quota_of(job.queue)
    return within and int(placement.free.sum()) + borrowed >= job.gpus


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
    witness = Witness()
    setup = Setup(
        a_cluster(GPUS), load_policy(policy), NO_RESTARTS, constraints=Constraints(queues=QUEUES), seed=seed
    )
    result = simulate(drawn(seed), setup, record=witness.record)
    assert np.isfinite(result.completed_s).all()
    return witness.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_random_workloads_with_priorities_and_quotas(policy: str) -> None:
    assert sum(check(policy, seed) for seed in range(5)) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "seed"), TEMPTING)
def test_a_policy_gives_nobody_else_what_a_queue_is_guaranteed(policy: str, seed: int) -> None:
    check(policy, seed)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_a_thousand_random_workloads_with_priorities_and_quotas(policy: str) -> None:
    """Together with those of the other policies: a hundred and twelve of each."""
    assert sum(check(policy, seed) for seed in range(100, 212)) > 0
