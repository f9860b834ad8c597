"""Our own schema, the one that `write_trace` writes; `docs/traces.md` documents every column.

Only `job_id`, `submitted_s` and `gpus` are required. Other columns may be there too, unless their name is so
close to one of ours that it must be a slip.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields
from enum import StrEnum
from math import inf, isnan, nan
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from stretto.model import Adaptivity, Goal, InputError, Job, JobId, Reward
from stretto.model.job import UNLIMITED_GPUS
from stretto.suggestions import nearest
from stretto.traces.learning import LearningCurve
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet, finite_float
from stretto.traces.table import ABOUT
from stretto.traces.workload import Outcome, Truth, Workload
from stretto.whole_files import write_whole

DEADLINE = "deadline_s"  # read, never written: short for `rewards` with a single step of value 1
AS_THE_WORLD_SAYS: Mapping[str, bool | None] = {"yes": True, "no": False, "": None}
ADAPTIVITIES = {one.value: one for one in Adaptivity}
OUTCOMES = {one.value: one for one in Outcome}
FIELD_TYPES: Mapping[str, type] = get_type_hints(Job)
YES_NO = {"yes": True, "no": False, "true": True, "false": False}

NO_TYPES: tuple[str, ...] = ()
NO_REWARDS: tuple[Reward, ...] = ()
NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the schema: a field of a job, or of its truth, as text."""

    field: str
    read: Callable[[Sheet], Sequence[Any]]  # the values of all rows; notes what is wrong with a row
    cell: Callable[[Any], str]  # what `read` reads back as the same value
    stored: type = str  # in Parquet: text, or numbers where a cell is not empty
    header: str = ""  # in the file, unless it is the field's name

    @property
    def name(self) -> str:
        """The name of the column in a file."""
        return self.header or self.field


def _text(value: object) -> str:
    return str(value)


