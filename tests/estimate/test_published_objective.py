"""The objective of the published fit: its gradient, and how often it is worked out."""

from typing import Any

import numpy as np
import pytest

from stretto.estimate import published_fit as published
from stretto.model import Observations, Point

ON_ONE_NODE = (Point(1, 1, 32, 0.10, 0.10), Point(1, 2, 32, 0.11, 0.13), Point(1, 4, 64, 0.19, 0.24))
ON_SEVERAL = (*ON_ONE_NODE, Point(2, 8, 64, 0.2, 0.31), Point(4, 16, 32, 0.1, 0.27))
STARTS = [(0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.5), (0.03, 0.002, 0.2, 0.03, 0.05, 0.002, 4.0)]


@pytest.mark.parametrize("points", [ON_ONE_NODE[:1], ON_ONE_NODE, ON_SEVERAL])
@pytest.mark.parametrize("at", STARTS)
def test_the_gradient_is_that_of_the_value(points: tuple[Point, ...], at: tuple[float, ...]) -> None:
    objective = published.Objective(np.array(points, dtype=np.float64).T)
    x = np.array(at)
    step = 1e-6 * x
    differences = [(objective(x + one) - objective(x - one)) / (2 * one.sum()) for one in np.diag(step)]
    np.testing.assert_allclose(objective.gradient(x), differences, rtol=1e-5, atol=1e-7)


def test_value_and_gradient_are_worked_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counted(published.Objective):
        def __call__(self, x: Any) -> float:
            asked.append("both")
            return super().__call__(x)

        def gradient(self, x: Any) -> Any:
            asked.append("gradient")
            return super().gradient(x)

    monkeypatch.setattr(published, "Objective", Counted)
    published.published_fit.__wrapped__(Observations(ON_SEVERAL))
    assert asked.count("gradient") > 3
    assert asked.count("both") == asked.count("gradient")
