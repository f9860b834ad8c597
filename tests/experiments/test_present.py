"""What a report shows over time is what its table says, until the last job ends."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from stretto.experiments.present import run_series, steps
from stretto.model import GpuType, cluster_of
from stretto.policies.registry import load_policy
from stretto.report.charts.rows import gpu_hours
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

NODES = cluster_of("nodes", (GpuType("t4"), 2, 4))


@pytest.mark.parametrize("policy", ["fifo", "sia"])
def test_curves_end_with_the_last_job_and_hold_what_the_table_says(policy: str) -> None:
    jobs = [
        replace(a_job("first", max_gpus=8), model="resnet18-cifar10"),
        replace(a_job("second", at_s=600.0, max_gpus=8), model="resnet18-cifar10"),
    ]
    workload = Workload("two", jobs, [Truth(nan)] * 2)
    result = simulate(workload, Setup(NODES, load_policy(policy), SimSettings()))
    series, summary = run_series(result), result.summary()
    last_s = float(result.completed_s.max())
    assert series.busy_times_s[-1] == series.active_times_s[-1] == last_s
    assert not series.busy_gpus[-1].any()
    assert series.active_jobs.tolist() == [1, 2, 1, 0]
    assert gpu_hours(series).sum() == pytest.approx(2 * summary["gpu_hours_per_job"])
    if policy == "fifo":
        assert result.history.sample_s[-1] < last_s, "its decisions end before: what this test is about"


def test_steps_add_what_changes_at_the_same_time() -> None:
    times_s, sums = steps(np.array([3.0, 1.0, 3.0]), np.array([0, 0, 1]), np.array([-2, 2, 4]), 2)
    assert times_s.tolist() == [1.0, 3.0]
    assert sums.tolist() == [[2, 0], [0, 4]]


def test_of_nothing_there_are_no_steps() -> None:
    times_s, sums = steps(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64), 2)
    assert (times_s.size, sums.shape) == (0, (0, 2))
