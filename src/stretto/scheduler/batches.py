"""Which batch does each adaptive job train with on the GPUs that a plan gives it?

The estimator says which batch makes the most of them (Pollux, OSDI 2021, section 3; Sia, SOSP 2023, section
3.1). A policy may instead have said how many samples each GPU takes (ONES, SC 2021, equation 1).
"""

from collections.abc import Mapping

from stretto.model import (
    Adaptivity,
    Allocation,
    Batch,
    JobId,
    Plan,
    Snapshot,
    SumsBatches,
    TrainingLimits,
    in_proportion,
)
from stretto.scheduler.components import ChoosesBatches, Scheduler

NEAR = 0.1  # a batch that differs by less from the one in use does not change it; chosen


def choose_batches(snapshot: Snapshot, plan: Plan, scheduler: Scheduler) -> Mapping[JobId, Batch]:
    """Batches that differ from those of the snapshot, by job; none where the world chooses them itself.

    A job keeps its batch where it stays on its GPUs and the best one is near.
    """
    before, evidence = snapshot.batches, snapshot.jobs.known_evidence
    if before is None or evidence is None:
        return {}
    # What the policy says GPU by GPU holds; the estimator is asked about the others.
    chosen: dict[JobId, Batch] = {}
    policy = scheduler.policy
    only_sum = isinstance(policy, SumsBatches) and policy.sums_batches
    undecided: list[tuple[int, int, int, int]] = []  # (row, GPU type, nodes, GPUs) for the estimator
    for row, name in enumerate(snapshot.jobs.ids):
        allocation, known = plan.placement.get(name), evidence[row]
        if allocation is None or known is None or known.fixed_batch:
            continue
        job = snapshot.jobs[row]
        if job.adaptivity is not Adaptivity.ADAPTIVE:
            continue
        if allocation.local_batch:
            given = sum_of_local_batches if only_sum else local_batches
            chosen[name] = given(allocation, job.gpus_per_worker, known.limits)
        elif any(known.observed):
            undecided.append((row, allocation.kind, len(allocation.nodes), allocation.gpus))
    # All at once: the estimator fits their models side by side.
    if undecided and isinstance(scheduler.estimator, ChoosesBatches):
        moved = {action.job for action in plan.actions}
        configurations = scheduler.policy.configurations(snapshot.cluster)
        choices = scheduler.estimator.batches(snapshot, configurations, undecided)
        for (row, *_), choice in zip(undecided, choices, strict=True):
            name, known = snapshot.jobs.ids[row], evidence[row]
            assert known is not None
            # Rounding to equal parts may have gone beyond what the job allows.
            total = min(choice.total_batch, known.limits.max_batch)
            previous = before.get(name)
            is_near = previous is not None and abs(total - previous.total) <= NEAR * previous.total
            if total and not (is_near and name not in moved):
                chosen[name] = Batch(total, choice.local_batch, choice.accumulation + 1)
    return {name: batch for name, batch in chosen.items() if batch != before.get(name)}


def local_batches(allocation: Allocation, gpus_per_worker: int, limits: TrainingLimits) -> Batch:
    """What a policy says GPU by GPU, in as few passes as fit into memory; also less than was tuned for.

    A job of ONES starts with what fits on one GPU (section 3.3.2), however large a batch was submitted.
    """
    local = allocation.local_batch
    by_worker = tuple(
        sum(local[first : first + gpus_per_worker]) for first in range(0, len(local), gpus_per_worker)
    )
    total = sum(by_worker)
    if total > limits.max_batch:  # of a script that has told other bounds since
        total, by_worker = limits.max_batch, in_proportion(by_worker, limits.max_batch)
    passes = _passes(max(by_worker), limits, allocation.kind)
    return Batch(total, -(-max(by_worker) // passes), passes, by_worker if min(by_worker) else ())


def sum_of_local_batches(allocation: Allocation, gpus_per_worker: int, limits: TrainingLimits) -> Batch:
    """The sum of it, split evenly, in as few passes as fit into memory; at least what was tuned for."""
    total = min(max(sum(allocation.local_batch), limits.init_batch), limits.max_batch)
    share = -(-total // (allocation.gpus // gpus_per_worker))
    passes = _passes(share, limits, allocation.kind)
    return Batch(total, -(-share // passes), passes)


def _passes(share: int, limits: TrainingLimits, kind: int) -> int:
    """In how many passes a worker gets through its samples of a step."""
    max_local = int(limits.max_local[kind])
    return -(-share // max_local) if max_local > 0 else 1
