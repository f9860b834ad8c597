"""How many deadlines can be kept at the most?

On one machine, what must be done between two moments fits between them. So for each pair of moments the jobs
that arrive after the first and are due before the second work no longer than that. A linear programme chooses
which share of each job is done in time. It is a relaxation: shares of jobs count, and of all pairs only some
are looked at.
"""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from stretto.model import FloatArray, floats
from stretto.solve import maximise

MOMENTS = 24  # beginnings and ends that are looked at, by how many jobs are between them; chosen


def most_rewards(
    ready_s: FloatArray,
    work_s: FloatArray,
    fastest_s: FloatArray,
    deadlines: Sequence[Sequence[tuple[float, float]]],
) -> float:
    """The most that jobs can earn together.

    ready_s, work_s, fastest_s: (jobs,) when each can begin, its seconds of the machine, and its least time.
    deadlines: for each job, (deadline, what it earns by then), the earlier ones first.
    """
    options = [
        (job, due_s, worth)
        for job, each in enumerate(deadlines)
        for due_s, worth in each
        if ready_s[job] + fastest_s[job] <= due_s and worth > 0
    ]
    if not options:
        return 0.0
    jobs = np.array([job for job, _, _ in options])
    due_s, worth = floats([due for _, due, _ in options]), floats([worth for _, _, worth in options])
    begins_s = _quantiles(ready_s[jobs])
    ends_s = _quantiles(due_s)
    rows, room_s = [], []
    for begin_s in begins_s.tolist():
        for end_s in ends_s[ends_s > begin_s].tolist():
            within = (ready_s[jobs] >= begin_s) & (due_s <= end_s)
            if float(work_s[jobs[within]].sum()) > end_s - begin_s:
                rows.append(
                    sparse.csr_array(np.where(within, work_s[jobs], 0.0)[None, :] / (end_s - begin_s))
                )
                room_s.append(1.0)
    _, owner = np.unique(jobs, return_inverse=True)
    once = sparse.csr_array((np.ones(len(jobs)), (owner, np.arange(len(jobs)))))
    limits = sparse.vstack([once, *rows])
    return maximise(worth, limits, np.append(np.ones(once.shape[0]), room_s), bounds=(0.0, 1.0)).value


def _quantiles(moments_s: FloatArray) -> FloatArray:
    """Some of the moments, with as many others between them."""
    return np.unique(np.quantile(moments_s, np.linspace(0, 1, MOMENTS), method="nearest"))