def _number(value: float) -> str:
    return "" if isnan(value) else repr(value)


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _unless_empty(cell: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: cell(value) if value else ""


def _column_of(entry: Field[Any], kind: type) -> Column:
    """The column of a field that is a number, a text, a truth or a choice; an empty cell is its default."""
    name = entry.name
    default: Any = entry.default
    at_least, above = entry.metadata.get("at_least", -inf), entry.metadata.get("above", -inf)
    if kind is bool:
        return Column(name, lambda sheet: sheet.choices(name, YES_NO, default=default), _yes_no)
    if kind is int and at_least > -inf:
        least = int(at_least)
        return Column(name, lambda sheet: sheet.counts(name, least, empty=default).tolist(), _text, int)
    if kind is int:  # below zero too

        def whole(sheet: Sheet) -> Sequence[int]:
            return sheet.parsed(name, lambda text: _of_64_bits(text or default), 0, "a whole number")

        return Column(name, whole, _text, int)
    if kind is float:
        return Column(
            name, lambda sheet: sheet.numbers(name, at_least, above, empty=default).tolist(), _number, float
        )
    if kind is str:
        return Column(name, lambda sheet: sheet.texts(name, default), _text)
    if issubclass(kind, StrEnum):
        words = {choice.value: choice for choice in kind}
        return Column(name, lambda sheet: sheet.choices(name, words, default=default), _text)
    raise TypeError(f"say in WRITTEN_AS how {name} of a job is written in a trace")


# Fields whose columns do not follow from their types.
WRITTEN_AS = {
    column.field: column
    for column in (
        Column(
            "id", lambda sheet: [JobId(name) for name in sheet.identities("job_id")], _text, header="job_id"
        ),
        Column("submitted_s", lambda sheet: sheet.numbers("submitted_s").tolist(), _number, float),
        Column("gpus", lambda sheet: sheet.counts("gpus", at_least=1).tolist(), _text, int),
        Column(
            "batch_size",
            lambda sheet: sheet.counts("batch_size", empty=0).tolist(),
            _unless_empty(_text),
            int,
        ),
        Column("min_gpus", lambda sheet: _least(sheet), _text, int),
        Column(
            "max_gpus",
            lambda sheet: sheet.counts("max_gpus", at_least=1, empty=0).tolist(),
            lambda gpus: "" if gpus == UNLIMITED_GPUS else str(gpus),
            int,
        ),
        Column(
            "adaptivity",
            # A job of a log is rigid unless the log says more; one that a program makes is not.
            lambda sheet: sheet.choices("adaptivity", ADAPTIVITIES, default=Adaptivity.RIGID),
            _text,
        ),
        Column(
            "checkpoints",
            lambda sheet: sheet.parsed(
                "checkpoints", AS_THE_WORLD_SAYS.__getitem__, None, "yes, no or nothing"
            ),
            _yes_no,
        ),
        Column(
            "goal",
            lambda sheet: sheet.parsed("goal", _goal, None, "metric:epochs, a number and at least one epoch"),
            _unless_empty(lambda goal: f"{goal.metric!r}:{goal.most_epochs}"),
        ),
        Column(
            "gpu_types",
            lambda sheet: sheet.parsed("gpu_types", _types, NO_TYPES, "GPU types, joined by |"),
            "|".join,
        ),
        Column(
            "reserved",
            lambda sheet: sheet.parsed("reserved", _reserved, None, "nodes:gpus:type"),
            _unless_empty(lambda reserved: ":".join(map(str, reserved))),
        ),
        Column(
            "rewards",
            lambda sheet: _rewards(sheet),
            lambda rewards: ";".join(f"{step.deadline_s!r}:{step.value!r}" for step in rewards),
        ),
        Column(
            "labels",
            lambda sheet: sheet.parsed("labels", _labels, NO_LABELS, "a JSON object of texts"),
            _unless_empty(lambda labels: json.dumps(dict(labels), sort_keys=True)),
        ),
    )
}
TRUTH_COLUMNS = (
    Column(
        "duration_s",
        lambda sheet: sheet.numbers("duration_s", empty=nan).tolist(),
        _number,
        float,
    ),
    Column("gpu_type", lambda sheet: sheet.texts("duration_gpu_type"), _text, header="duration_gpu_type"),
    Column("steps", lambda sheet: sheet.numbers("steps", above=0.0, empty=nan).tolist(), _number, float),
    Column(
        "outcome",
        lambda sheet: sheet.choices("outcome", OUTCOMES, default=Outcome.COMPLETED),
        _text,
    ),
    Column(
        "learning",
        lambda sheet: sheet.parsed(
            "learning", _learning, None, "a JSON object, the fields of a LearningCurve"
        ),
        _unless_empty(lambda curve: json.dumps(asdict(curve), sort_keys=True)),
    ),
    Column(
        "cpus_per_gpu",
        lambda sheet: sheet.numbers("cpus_per_gpu", above=0.0, empty=nan).tolist(),
        _number,
    ),
)
JOB_COLUMNS = tuple(
    WRITTEN_AS.get(one.name) or _column_of(one, FIELD_TYPES[one.name])
    for one in fields(Job)
    if one.metadata.get("in_traces", True)
)
# In the order of the file: what is required comes first.
COLUMNS = (*JOB_COLUMNS[:3], *TRUTH_COLUMNS, *JOB_COLUMNS[3:])


def read(sheet: Sheet) -> JobOfRow:
    """Every field of a job and of its truth."""
    _refuse_slips(sheet)
    asked = _rows(sheet, JOB_COLUMNS)
    true = _rows(sheet, TRUTH_COLUMNS)
    return lambda row: (Job(**asked(row)), Truth(**true(row)))


def _of_64_bits(value: str | int) -> int:
    """A number that arrays can hold; ValueError."""
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError(f"expected at most 64 bits, got {number}")
    return number


def _rows(sheet: Sheet, columns: Sequence[Column]) -> Callable[[int], dict[str, Any]]:
    """What of these columns stands in a row, by field."""
    names = [column.field for column in columns]
    rows = list(zip(*(column.read(sheet) for column in columns), strict=True))
    return lambda row: dict(zip(names, rows[row], strict=True))


def cells_of(job: Job, truth: Truth) -> Mapping[str, str]:
    """The row that `read` reads back as the same job and truth."""
    cells = {column.name: column.cell(getattr(job, column.field)) for column in JOB_COLUMNS}
    return cells | {column.name: column.cell(getattr(truth, column.field)) for column in TRUTH_COLUMNS}


def _refuse_slips(sheet: Sheet) -> None:
    known = (*(column.name for column in COLUMNS), DEADLINE)
    for name in sheet.table.columns:
        meant = nearest(name, known) if name not in known else None
        if meant is not None and meant not in sheet.table.columns:
            raise InputError(f"{sheet.table.path}: unknown column {name!r}, did you mean {meant!r}?")


def _least(sheet: Sheet) -> Sequence[int]:
    """The fewest GPUs: one worker where the file does not say."""
    workers = sheet.counts("gpus_per_worker", at_least=1, empty=1)
    fewest = sheet.counts("min_gpus", at_least=1, empty=0)
    gpus: list[int] = np.where(fewest == 0, workers, fewest).tolist()
    return gpus


def _rewards(sheet: Sheet) -> Sequence[tuple[Reward, ...]]:
    if sheet.has(DEADLINE) and sheet.has("rewards"):
        raise InputError(f"{sheet.table.path}: expected {DEADLINE} or rewards, found both")
    name = DEADLINE if sheet.has(DEADLINE) else "rewards"
    parse = _one_deadline if sheet.has(DEADLINE) else _steps_of_reward
    expected = "a time in s" if sheet.has(DEADLINE) else "deadline_s:value, several joined by ;"
    rewards = sheet.parsed(name, parse, NO_REWARDS, expected)
    first_due = np.array([steps[0].deadline_s if steps else inf for steps in rewards])
    if sheet.has(name):
        sheet.refuse(first_due < sheet.numbers("submitted_s"), name, "due at or after submitted_s")
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
    except (TypeError, InputError, RecursionError) as wrong:
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
    try:
        labels = json.loads(text) if text else {}
    except RecursionError as wrong:
        raise ValueError(text) from wrong
    if not (isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())):
        raise ValueError(text)
    return labels


