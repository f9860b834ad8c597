"""Work with due dates on one machine: by how much can it all be put off, and what more could be taken on?

A machine does one unit of work a second and may be interrupted at any time. Everything is there already.
All of it can be in time exactly where, for each due date, no more is due by then than there is time. That is
Horn's condition (Naval Research Logistics Quarterly, 1974).
"""

import numpy as np

from stretto.solve.arrays import BoolArray, FloatArray, IntArray


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


def taken_on(
    due: FloatArray, work: FloatArray, bounds: IntArray, kept: BoolArray, worth: FloatArray
) -> IntArray:
    """(rows,) the option that each row is taken on with, or -1, so that all can be done in time.

    due: (options,) from now on, the options of a row one after the other, the best first. work: (options,).
    bounds: (rows + 1,) where the options of each row begin, and behind the last. kept: (rows,) those that go
    before all others. Among both, those of most worth go first. Greedy: a row that finds no room for any of
    its options is left out, whatever it keeps from others later.
    """
    # Room by a date is the time until then less the work due by then. It is counted at dates of options that
    # are not taken, too. That forbids nothing: until such a date no more is due than by the one before.
    dates, place = np.unique(due, return_inverse=True)
    room, places, works = dates.copy(), place.tolist(), work.tolist()
    taken = np.full(len(bounds) - 1, -1)
    first = bounds.tolist()
    for row in np.lexsort((-worth, ~kept)).tolist():
        for option in range(first[row], first[row + 1]):
            later = room[places[option] :]
            if later.min() >= works[option]:
                later -= works[option]
                taken[row] = option
                break
    return taken
