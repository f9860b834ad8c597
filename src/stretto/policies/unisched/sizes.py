"""On how many GPUs of its range does a job run? Auto-scaling, which the paper leaves to future work.

UniSched (TPDS 2024), section VIII: "auto-scaling allows a user to specify a range of GPUs". Every job has one
count before the program is made, where the paper would have a variable for each count of each job:

- A job with a deadline is planned on a count that earns as much reward as any. Of those it is the one that
  takes fewest GPU-leases. If no count meets a deadline, it is the fastest.
- Best effort starts on the count of most speed per GPU, which is what the order by worth per GPU asks for.
- GPUs that are idle then go to jobs that run, one worker after another, by the greatest gain in worth.
"""

import heapq

import numpy as np

from stretto.model import FloatArray, IntArray, Snapshot
from stretto.policies.common.speed_curves import Curve, Sizes
from stretto.policies.unisched.estimator import LeaseTerms, Wanted, rewards_of

LEAST_GAIN = 0.05  # of speed, by one more worker: as much as measured speeds may be off


def chosen_sizes(
    snapshot: Snapshot,
    kind: IntArray,
    gpus: IntArray,
    left_s: FloatArray,
    rows: IntArray,
    kept_gpus: IntArray,
    terms: LeaseTerms,
) -> tuple[IntArray, FloatArray]:
    """(jobs,) GPUs and seconds left on them; of `rows` on the count chosen, of others as they were.

    kept_gpus: (jobs,) the count that a lease binds a job to; 0: none does.
    """
    gpus, left_s, sizes = gpus.copy(), left_s.copy(), Sizes.of(snapshot)
    deadline_s, value = rewards_of(snapshot.jobs)
    for row in rows.tolist():
        curve = sizes.curve(row, int(kind[row]))
        asked = _speed_on(curve, int(gpus[row]))
        if not asked:  # nothing is known of what it asks for
            continue
        takes_s = left_s[row] * asked / np.array(curve.per_s)
        kept = int(kept_gpus[row])
        if kept in curve.gpus:
            place = curve.gpus.index(kept)
        else:
            place = _best_count(curve, takes_s, deadline_s[row], value[row], terms)
        gpus[row], left_s[row] = curve.gpus[place], takes_s[place]
    return gpus, left_s


def grown(snapshot: Snapshot, wanted: Wanted, rows: IntArray, room: IntArray) -> IntArray:
    """(jobs,) GPUs asked for, once `rows` have shared what is idle: (types,) `room` GPUs.

    The next worker goes where it adds most to 1 / time left for each GPU, and nowhere where it adds little.
    """
    asks, left, sizes = wanted.asks.copy(), room.tolist(), Sizes.of(snapshot)
    curves = {row: sizes.curve(row, int(wanted.kind[row])) for row in rows.tolist()}
    gains = [gain for row in curves if (gain := _gain(row, curves[row], wanted, int(asks[row])))]
    heapq.heapify(gains)
    while gains:
        _, gpus, row = heapq.heappop(gains)
        kind, more = int(wanted.kind[row]), gpus - int(asks[row])
        if more > left[kind]:
            continue
        left[kind] -= more
        asks[row] = gpus
        if gain := _gain(row, curves[row], wanted, gpus):
            heapq.heappush(gains, gain)
    return asks


def _best_count(
    curve: Curve, takes_s: FloatArray, deadline_s: FloatArray, value: FloatArray, terms: LeaseTerms
) -> int:
    """The place in a curve of the count on which a job is to run."""
    counts, per_s = np.array(curve.gpus), np.array(curve.per_s)
    ahead = deadline_s > terms.now_s
    if not ahead.any():
        return int((per_s / counts).argmax())
    leases = np.maximum(terms.leases(takes_s / terms.lease_s), 1)
    window = np.floor((deadline_s[ahead] - terms.now_s) / terms.lease_s)
    earned = np.where(leases[:, None] <= window, value[ahead], 0.0).max(axis=1)
    if not earned.any():
        return int(per_s.argmax())
    return int(np.lexsort((counts, counts * leases, -earned))[0])


def _gain(row: int, curve: Curve, wanted: Wanted, gpus: int) -> tuple[float, int, int] | None:
    """(minus what one worker more adds to 1 / time left, by GPU; GPUs then; the row); None: too little."""
    now = _speed_on(curve, gpus)
    if not now or gpus == curve.gpus[-1]:
        return None
    place = curve.gpus.index(gpus) + 1
    faster = curve.per_s[place] / now - 1.0
    if faster < LEAST_GAIN:
        return None
    # Time left is on the count that was chosen before anything grew.
    chosen = _speed_on(curve, int(wanted.gpus[row])) or now
    left_s = max(float(wanted.left_s[row]), 1.0) * chosen / now
    return -faster / left_s / (curve.gpus[place] - gpus), curve.gpus[place], row


def _speed_on(curve: Curve, gpus: int) -> float:
    """Its speed on a count; 0 where the curve has none."""
    return curve.per_s[curve.gpus.index(gpus)] if gpus in curve.gpus else 0.0
