"""Real trainings get sizes by what their workers have shown, under policies that fit a model to it."""

from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running
from .measured_jobs import submit

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.long]

PATIENCE_S = 900.0
# Steps of half a second: what a busy machine adds to each is then small beside what tells the jobs apart.
SLOW = {"envs": {"OMP_NUM_THREADS": "1", "SAMPLE_S": "0.016"}}
SIA = ("--slots", "5", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=5")


def test_under_sia_a_real_job_that_does_not_scale_ends_with_one_worker_beside_one_that_does(
    tmp_path: Path,
) -> None:
    """Sizes are powers of two. Were both believed to scale, each would have two of the five workers."""
    running = Running(tmp_path, *SIA)
    running.begin()
    try:
        with running.client() as client:
            flat, linear = jobs = [submit(client, model, 1, 4, **SLOW) for model in ("flat", "linear")]

            def training() -> tuple[int, int]:
                return client.describe(flat)["training_gpus"], client.describe(linear)["training_gpus"]

            until(lambda: training() == (1, 4), PATIENCE_S, "the one trains on one worker, the other on four")
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
    finally:
        running.end()
