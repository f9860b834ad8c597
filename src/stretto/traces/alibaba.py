"""Pods of Alibaba's GPU clusters: the openb pod list of `cluster-trace-gpu-v2023` (Weng et al., ATC 2023)."""

import numpy as np

from stretto.model import Adaptivity, Job, JobId, Kind
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Outcome, Truth

LATENCY_SENSITIVE = "LS"
PHASES = {
    "Running": Outcome.COMPLETED,  # a snapshot from before the end: these pods have an end as well
    "Succeeded": Outcome.COMPLETED,
    "Pending": Outcome.CANCELLED,
    "Failed": Outcome.FAILED,
}


def read(sheet: Sheet) -> JobOfRow:
    """Rigid jobs with durations; a pod that shares a GPU gets a whole one here."""
    ids = sheet.identities("name")
    gpus_asked = sheet.counts("num_gpu")
    created = sheet.numbers("creation_time")
    deleted = sheet.numbers("deletion_time")
    unscheduled = np.array([text == "" for text in sheet.texts("scheduled_time")], dtype=np.bool_)
    scheduled = sheet.numbers("scheduled_time", empty=np.nan)
    sheet.leave_out(gpus_asked == 0, "num_gpu is 0")
    sheet.leave_out(unscheduled, "they were never scheduled, so their duration is not known")
    sheet.refuse(deleted < scheduled, "deletion_time", "at or after scheduled_time")
    sheet.refuse(scheduled < created, "scheduled_time", "at or after creation_time")
    outcome = sheet.choices("pod_phase", PHASES)
    qos, spec = sheet.texts("qos"), sheet.texts("gpu_spec")
    submitted_s, duration_s, gpus = created.tolist(), (deleted - scheduled).tolist(), gpus_asked.tolist()

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            adaptivity=Adaptivity.RIGID,
            kind=Kind.INTERACTIVE if qos[row] == LATENCY_SENSITIVE else Kind.BATCH,
            gpu_types=tuple(dict.fromkeys(part for part in spec[row].split("|") if part)),
            labels={"qos": qos[row]},
        )
        return job, Truth(duration_s=duration_s[row], outcome=outcome[row])

    return job_of


ALIBABA = Format(
    name="alibaba-2023",
    columns=frozenset(
        {"name", "num_gpu", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"}
    ),
    read=read,
    about="Alibaba's openb pod list of 2023",
)
