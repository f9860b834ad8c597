"""Writes a workload in our own schema, as CSV or Parquet, such that reading gives it back."""

import csv
import gzip
import io
from pathlib import Path

from stretto.model import InputError
from stretto.traces.own import COLUMNS, Column, cells_of
from stretto.traces.table import ABOUT
from stretto.traces.workload import Workload


def write_trace(workload: Workload, path: Path | str) -> None:
    """Write jobs, truths, name, source and whether they are made; the ending of the name chooses the form.

    Endings are .csv, .csv.gz and .parquet. The same workload gives the same bytes. Raises InputError for
    another ending, or where the file cannot be written.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            _write_parquet(workload, path)
        elif path.name.endswith(".csv.gz"):
            path.write_bytes(gzip.compress(_as_csv(workload).encode(), mtime=0))
        elif path.suffix == ".csv":
            path.write_bytes(_as_csv(workload).encode())
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


def _write_parquet(workload: Workload, path: Path) -> None:
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
    parquet.write_table(table, path)


STORED = {str: "string", float: "float64", int: "int64"}


def _stored(column: Column, cell: str) -> float | int | str | None:
    """A cell as Parquet keeps it; an empty one of numbers is none."""
    if column.stored is str:
        return cell
    return column.stored(cell) if cell else None
