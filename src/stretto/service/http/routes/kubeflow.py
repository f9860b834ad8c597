"""Hugging Face's Trainer as it is: what it tells a Kubeflow controller is taken as the job's reports.

It posts at the start, every 5 s or less often, and at the end. What it calls progress and remaining time is
not believed. After a resume it divides the time since then by all steps ever made. It says 100 % also when it
was stopped. What is left is computed here, from the steps between two of its messages.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from stretto.service.http.auth import Asked
from stretto.service.http.routes.workers import UNWANTED, check_rate, speaker_of
from stretto.service.state.reported_metrics import MOST_COUNTED, checked_report

router = APIRouter(prefix="/api/v1/worker", tags=["worker"], responses=UNWANTED)

EVERY_S = 15.0  # no more of its messages are kept; chosen: half of what a report of the SDK is
MOST_NAMED = 16  # metrics that are kept by their names; chosen
BESIDE = ("loss", "runtime", "per_second", "model_preparation_time", "epoch")  # ends of what is no metric


class Metric(BaseModel):
    """One value, as text."""

    name: Annotated[str, Field(max_length=200)]
    value: Annotated[str, Field(max_length=200)]


class TrainerStatus(BaseModel):
    """What we read of its status."""

    metrics: Annotated[list[Metric], Field(max_length=500)] = []


class SaidStatus(BaseModel):
    """One message."""

    status: Annotated[TrainerStatus, Field(alias="trainerStatus")]


@router.post("/kubeflow/{worker}")
async def status(
    worker: Annotated[str, Path(max_length=200)], reported: SaidStatus, request: Request, service: Asked
) -> dict[str, bool]:
    """How far Trainer says it is; whether that was kept."""
    record, _ = speaker_of(service, request, worker)
    check_rate(request, record)
    now_s, learned = service.clock.now_s(), service.reports.shown(record).learned
    numbers = numbers_of({each.name: each.value for each in reported.status.metrics})
    if "current_step" in numbers and now_s < learned.reported_s + EVERY_S:
        return {"kept": False}
    report = report_of(numbers, learned.latest, worker, now_s)
    if record.uses_sdk:  # a script may use both: what the channel says of switching counts
        del report["in_place"]
    await service.reports.take(record, checked_report(report))
    return {"kept": True}


def numbers_of(texts: Mapping[str, str]) -> dict[str, float]:
    """Those values that are finite numbers."""
    numbers = {}
    for name, text in texts.items():
        try:
            number = float(text)
        except ValueError:
            continue
        if isfinite(number):
            numbers[name] = number
    return numbers


def report_of(
    numbers: Mapping[str, float], latest: Mapping[str, Any], worker: str, now_s: float
) -> dict[str, Any]:
    """A report of ours. `latest`: what was reported before, with the step and time that the pace counts from.

    They are those of this worker's first message that has a step: whatever was before a resume is left out.
    """
    metrics = [name for name in numbers if name.startswith("eval_") and not name.endswith(BESIDE)]
    report: dict[str, Any] = {
        "in_place": False,
        "loss": numbers.get("loss", numbers.get("train_loss")),
        "metric": numbers.get(metrics[0] if metrics else "eval_loss"),
        "metrics": {name: numbers[name] for name in metrics[:MOST_NAMED]} or None,
        "epoch": counted(numbers.get("current_epoch")),
    }
    step = counted(numbers.get("current_step"))
    if step is not None:
        report["step"] = step
        since_step, since_s = origin_of(latest.get("trainer_since"), worker) or (step, now_s)
        if since_step > step:
            since_step, since_s = step, now_s
        report["trainer_since"] = [worker, since_step, since_s]
        total = counted(numbers.get("total_steps"))
        if total is not None and step > since_step:
            report["left_s"] = max(0, total - step) * max(0.0, now_s - since_s) / (step - since_step)
    return {key: value for key, value in report.items() if value is not None}


def counted(number: float | None) -> int | None:
    """A count, cut to a whole number; None for what cannot be one."""
    return int(number) if number is not None and 0 <= number <= MOST_COUNTED else None


def origin_of(since: Any, worker: str) -> tuple[int, float] | None:
    """The step and time that this worker's pace counts from; scripts may report anything under any name."""
    match since:
        case [name, int(step), int(at_s) | float(at_s)] if name == worker:
            return step, at_s
    return None
