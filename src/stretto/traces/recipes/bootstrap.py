"""A trace of other days: whole days of a workload, drawn with replacement (Lyra, section 7.2)."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import InputError, JobId
from stretto.traces.workload import Workload

DAY_S = 86_400.0


@dataclass(frozen=True)
class Bootstrap:
    """Parameters."""

    days: int = 10  # of the trace that is made
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the range."""
        if not 1 <= self.days <= 1_000:
            raise InputError(f"recipe bootstrap: days must be from 1 to 1000, got {self.days}")


def prepare(workload: Workload, parameters: Bootstrap) -> Workload:
    """So many days one after the other, each one of the workload's days, all of them equally likely.

    Days begin at the clock's zero. Jobs keep their time of day; what is due after their submission moves with
    them. The name of a job says which day of the new trace it is of.
    """
    rows_of_day: dict[int, list[int]] = defaultdict(list)
    for row, job in enumerate(workload.jobs):
        rows_of_day[int(job.submitted_s // DAY_S)].append(row)
    days = max(rows_of_day, default=0) + 1
    drawn = np.random.default_rng([parameters.seed, 59]).integers(days, size=parameters.days).tolist()
    jobs, truths = [], []
    for day, source in enumerate(drawn):
        later_s = (day - source) * DAY_S
        for row in rows_of_day[source]:
            job = workload.jobs[row]
            jobs.append(
                replace(
                    job,
                    id=JobId(f"day-{day}-{job.id}"),
                    submitted_s=job.submitted_s + later_s,
                    rewards=tuple(
                        replace(reward, deadline_s=reward.deadline_s + later_s) for reward in job.rewards
                    ),
                )
            )
            truths.append(workload.truths[row])
    added = f"days {', '.join(str(source + 1) for source in drawn)} of it, one after the other"
    return replace(
        workload, jobs=jobs, truths=truths, source="; ".join(filter(None, (workload.source, added)))
    )
