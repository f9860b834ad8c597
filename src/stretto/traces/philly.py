"""Jobs of Microsoft's Philly clusters (Jeon et al., ATC 2019), in two shapes.

*Derived*: the table that Sia's authors made of it, one row a job. *Published*: `cluster_job_log`, the JSON
that Microsoft gives out (github.com/msr-fiddle/philly-traces), one record a job with every attempt to run it.
"""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from stretto.model import Adaptivity, Job, JobId
from stretto.model.arrays import floats, ints
from stretto.traces.reading import OUTCOMES, Format, JobOfRow, earliest
from stretto.traces.sheet import NOTHING, Sheet, stamp_s
from stretto.traces.workload import Truth


def read_derived(sheet: Sheet) -> JobOfRow:
    """Rigid jobs with durations. The file has no names: a job is called after its place in the file."""
    stamp = sheet.stamps_s("timestamp")
    duration_s = sheet.numbers("duration").tolist()
    gpus = sheet.counts("num_gpus", at_least=1).tolist()
    queue = sheet.texts("cluster")
    submitted_s = (stamp - earliest(sheet, stamp)).tolist()
    digits = len(str(sheet.rows))

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(f"philly-{row:0{digits}d}"),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            adaptivity=Adaptivity.RIGID,
            queue=queue[row],
        )
        return job, Truth(duration_s=duration_s[row])

    return job_of


def read_published(sheet: Sheet) -> JobOfRow:
    """Rigid jobs; the duration is the time that all attempts ran, queueing between them not counted.

    GPUs are those of the first attempt, as in the notebook that Microsoft publishes with the trace. Jobs that
    never ran, and those still running when the log ends, have no duration and are left out.
    """
    ids = sheet.identities("jobid")
    stamp = sheet.stamps_s("submitted_time", may_lack=True)
    outcome = sheet.choices("status", {word: OUTCOMES[word] for word in ("Pass", "Killed", "Failed")})
    attempts = sheet.cells("attempts")
    gpus = ints([_gpus(sheet, row, tries) for row, tries in enumerate(attempts)])
    duration = floats([_duration_s(sheet, row, tries) for row, tries in enumerate(attempts)])
    sheet.leave_out(np.isnan(stamp), "no submitted_time is recorded")
    sheet.leave_out(gpus == 0, "they never ran on a GPU")
    sheet.leave_out(np.isnan(duration), "the start or end of an attempt is not recorded")
    submitted_s, duration_s = (stamp - earliest(sheet, stamp)).tolist(), duration.tolist()
    user, queue, gpus_asked = sheet.texts("user"), sheet.texts("vc"), gpus.tolist()

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus_asked[row],
            adaptivity=Adaptivity.RIGID,
            user=user[row],
            queue=queue[row],
        )
        return job, Truth(duration_s=duration_s[row], outcome=outcome[row])

    return job_of


def _gpus(sheet: Sheet, row: int, attempts: Sequence[Mapping[str, Any]]) -> int:
    try:
        return sum(len(server["gpus"]) for server in attempts[0]["detail"]) if attempts else 0
    except (KeyError, TypeError):
        sheet.note(row, "attempts", "a list of attempts, each with servers and gpus in detail", attempts)
        return 0


def _duration_s(sheet: Sheet, row: int, attempts: Sequence[Mapping[str, Any]]) -> float:
    total_s = 0.0
    try:
        for attempt in attempts:
            start, end = attempt.get("start_time"), attempt.get("end_time")
            if start is None or end is None or start in NOTHING or end in NOTHING:
                return nan
            ran_s = stamp_s(end) - stamp_s(start)
            if ran_s < 0:
                sheet.note(row, "end_time", f"at or after start_time={start}", end)
            total_s += ran_s
    except (AttributeError, TypeError, ValueError):
        sheet.note(row, "attempts", "attempts with start_time and end_time, YYYY-MM-DD HH:MM:SS", attempts)
    return total_s


PHILLY_DERIVED = Format(
    name="philly",
    columns=frozenset({"timestamp", "duration", "num_gpus", "cluster"}),
    read=read_derived,
    about="Microsoft Philly as a table, published with Sia",
)
PHILLY_PUBLISHED = Format(
    name="philly-published",
    columns=frozenset({"status", "vc", "jobid", "attempts", "submitted_time", "user"}),
    read=read_published,
    about="Microsoft Philly's cluster_job_log",
)
