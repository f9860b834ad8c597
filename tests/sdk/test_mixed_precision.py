"""Scaled losses: what is measured is unscaled, and what overflows is not measured."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stretto.sdk
from stretto.sdk import step_consensus
from stretto.sdk.process_group import Replica
from stretto.sdk.sampler import MicroBatch, Step
from stretto.sdk.step_profiler import WARM_UP_STEPS, OperatingPoint, Sample, StepProfiler, StepTimes
from stretto.testing.conductor import Conductor

pytestmark = [pytest.mark.sockets, pytest.mark.torch]


def trained(
    scaler: torch.amp.GradScaler | None, explodes_at: int, env: pytest.MonkeyPatch
) -> tuple[Conductor, list[float]]:
    """One worker on 60 steps, with what it told, and its weights; the loss of one step overflows."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(480, 6), torch.randn(480, 1))
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Conductor() as conductor:
        for name, value in conductor.environment_of("j.1.0").items():
            env.setenv(name, value)
        conductor.publish(["j.1.0"])
        job = stretto.sdk.elastic(
            model, optimizer, data=data, batch_size=8, max_batch_size=16, lr_scaling="adascale",
            scaler=scaler, report_s=0.0,
        )  # fmt: skip
        for _ in job.epochs(1):
            for x, y in job.batches():
                loss = (job.model(x) - y).square().mean()
                job.backward(loss * math.inf if job.steps == explodes_at else loss)
                job.step()
        return conductor, model.weight.flatten().tolist()


def test_a_scaled_training_measures_what_a_plain_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        step_consensus, "MEASURING_SHARE", math.inf
    )  # the same steps, whatever measuring takes
    plain, weights = trained(None, -1, monkeypatch)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    scaled, weights_too = trained(scaler, -1, monkeypatch)
    assert plain.reports[-1]["grad_var"] > 0
    for name in ("grad_sqr", "grad_var"):
        assert scaled.reports[-1][name] == pytest.approx(plain.reports[-1][name])
    assert weights_too == pytest.approx(weights)


@pytest.mark.parametrize("explodes_at", [WARM_UP_STEPS, WARM_UP_STEPS + 1, 10])
def test_a_step_that_overflows_is_skipped_and_nothing_of_it_is_told(
    explodes_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_consensus, "MEASURING_SHARE", math.inf)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    conductor, weights = trained(scaler, explodes_at, monkeypatch)
    assert scaler.get_scale() == 2.0**11  # once, and the training went on
    assert all(map(math.isfinite, weights))
    json.dumps(conductor.reports, allow_nan=False)
    last = conductor.reports[-1]
    assert {"grad_sqr", "grad_var"} <= set(last)  # which are left out where they are not finite
    assert last["step"] == 60


@pytest.mark.parametrize(
    ("scales", "is_measured"),
    [
        pytest.param((1024.0, 1024.0), True, id="an ordinary scale"),
        pytest.param((1024.0, 2048.0), False, id="one that grew between the two steps"),
        pytest.param((0.0, 0.0), False, id="zero"),
        pytest.param((math.inf, math.inf), False, id="infinite"),
        pytest.param((math.nan, math.nan), False, id="no number"),
    ],
)
def test_a_measurement_needs_a_scale_that_is_one(scales: tuple[float, float], is_measured: bool) -> None:
    model = nn.Linear(4, 1)
    point = OperatingPoint(1, 1, 8, 1)
    profiler = StepProfiler(Replica(model, {}), torch.device("cpu"), 1, point, StepTimes())
    step = Step(8, (MicroBatch(np.arange(8), 1.0),))
    for _ in range(WARM_UP_STEPS):
        profiler.begin_step(step, 8)
        profiler.end_step()
    found: list[Sample | None] = []
    for scale in scales:
        profiler.begin_step(step, 8)
        assert profiler.is_measured
        model.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        found.append(profiler.end_micro_batch(step, is_last=True, loss_scale=partial(float, scale)))
        profiler.end_step()
    assert found[0] is None
    assert (found[1] is not None) == is_measured
    assert profiler.measuring_s > 0
