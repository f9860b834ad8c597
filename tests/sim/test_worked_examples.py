"""Worked examples of policies, run through the whole simulator with nothing lost to restarts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stretto.model import Reward
from stretto.policies.registry import load_policy
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import Seen, a_workload, seen

THREE_JOBS = a_workload((a_job("A", gpus=4), 10.0), (a_job("B", gpus=2), 3.0), (a_job("C", gpus=2), 5.0))


def completions(run: Seen) -> Mapping[str, float]:
    return {str(job.id): run.completed_s(job.id) for job in run.world.requests.jobs}


@pytest.mark.parametrize(
    ("policy", "jct_s", "mean_s"),
    [
        pytest.param("fifo", (10, 13, 15), 12.6667, id="fifo"),
        pytest.param("sjf", (15, 3, 5), 7.6667, id="sjf"),
    ],
)
def test_completion_times_on_4_gpus_follow_the_order_of_service(
    policy: str, jct_s: tuple[float, ...], mean_s: float
) -> None:
    """A needs all 4 GPUs for 10 s; B and C need 2 for 3 s and 5 s."""
    run = seen(load_policy(policy), THREE_JOBS, a_cluster(4))
    assert tuple(completions(run).values()) == jct_s
    assert float(np.mean(run.world.accounting.completed_s)) == pytest.approx(mean_s, abs=1e-4)


def test_srtf_stops_a_long_job_for_a_short_one() -> None:
    jobs = a_workload((a_job("A", gpus=4), 10.0), (a_job("B", gpus=4, at_s=4.0), 2.0))
    run = seen(load_policy("srtf"), jobs, a_cluster(4))
    assert completions(run) == {"A": 12.0, "B": 6.0}  # B takes 2 s


def test_edf_serves_the_nearest_deadline_first() -> None:
    def due(name: str, deadline_s: float) -> Any:
        return a_job(name, gpus=4, rewards=(Reward(deadline_s, 1.0),))

    run = seen(load_policy("edf"), a_workload((due("A", 30.0), 10.0), (due("B", 8.0), 5.0)), a_cluster(4))
    assert completions(run) == {"A": 15.0, "B": 5.0}


def test_tiresias_demotes_a_at_its_bound_and_lets_b_pass() -> None:
    """The bound is 100 GPU-seconds: A, on 4 GPUs, reaches it at 25."""
    jobs = a_workload((a_job("A", gpus=4), 40.0), (a_job("B", gpus=4, at_s=20.0), 10.0))
    run = seen(load_policy("tiresias", queue_bounds_gpu_s=(100.0,)), jobs, a_cluster(4))
    assert completions(run) == {"A": 50.0, "B": 35.0}
    assert run.world.accounting.first_start_s.tolist() == [0.0, 25.0]
    assert run.decided_s == [0.0, 20.0, 25.0, 35.0]
    assert run.world.accounting.starts.tolist() == [2, 1]
