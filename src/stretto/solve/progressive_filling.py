"""Progressive filling: the fewest units, slot by slot, with which some work is done in time.

ElasticFlow (Gu et al., ASPLOS 2023), section 4.1, algorithm 1. For ElasticFlow units are GPUs: `levels`
(levels,) are counts, increasing; `per_s` (levels,) work done a second at each; `free` (slots,) GPUs
that are not reserved.
"""

from dataclasses import dataclass

import numpy as np

from stretto.solve.arrays import FloatArray, IntArray

ROUNDING = 1e-9  # of the work: sums of slots must not miss it by a rounding error


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Spans of time that follow each other from now on."""

    length_s: FloatArray  # (slots,)

    @property
    def start_s(self) -> FloatArray:
        """(slots,) seconds from now."""
        return np.cumsum(self.length_s) - self.length_s

    def before(self, after_s: float) -> FloatArray:
        """(slots,) seconds of each that lie before a moment so many seconds from now."""
        return np.clip(after_s - self.start_s, 0.0, self.length_s)


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """What one job has reserved."""

    gpus: IntArray  # (slots,)
    level: int  # index of the level that limits it
    gpu_s: float  # GPU-seconds until its work is done


def slots_until(horizon_s: float, slot_s: float, alike: int, growth: float) -> Slots:
    """Slots from now to the horizon: the first `alike` of `slot_s` each, then each longer by `growth`.

    Slots of one length would be thousands where deadlines lie days ahead, looked at again for every job.
    """
    if horizon_s <= alike * slot_s:
        return Slots(np.full(max(int(np.ceil(horizon_s / slot_s)), 1), slot_s))
    beyond_s = horizon_s - alike * slot_s
    if growth == 0:
        return Slots(np.full(alike + int(np.ceil(beyond_s / slot_s)), slot_s))
    more = int(np.ceil(np.log1p(beyond_s * growth / (slot_s * (1 + growth))) / np.log1p(growth)))
    longer_s = slot_s * (1 + growth) ** np.arange(1, more + 1)
    return Slots(np.concatenate((np.full(alike, slot_s), longer_s)))


def least_filling(
    levels: IntArray, per_s: FloatArray, work: float, free: IntArray, usable_s: FloatArray
) -> Filling | None:
    """The reservation of the smallest level that does the work in time, or None where none does.

    At level q a job has, in every slot, the largest count of its levels that is at most q and free there.
    usable_s: (slots,) seconds of each slot that count, 0 after the deadline. It is reserved from now on until
    the work is done, and nothing after.
    """
    given, done = _given_and_done(levels, per_s, free, usable_s)
    enough = done[:, -1] >= work * (1 - ROUNDING)
    if not enough.any():
        return None
    level = int(enough.argmax())
    return _until_done(given[level], done[level], level, work, usable_s)


def filling_with(
    now_gpus: int,
    level: int,
    levels: IntArray,
    per_s: FloatArray,
    work: float,
    free: IntArray,
    usable_s: FloatArray,
) -> Filling | None:
    """The reservation at one level that has exactly `now_gpus`, one of its levels, in the first slot."""
    beside = free.copy()
    beside[0] = now_gpus
    given, done = _given_and_done(levels[: level + 1], per_s[: level + 1], beside, usable_s)
    if done[level, -1] < work * (1 - ROUNDING):
        return None
    return _until_done(given[level], done[level], level, work, usable_s)


def _given_and_done(
    levels: IntArray, per_s: FloatArray, free: IntArray, usable_s: FloatArray
) -> tuple[IntArray, FloatArray]:
    """(levels, slots) GPUs had at each level, and the work done by the end of each slot."""
    fits = np.searchsorted(levels, free, side="right")  # (slots,) how many levels fit
    chosen = np.minimum(fits[None, :], np.arange(1, len(levels) + 1)[:, None])  # 0: none
    given = np.concatenate(([0], levels))[chosen]
    speed = np.concatenate(([0.0], per_s))[chosen]
    return given, np.cumsum(speed * usable_s, axis=1)


def _until_done(given: IntArray, done: FloatArray, level: int, work: float, usable_s: FloatArray) -> Filling:
    last = min(int(np.searchsorted(done, work * (1 - ROUNDING))), len(done) - 1)
    gpus = np.where(np.arange(len(given)) <= last, given, 0)
    before = float(done[last - 1]) if last else 0.0
    within = float(done[last]) - before
    part = (work - before) / within if within > 0 else 0.0
    gpu_s = float((gpus[:last] * usable_s[:last]).sum() + gpus[last] * usable_s[last] * min(part, 1.0))
    return Filling(gpus, level, gpu_s)
