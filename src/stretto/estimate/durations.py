"""How long jobs take on what they asked for, as far as owners state it and trainings tell it."""

import numpy as np

from stretto.model import Durations, FloatArray, IntArray

USUAL_S = 3600.0  # a job without a stated length; chosen
LEAST_LEFT_S = 60.0  # what a job that outlives its stated time is believed to need still; chosen


def believed_durations(
    whole_s: FloatArray,
    had_s: FloatArray,
    told_left_s: FloatArray,
    held_gpus: IntArray,
    asked_gpus: IntArray,
) -> Durations:
    """What is left of the stated time, or what a training that runs says that it needs at its present pace.

    All are (jobs,). had_s: of the stated time. told_left_s: NaN of a job that has not told anything. Speed is
    taken to be in proportion to GPUs.
    """
    left_s = np.maximum(whole_s - had_s, np.minimum(LEAST_LEFT_S, whole_s))
    trains = (held_gpus > 0) & np.isfinite(told_left_s)
    left_s = np.where(
        trains, np.maximum(np.where(trains, told_left_s, 1.0) * held_gpus / asked_gpus, 1.0), left_s
    )
    return Durations(np.where(trains, left_s + had_s, whole_s), left_s)
