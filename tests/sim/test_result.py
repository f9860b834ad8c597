"""The summary of a run that can be worked out on paper."""

import json
from typing import Any

import pytest

from stretto.model import ON_CHANGE, Kind, Reward
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import NO_RESTARTS, a_workload, on

KEYS = (  # of `simulate --json`, in its order: programs of others read them
    "policy",
    "trace",
    "cluster",
    "seed",
    "synthetic",
    "jobs",
    "completed",
    "skipped",
    "avg_jct_s",
    "p50_jct_s",
    "p75_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "p99_index_jct_s",
    "makespan_s",
    "avg_queue_s",
    "p50_queue_s",
    "p95_queue_s",
    "avg_initial_queue_s",
    "interactive_avg_queue_s",
    "interactive_p95_queue_s",
    "avg_jct_inflation",
    "avg_jct_x_bound",
    "avg_jct_bound_s",
    "interactive_avg_queue_bound_s",
    "deadline_miss_rate_bound",
    "weighted_deadline_miss_rate_bound",
    "gpu_hours_per_job",
    "restarts_per_job",
    "preemption_ratio",
    "resizes_per_job",
    "deadline_miss_rate",
    "weighted_deadline_miss_rate",
    "best_effort_avg_jct_s",
    "avg_tardiness_s",
    "latency_kept",
    "avg_ftf",
    "worst_ftf",
    "unfair_fraction",
    "avg_contention",
    "max_contention",
    "utilization",
    "usage_overall",
    "usage_on_loan",
    "loan_preemption_ratio",
    "collateral_damage",
    "lender_shortfall_server_s",
    "rounds",
    "policy_ms_p50",
    "policy_ms_p95",
    "wall_s",
    "peak_rss_mb",
    "settings",
)


def summary(sim: SimSettings = NO_RESTARTS, **jobs: Any) -> dict[str, Any]:
    """Two jobs on one node of two GPUs: a runs 0 to 10 and 30 to 70, b 10 to 30."""
    workload = a_workload(
        (a_job("a", at_s=0.0, **jobs), 50.0),
        (a_job("b", gpus=2, at_s=10.0, kind=Kind.INTERACTIVE, rewards=(Reward(25.0, 1.0),)), 20.0),
    )
    policy = on(ON_CHANGE, at_0={"a": {0: 1}}, at_10={"b": {0: 2}}, at_30={"a": {0: 1}})
    return simulate(workload, Setup(a_cluster(2), policy, sim)).summary()


def test_a_summary_has_the_keys_that_programs_read_and_is_json() -> None:
    told = summary()
    assert tuple(told) == KEYS
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("jobs", 2),
        ("completed", 2),
        ("avg_jct_s", (70.0 + 20.0) / 2),
        ("p50_jct_s", 45.0),
        ("p99_index_jct_s", 70.0),
        ("makespan_s", 70.0),
        ("avg_queue_s", (20.0 + 0.0) / 2),
        ("avg_initial_queue_s", 0.0),
        ("interactive_avg_queue_s", 0.0),
        ("gpu_hours_per_job", (50.0 + 2 * 20.0) / 2 / 3600),
        ("restarts_per_job", 0.5),
        ("preemption_ratio", 0.5),
        ("deadline_miss_rate", 1.0),
        ("avg_tardiness_s", 5.0),
        ("utilization", (50.0 + 40.0) / (2 * 70.0)),
        ("max_contention", 2),
        ("rounds", 3),
    ],
)
def test_a_run_on_paper(figure: str, expected: float) -> None:
    assert summary()[figure] == pytest.approx(expected)


def test_figures_that_do_not_apply_are_none() -> None:
    told = summary()
    assert told["avg_ftf"] is told["worst_ftf"] is told["unfair_fraction"] is None


def test_restart_overhead_is_neither_queuing_nor_free() -> None:
    told = summary(SimSettings(restart_s=6.0))
    assert told["avg_jct_s"] == pytest.approx((76.0 + 20.0) / 2)
    assert told["avg_queue_s"] == pytest.approx(10.0)
    assert told["gpu_hours_per_job"] == pytest.approx((56.0 + 40.0) / 2 / 3600)
