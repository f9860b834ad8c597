"""What a job has held over time: every change of its size, when, and for what reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from stretto.service.state.records import JobRecord
from stretto.service.state.usage import QUARTER_US, US_PER_S, CauseKind, SizeChange, Spell

DUE = {  # why a decision was made, for people
    "arrival": "a job was submitted or released",
    "completion": "a job ended",
    "round": "its round was due",
    "epoch_end": "an epoch ended",
    "capacity": "nodes came or went",
    "profile_done": "a job was profiled",
    "wake": "a time came that it had asked for",
    "lenders": "a lender needs other nodes",
}
BY_OTHERS = {
    CauseKind.LENDER: "its nodes went back to their lender",
    CauseKind.NODE: "node {name} was lost",
    CauseKind.OPERATOR: "node {name} was closed",
}
LEFT = "its owner stopped or changed it, or it failed"


@dataclass(frozen=True, slots=True)
class Size:
    """From a time on a job holds so much."""

    at_s: float  # on the clock of the service
    gpus: float  # a mean over part of a quarter of an hour where no more is kept
    gpu_type: str
    reason: str


def reason_of(change: SizeChange, ended_as: str = "") -> str:
    """Why a size has changed, for people. ended_as: the last state of the job, of its last change."""
    cause = change.cause
    match cause.kind:
        case CauseKind.POLICY:
            due = ", ".join(DUE.get(trigger, trigger.replace("_", " ")) for trigger in change.due)
            return f"{cause.name} decided so" + (f": {due}" if due else "")
        case CauseKind.JOB:
            return f"job {cause.name} of higher priority needed its GPUs"
        case CauseKind.OWNER:
            return f"the job ended: {ended_as.lower()}" if ended_as else LEFT
        case kind if kind in BY_OTHERS:
            return BY_OTHERS[kind].format(name=cause.name)
    return ""


def sizes_of(record: JobRecord, unix_s: float) -> list[Size]:
    """What a job has held over time; before the first change that is kept, as its usage tells."""
    changes = record.size_changes
    sizes = [
        Size(change.at_s, change.gpus, change.gpu_type, reason_of(change, _end_of(record, change)))
        for change in changes
    ]
    if not record.has_dropped_changes or not changes:
        return sizes
    return [*sizes_before(record.usage.spells + record.usage.unsaved, unix_s, changes[0].at_s), *sizes]


def _end_of(record: JobRecord, change: SizeChange) -> str:
    is_last = not change.gpus and change is record.size_changes[-1]
    return (record.state or record.ending) if is_last else ""


def sizes_before(spells: Iterable[Spell], unix_s: float, until_s: float) -> Iterator[Size]:
    """What spells tell of the time before `until_s`: means where several share a quarter of an hour."""
    last_s = None
    for from_s, end_s, gpus, gpu_type in _stretches(sorted(spells, key=lambda spell: spell.from_us), unix_s):
        if from_s >= until_s:
            return
        if last_s is not None and from_s - last_s > 1.0:
            yield Size(last_s, 0, "", "")
        yield Size(from_s, gpus, gpu_type, "")
        last_s = min(end_s, until_s)
    if last_s is not None and last_s < until_s:
        yield Size(last_s, 0, "", "")


def _stretches(spells: Sequence[Spell], unix_s: float) -> Iterator[tuple[float, float, float, str]]:
    """(from, until, GPUs, type) of spells: those within one quarter of an hour are taken together."""

    def key(spell: Spell) -> tuple[int, int]:
        quarter = spell.from_us // QUARTER_US
        return quarter, 0 if spell.is_in_one_quarter else spell.from_us

    for _, group in groupby(sorted(spells, key=key), key):
        parts = list(group)
        from_us, until_us = min(part.from_us for part in parts), max(part.until_us for part in parts)
        gpus = sum(part.gpu_us for part in parts) / (until_us - from_us)
        yield (
            from_us / US_PER_S - unix_s,
            until_us / US_PER_S - unix_s,
            round(gpus, 2),
            max(parts, key=lambda part: part.gpu_us).gpu_type,
        )
