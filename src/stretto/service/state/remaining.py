"""How much of a job is left, as far as is known, and how sure that is."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from stretto.estimate.durations import USUAL_S
from stretto.model import Purpose
from stretto.service.state.records import JobRecord

LEAST_S = 60.0  # what a job that outlives its stated time is believed to need still, at most; chosen
LEAST_SHARE = 0.1  # of its stated time; the smaller of both counts


class Basis(StrEnum):
    """What says how long a job takes."""

    TRAINING = "training"  # its own reports
    EXPECTED = "expected_time"  # its owner
    LIMIT = "max_time"  # nothing, but it may not run longer
    ASSUMED = "assumed"  # nothing: an hour


# Standard deviation of the logarithm of what is left. Chosen: a training that counts its steps is off by a
# tenth, owners by about a third, a limit says little, and an hour for every job next to nothing.
SPREAD: dict[Basis, float] = {
    Basis.TRAINING: 0.1,
    Basis.EXPECTED: 0.3,
    Basis.LIMIT: 0.5,
    Basis.ASSUMED: 0.7,
}


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a job: in wall time at the pace it has now where the training said so, else as work."""

    left_s: float  # at the present pace (TRAINING), else of running on what it asked for
    basis: Basis


def remaining_of(record: JobRecord, now_s: float) -> Remaining:
    """What is left of a job that has not ended."""
    told_left_s, told_s = record.learned.latest.get("left_s"), record.learned.reported_s
    held_gpus = record.accounting.held_gpus
    if isinstance(told_left_s, int | float) and isfinite(told_left_s) and held_gpus:
        passed_s = now_s - max(told_s, record.accounting.held_since_s)
        return Remaining(max(float(told_left_s) - max(passed_s, 0.0), 1.0), Basis.TRAINING)
    whole_s, basis = stated_duration(record)
    left_s = whole_s - had_s(record, now_s)
    return Remaining(max(left_s, min(LEAST_S, LEAST_SHARE * whole_s)), basis)


def stated_duration(record: JobRecord) -> tuple[float, Basis]:
    """How long the whole job takes on what it asked for, in seconds, and what says so.

    Policies and forecasts both use this: a job that has nothing but a limit is taken to need all of it.
    """
    spec = record.spec
    if spec.expected_time_s:
        return spec.expected_time_s, Basis.EXPECTED
    if spec.max_time_s:
        return spec.max_time_s, Basis.LIMIT
    return USUAL_S, Basis.ASSUMED


def had_s(record: JobRecord, now_s: float) -> float:
    """Of its stated time: as if it had run on what it asked for. One that serves ends by the clock."""
    if record.job.purpose is Purpose.SERVING:
        accounting = record.accounting
        return accounting.executed_s + (now_s - accounting.held_since_s if accounting.held_gpus else 0.0)
    return attained_gpu_s(record, now_s) / record.job.gpus


def attained_gpu_s(record: JobRecord, now_s: float) -> float:
    """GPU-seconds held up to now."""
    accounting = record.accounting
    running_s = now_s - accounting.held_since_s if accounting.held_gpus else 0.0
    return accounting.attained_gpu_s + accounting.held_gpus * running_s


def share_done(record: JobRecord, now_s: float) -> float | None:
    """How much of a job is done, from 0 to 1: by its stop rule, else by its owner's word; None: unknown."""
    if record.state == "COMPLETED":
        return 1.0
    if not record.attempt:
        return None
    latest, stop = record.learned.latest, record.spec.stop
    if stop is not None and stop.steps and "step" in latest:
        return _share(float(latest.get("progress_steps", latest["step"])), stop.steps)
    epochs = None if stop is None else stop.epochs or stop.max_epochs
    samples, dataset = latest.get("samples"), latest.get("dataset_samples")
    if epochs and samples is not None and dataset:
        return _share(float(samples) / float(dataset), epochs)
    if epochs and "epoch" in latest:
        return _share(float(latest["epoch"]), epochs)
    accounting = record.accounting
    if isinstance(latest.get("left_s"), int | float) and not record.has_ended and accounting.held_gpus:
        ran_s = accounting.executed_s + now_s - accounting.held_since_s
        return _share(ran_s, ran_s + remaining_of(record, now_s).left_s)
    if record.spec.expected_time_s and not record.has_ended:
        whole_s = record.spec.expected_time_s
        return min(_share(had_s(record, now_s), whole_s), 0.99)  # it has not ended
    return None


def _share(done: float, whole: float) -> float:
    return min(max(done / whole, 0.0), 1.0) if whole > 0 else 0.0
