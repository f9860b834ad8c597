"""How a job that serves stands, for people: what would keep its latency, and what its workers measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from stretto.estimate.speed_table import needs_of
from stretto.model import Purpose
from stretto.service.scheduling.estimates import speed_evidence_of
from stretto.service.state.records import JobRecord
from stretto.service.state.reported_metrics import REQUESTS
from stretto.service.state.state import State


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededGpus:
    """What keeps the latency of a job on one GPU type."""

    gpu_type: str
    gpus: int | None  # the fewest; None: on this type a single request takes too long
    batch: int | None  # requests that a worker answers together at most; None: nothing was timed yet
    batch_s: float | None  # for how long it then works on them
    timed: bool  # on this type; else taken from another one by the speeds of types


@dataclass(frozen=True, kw_only=True, slots=True)
class JobServing:
    """What a job that serves has promised, what would keep it, and what came of it."""

    latency_s: float
    requests_per_s: float
    needs: list[NeededGpus]  # by GPU type on which it may run
    answered: int  # requests of this attempt, as its workers have reported
    late: int  # of them, with a longer latency
    p50_s: float | None  # of the latest requests, of the worker for which it is largest; None: unknown
    p99_s: float | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        shown = {name: getattr(self, name) for name in JobServing.__slots__}
        return {
            **shown,
            "needs": [{name: getattr(each, name) for name in NeededGpus.__slots__} for each in self.needs],
        }


def serving_of(state: State, record: JobRecord) -> JobServing | None:
    """How a job that serves stands; None of all others, and while no node has been seen."""
    job = record.job
    if job.purpose is not Purpose.SERVING or state.cluster is None:
        return None
    by_worker: Mapping[str, Mapping[str, Any]] = record.learned.latest.get(REQUESTS, {})

    def largest(name: str) -> float | None:
        return max((float(each[name]) for each in by_worker.values() if name in each), default=None)

    return JobServing(
        latency_s=job.latency_s,
        requests_per_s=job.requests_per_s,
        needs=[] if record.has_ended else _needs(state, record),
        answered=sum(int(each.get("answered", 0)) for each in by_worker.values()),
        late=sum(int(each.get("late", 0)) for each in by_worker.values()),
        p50_s=largest("p50_s"),
        p99_s=largest("p99_s"),
    )


def _needs(state: State, record: JobRecord) -> list[NeededGpus]:
    cluster = state.cluster
    assert cluster is not None
    evidence, job = speed_evidence_of(record, cluster), record.job
    needed = needs_of(evidence, cluster)
    most = np.minimum(cluster.capacity, job.max_gpus)
    shown = []
    for kind, gpu_type in enumerate(cluster.type_names):
        if job.gpu_types and gpu_type not in job.gpu_types:
            continue
        batch, batch_s = int(needed.kept.batch[kind]), float(needed.kept.batch_s[kind])
        is_known = isfinite(batch_s)
        shown.append(
            NeededGpus(
                gpu_type=gpu_type,
                gpus=int(needed.gpus[kind]) if needed.gpus[kind] <= most[kind] else None,
                batch=batch if is_known else None,
                batch_s=round(batch_s, 6) if is_known else None,
                timed=bool(needed.is_timed[kind]),
            )
        )
    return shown
