"""Traces with deadlines and known iterations, published with ElasticFlow (Gu et al., ASPLOS 2023)."""

from math import nan

import numpy as np

from stretto.model import Adaptivity, Job, JobId, Reward
from stretto.traces.reading import Format, JobOfRow, earliest
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Truth


def read(sheet: Sheet) -> JobOfRow:
    """Rigid jobs, each with a deadline unless it is best effort. The clock starts with the first of them."""
    ids = sheet.identities("job_id")
    stamp = sheet.numbers("submit_time")
    duration_s = sheet.numbers("duration").tolist()
    gpus = sheet.counts("num_gpu", at_least=1).tolist()
    batch_size = sheet.counts("batch_size", at_least=1).tolist()
    steps = sheet.numbers("iteration", empty=nan).tolist()
    best_effort = sheet.choices("best_effort", {"0": False, "1": True}, default=False)
    due = sheet.numbers("ddl")
    sheet.refuse(
        (due < stamp) & ~np.array(best_effort, dtype=np.bool_), "ddl", "a deadline at or after submit_time"
    )
    model = sheet.texts("model_name")
    origin = earliest(sheet, stamp)
    submitted_s, due_s = (stamp - origin).tolist(), (due - origin).tolist()

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            model=model[row],
            batch_size=batch_size[row],
            adaptivity=Adaptivity.RIGID,
            rewards=() if best_effort[row] else (Reward(due_s[row], 1.0),),
        )
        return job, Truth(duration_s=duration_s[row], steps=steps[row])

    return job_of


ELASTICFLOW = Format(
    name="elasticflow",
    columns=frozenset({"job_id", "submit_time", "model_name", "ddl", "batch_size", "num_gpu", "duration"}),
    read=read,
    about="a trace with deadlines, published with ElasticFlow",
    instead_of=frozenset({"tiresias"}),
)
