"""The same input and seed give the same bytes, in one process and in another."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stretto.clusters import read_cluster
from stretto.model import Plan, Snapshot, digest
from stretto.policies.registry import load_policy
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.sim.world import CapacityEvent
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

TIMING = ("policy_ms_p50", "policy_ms_p95", "wall_s", "peak_rss_mb")
TRAINED = ("resnet18-cifar10", "ncf", "resnet18-cifar10", "lstm-wikitext2", "ncf")
POLICIES = ("fifo", "srtf", "tiresias", "gavel", "sia", "pollux")


def told(policy: str) -> str:
    """Everything that a run says, but for what the clock on the wall says."""
    decisions: list[Any] = []

    def record(snapshot: Snapshot, plan: Plan) -> None:
        actions = [(action.verb, action.job, action.after) for action in plan.actions]
        decisions.append(digest((snapshot.now_s, snapshot.version, actions, plan.why.code, plan.memory)))

    setup = Setup(
        read_cluster("sia-physical-44"),
        load_policy(policy),
        SimSettings(),
        seed=3,
        capacity_events=(CapacityEvent(1800.0, 0, usable=False), CapacityEvent(3600.0, 0, usable=True)),
    )
    jobs = [a_job(f"{model}-{n}", 2, 250.0 * n, model=model) for n, model in enumerate(TRAINED)]
    workload = Workload("made", jobs, [Truth()] * len(jobs))
    summary = simulate(workload, setup, record=record).summary()
    assert set(TIMING) <= set(summary)
    return json.dumps([{key: summary[key] for key in summary if key not in TIMING}, decisions])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_in_one_process_say_the_same(policy: str) -> None:
    """The second finds what the first left in caches."""
    assert told(policy) == told(policy)


@pytest.mark.processes
@pytest.mark.parametrize("policy", ["sia", "pollux"])
def test_a_run_in_another_process_says_the_same_whatever_the_order_of_its_sets(policy: str) -> None:
    here = Path(__file__).parents[1]
    code = f"from sim.test_determinism import told; print(told({policy!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(here)}
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert other.stdout.strip() == told(policy)
