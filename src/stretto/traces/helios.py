"""SenseTime's Helios clusters as their owners publish them: `cluster_log.csv` (Hu et al., SC 2021)."""

import numpy as np

from stretto.model import Adaptivity, Job, JobId
from stretto.traces.reading import OUTCOMES, Format, JobOfRow, earliest
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Outcome, Truth

SUSPENDED = "SUSPENDED"  # one job of Uranus; the owners ignore it
STATES = {
    state: OUTCOMES[state] for state in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
} | {SUSPENDED: Outcome.CANCELLED}


def read(sheet: Sheet) -> JobOfRow:
    """Rigid GPU jobs with durations; TIMEOUT and NODE_FAIL count as failed, as in the owners' analysis."""
    ids = sheet.identities("job_id")
    gpus_asked = sheet.counts("gpu_num")
    started = sheet.stamps_s("start_time", may_lack=True)
    outcome = sheet.choices("state", STATES)
    suspended = np.array([text == SUSPENDED for text in sheet.texts("state")], dtype=np.bool_)
    sheet.leave_out(gpus_asked == 0, "gpu_num is 0: they ran on CPUs")
    sheet.leave_out(np.isnan(started), "they never started")
    sheet.leave_out(suspended, "they were suspended when the log ended")
    stamp = sheet.stamps_s("submit_time")
    duration_s = sheet.numbers("duration").tolist()
    sheet.refuse(started < stamp, "start_time", "at or after submit_time")
    submitted_s = (stamp - earliest(sheet, stamp)).tolist()
    gpus, user, queue = gpus_asked.tolist(), sheet.texts("user"), sheet.texts("vc")

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            adaptivity=Adaptivity.RIGID,
            user=user[row],
            queue=queue[row],
        )
        return job, Truth(duration_s=duration_s[row], outcome=outcome[row])

    return job_of


HELIOS = Format(
    name="helios",
    columns=frozenset({"job_id", "gpu_num", "state", "submit_time", "start_time", "duration"}),
    read=read,
    about="Helios, a Slurm log of SenseTime",
)
