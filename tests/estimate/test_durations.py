"""How long jobs are believed to take."""

from math import nan

import numpy as np
import pytest

from stretto.estimate.durations import believed_durations


@pytest.mark.parametrize(
    ("whole_s", "had_s", "told_left_s", "held", "expected"),
    [
        pytest.param(600.0, 0.0, nan, 0, (600.0, 600.0), id="a job that waits needs all that is stated"),
        pytest.param(600.0, 200.0, nan, 2, (600.0, 400.0), id="what it has had is not left"),
        pytest.param(600.0, 900.0, nan, 2, (600.0, 60.0), id="one that outlives that needs a minute still"),
        pytest.param(20.0, 900.0, nan, 2, (20.0, 20.0), id="or all of it, where it is shorter"),
        pytest.param(600.0, 200.0, 50.0, 8, (400.0, 200.0), id="a training that runs knows better"),
        pytest.param(600.0, 200.0, 50.0, 0, (600.0, 400.0), id="but not once it was stopped"),
    ],
)
def test_what_is_left_is_believed_as_stated_or_reported(
    whole_s: float, had_s: float, told_left_s: float, held: int, expected: tuple[float, float]
) -> None:
    asked = np.array([2])
    whole, had, told = np.array([[whole_s], [had_s], [told_left_s]])
    believed = believed_durations(whole, had, told, np.array([held]), asked)
    assert (believed.duration_s[0], believed.remaining_s[0]) == expected
