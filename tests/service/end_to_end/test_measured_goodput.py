"""Real trainings get sizes by what their workers have shown, under policies that fit a model to it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.demo.own_service import until
from stretto.service.eventlog import Recorded

from ..running import Running
from .measured_jobs import gpus_given, measured, submit

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.long]

PATIENCE_S = 900.0
# Steps of half a second: what a busy machine adds to each is then small beside what tells the jobs apart.
SLOW = {"envs": {"OMP_NUM_THREADS": "1", "SAMPLE_S": "0.016"}}
MACHINE = ("--gpu-type", "cpu", "--policy")


@pytest.mark.parametrize(
    ("options", "flat_has", "linear_has"),
    [
        # Sizes are powers of two. Were both believed to scale, each would keep two of the five workers.
        pytest.param(
            ("--slots", "5", *MACHINE, "sia", "--set", "policy.round_s=5"), (1, 1), (4, 4), id="sia"
        ),
        # Equation 8 sums over the jobs that run, so the one that does not scale may have to wait.
        pytest.param(("--slots", "4", *MACHINE, "ones"), (0, 1), (3, 4), id="ones"),
    ],
)
def test_workers_go_from_a_real_job_that_does_not_scale_to_one_that_does(
    tmp_path: Path, options: Sequence[str], flat_has: tuple[int, int], linear_has: tuple[int, int]
) -> None:
    """Both begin with two workers each. Had each shown what the other did, they would go the other way."""
    running = Running(tmp_path, *options)
    running.begin()
    try:
        with running.client() as client:
            flat, linear = jobs = [submit(client, model, 1, 1, **SLOW) for model in ("flat", "linear")]

            def both_measured(counts: list[int]) -> bool:
                return all(measured(client, name) == counts for name in jobs)

            until(lambda: both_measured([1]), PATIENCE_S, "both are measured on one worker")
            for name in jobs:
                client.change(name, "scale", min_gpus=2, max_gpus=2)
            until(lambda: both_measured([1, 2]), PATIENCE_S, "both are measured on two workers")
            for name in jobs:
                client.change(name, "scale", min_gpus=1, max_gpus=4)

            def training(name: str, least: int, most: int) -> bool:
                return least <= client.describe(name)["training_gpus"] <= most

            until(
                lambda: training(flat, *flat_has) and training(linear, *linear_has),
                *(PATIENCE_S, f"the one has {flat_has} workers, the other {linear_has}"),
            )
            sized = max(seq for seq, _, kind, _ in running.log_of_all() if kind == "Decided")
            for name in jobs:
                client.change(name, "cancel")
            until(lambda: all(client.describe(name)["ended_s"] for name in jobs), what="they end")
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
        otherwise = running.decided_from(
            lambda recorded: as_if_the_other_had_shown_it(recorded, {flat: 1.0, linear: -1.0})
        )
        given = [
            gpus_given(other.again.actions, flat) for other in otherwise if other.again and other.seq <= sized
        ]
        assert max(given, default=0) > 2, "by what the other has shown, the one would have more"
    finally:
        running.end()


def as_if_the_other_had_shown_it(recorded: Recorded, power: dict[str, float]) -> Recorded:
    """The event, its times of steps multiplied by how many times as long the other's take, to a power.

    A step of `flat` takes (1 + n) / 2 times as long on n workers as on one, a step of `linear` 1 / n times.
    """
    job = recorded.body.get("job")
    if recorded.kind != "Reported" or job not in power or not recorded.body["report"].get("points"):
        return recorded
    points = [
        [*point[:4], *(seconds * (2 / (point[1] * (1 + point[1]))) ** power[job] for seconds in point[4:])]
        for point in recorded.body["report"]["points"]
    ]
    return replace(recorded, body={**recorded.body, "report": {**recorded.body["report"], "points": points}})
