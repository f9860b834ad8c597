"""Whatever is submitted to queues within queues, on GPUs of two types: no guarantee of any level is lost."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from tests.sim.made_worlds import NO_RESTARTS, a_workload

from stretto.model import (
    Adaptivity,
    Allocation,
    Constraints,
    GpuType,
    Job,
    JobId,
    Placement,
    Plan,
    Queue,
    Snapshot,
    cluster_of,
)
from stretto.model.queue import line_of, parents_of
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate
from stretto.traces.workload import Workload

#            lab: 6, and 3            other: 4, and 6
#     vision: 3, and 6   speech: 2, and 6
#     faces: 1, and 6
QUEUES = {
    one.name: one
    for one in (
        Queue("lab", 6, 3),
        Queue("vision", 3, 6, parent="lab"),
        Queue("speech", 2, 6, parent="lab"),
        Queue("faces", 1, 6, parent="vision"),
        Queue("other", 4, 6),
    )
}
PARENTS = parents_of(QUEUES)
# Jobs directly in a queue are a part of it, with what the other parts leave.
OWN = {"lab": Queue("lab alone", 1, 8, parent="lab"), "vision": Queue("vision alone", 2, 7, parent="vision")}
ALL = {**QUEUES, **{one.name: one for one in OWN.values()}}
OUTERMOST = ("lab", "other")
CLUSTER = cluster_of("mixed", (GpuType("slow"), 2, 4), (GpuType("fast", speed=2.0), 1, 4))
LEAVES = ("speech", "faces", "other", "")
WITH_PARENTS = ("speech", "faces", "other", "vision", "lab", "")
POLICIES = ("fifo", "srtf", "tiresias", "sia", "afs", "optimus", "gavel", "cornucopia", "lyra")
# Runs in which a part would lose to a sibling, or a job would be stopped for one that then needs less.
TEMPTING = (("gavel", 32, LEAVES), ("optimus", 2, LEAVES), ("fifo", 364, LEAVES), ("sia", 21, WITH_PARENTS))


def quota_of(queue: str) -> int:
    return ALL[queue].quota_gpus or 0


def around(queue: str) -> list[str]:
    """What a job of a queue is in."""
    return [*line_of(queue, PARENTS), *([OWN[queue].name] if queue in OWN else [])]


def drawn(seed: int, queues: tuple[str, ...]) -> Workload:
    """Jobs of all sorts, none larger than what it may ever hold in its queue."""
    rng = np.random.default_rng([seed, 7])
    timed = []
    for number in range(int(rng.integers(4, 14))):
        queue = str(rng.choice(queues))
        gpus = int(rng.choice([1, 2, 4]))
        is_elastic = bool(rng.random() < 0.4)
        least = 1 if is_elastic else gpus
        guaranteed = min((quota_of(one) for one in around(queue)), default=least)
        job = Job(
            JobId(f"j{number}"),
            float(rng.integers(0, 3_000)),
            gpus,
            min_gpus=least,
            max_gpus=gpus,
            adaptivity=Adaptivity.STRONG_SCALING if is_elastic else Adaptivity.RIGID,
            priority=int(rng.integers(-1, 3)),
            preempts=bool(rng.random() < 0.8),
            preemptible=bool(rng.random() < 0.8) or least > guaranteed,
            queue=queue,
        )
        timed.append((job, float(rng.integers(300, 6_000))))
    return a_workload(*timed)


def held_by_queue(placement: Mapping[JobId, Allocation], jobs: Mapping[JobId, Job]) -> dict[str, int]:
    """GPUs of each queue, with all that is in it."""
    held = dict.fromkeys(ALL, 0)
    for name, allocation in placement.items():
        for queue in around(jobs[name].queue):
            held[queue] += allocation.gpus
    return held


@dataclass
class Witness:
    """Looks at every decision of a run."""

    preemptions: int = 0

    def record(self, snapshot: Snapshot, plan: Plan) -> None:
        jobs = {job.id: job for job in (snapshot.jobs[row] for row in range(len(snapshot.jobs)))}
        for one in plan.preemptions:
            self.preemptions += 1
            assert jobs[one.job].priority < jobs[one.by].priority
            assert jobs[one.job].preemptible
        before, after = snapshot.placement, plan.placement
        fixed = {name: held for name, held in after.items() if not jobs[name].preemptible}
        for name, gpus in held_by_queue(fixed, jobs).items():
            assert gpus <= quota_of(name), f"{name} lends what cannot be taken back"
        had, has = held_by_queue(before, jobs), held_by_queue(after, jobs)
        for name, queue in ALL.items():
            most = quota_of(name) + queue.borrow_gpus
            assert has[name] <= max(most, had[name]), f"{name} is beyond its limit"
            self._check_guarantee(name, had, has, snapshot.placement, plan.placement, jobs)
        self._check_entitled(before, after, jobs)

    def _check_guarantee(
        self,
        queue: str,
        had: Mapping[str, int],
        has: Mapping[str, int],
        before: Placement,
        after: Placement,
        jobs: Mapping[JobId, Job],
    ) -> None:
        """No queue is pushed below its quota, nor below what it held.

        Four losses are nobody else's: GPUs that stay idle; what its own jobs leave over, too little for those
        that they stopped; what a part of it had borrowed; and what goes with a whole job where the queue
        gives back what it borrowed, and the job cannot be shrunk.
        """
        lacking = min(had[queue], quota_of(queue)) - has[queue]
        if lacking <= 0:
            return
        changes = [
            (jobs[name], held.gpus, after[name].gpus if name in after else 0) for name, held in before.items()
        ]
        lost = [one for one in changes if queue in around(one[0].queue) and one[2] < one[1]]
        total, borrowed = sum(held - now for _, held, now in lost), had[queue] - quota_of(queue)
        whole = [held for job, held, now in lost if not now and job.min_gpus == held]
        if any(total - held < borrowed for held in whole):
            return
        for job, held, now in lost:
            size = min(held, now + lacking)
            had_borrowed = any(had[one] > quota_of(one) for one in around(job.queue))
            is_idle = int(after.free.sum()) >= size - now
            assert size < job.min_gpus or is_idle or had_borrowed, f"{queue} lost {job.id}"

    def _check_entitled(self, before: Placement, after: Placement, jobs: Mapping[JobId, Job]) -> None:
        """A job of one GPU that is alone in its level does not wait within all quotas around it.

        That is, while any GPU is free or borrowed by an outermost queue that it is not in.
        """
        for job in jobs.values():
            alone = sum(one.priority == job.priority for one in jobs.values()) == 1
            if job.id in after or not job.queue or not alone or job.gpus > 1:
                continue
            could = [entitled(job, one, held_by_queue(one, jobs)) for one in (before, after)]
            assert not all(could), f"{job.id} waits"


def entitled(job: Job, placement: Placement, held: Mapping[str, int]) -> bool:
    line = around(job.queue)
    within = all(held[one] + job.gpus <= quota_of(one) for one in line)
    lent = any(held[one] > quota_of(one) for one in OUTERMOST if one not in line)
    return within and (lent or int(placement.free.sum()) >= job.gpus)


def check(policy: str, seed: int, queues: tuple[str, ...]) -> int:
    witness = Witness()
    setup = Setup(
        CLUSTER,
        load_policy(policy),
        NO_RESTARTS,
        constraints=Constraints(queues=QUEUES, parents=PARENTS),
        seed=seed,
    )
    result = simulate(drawn(seed, queues), setup, record=witness.record)
    assert np.isfinite(result.completed_s).all()
    return witness.preemptions


@pytest.mark.parametrize(("policy", "seed", "queues"), TEMPTING)
def test_no_part_loses_to_a_sibling_and_no_job_stops_in_vain(
    policy: str, seed: int, queues: tuple[str, ...]
) -> None:
    check(policy, seed, queues)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_random_workloads_in_queues_within_queues(policy: str) -> None:
    check(policy, 0, LEAVES)
    check(policy, 1, WITH_PARENTS)


@pytest.mark.long
@pytest.mark.parametrize("queues", [LEAVES, WITH_PARENTS], ids=["leaves", "parents"])
@pytest.mark.parametrize("policy", POLICIES)
def test_many_random_workloads_in_queues_within_queues(policy: str, queues: tuple[str, ...]) -> None:
    assert sum(check(policy, seed, queues) for seed in range(300, 350)) > 0
