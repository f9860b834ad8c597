"""Columns of text become arrays; what is wrong is noted with file, line, column, value and expectation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite, nan
from typing import Any, TypeVar

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import BoolArray, FloatArray, IntArray, floats
from stretto.model.job import UNLIMITED_GPUS
from stretto.traces.table import Table

Value = TypeVar("Value")


@dataclass
class Sheet:
    """A table while it is being checked.

    Each method returns a whole column, with a placeholder where a cell is wrong, and notes the first thing
    wrong with each row. `kept` then raises for the first bad row, or leaves all of them out.
    """

    table: Table
    _bad: dict[int, str] = field(default_factory=dict)  # row -> what is wrong with it
    _left_out: dict[str, BoolArray] = field(default_factory=dict)  # reason -> rows that are no GPU jobs

    @property
    def rows(self) -> int:
        """How many rows there are, good or bad."""
        return len(self.table.lines)

    def has(self, name: str) -> bool:
        """Whether the file has this column."""
        return name in self.table.columns

    def cells(self, name: str) -> Sequence[Any]:
        """The column as it stands in the file."""
        return self.table.columns[name]

    def texts(self, name: str, default: str = "") -> Sequence[str]:
        """The column as stripped text, or the default throughout where the file lacks it."""
        return [str(cell).strip() for cell in self.cells(name)] if self.has(name) else [default] * self.rows

    def numbers(
        self, name: str, at_least: float = 0.0, above: float = -inf, empty: float | None = None
    ) -> FloatArray:
        """Finite numbers; NaN where the cell holds none. `empty` stands for an empty cell or no column."""
        expected = f"a number > {above:g}" if above > -inf else _at_least("a number", at_least)
        array = self._floats(name, expected, empty)
        self.refuse(self._filled(name, empty) & ~((array >= at_least) & (array > above)), name, expected)
        return array

    def counts(self, name: str, at_least: int = 0, empty: int | None = None) -> IntArray:
        """Whole numbers; `at_least` where the cell holds none. `empty` as in `numbers`."""
        expected = _at_least("a whole number", at_least)
        array = self._floats(name, expected, empty)
        fine = (array >= at_least) & (array == np.floor(array)) & (array < UNLIMITED_GPUS)
        wrong = self._filled(name, empty) & ~fine
        self.refuse(wrong, name, expected)
        return np.where(wrong, at_least, array).astype(np.int64)

    def stamps_s(self, name: str, may_lack: bool = False) -> FloatArray:
        """Dates and times as seconds since 1970; NaN where there is none ("", "None") and `may_lack`."""
        parse = _stamp_or_nan if may_lack else stamp_s
        return floats(self.parsed(name, parse, nan, "a date and time, YYYY-MM-DD HH:MM:SS"))

    def choices(
        self, name: str, meaning: Mapping[str, Value], default: Value | None = None
    ) -> Sequence[Value]:
        """What each cell means. `default` stands for an empty cell or no column, where given."""
        known = dict(meaning) if default is None else {**meaning, "": default}
        any_of_them = next(iter(meaning.values()))
        return self.parsed(name, known.__getitem__, any_of_them, f"one of {', '.join(meaning)}")

    def parsed(self, name: str, parse: Callable[[str], Value], bad: Value, expected: str) -> Sequence[Value]:
        """The column under `parse`, which raises ValueError or KeyError for what it does not understand.

        `bad` is a placeholder for such a cell. Where there is no such column, every cell is empty.
        """
        if not self.has(name):
            return [parse("")] * self.rows
        try:
            return [parse(cell) for cell in self.cells(name)]
        except (ValueError, KeyError, TypeError):
            return [self._parsed_one(row, name, parse, bad, expected) for row in range(self.rows)]

    def identities(self, name: str) -> Sequence[str]:
        """A column of names that must differ and not be empty."""
        names = self.texts(name)
        if len(set(names)) < len(names) or "" in names:
            first: dict[str, int] = {}
            for row, text in enumerate(names):
                if not text:
                    self.note(row, name, "a name", text)
                elif first.setdefault(text, row) != row:
                    line = self.table.lines[first[text]]
                    self.note(row, name, f"unique, but {self.table.unit} {line} has it too", text)
        return names

    def refuse(self, wrong: BoolArray, name: str, expected: str) -> None:
        """Note these rows, whose cell in this column is not what was expected."""
        for row in np.flatnonzero(wrong).tolist():
            self.note(row, name, expected, self.cells(name)[row])

    def note(self, row: int, name: str, expected: str, value: object) -> None:
        """Note what is wrong with a row, unless something was found before."""
        self._bad.setdefault(row, f"{name} must be {expected}, got {value!r}")

    def refuse_row(self, row: int, why: str) -> None:
        """Note a row that breaks a rule across columns."""
        self._bad.setdefault(row, why)

    def leave_out(self, rows: BoolArray, why: str) -> None:
        """Rows that are right but describe nothing to schedule; they are counted, and may have odd cells."""
        self._left_out[why] = rows

    def kept(self, skip_bad: bool) -> IntArray:
        """Rows to use, ascending. Raises InputError for the first bad row, unless those are left out too."""
        usable = np.ones(self.rows, dtype=np.bool_)
        for rows in self._left_out.values():
            usable &= ~rows
        bad = sorted(row for row in self._bad if usable[row])
        if bad and not skip_bad:
            raise InputError(self._message(bad[0]))
        usable[bad] = False
        return np.flatnonzero(usable)

    def skipped(self) -> tuple[str, ...]:
        """What `kept` leaves out: a count for each reason, then the bad rows one by one."""
        fine = np.ones(self.rows, dtype=np.bool_)
        counted = []
        for why, rows in self._left_out.items():
            left_out = int((rows & fine).sum())
            fine &= ~rows
            if left_out:
                units = self.table.unit + ("" if left_out == 1 else "s")
                counted.append(f"{self.table.path}: {left_out} {units} left out: {why}")
        return (*counted, *(self._message(row) for row in sorted(self._bad) if fine[row]))

    def where(self, row: int) -> str:
        """File and line of a row, for a message."""
        return f"{self.table.path} {self.table.unit} {self.table.lines[row]}"

    def _message(self, row: int) -> str:
        return f"{self.where(row)}: {self._bad[row]}"

    def _floats(self, name: str, expected: str, empty: float | None) -> FloatArray:
        """(rows,) finite numbers or NaN; `empty` where the cell is."""
        if empty is None:
            return floats(self.parsed(name, finite_float, nan, expected))
        return floats(
            self.parsed(name, lambda text: finite_float(text) if text != "" else empty, nan, expected)
        )

    def _filled(self, name: str, empty: float | None) -> BoolArray:
        """(rows,) whether a cell is to be checked: all of them, unless it may be empty and is."""
        if empty is None:
            return np.ones(self.rows, dtype=np.bool_)
        if not self.has(name):
            return np.zeros(self.rows, dtype=np.bool_)
        return np.array([cell != "" for cell in self.cells(name)], dtype=np.bool_)

    def _parsed_one(
        self, row: int, name: str, parse: Callable[[str], Value], bad: Value, expected: str
    ) -> Value:
        cell = self.cells(name)[row]
        try:
            return parse(cell.strip() if isinstance(cell, str) else cell)
        except (ValueError, KeyError, TypeError):
            self.note(row, name, expected, cell)
            return bad


NOTHING = {"", "None", "NaT", "null"}


def stamp_s(text: str) -> float:
    """Seconds since 1970 of an ISO date and time; one without a zone is taken as UTC. Raises ValueError."""
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        stamp = datetime.fromisoformat(_LONE_HOUR.sub("T0\\1:", text, count=1))
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def _stamp_or_nan(text: str) -> float:
    return nan if text in NOTHING else stamp_s(text)


_LONE_HOUR = re.compile(r"[ T](\d):")  # "2017-10-09 7:01:55"


def finite_float(text: str) -> float:
    """A finite number. Raises ValueError for anything else."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return value


def _at_least(what: str, least: float) -> str:
    return what if least == -inf else f"{what} >= {least:g}"
