"""What a resource shows of its job: state, sizes, and conditions with reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.kubernetes_operator.elastic_job import ElasticJob

ENDED = {"COMPLETED": "Complete", **dict.fromkeys(("FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED"), "Failed")}
RUNS = frozenset({"RUNNING", "RESIZING"})
REASON_LONGEST, MESSAGE_LONGEST = 128, 1_024


@dataclass(frozen=True, slots=True)
class Finding:
    """What there is to show. job: as the service describes it; None: it has none."""

    job: Mapping[str, Any] | None
    spec_digest: str
    refused: str = ""  # why the service does not take the spec
    stale: str = ""  # why a later change of the spec does not count


def status_of(resource: ElasticJob, finding: Finding, now: str) -> dict[str, Any]:
    """The status of a resource, with the times of conditions that are as before. now: RFC 3339."""
    job = finding.job or {}
    status: dict[str, Any] = {
        "observedGeneration": resource.metadata.generation,
        "specDigest": finding.spec_digest,
        "state": str(job.get("state", "REFUSED" if finding.refused else "PENDING")),
        "reason": str(job.get("reason", "")),
        "message": str(job.get("evidence", "") or finding.refused)[:MESSAGE_LONGEST],
        "gpus": int(job.get("gpus", 0)),
        "gpuType": str(job.get("gpu_type", "")),
        "nodes": sorted(job.get("nodes", {})),
    }
    if job:
        status |= {
            "job": str(job["id"]),
            "minGpus": int(job["gpus_min"]),
            "maxGpus": int(job["gpus_max"]),
            "attempt": int(job["attempt"]),
            "restarts": int(job["restarts"]),
            "resizes": int(job["resizes"]),
        }
    before = resource.status.get("conditions") or ()
    status["conditions"] = _conditions(status, finding, before, resource.metadata.generation, now)
    return _without_empty(status)


def _conditions(
    status: Mapping[str, Any],
    finding: Finding,
    before: Sequence[Mapping[str, Any]],
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """All conditions, in the order in which a job meets them."""
    state, reason, message = status["state"], camel(status["reason"]), status["message"]
    is_over = state in ENDED
    is_held = status["reason"] == "HELD" or state == "SUSPENDED"
    why_not = camel(state) if state in RUNS or is_over else reason or camel(state)
    conditions: list[tuple[str, bool, str, str]] = [
        ("Accepted", not finding.refused, "Invalid" if finding.refused else "Submitted", finding.refused),
        ("UpToDate", not finding.stale, "Immutable" if finding.stale else "AsSpecified", finding.stale),
        ("Suspended", is_held, "Held" if is_held else "Released", ""),
        ("Running", state in RUNS, why_not, message),
    ]
    for kind in ("Complete", "Failed"):
        is_so = ENDED.get(state) == kind
        conditions.append((kind, is_so, camel(state) if is_so else "Ended" if is_over else "NotEnded", ""))
    since = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in before}
    shown = [
        {
            "type": kind,
            "status": str(is_so),
            "reason": why[:REASON_LONGEST],
            "message": words[:MESSAGE_LONGEST],
            "lastTransitionTime": since.get((kind, str(is_so))) or now,
            "observedGeneration": generation,
        }
        for kind, is_so, why, words in conditions
    ]
    return [_without_empty(condition) for condition in shown]


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to say: Kubernetes leaves empty texts out, and some of its servers refuse them."""
    return {key: value for key, value in values.items() if value != ""}


def camel(word: str) -> str:
    """NODE_FAIL as Kubernetes writes reasons: NodeFail."""
    return "".join(part.capitalize() for part in word.split("_"))
