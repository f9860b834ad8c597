"""Batch inference as the simulated world runs it, and as Sia decides for it."""

from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.model import Adaptivity, GpuType, InputError, Job, Purpose, View, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.accounting import Accounting
from stretto.sim.history import History
from stretto.sim.settings import Scaling, SimSettings
from stretto.sim.setup import physics_of
from stretto.sim.truth.training import TrainingRun
from stretto.testing.builders import a_job
from stretto.traces import read_trace
from stretto.traces.workload import Truth, Workload

from .made_worlds import seen

T4, A100 = GpuType("t4"), GpuType("a100")
MIXED = cluster_of("mixed", (T4, 2, 4), (A100, 1, 4))
ITEMS = Truth(nan, steps=100_000.0)


def inferring(name: str = "i", **rest: Any) -> Job:
    usual: dict[str, Any] = {"model": "resnet18-cifar10", "batch_size": 128}
    return a_job(name, **(usual | {"purpose": Purpose.BATCH_INFERENCE} | rest))


def run_of(job: Job, truth: Truth = ITEMS, **sim: Any) -> TrainingRun:
    return physics_of(Workload("one", [job], [truth]), MIXED, SimSettings(**sim)).training[0]


def seconds_on(run: TrainingRun, *shape: int) -> float:
    run.give(0, shape, moved=True, now_s=0.0)
    run.advance(1e9)
    return run.completed_s - run.truth.restart_s


def test_it_takes_a_third_of_a_training_step_and_scales_perfectly() -> None:
    training = run_of(a_job("t", model="resnet18-cifar10", batch_size=128), Truth(nan))
    step_s, _ = training.truth.step(0, (1,), 128)
    alone_s = seconds_on(run_of(inferring()), 1)
    assert alone_s == pytest.approx(100_000 * step_s / 3, rel=1e-6)
    assert seconds_on(run_of(inferring()), 4) == pytest.approx(alone_s / 4)
    assert seconds_on(run_of(inferring()), 4, 4) == pytest.approx(alone_s / 8)


@pytest.mark.parametrize("adaptivity", Adaptivity)
def test_its_progress_is_in_items_whatever_was_asked_for(adaptivity: Adaptivity) -> None:
    run = run_of(inferring(gpus=2, batch_size=256, adaptivity=adaptivity))
    assert run.truth.limits.init_batch == 128
    assert run.truth.epoch_ends[-1] * run.truth.limits.init_batch == 100_000 * 256
    seconds_on(run, 1, 1)
    assert run.done
    assert run.samples == pytest.approx(100_000 * 256)


def test_a_share_that_does_not_fit_is_as_large_as_fits() -> None:
    run = run_of(inferring(batch_size=2**20))
    assert (
        run.truth.limits.init_batch
        == run_of(a_job("t", model="resnet18-cifar10")).truth.limits.max_local.min()
    )


@pytest.mark.parametrize(("truth", "batch_size"), [(Truth(nan), 128), (ITEMS, 0)])
def test_without_items_it_is_refused(truth: Truth, batch_size: int) -> None:
    with pytest.raises(InputError, match=r"job i: batch-inference: expected steps and batch_size.*got"):
        run_of(inferring(batch_size=batch_size), truth)


def test_one_with_a_duration_scales_with_its_gpus_whatever_the_model_does() -> None:
    jobs = [inferring(max_gpus=8), a_job("t", model="resnet18-cifar10", max_gpus=8)]
    settings = SimSettings(scaling=Scaling.CATALOGUE)
    tables = physics_of(Workload("two", jobs, [Truth(60.0)] * 2), MIXED, settings).tables
    assert tables[0].per_s[0, 8] == pytest.approx(8 * tables[0].per_s[0, 1])
    assert tables[1].per_s[0, 8] < 7.5 * tables[1].per_s[0, 1]
    jobs = [replace(job, gpus=8) for job in jobs]
    lossy = physics_of(Workload("two", jobs, [Truth(60.0)] * 2), MIXED, SimSettings(scaling_loss=0.1)).tables
    assert lossy[0].per_s[0, 1] == pytest.approx(1 / 8)
    assert lossy[1].per_s[0, 1] > 1.5 / 8, "one GPU does more of it than an eighth"


def test_sia_gives_it_gpus_that_a_training_of_its_model_would_make_nothing_of() -> None:
    def most_held(model: str, purpose: Purpose) -> int:
        steps = 1e6 if purpose is Purpose.BATCH_INFERENCE else nan
        job = inferring(model=model, purpose=purpose, max_gpus=16, adaptivity=Adaptivity.STRONG_SCALING)
        steps = 1e6 if purpose is Purpose.BATCH_INFERENCE else nan
        workload = Workload("one", [job], [Truth(nan, steps=steps)])
        run = seen(load_policy("sia"), workload, cluster_of("c", (T4, 4, 4)), SimSettings())
        return max(int(snapshot.jobs.held_gpus.max()) for snapshot in run.snapshots if len(snapshot.jobs))

    for model in ("resnet18-cifar10", "ncf"):
        assert most_held(model, Purpose.BATCH_INFERENCE) == 16
        assert most_held(model, Purpose.TRAINING) <= 4


def test_a_policy_that_reads_tables_is_shown_the_same() -> None:
    jobs = [inferring(gpus=2, batch_size=256, max_gpus=16, adaptivity=Adaptivity.STRONG_SCALING)]
    physics = physics_of(Workload("one", jobs, [ITEMS]), MIXED, SimSettings())
    per_s, run = physics.tables[0].per_s, physics.training[0]
    assert per_s[0, 1:5] == pytest.approx([count * per_s[0, 1] for count in (1, 2, 3, 4)])
    rows = np.array([0])
    left = physics.known(rows, 0.0, frozenset({View.REMAINING_WORK}), Accounting(History(1)))["known_work"]
    assert left[0] / per_s[0, 4] == pytest.approx(seconds_on(run, 4))


def test_a_trace_says_it_and_a_simulation_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "both.csv"
    file.write_text(
        "job_id,submitted_s,gpus,model,batch_size,steps,purpose,adaptivity,max_gpus\n"
        "train-1,0,2,resnet18-cifar10,256,,training,adaptive,16\n"
        "label-1,60,1,resnet18-cifar10,128,100000,batch-inference,strong-scaling,16\n"
    )
    workload = read_trace(file)
    assert [job.purpose for job in workload.jobs] == [Purpose.TRAINING, Purpose.BATCH_INFERENCE]
    run = seen(load_policy("sia"), workload, MIXED, SimSettings())
    assert isfinite(run.completed_s("train-1"))
    assert isfinite(run.completed_s("label-1"))
    assert run.world.physics.training[1].samples == pytest.approx(100_000 * 128)
    file.write_text("job_id,submitted_s,gpus,purpose\na,0,1,guessing\n")
    with pytest.raises(InputError, match=r"purpose.*batch-inference.*guessing"):
        read_trace(file)
