"""The table of speeds that policies are shown of a job, for people: what was measured, and how surely."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from stretto.estimate.speed_table import Source, SpeedEvidence, speed_table, standard_errors
from stretto.model import Cluster
from stretto.service.scheduling.estimates import speed_evidence_of
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State

SIGNIFICANT = 4  # digits of a speed; chosen: no measurement has more


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSpeed:
    """The speed of a job on some GPUs."""

    gpu_type: str
    gpus: int
    spread: bool  # on more nodes than are needed
    per_s: float  # steps of `batch` samples a second; or relative, see `is_relative`
    source: str  # measured, fitted or assumed
    error: float | None  # relative standard error; None: unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpeeds:
    """What policies that read a table are shown of a job."""

    is_relative: bool  # nothing was measured: 1 is the speed on what it asks for, on a type of speed 1
    batch: int  # samples of a step on one worker; 0: not known
    measurements: int  # operating points that workers have reported, by GPU type, nodes, GPUs and batch
    of_model: int  # of them, by other jobs of its model, before this one started
    # By type; powers of two within the job's range, what it asks for, what was measured
    entries: list[ShownSpeed]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        shown = {name: getattr(self, name) for name in JobSpeeds.__slots__}
        entries = [{name: getattr(each, name) for name in ShownSpeed.__slots__} for each in self.entries]
        return {**shown, "entries": entries}


def speeds_of(state: State, record: JobRecord) -> JobSpeeds | None:
    """The table of a job as it stands; None where there is none: it has ended, or no node has been seen."""
    cluster = state.cluster
    if cluster is None or record.has_ended or state.configured.speeds != "measured":
        return None
    evidence = speed_evidence_of(record, cluster)
    own = min(len(record.learned.points), len(evidence.measurements))
    return JobSpeeds(
        is_relative=speed_table(evidence, cluster).is_relative,
        batch=evidence.batch,
        measurements=len(evidence.measurements),
        of_model=len(evidence.measurements) - own,
        entries=_entries(record, evidence, cluster),
    )


def _entries(record: JobRecord, evidence: SpeedEvidence, cluster: Cluster) -> list[ShownSpeed]:
    table, errors = speed_table(evidence, cluster), standard_errors(evidence, cluster)
    per_s = table.both
    entries: list[ShownSpeed] = []
    for kind, gpu_type in enumerate(cluster.type_names):
        if record.job.gpu_types and gpu_type not in record.job.gpu_types:
            continue
        for gpus in _counts(record, evidence, kind, int(cluster.capacity[kind])):
            for spread in range(1 + (evidence.worker_gpus(kind) < gpus <= int(cluster.gpus_per_node[kind]))):
                if not isfinite(per_s[spread, kind, gpus]):
                    continue
                error = float(errors[spread, kind, gpus])
                entries.append(
                    ShownSpeed(
                        gpu_type=gpu_type,
                        gpus=gpus,
                        spread=bool(spread),
                        per_s=float(f"{per_s[spread, kind, gpus]:.{SIGNIFICANT}g}"),
                        source=Source(int(table.source[spread, kind, gpus])).name.lower(),
                        error=round(error, 3) if isfinite(error) else None,
                    )
                )
    return entries


def _counts(record: JobRecord, evidence: SpeedEvidence, kind: int, most: int) -> list[int]:
    """Powers of two within what the job may hold of a type, what it asks for, and what was measured.

    All in whole workers: what it asks for may be none of a type whose workers are larger.
    """
    each, job = evidence.worker_gpus(kind), record.job
    most = min(most, evidence.reach_gpus)
    counts = {each * 2**power for power in range(most.bit_length())}
    counts = {gpus for gpus in counts | {job.gpus} if job.min_gpus <= gpus}
    counts |= {
        each * measurement.workers for measurement in evidence.measurements if measurement.kind == kind
    }
    return sorted(gpus for gpus in counts if gpus <= most and gpus % each == 0)
