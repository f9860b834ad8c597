"""Which elastic jobs get how many more workers: a multiple-choice knapsack (Lyra, section 5.2).

A group is an elastic job, an item some number of workers beyond its base demand. At most one item of each
group goes into the knapsack, whose capacity is the number of GPUs that are left; the sum of their values,
seconds by which jobs end sooner, is to be the largest, and of equal sums that of the fewest GPUs.
"""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray

MOST_UPDATES = 4_000_000  # cells of the dynamic programme in one call; chosen: about 20 ms
PRICE_STEPS = 60  # lines of the relaxation that are tried; chosen: ten are usual
FILLING_STEPS = 16  # single changes that use up what the price leaves over; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """What goes in."""

    workers: IntArray  # (groups,) beyond the base; 0 where nothing of the group goes in
    value: float  # in all
    bound: float  # no packing is worth more; `value` itself where that is proven the best

    @property
    def is_best(self) -> bool:
        """Whether nothing better exists."""
        return self.value >= self.bound


def reductions_s(work_s: FloatArray, least: IntArray, most: IntArray) -> FloatArray:
    """(groups, items) seconds that k more workers save: W / w_min - W / (w_min + k), k = 1, 2, ….

    work_s: (groups,) what is left, in seconds of one worker; least, most: (groups,) workers. -inf where
    a group has no such item. Speed is linear in workers within the range (Lyra, section 5).
    """
    more = np.arange(1, max(int((most - least).max(initial=0)), 0) + 1)
    saved_s = work_s[:, None] / least[:, None] - work_s[:, None] / (least[:, None] + more)
    return np.where(more <= (most - least)[:, None], saved_s, -np.inf)


