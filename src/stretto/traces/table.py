"""Reads a trace file into columns of text, whatever it is: CSV, TSV, JSON or Parquet, gzipped or not."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import InputError


@dataclass(frozen=True, slots=True)
class Table:
    """A file as columns of equal length. Cells are text as it stands in the file; "" where there is nothing.

    JSON records may hold lists and objects, which stay as they are. A file without a header has one column
    for each field, named "0", "1", …
    """

    path: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]  # number of the line, or of the record, that each row comes from
    unit: str = "line"  # what `lines` counts, for messages
    about: Mapping[str, str] = field(default_factory=dict)  # what the file says about itself


def read_table(path: Path) -> Table:
    """The columns of a file. Raises InputError where it cannot be read, is empty, or has ragged rows."""
    if _stem(path).suffix == ".parquet":
        return _parquet(path)
    text = _text(path)
    if text.lstrip()[:1] in {"[", "{"}:
        return _json(path, text)
    return _delimited(path, text)


ABOUT = "# "  # a line before the header that says something about the file: "# name: value"


def _stem(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".gz" else path


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a trace: {error}") from error


def _delimited(path: Path, text: str) -> Table:
    about, start, line = _preamble(text)
    body = text[start:]
    first_line = body[: body.find("\n")] if "\n" in body else body
    delimiter = "\t" if first_line.count("\t") > first_line.count(",") else ","
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):  # blank lines are no rows
                rows.append(row)
                lines.append(line + reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path} line {line + reader.line_num}: cannot be read: {error}") from error
    if not rows:
        raise InputError(f"{path}: expected a trace, found an empty file")
    if _looks_like_a_header(rows[0]):
        header, rows, lines = [name.strip() for name in rows[0]], rows[1:], lines[1:]
    else:
        header = [str(position) for position in range(len(rows[0]))]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: column {repeated[0]!r} must appear once, found it more often")
    width = len(header)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != width:
            raise InputError(f"{path} line {line}: expected {width} cells, found {len(row)}")
    by_column = list(zip(*rows, strict=True)) or [()] * width
    return Table(str(path), dict(zip(header, by_column, strict=True)), lines, about=about)


def _preamble(text: str) -> tuple[dict[str, str], int, int]:
    """What the lines before the header say, the position of the header, and the lines before it."""
    about: dict[str, str] = {}
    start = lines = 0
    while text.startswith(ABOUT, start):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        key, _, value = text[start + len(ABOUT) : end].partition(":")
        about[key.strip()] = value.strip()
        start, lines = end + 1, lines + 1
    return about, start, lines


def _looks_like_a_header(row: Sequence[str]) -> bool:
    """Names of columns are words; a row of data has a number somewhere."""
    return not any(_is_number(cell) for cell in row)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in {"nan", "inf", "infinity"}


def _json(path: Path, text: str) -> Table:
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno}: cannot be read as JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not (isinstance(records, list) and all(isinstance(record, dict) for record in records)):
        raise InputError(f"{path}: expected a list of objects, one for each job")
    if not records:
        raise InputError(f"{path}: expected at least one job, found an empty list")
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [_cell(record.get(name)) for record in records] for name in names}
    return Table(str(path), columns, range(1, len(records) + 1), unit="record")


def _parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet as parquet  # an optional dependency
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; install stretto[parquet]") from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    columns = {
        name: [_cell(value) for value in table.column(name).to_pylist()] for name in table.column_names
    }
    metadata = table.schema.metadata or {}
    about = {key.decode(): value.decode() for key, value in metadata.items() if not key.startswith(b"ARROW:")}
    return Table(str(path), columns, range(1, table.num_rows + 1), unit="row", about=about)


def _cell(value: Any) -> Any:
    """A value as the text that it would have in a CSV file; lists and objects as they are."""
    if value is None:
        return ""
    if isinstance(value, str | list | dict):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else str(value)
