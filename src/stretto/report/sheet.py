"""Figures as CSV, as spreadsheets read them: what is not known is an empty cell, and no text is a formula."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, TextIO

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of figures by name."""

    name: str  # of its file, without the ending
    header: Sequence[str]
    rows: Iterable[Sequence[Any]]

    def write(self, file: TextIO) -> None:
        """Write all of it."""
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([cell(value) for value in row] for row in self.rows)


def sheet_of(name: str, columns: Mapping[str, Sequence[Any]]) -> Sheet:
    """A sheet of columns that all have one length."""
    return Sheet(name, tuple(columns), zip(*columns.values(), strict=True))


def cell(value: Any) -> Any:
    """A value as it is written: text that a spreadsheet would take for a formula begins with a quote."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
