"""Real trainings get sizes by what their workers have shown, where a policy fits a model to it."""

from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running
from .measured_jobs import as_if_the_other_had_shown_it, gpus_given, measure_on_one_and_two, submit

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.long]

PATIENCE_S = 900.0
# Steps of half a second: what a busy machine adds to each is then small beside what tells the jobs apart.
SLOW = {"envs": {"OMP_NUM_THREADS": "1", "SAMPLE_S": "0.016"}}
SIA = ("--slots", "5", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=5")


def test_under_sia_workers_go_from_a_real_job_that_does_not_scale_to_one_that_does(tmp_path: Path) -> None:
    """Both begin with two workers each. Were both believed to scale, sizes of a power of two keep them so.

    Had each shown what the other did, workers would go the other way.
    """
    running = Running(tmp_path, *SIA)
    running.begin()
    try:
        with running.client() as client:
            flat, linear = jobs = [submit(client, model, 1, 1, **SLOW) for model in ("flat", "linear")]
            measure_on_one_and_two(client, jobs, PATIENCE_S)

            def training() -> tuple[int, int]:
                return client.describe(flat)["training_gpus"], client.describe(linear)["training_gpus"]

            until(lambda: training() == (1, 4), PATIENCE_S, "the one trains on one worker, the other on four")
            sized = max(seq for seq, _, kind, _ in running.log_of_all() if kind == "Decided")
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
        otherwise = running.decided_from(as_if_the_other_had_shown_it(flat=[flat], linear=[linear]))
        given = [
            gpus_given(other.again.actions, flat) for other in otherwise if other.again and other.seq <= sized
        ]
        assert max(given, default=0) > 2, "by what the other has shown, the one would have more"
    finally:
        running.end()
