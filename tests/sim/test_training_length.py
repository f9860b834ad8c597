"""A training whose trace says how many steps it takes ends after so many, not when its model usually does."""

from math import nan
from typing import Any

import pytest

from stretto.model import Adaptivity, GpuType, Job, cluster_of
from stretto.sim.settings import Learning, SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.truth.training import TrainingRun
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

CLUSTER = cluster_of("four", (GpuType("t4"), 1, 4))


def training(name: str = "j", **rest: Any) -> Job:
    usual: dict[str, Any] = {
        "model": "resnet18-cifar10",
        "batch_size": 128,
        "adaptivity": Adaptivity.RIGID,
    }
    return a_job(name, **(usual | rest))


def runs_of(*jobs: tuple[Job, float], **sim: Any) -> list[TrainingRun]:
    workload = Workload("some", [job for job, _ in jobs], [Truth(nan, steps=steps) for _, steps in jobs])
    training = physics_of(workload, CLUSTER, SimSettings(**sim)).training
    return [training[row] for row in range(len(jobs))]


def seconds_on(run: TrainingRun, *shape: int) -> float:
    run.give(0, shape, moved=True, now_s=0.0)
    run.advance(1e9)
    assert run.done
    return run.completed_s - run.truth.restart_s


@pytest.mark.parametrize(("batch", "gpus"), [(128, 1), (256, 1), (256, 4)])
def test_so_many_steps_of_the_submitted_batch(batch: int, gpus: int) -> None:
    [run] = runs_of((training(batch_size=batch, gpus=gpus), 1_000.0))
    step_s, _ = run.truth.step(0, (gpus,), batch // gpus)
    assert seconds_on(run, gpus) == pytest.approx(1_000 * step_s, rel=1e-6)
    assert run.samples == pytest.approx(1_000 * batch, rel=1e-6)
    assert run.truth.alone_s(0, gpus, batch)[-1] == pytest.approx(1_000 * step_s, rel=1e-6)


def test_without_a_batch_they_are_of_the_initial_one() -> None:
    [run] = runs_of((training(batch_size=0), 500.0))
    assert run.truth.epoch_ends[-1] == pytest.approx(500.0)


def test_without_steps_it_trains_as_its_model_usually_does() -> None:
    usual, stated = runs_of((training("a"), nan), (training("b"), 10.0))
    assert usual.truth.epoch_ends[-1] > 1_000
    assert len(stated.truth.epoch_ends) == len(usual.truth.epoch_ends)
    assert stated.truth.epoch_ends[-1] == pytest.approx(10.0)


def test_long_and_short_jobs_of_a_model_learn_its_speed_together() -> None:
    short, long = runs_of((training("a"), 10.0), (training("b"), 1e6), learning=Learning.MODEL)
    assert short.of_model is not None
    assert short.of_model is long.of_model
