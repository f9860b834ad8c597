"""What `stretto bench decide` measures in a steady state."""

import json

import pytest

from stretto.experiments.steady.measure import STEPS, figures_of, steady_times
from stretto.experiments.steady.world import Steady

pytestmark = pytest.mark.slow

SMALL = Steady(jobs=40, gpus=96, rounds=8)


@pytest.mark.parametrize("policy", ["sia", "stretto", "tiresias", "gavel"])
def test_decisions_of_any_policy_are_measured_step_by_step(policy: str) -> None:
    figures = figures_of(steady_times(SMALL, policy))
    assert figures["decisions"] == 3
    for step in (*STEPS, "wall"):
        times = figures[step]
        assert isinstance(times, dict)
        assert 0 <= times["p50_ms"] <= times["p95_ms"] <= times["max_ms"]
    assert figures["running"]
    assert json.loads(json.dumps(figures)) == figures


def test_settings_reach_the_policy() -> None:
    crowded = Steady(jobs=200, gpus=96, rounds=7)
    usual, reluctant = (
        steady_times(crowded, "sia", settings).running[-1]
        for settings in ({}, {"policy.wait_penalty": "0.3", "estimate.share": "model"})
    )
    assert reluctant < usual
