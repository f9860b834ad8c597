"""Which speeds of a job are known, and on which GPU type is it to run so that another one becomes known?

Gavel (Narayanan et al., OSDI 2020) supposes that each job's throughput on each type was measured beforehand.
That of jobs which share a GPU it estimates. Here a job runs for some rounds on each type first.
"""

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, JobTable

LATE = 0.1  # of a round, which may lack: a service decides a moment after a round has begun; chosen


def measured_marks(jobs: JobTable) -> tuple[BoolArray, BoolArray]:
    """(jobs,) whether a world says what it has measured; (jobs, types) whether it has, on what each asks for.

    One that does not says all beforehand.
    """
    marks = np.zeros(jobs.allowed_kinds.shape, dtype=np.bool_)
    says = np.zeros(len(jobs), dtype=np.bool_)
    for row, table in enumerate(jobs.known_tables or ()):
        if table.measured is None:
            continue
        says[row], gpus = True, int(jobs.gpus[row])
        if gpus < table.measured.shape[1]:
            marks[row] = table.measured[:, gpus]
    return says, marks


def known_speeds(jobs: JobTable, received_s: FloatArray, enough_s: float) -> BoolArray:
    """(jobs, types) where a speed was measured, or a job has run long enough to be done with.

    received_s: (jobs, types) time received. A world that measures while jobs run knows what other jobs of a
    model have shown, too. In another one time alone counts.
    """
    return measured_marks(jobs)[1] | (received_s >= enough_s * (1 - LATE))


def believed_speeds(
    jobs: JobTable, per_s: FloatArray, known: BoolArray, type_speeds: FloatArray
) -> FloatArray:
    """(jobs, types) what a policy may go by; 0 where nothing is known of a job that is still to be tried.

    A world that tells all speeds beforehand tells too much. One that is not known yet is taken from the first
    type that is, by their stated speeds. A world that measures has guesses of its own in its tables.
    """
    says, _ = measured_marks(jobs)
    usable = known & (per_s > 0)
    reference = usable.argmax(axis=1)
    rows = np.arange(len(per_s))
    level = per_s[rows, reference] / type_speeds[reference]
    # A job that may not be stopped is not tried: of it the stated speeds count.
    level = np.where(usable.any(axis=1), level, ~jobs.preemptible)
    guessed = np.where(known, per_s, level[:, None] * type_speeds)
    return np.where(says[:, None], per_s, np.where(per_s > 0, guessed, 0.0))


def pairs_to_profile(jobs: JobTable, wanted: BoolArray) -> tuple[IntArray, IntArray]:
    """(pairs,) rows and types in the order in which they may take GPUs: by arrival, a type under way first.

    wanted: (jobs, types) that are to be tried.
    """
    row, kind = np.nonzero(wanted)
    order = np.lexsort((kind, jobs.held_kind[row] != kind, row))
    return row[order], kind[order]
