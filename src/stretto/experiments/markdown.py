"""Pieces of a page in Markdown: tables, figures, times, and notes in sentences."""

from collections.abc import Iterable, Sequence

LONG_NOTE = 20  # words; chosen


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]


def cell(text: str) -> str:
    """A text in one line, which ends no cell."""
    return " ".join(text.split()).replace("|", "\\|")


def number(value: float | None) -> str:
    """A figure with three digits; "" for none."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def in_sentences(note: str) -> str:
    """A note whose parts, which semicolons divide, are sentences where it is long."""
    if len(note.split()) <= LONG_NOTE:
        return note
    first, *others = note.split("; ")
    return ". ".join([first, *(other[:1].upper() + other[1:] for other in others)])


def share(scale: float) -> str:
    """How much of the workloads was run."""
    return "whole" if scale == 1 else f"at a scale of {scale:g}: this share of each workload"
