"""Which batch does each adaptive job train with on the GPUs that a plan gives it?

Of a policy that chooses batches itself (ONES), its own; of one that looks at goodput (Sia, Pollux), the batch
by which the job was worth what the policy believed of these GPUs. Any other says nothing: the script's rule
holds then. A job whose file does not say `batch.policy: adaptive` keeps its batch.
"""

from collections.abc import Mapping

from stretto.estimate.estimators import ChoosesBatches
from stretto.live.state.records import Batch
from stretto.model import Adaptivity, Allocation, Plan, Snapshot, TrainingLimits
from stretto.scheduler.round import Scheduler

NEAR = 0.1  # a batch that differs by less from the one in use does not change it; chosen


def new_batches(
    snapshot: Snapshot, plan: Plan, scheduler: Scheduler, before: Mapping[str, Batch]
) -> dict[str, Batch]:
    """Batches that differ from those `before`, by job. Pure: the same decision, the same batches."""
    evidence = snapshot.jobs.known_evidence
    if evidence is None:
        return {}
    found: dict[str, Batch] = {}
    asked: list[tuple[int, int, int, int]] = []
    moved = {action.job for action in plan.actions}
    for row, name in enumerate(snapshot.jobs.ids):
        held = plan.placement.get(name)
        one = evidence[row]
        if held is None or one is None or one.fixed_batch:
            continue
        job = snapshot.jobs[row]
        if job.adaptivity is not Adaptivity.ADAPTIVE:
            continue
        if held.local_batch:
            found[name] = _dictated(held, job.gpus_per_worker, one.limits)
        elif any(one.observed):
            asked.append((row, held.kind, len(held.nodes), held.gpus))
    if asked and isinstance(scheduler.estimator, ChoosesBatches):
        configurations = scheduler.policy.configurations(snapshot.cluster)
        for (row, *_), choice in zip(
            asked, scheduler.estimator.batches(snapshot, configurations, asked), strict=True
        ):
            limits = evidence[row].limits  # type: ignore[union-attr]
            total = min(choice.total_batch, limits.max_batch)  # rounding may have gone beyond
            name = snapshot.jobs.ids[row]
            was, batch = before.get(name), Batch(total, choice.local_batch, choice.accumulation + 1)
            if total and (was is None or name in moved or abs(total - was.total) > NEAR * was.total):
                found[name] = batch
    return {name: batch for name, batch in found.items() if batch != before.get(name)}


def _dictated(held: Allocation, gpus_per_worker: int, limits: TrainingLimits) -> Batch:
    """What a policy says GPU by GPU, in as few passes as fit into memory; at least what was tuned for.

    ONES does not accumulate, and would train with less where that does not fit on the GPUs at once.
    """
    total = min(max(sum(held.local_batch), limits.init_batch), limits.max_batch)
    max_local = int(limits.max_local[held.kind])
    share = -(-total // (held.gpus // gpus_per_worker))
    passes = -(-share // max_local) if max_local > 0 else 1
    return Batch(total, -(-share // passes), passes)