def pack(value: FloatArray, each: IntArray, capacity: int, updates: int = MOST_UPDATES) -> Packing:
    """The best packing, or after `updates` cells of work the best found.

    value: (groups, items) of 1, 2, … more workers, -inf where there is no such item; each: (groups,) GPUs
    of a worker. Dynamic programming over the capacity, O(items x capacity), on the items that can matter:
    at the price p per GPU of the relaxation a packing falls short of the upper bound by at least what each of
    its items falls short of the best of its group, `max(v - p w) - (v - p w)`, so an item that alone falls
    short by more than a known packing does is in no better one (as in Dyer 1984). Where that leaves more than
    `updates` cells, the items nearest to the best of their groups are searched.
    """
    if value.size == 0 or capacity <= 0:
        return Packing(np.zeros(len(value), dtype=np.int64), 0.0, 0.0)
    unit = int(np.gcd.reduce(each))
    worth = np.concatenate((np.zeros((len(value), 1)), value), axis=1)
    weight = np.arange(worth.shape[1]) * (each // unit)[:, None]
    room = capacity // unit
    worth = np.where(weight <= room, worth, -np.inf)
    price, pick = _priced(worth, weight, room)
    if price == 0.0:  # there is room for the best of every group
        total = _total(worth, pick)
        return Packing(pick, total, total)
    reduced = worth - price * weight
    best = reduced.max(axis=1)
    bound = float(best.sum()) + price * room
    pick = _filled(worth, weight, room, pick)
    loss = best[:, None] - reduced
    slack = bound - _total(worth, pick)
    tiny = 1e-12 * max(bound, 1.0)  # sums of equal values may differ in their last digits
    kept = loss <= slack + tiny
    complete, kept = _within(kept, loss, weight, room, pick, updates)
    found = _searched(worth, weight, room, kept)
    better = found is not None and (_total(worth, found), -_taken(weight, found)) > (
        _total(worth, pick),
        -_taken(weight, pick),
    )
    chosen = found if found is not None and better else pick
    total = _total(worth, chosen)
    return Packing(chosen, total, total if complete else max(bound, total))


def pack_all(value: FloatArray, each: IntArray, capacity: int) -> Packing:
    """The same by dynamic programming over every item and the whole capacity, as the paper does it."""
    worth = np.concatenate((np.zeros((len(value), 1)), value), axis=1)
    weight = np.arange(worth.shape[1]) * each[:, None]
    room = max(capacity, 0)
    pick = _searched(worth, weight, room, np.isfinite(worth) & (weight <= room))
    assert pick is not None  # nothing of any group always fits
    total = _total(worth, pick)
    return Packing(pick, total, total)


def _priced(worth: FloatArray, weight: IntArray, room: int) -> tuple[float, IntArray]:
    """The price at which the relaxation is tightest, and what groups pick at it: no more than there is room.

    Every packing is a line in the price, `worth + p (room - weight)`, and the relaxation the upper
    envelope of all: from one line on each side of its minimum the next price is where the two cross.
    """
    most = worth.argmax(axis=1)
    least = np.zeros_like(most)
    over, within = (_total(worth, most), _taken(weight, most)), (0.0, 0)
    if over[1] <= room:
        return 0.0, most
    price, pick = 0.0, least
    for _ in range(PRICE_STEPS):
        price = (over[0] - within[0]) / (over[1] - within[1])
        now = (worth - price * weight).argmax(axis=1)
        line = (_total(worth, now), _taken(weight, now))
        if line in (over, within):
            break
        if line[1] <= room:
            within, pick = line, now
        else:
            over = line
    return price, pick


def _filled(worth: FloatArray, weight: IntArray, room: int, pick: IntArray) -> IntArray:
    """A pick with its leftover room used up, one most valuable change after the other."""
    pick = pick.copy()
    rows = np.arange(len(pick))
    left = room - _taken(weight, pick)
    for _ in range(FILLING_STEPS):
        gain = worth - worth[rows, pick][:, None]
        gain[weight - weight[rows, pick][:, None] > left] = 0.0
        row, item = divmod(int(gain.argmax()), worth.shape[1])
        if not gain[row, item] > 0:
            break
        left -= int(weight[row, item] - weight[row, pick[row]])
        pick[row] = item
    return pick


def _within(
    kept: BoolArray, loss: FloatArray, weight: IntArray, room: int, pick: IntArray, updates: int
) -> tuple[bool, BoolArray]:
    """Whether all that is kept can be searched in so many updates, and what will be."""
    cells = int(kept.sum() - kept.any(axis=1).sum()) * (_spare(kept, weight, room) + 1)
    if cells <= updates:
        return True, kept
    count = max(updates // (room + 1), 1)
    nearest = np.partition(loss[kept], min(count, int(kept.sum()) - 1))[count if count < kept.sum() else -1]
    fewer = kept & (loss < nearest)
    fewer[np.arange(len(pick)), pick] = True
    fewer[np.arange(len(pick)), loss.argmin(axis=1)] = True
    return False, fewer


def _spare(kept: BoolArray, weight: IntArray, room: int) -> int:
    """Room beyond the lightest kept item of every group that the heavier ones could use."""
    lightest = np.where(kept, weight, np.iinfo(np.int64).max).min(axis=1)
    heaviest = np.where(kept, weight, 0).max(axis=1)
    return max(min(room - int(lightest.sum()), int((heaviest - lightest).sum())), 0)


def _searched(worth: FloatArray, weight: IntArray, room: int, kept: BoolArray) -> IntArray | None:
    """(groups,) the best pick among the kept items; None where even the lightest of them do not fit."""
    pick: IntArray = kept.argmax(axis=1)  # the lightest kept item
    room -= _taken(weight, pick)
    if room < 0:
        return None
    rows = np.flatnonzero(kept.sum(axis=1) > 1)
    spare = _spare(kept, weight, room + _taken(weight, pick))
    best = np.full(spare + 1, -np.inf)  # by exactly the room used so far
    best[0] = 0.0
    chosen = np.zeros((len(rows), spare + 1), dtype=np.int32)
    for place, row in enumerate(rows.tolist()):
        items = np.flatnonzero(kept[row])
        lightest = int(items[0])
        new = best + worth[row, lightest]
        chosen[place] = lightest
        for item in items[1:].tolist():
            more = int(weight[row, item] - weight[row, lightest])
            if more > spare:
                break
            value = best[: spare + 1 - more] + worth[row, item]
            better = value > new[more:]
            new[more:][better] = value[better]
            chosen[place, more:][better] = item
        best = new
    used = int(best.argmax())  # the first of equals: fewest GPUs
    for place in range(len(rows) - 1, -1, -1):
        row = int(rows[place])
        item = int(chosen[place, used])
        used -= int(weight[row, item] - weight[row, pick[row]])
        pick[row] = item
    return pick


def _total(worth: FloatArray, pick: IntArray) -> float:
    return float(worth[np.arange(len(pick)), pick].sum())


def _taken(weight: IntArray, pick: IntArray) -> int:
    return int(weight[np.arange(len(pick)), pick].sum())
