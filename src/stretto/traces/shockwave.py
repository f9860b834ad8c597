"""Traces of Gavel (OSDI 2020) and Shockwave (NSDI 2023): tab separated, without a header."""

import re
from math import nan

import numpy as np

from stretto.model import Adaptivity, Job, JobId, Reward
from stretto.model.arrays import FloatArray
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Truth

# Positions of the fields. Gavel's own traces have ten; Shockwave's have how the batch size changes and the
# duration as well, which shifts those behind.
JOB_TYPE, STEPS, GPUS = "0", "5", "6"
GAVEL = {"weight": "7", "slo": "8", "submitted": "9"}
SHOCKWAVE = {"mode": "7", "weight": "8", "slo": "9", "duration": "10", "submitted": "11"}

_MODEL_AND_BATCH = re.compile(r"(.+?)(?: \(batch size (\d+)\))?")


def read(sheet: Sheet) -> JobOfRow:
    """Rigid jobs. Shockwave's have a duration (on V100); Gavel's have steps and follow their model's speed.

    The batch size in a job type is that of one GPU, and steps count every GPU's own. GPUs x batch size is one
    optimiser step of `gpus` such steps. An SLO is a multiple of the duration; negative: none.
    """
    columns = SHOCKWAVE if sheet.has(SHOCKWAVE["submitted"]) else GAVEL
    kind = sheet.parsed(JOB_TYPE, _model_and_batch, ("", 0), "a model, perhaps with (batch size N)")
    gpus = sheet.counts(GPUS, at_least=1)
    steps = (sheet.numbers(STEPS) / gpus).tolist()
    weight = sheet.numbers(columns["weight"], above=0.0).tolist()
    submitted = sheet.numbers(columns["submitted"])
    duration = sheet.numbers(columns["duration"]) if "duration" in columns else np.full(sheet.rows, nan)
    due_s = _due_s(sheet, columns["slo"], submitted, duration)
    mode = sheet.texts(columns.get("mode", ""))
    submitted_s, duration_s, gpus_asked = submitted.tolist(), duration.tolist(), gpus.tolist()
    digits = len(str(sheet.rows))

    def job_of(row: int) -> tuple[Job, Truth]:
        model, local_batch = kind[row]
        due = float(due_s[row])
        job = Job(
            id=JobId(f"job-{row:0{digits}d}"),
            submitted_s=submitted_s[row],
            gpus=gpus_asked[row],
            model=model,
            batch_size=local_batch * gpus_asked[row],
            adaptivity=Adaptivity.RIGID,
            rewards=() if np.isnan(due) else (Reward(due, 1.0),),
            weight=weight[row],
            labels={"mode": mode[row]} if mode[row] else {},
        )
        return job, Truth(duration_s=duration_s[row], steps=steps[row])

    return job_of


def _due_s(sheet: Sheet, name: str, submitted_s: FloatArray, duration_s: FloatArray) -> FloatArray:
    slo = sheet.numbers(name, at_least=-np.inf)
    wanted = slo >= 0
    sheet.refuse(wanted & np.isnan(duration_s), name, "negative (no SLO) where the trace has no durations")
    return np.where(wanted, submitted_s + slo * duration_s, nan)


def _model_and_batch(text: str) -> tuple[str, int]:
    match = _MODEL_AND_BATCH.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match[1], int(match[2] or 0)


def _fields(count: int) -> frozenset[str]:
    return frozenset(str(position) for position in range(count))


SHOCKWAVE_TSV = Format(
    "shockwave",
    _fields(12),
    read,
    "a trace of Shockwave's simulator, without a header",
    instead_of=frozenset({"gavel"}),  # the same with two fields more
)
GAVEL_TSV = Format("gavel", _fields(10), read, "a trace of Gavel's simulator, without a header")