OWN = Format(
    name="stretto",
    columns=frozenset({"job_id", "submitted_s", "gpus"}),
    read=read,
    about="our own schema, docs/traces.md",
)


# ── writing, as CSV or Parquet ────────────────────────────────────────────────────────────────────


def write_trace(workload: Workload, path: Path | str) -> None:
    """Write jobs, truths, name, source and whether they are made; the ending of the name chooses the form.

    Endings are .csv, .csv.gz and .parquet. The same workload gives the same bytes. Raises InputError for
    another ending, or where the file cannot be written: then it stays as it was.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            write_whole(path, _as_parquet(workload, path))
        elif path.name.endswith(".csv.gz"):
            write_whole(path, gzip.compress(_as_csv(workload).encode(), mtime=0))
        elif path.suffix == ".csv":
            write_whole(path, _as_csv(workload))
        else:
            raise InputError(f"{path}: expected a name that ends in .csv, .csv.gz or .parquet")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _about(workload: Workload) -> dict[str, str]:
    return {
        "name": _one_line(workload.name),
        "source": _one_line(workload.source),
        "synthetic": "yes" if workload.synthetic else "no",
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _as_csv(workload: Workload) -> str:
    text = io.StringIO()
    for key, value in _about(workload).items():
        text.write(f"{ABOUT}{key}: {value}\n")
    writer = csv.DictWriter(text, [column.name for column in COLUMNS], lineterminator="\n")
    writer.writeheader()
    for job, truth in zip(workload.jobs, workload.truths, strict=True):
        writer.writerow(cells_of(job, truth))
    return text.getvalue()


def _as_parquet(workload: Workload, path: Path) -> bytes:
    try:
        import pyarrow as arrow  # an optional dependency
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: writing Parquet needs pyarrow; install stretto[parquet]") from None
    rows = [cells_of(job, truth) for job, truth in zip(workload.jobs, workload.truths, strict=True)]
    columns = {
        column.name: arrow.array([_stored(column, row[column.name]) for row in rows], STORED[column.stored])
        for column in COLUMNS
    }
    table = arrow.table(columns).replace_schema_metadata(_about(workload))
    data = io.BytesIO()
    parquet.write_table(table, data)
    return data.getvalue()


STORED = {str: "string", float: "float64", int: "int64"}


def _stored(column: Column, cell: str) -> float | int | str | None:
    """A cell as Parquet keeps it; an empty one of numbers is none."""
    if column.stored is str:
        return cell
    return column.stored(cell) if cell else None
