"""One table over several draws of a made trace: each row's mean and the interval of that mean."""

from collections.abc import Sequence
from math import isfinite

from stretto.experiments.reproduction import Request, Row, rows_over_seeds

SEEDS = (0, 1, 2)  # of a made trace; chosen


def seeds_of(request: Request, whole: Sequence[int] = SEEDS) -> Sequence[int]:
    """The first of the seeds, as many as the scale of the request leaves; whole: all at scale 1."""
    return whole[: max(round(len(whole) * request.scale), 1)]


def merged(drawn: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of one table made from each draw: their means, each followed by half of its interval.

    drawn: (draws, rows), the same rows in the same order. A figure that some draws lack has the mean of the
    others, and `missing_words` tells of it. One that all draws lack stays missing. A published figure and its
    bound stay with the mean.
    """
    rows: list[Row] = []
    for each in zip(*drawn, strict=True):
        first = each[0]
        if any((row.row, row.metric) != (first.row, first.metric) for row in each):
            raise ValueError(f"draws of one row must agree, got {[(row.row, row.metric) for row in each]}")
        known = _known(each)
        rows += (
            rows_over_seeds(first.row, first.metric, first.paper, known, first.bound)
            if known
            else [Row(first.row, first.metric, first.paper, None, first.bound)]
        )
    return rows


def missing_words(drawn: Sequence[Sequence[Row]]) -> list[str]:
    """A note that names the figures that only some draws have, and how many those are."""
    counts = [(each[0], len(_known(each))) for each in zip(*drawn, strict=True)]
    some = [f"{row.row}, {row.metric} ({count})" for row, count in counts if 0 < count < len(drawn)]
    if not some:
        return []
    return [f"of fewer than {len(drawn)} traces, since it does not apply to the others: {'; '.join(some)}"]


def draws_words(draws: int) -> str:
    """The note about how many traces were drawn, with the first of the seeds."""
    if draws == 1:
        return f"one made trace, of seed {SEEDS[0]}"
    traces = f"{draws} made traces, of seeds {', '.join(map(str, SEEDS[:draws]))}"
    return f"{traces}; plus_minus is half of Student's 95 % interval of their mean"


def _known(rows: Sequence[Row]) -> list[float]:
    return [row.ours for row in rows if row.ours is not None and isfinite(row.ours)]
