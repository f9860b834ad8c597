"""From a checked sheet to a workload: what every format has in common."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from stretto.model import InputError, Job
from stretto.model.arrays import FloatArray
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Outcome, Truth, Workload

JobOfRow = Callable[[int], tuple[Job, Truth]]


@dataclass(frozen=True)
class Format:
    """A kind of trace file: how it is recognised, and how its rows become jobs.

    `read` checks the columns of a sheet and returns what makes a job of one good row. A file that fits
    several formats is refused, unless one of them is declared to be meant instead of the others.
    """

    name: str
    columns: frozenset[str]  # a file with all of these is of this kind
    read: Callable[[Sheet], JobOfRow]
    about: str  # one line for people
    instead_of: frozenset[str] = frozenset()  # formats that some of its files would fit too, and are not of


def workload_of(sheet: Sheet, kind: Format, name: str, skip_bad: bool) -> Workload:
    """The jobs of a sheet, by submission and id. Raises InputError for the first bad row, unless skipped."""
    job_of = kind.read(sheet)
    pairs = []
    for row in sheet.kept(skip_bad).tolist():
        try:
            pairs.append(job_of(row))
        except InputError as error:  # an invariant of a job that no single column shows
            if not skip_bad:
                raise InputError(f"{sheet.where(row)}: {error}") from None
            sheet.refuse_row(row, str(error))
    if not pairs:
        raise InputError(f"{sheet.table.path}: expected at least one job, found none{_why(sheet)}")
    pairs.sort(key=lambda pair: (pair[0].submitted_s, pair[0].id))
    about = sheet.table.about
    made = about.get("synthetic", "no")
    if made not in ("yes", "no"):
        raise InputError(f"{sheet.table.path}: synthetic: expected yes or no, got {made!r}")
    return Workload(
        name=about.get("name", name),
        jobs=tuple(job for job, _ in pairs),
        truths=tuple(truth for _, truth in pairs),
        source=about.get("source", f"{sheet.table.path} ({kind.about})"),
        synthetic=made == "yes",
        skipped=sheet.skipped(),
    )


def earliest(sheet: Sheet, submitted_s: FloatArray) -> float:
    """The first submission of any row that may be kept: where the clock of the workload starts."""
    kept = submitted_s[sheet.kept(skip_bad=True)]
    return float(np.min(kept, initial=inf)) if kept.size else 0.0


def _why(sheet: Sheet) -> str:
    skipped = sheet.skipped()
    return f" ({skipped[0]})" if skipped else ""


OUTCOMES = {  # what the published logs call it (Philly's, then Slurm's words) -> what it means
    "Pass": Outcome.COMPLETED,
    "Killed": Outcome.CANCELLED,
    "Failed": Outcome.FAILED,
    "COMPLETED": Outcome.COMPLETED,
    "CANCELLED": Outcome.CANCELLED,
    "FAILED": Outcome.FAILED,
    "TIMEOUT": Outcome.FAILED,
    "NODE_FAIL": Outcome.FAILED,
}
