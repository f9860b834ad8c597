"""Work with due dates on one machine: by how much can it all be put off, and what more could be taken on?

A machine does one unit of work a second and may be interrupted at any time. Everything is there already.
All of it can be in time exactly where, for each due date, no more is due by then than there is time. That is
Horn's condition (Naval Research Logistics Quarterly, 1974).
"""

from collections.abc import Sequence

import numpy as np

from stretto.solve.arrays import BoolArray, FloatArray


def slack(due: FloatArray, work: FloatArray) -> FloatArray:
    """(rows,) by how much each row could begin later, when the others are put off as far as they can be, too.

    It is the least, over its due date and all later ones, of the time until then less the work due by then.
    Negative where not all of it can be done. due: (rows,) from now on. work: (rows,), at least 0.
    """
    order = np.argsort(due, kind="stable")
    left = due[order] - np.cumsum(work[order])
    least = np.minimum.accumulate(left[::-1])[::-1]
    # Rows of the same due date stand or fall together: each has the slack of the last of them.
    last = np.searchsorted(due[order], due[order], side="right") - 1
    by_row = np.empty_like(least)
    by_row[order] = least[last]
    return by_row


def taken_on(due: Sequence[Sequence[tuple[float, float]]], kept: BoolArray, worth: FloatArray) -> list[int]:
    """For each row the option that it is taken on with, or -1, so that all can be done in time.

    due: for each row its options, as (due date from now on, work), the best first. kept: (rows,) those that
    go before all others. Among both, those of most worth go first. Greedy: a row that finds no room for any
    of its options is left out, whatever it keeps from others later.
    """
    order = np.lexsort((-worth, ~kept))
    dates, works = np.zeros(0), np.zeros(0)  # of what was taken on, by due date
    option = [-1] * len(due)
    for row in order.tolist():
        for index, (date, work) in enumerate(due[row]):
            place = int(np.searchsorted(dates, date, side="right"))
            more_dates, more_works = np.insert(dates, place, date), np.insert(works, place, work)
            # Nothing that is due before changes.
            before = float(works[:place].sum())
            if (more_dates[place:] - np.cumsum(more_works[place:]) - before >= 0).all():
                dates, works, option[row] = more_dates, more_works, index
                break
    return option
