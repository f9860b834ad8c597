"""Traces of the simulator published with Tiresias (Gu et al., NSDI 2019)."""

from math import nan

from stretto.model import Adaptivity, Job, JobId
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Truth


def read(sheet: Sheet) -> JobOfRow:
    """Rigid jobs with durations; `interval`, the gap to the next job, says nothing new."""
    ids = sheet.identities("job_id")
    submitted_s = sheet.numbers("submit_time").tolist()
    duration_s = sheet.numbers("duration").tolist()
    gpus = sheet.counts("num_gpu", at_least=1).tolist()
    steps = sheet.numbers("iterations", empty=nan).tolist()
    model = sheet.texts("model_name")

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            model=model[row],
            adaptivity=Adaptivity.RIGID,
        )
        return job, Truth(duration_s=duration_s[row], steps=steps[row])

    return job_of


TIRESIAS = Format(
    name="tiresias",
    columns=frozenset({"job_id", "num_gpu", "submit_time", "iterations", "duration", "interval"}),
    read=read,
    about="a trace of the Tiresias simulator",
)
