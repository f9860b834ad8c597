"""One run as columns by name: its jobs, its decisions and its allocations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stretto.sim.result import Result

Columns = Mapping[str, npt.NDArray[Any]]  # all of one length


def jobs_of(result: Result) -> Columns:
    """A row for each job, by submission; NaN where a time or figure does not apply."""
    requests = result.requests
    jct_s = result.completed_s - requests.submitted_s
    unknown = np.full(len(requests.jobs), np.nan)
    return {
        "job": _texts([job.id for job in requests.jobs]),
        "model": _texts([job.model for job in requests.jobs]),
        "asked_gpus": np.array([job.gpus for job in requests.jobs], dtype=np.int64),
        "submitted_s": requests.submitted_s,
        "first_start_s": result.first_start_s,
        "completed_s": result.completed_s,
        "jct_s": jct_s,
        "queue_s": np.maximum(jct_s - result.executed_s, 0.0),
        "executed_s": result.executed_s,
        "gpu_s": result.attained_gpu_s,
        "restarts": result.restarts,
        "lateness_s": np.where(
            np.isfinite(requests.deadline_s),
            np.nan_to_num(result.completed_s, nan=np.inf) - requests.deadline_s,
            np.nan,
        ),
        "fairness": unknown if result.fairness is None else result.fairness,
    }


def rounds_of(result: Result) -> Columns:
    """A row for each decision: the jobs and the GPUs after it, by type, and how long it took."""
    history, names = result.history, result.cluster.type_names
    decisions = len(history.sample_s)
    by_type = {
        f"{use}_{name}": np.array(series, dtype=np.int64).reshape(decisions, len(names))[:, kind]
        for use, series in (("busy", history.busy), ("usable", history.usable))
        for kind, name in enumerate(names)
    }
    return {
        "at_s": np.array(history.sample_s, dtype=np.float64),
        "active_jobs": np.array(history.active, dtype=np.int64),
        "waiting_jobs": np.array(history.waiting, dtype=np.int64),
        **by_type,
        "decision_ms": result.decision_ms,
    }


def allocations_of(result: Result) -> Columns:
    """A row for each stretch of time over which the GPUs of a job did not change."""
    row, start_s, end_s, kind, gpus = result.history.columns()
    order = np.lexsort((kind, row, start_s))
    jobs, names = result.requests.jobs, result.cluster.type_names
    return {
        "job": _texts([jobs[each].id for each in row[order].tolist()]),
        "start_s": start_s[order],
        "end_s": end_s[order],
        "gpu_type": _texts([names[each] for each in kind[order].tolist()]),
        "gpus": gpus[order],
    }


def _texts(words: list[str]) -> npt.NDArray[Any]:
    column = np.empty(len(words), dtype=np.object_)
    column[:] = words
    return column
