"""How a job on several GPU types at once divides a step among its workers.

All workers of a step wait for the slowest. Split evenly, a worker of a fast type would wait for those of a
slow one. So each gets samples in proportion to the speed of one worker of its type. That is of the table of
speeds. It was measured if the job or its model has run on that type alone. Else it follows from the `speed`
of the types.
"""

from stretto.estimate.speed_table import speed_table
from stretto.model import Batch
from stretto.model.placement import in_proportion
from stretto.service.scheduling.estimates import limits_of, speed_evidence_of
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State

NEAR = 0.1  # a division is kept while a step would be faster by less than this share; chosen
PARTS = 1_000  # of the fastest worker, to which speeds are rounded


def divided_by_speed(state: State, record: JobRecord, names: tuple[str, ...]) -> Batch | None:
    """The batch of workers on several types, by rank; None where they are of one, or the batch is not known.

    It is as large as the script would choose: one share for each worker, within what it allows.
    """
    workers, cluster = [record.workers[name] for name in names], state.cluster
    if cluster is None or not record.job.heterogeneous or len({worker.kind for worker in workers}) < 2:
        return None
    if (limits := limits_of(record, cluster)) is None:
        return None
    table = speed_table(speed_evidence_of(record, cluster), cluster).speeds.per_s
    alone = [float(table[worker.kind, record.job.gpus_per_worker]) for worker in workers]
    if not all(per_s > 0 for per_s in alone):  # NaN: it does not run there by itself
        return None
    total = min(limits.init_batch * len(workers), limits.max_batch)
    parts = in_proportion([max(round(PARTS * per_s / max(alone)), 1) for per_s in alone], total)
    before = record.members.batch
    if before is not None and names == record.members.workers and len(before.by_worker) == len(names):
        kept_s, new_s = (_slowest_s(samples, alone) for samples in (before.by_worker, parts))
        parts = before.by_worker if before.total == total and kept_s <= (1 + NEAR) * new_s else parts
    return Batch(total, max(parts), 1, parts if min(parts) else ())


def _slowest_s(samples: tuple[int, ...], per_s: list[float]) -> float:
    """Time of the worker that takes longest, in units that are the same for all divisions."""
    return max(count / speed for count, speed in zip(samples, per_s, strict=True))
