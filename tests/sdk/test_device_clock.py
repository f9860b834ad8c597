"""Steps are timed as the device does them, however far ahead the processor is that gives it work."""

import numpy as np
import pytest
import torch
from torch import nn

from stretto.sdk import step_profiler
from stretto.sdk.process_group import Replica
from stretto.sdk.sampler import MicroBatch, Step
from stretto.sdk.step_profiler import WARM_UP_STEPS, OperatingPoint, StepProfiler, StepTimes

pytestmark = pytest.mark.torch

POINT = OperatingPoint(1, 1, 8, 1)
STEP = Step(8, (MicroBatch(np.arange(8), 1.0),))
STEP_S = 0.05  # of the device; to give it one takes no time at all


class Behind:
    """The clock of a device that is behind: it comes as far as the test lets it, or is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.given = self.done = 0  # steps
        self.looked_s = 0.0  # that it was looked at gradients

    def now_s(self) -> float:
        self.done = self.given
        return self.done * STEP_S + self.looked_s

    def mark(self, at_s: float) -> int:
        return self.given

    def between_s(self, first: int, last: int) -> float | None:
        return (last - first) * STEP_S if last <= self.done else None


class Bench:
    """A profiler of such a device, and steps for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_profiler, "DeviceClock", Behind)
        self.model, self.times = nn.Linear(4, 1), StepTimes()
        device = torch.device("cpu")
        self.profiler = StepProfiler(Replica(self.model, {}), device, 1, POINT, self.times)
        self.clock: Behind = self.profiler.clock  # type: ignore[assignment]

    def steps(self, count: int, samples: int = 8) -> None:
        for _ in range(count):
            self.profiler.begin_step(Step(samples, STEP.micro_batches), 8)
            self.model.zero_grad()
            self.model(torch.ones(8, 4)).sum().backward()
            if self.profiler.is_measured:
                self.profiler.end_micro_batch(STEP, is_last=True, loss_scale=lambda: 1.0)
            self.clock.given += 1
            self.profiler.end_step()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_step_takes_as_long_as_the_device_takes_for_it(bench: Bench) -> None:
    for _ in range(20):
        bench.steps(10)
        bench.profiler.close_window()
    known = bench.times.times[POINT]
    assert known.step_s / known.steps == pytest.approx(STEP_S)
    assert known.steps > 150  # two of twenty are measured, and those that are given last are not done yet
    assert bench.profiler.step_s == pytest.approx(STEP_S)


def test_steps_that_the_device_has_not_done_yet_are_told_later(bench: Bench) -> None:
    bench.steps(WARM_UP_STEPS + 2 + 10)
    bench.profiler.close_window()
    assert (bench.times.points(), bench.profiler.step_s) == ([], 0.0)
    bench.clock.done = bench.clock.given
    bench.profiler.close_window()
    assert bench.times.times[POINT].steps == 10
    assert bench.profiler.step_s == pytest.approx(STEP_S)


def test_a_smaller_last_step_and_a_pause_count_for_nothing(bench: Bench) -> None:
    bench.steps(WARM_UP_STEPS + 2 + 5)
    bench.steps(1, samples=4)
    bench.steps(5)
    bench.clock.given += 100  # an evaluation, say
    bench.profiler.start_window()
    bench.clock.done = bench.clock.given
    bench.profiler.close_window()
    assert bench.times.times[POINT].steps == 5  # what was under way at the pause is left out, as before
    assert bench.times.times[POINT].step_s == pytest.approx(5 * STEP_S)


def test_looking_at_the_gradients_of_micro_batches_is_no_part_of_their_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = step_profiler.sum_of_squares

    def long_look(tensors: list[torch.Tensor]) -> torch.Tensor:
        bench.clock.looked_s += 0.01
        return look(tensors)

    monkeypatch.setattr(step_profiler, "sum_of_squares", long_look)
    step = Step(16, (MicroBatch(np.arange(8), 1.0), MicroBatch(np.arange(8, 16), 1.0)))
    bench.steps(WARM_UP_STEPS)
    bench.profiler.begin_step(step, 16)
    for is_last in (False, True):
        bench.clock.given += 1  # one pass, which takes as long as a step elsewhere here
        bench.model.zero_grad()
        bench.model(torch.ones(8, 4)).sum().backward()
        bench.profiler.end_micro_batch(step, is_last, loss_scale=lambda: 1.0)
    known = bench.times.times[POINT]
    assert known.grad_s / known.micro_batches == pytest.approx(STEP_S)
