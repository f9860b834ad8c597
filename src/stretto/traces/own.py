"""Our own schema, the one that `write_trace` writes; `docs/traces.md` documents every column.

Only `job_id`, `submitted_s` and `gpus` are required. Other columns may be there too, unless their name is so
close to one of ours that it must be a slip.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf, isnan, nan

import numpy as np

from stretto.model import Adaptivity, Goal, InputError, Job, JobId, Kind, Reward
from stretto.model.arrays import FloatArray
from stretto.model.job import UNLIMITED_GPUS
from stretto.model.spelling import nearest
from stretto.traces.learning import LearningCurve
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet, finite_float
from stretto.traces.workload import Outcome, Truth

COLUMNS = (
    "job_id",
    "submitted_s",
    "gpus",
    "duration_s",
    "duration_gpu_type",
    "steps",
    "outcome",
    "learning",
    "cpus_per_gpu",
    "model",
    "batch_size",
    "min_gpus",
    "max_gpus",
    "adaptivity",
    "kind",
    "gpus_per_worker",
    "heterogeneous",
    "checkpoints",
    "goal",
    "preemptible",
    "gpu_types",
    "reserved",
    "rewards",
    "priority",
    "priority_class",
    "weight",
    "user",
    "queue",
    "labels",
)
DEADLINE = "deadline_s"  # read, never written: short for `rewards` with a single step of value 1
AS_THE_WORLD_SAYS: Mapping[str, bool | None] = {"yes": True, "no": False, "": None}
YES_NO = {"yes": True, "no": False, "true": True, "false": False}

NO_TYPES: tuple[str, ...] = ()
NO_REWARDS: tuple[Reward, ...] = ()
NO_LABELS: Mapping[str, str] = {}


def read(sheet: Sheet) -> JobOfRow:
    """Every field of a job and of its truth."""
    _refuse_slips(sheet)
    ids = sheet.identities("job_id")
    submitted = sheet.numbers("submitted_s")
    rewards = _rewards(sheet, submitted)
    submitted_s = submitted.tolist()
    gpus = sheet.counts("gpus", at_least=1).tolist()
    duration_s = sheet.numbers("duration_s", empty=nan).tolist()
    duration_gpu_type = sheet.texts("duration_gpu_type")
    steps = sheet.numbers("steps", above=0.0, empty=nan).tolist()
    outcome = sheet.choices("outcome", {one.value: one for one in Outcome}, default=Outcome.COMPLETED)
    learning = sheet.parsed("learning", _learning, None, "a JSON object, the fields of a LearningCurve")
    cpus_per_gpu = sheet.numbers("cpus_per_gpu", above=0.0, empty=nan).tolist()
    model = sheet.texts("model")
    batch_size = sheet.counts("batch_size", empty=0).tolist()
    max_gpus = sheet.counts("max_gpus", at_least=1, empty=0).tolist()
    adaptivity = sheet.choices("adaptivity", {one.value: one for one in Adaptivity}, default=Adaptivity.RIGID)
    kind = sheet.choices("kind", {one.value: one for one in Kind}, default=Kind.BATCH)
    workers = sheet.counts("gpus_per_worker", at_least=1, empty=1)
    gpus_per_worker = workers.tolist()
    least = sheet.counts("min_gpus", at_least=1, empty=0)
    min_gpus = np.where(least == 0, workers, least).tolist()
    heterogeneous = sheet.choices("heterogeneous", YES_NO, default=False)
    checkpoints = sheet.parsed("checkpoints", AS_THE_WORLD_SAYS.__getitem__, None, "yes, no or nothing")
    goal = sheet.parsed("goal", _goal, None, "metric:epochs, a number and at least one epoch")
    preemptible = sheet.choices("preemptible", YES_NO, default=True)
    gpu_types = sheet.parsed("gpu_types", _types, NO_TYPES, "GPU types, joined by |")
    reserved = sheet.parsed("reserved", _reserved, None, "nodes:gpus:type")
    priority = sheet.parsed("priority", lambda text: int(text or 0), 0, "a whole number")
    priority_class = sheet.texts("priority_class")
    weight = sheet.numbers("weight", above=0.0, empty=1.0).tolist()
    user, queue = sheet.texts("user"), sheet.texts("queue")
    labels = sheet.parsed("labels", _labels, NO_LABELS, "a JSON object of texts")

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            model=model[row],
            batch_size=batch_size[row],
            min_gpus=min_gpus[row],
            max_gpus=max_gpus[row],
            adaptivity=adaptivity[row],
            kind=kind[row],
            gpus_per_worker=gpus_per_worker[row],
            heterogeneous=heterogeneous[row],
            checkpoints=checkpoints[row],
            goal=goal[row],
            preemptible=preemptible[row],
            gpu_types=gpu_types[row],
            reserved=reserved[row],
            rewards=rewards[row],
            priority=priority[row],
            priority_class=priority_class[row],
            weight=weight[row],
            user=user[row],
            queue=queue[row],
            labels=labels[row],
        )
        truth = Truth(
            duration_s[row],
            duration_gpu_type[row],
            steps[row],
            outcome[row],
            learning[row],
            cpus_per_gpu[row],
        )
        return job, truth

    return job_of


def cells_of(job: Job, truth: Truth) -> Mapping[str, str]:
    """The row that `read` reads back as the same job and truth."""
    return {
        "job_id": job.id,
        "submitted_s": repr(job.submitted_s),
        "gpus": str(job.gpus),
        "duration_s": "" if isnan(truth.duration_s) else repr(truth.duration_s),
        "duration_gpu_type": truth.gpu_type,
        "steps": "" if isnan(truth.steps) else repr(truth.steps),
        "outcome": truth.outcome.value,
        "learning": json.dumps(asdict(truth.learning), sort_keys=True) if truth.learning else "",
        "cpus_per_gpu": "" if isnan(truth.cpus_per_gpu) else repr(truth.cpus_per_gpu),
        "model": job.model,
        "batch_size": str(job.batch_size) if job.batch_size else "",
        "min_gpus": str(job.min_gpus),
        "max_gpus": "" if job.max_gpus == UNLIMITED_GPUS else str(job.max_gpus),
        "adaptivity": job.adaptivity.value,
        "kind": job.kind.value,
        "gpus_per_worker": str(job.gpus_per_worker),
        "heterogeneous": "yes" if job.heterogeneous else "no",
        "checkpoints": "" if job.checkpoints is None else "yes" if job.checkpoints else "no",
        "goal": f"{job.goal.metric!r}:{job.goal.most_epochs}" if job.goal else "",
        "preemptible": "yes" if job.preemptible else "no",
        "gpu_types": "|".join(job.gpu_types),
        "reserved": ":".join(map(str, job.reserved)) if job.reserved else "",
        "rewards": ";".join(f"{step.deadline_s!r}:{step.value!r}" for step in job.rewards),
        "priority": str(job.priority),
        "priority_class": job.priority_class,
        "weight": repr(job.weight),
        "user": job.user,
        "queue": job.queue,
        "labels": json.dumps(dict(job.labels), sort_keys=True) if job.labels else "",
    }


def _refuse_slips(sheet: Sheet) -> None:
    known = (*COLUMNS, DEADLINE)
    for name in sheet.table.columns:
        meant = nearest(name, known) if name not in known else None
        if meant is not None and meant not in sheet.table.columns:
            raise InputError(f"{sheet.table.path}: unknown column {name!r}, did you mean {meant!r}?")


def _rewards(sheet: Sheet, submitted_s: FloatArray) -> Sequence[tuple[Reward, ...]]:
    if sheet.has(DEADLINE) and sheet.has("rewards"):
        raise InputError(f"{sheet.table.path}: expected {DEADLINE} or rewards, found both")
    name = DEADLINE if sheet.has(DEADLINE) else "rewards"
    parse = _one_deadline if sheet.has(DEADLINE) else _steps_of_reward
    expected = "a time in s" if sheet.has(DEADLINE) else "deadline_s:value, several joined by ;"
    rewards = sheet.parsed(name, parse, NO_REWARDS, expected)
    first_due = np.array([steps[0].deadline_s if steps else inf for steps in rewards])
    if sheet.has(name):
        sheet.refuse(first_due < submitted_s, name, "due at or after submitted_s")
    return rewards


def _one_deadline(text: str) -> tuple[Reward, ...]:
    return (Reward(finite_float(text), 1.0),) if text else ()


def _steps_of_reward(text: str) -> tuple[Reward, ...]:
    steps = [step.split(":") for step in text.split(";")] if text else []
    return tuple(Reward(finite_float(deadline), finite_float(value)) for deadline, value in steps)


def _types(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|")) if text else ()


def _learning(text: str) -> LearningCurve | None:
    if not text:
        return None
    try:
        return LearningCurve(**json.loads(text))
    except (TypeError, InputError) as wrong:
        raise ValueError(text) from wrong


def _goal(text: str) -> Goal | None:
    if not text:
        return None
    metric, epochs = text.split(":")
    if int(epochs) < 1:
        raise ValueError(text)
    return Goal(finite_float(metric), int(epochs))


def _reserved(text: str) -> tuple[int, int, str] | None:
    if not text:
        return None
    nodes, gpus, gpu_type = text.split(":")
    if int(nodes) < 1 or int(gpus) < 1:
        raise ValueError(text)
    return int(nodes), int(gpus), gpu_type


def _labels(text: str) -> Mapping[str, str]:
    labels = json.loads(text) if text else {}
    if not (isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())):
        raise ValueError(text)
    return labels


OWN = Format(
    name="stretto",
    columns=frozenset({"job_id", "submitted_s", "gpus"}),
    read=read,
    about="our own schema, docs/traces.md",
)
