"""Measuring while training: some steps are looked at closely, all are timed together.

In a measured step the gradients are averaged by hand after the backward pass, so that what each rank computed
alone can be timed and its gradient looked at. All other steps run as DDP alone would run them.
"""

import time
from collections.abc import Callable
from math import inf

import torch

from stretto.sdk.beats import LEAST_PERIOD
from stretto.sdk.noise import Sample, between, differenced
from stretto.sdk.replica import (
    Replica,
    average_gradients,
    gradients_of,
    has_sparse_gradients,
    product,
    sum_of_squares,
)
from stretto.sdk.sampler import Step
from stretto.sdk.speed import WARM_UP_STEPS, Setting, Speed


class Gauge:
    """Times and gradients of one generation."""

    def __init__(
        self, replica: Replica, device: torch.device, world: int, setting: Setting, speed: Speed
    ) -> None:
        self._replica, self._device, self._world = replica, device, world
        self._setting, self._speed = setting, speed
        self.period = LEAST_PERIOD
        self.is_measured = False
        self.step_s = 0.0  # of an ordinary step; 0: not known yet
        self.measuring_s = 0.0  # what the measured steps of a period take longer, at most
        self._steps = 0  # begun
        self._in_a_row = 1  # measured steps of a period
        self._passes = 0  # of the measured step, through
        self._began_s = self._aside_s = self._spent_s = self._ended_s = 0.0
        self._window_s = self._window_began_s = 0.0
        self._window_steps = 0
        self._before: tuple[int, object, float, list[torch.Tensor]] | None = None  # of an earlier step
        self._sum: dict[int, torch.Tensor] = {}  # gradients of the passes so far, by parameter
        self._sum_of_sqr = 0.0
        self._is_dense = not has_sparse_gradients(replica.module)  # others are left to DDP, unmeasured
        self.start_window()

    def start_window(self) -> None:
        """Steps are timed from here; what happened since the last one does not count."""
        self._ended_s = time.perf_counter()
        self._window_s, self._window_steps = 0.0, 0

    def begin_step(self, step: Step, total: int) -> None:
        """Decide whether it is measured, alike on all ranks; a last step that is smaller is not."""
        place = (self._steps - WARM_UP_STEPS) % self.period
        self._in_a_row = 2 if self._world == 1 and len(step.passes) == 1 else 1
        is_turn = self._steps >= WARM_UP_STEPS and place < self._in_a_row
        self.is_measured = is_turn and step.samples == total and self._is_dense
        self._steps += 1
        if self.is_measured:
            self._passes, self._aside_s, self._sum, self._sum_of_sqr = 0, 0.0, {}, 0.0
            self._spent_s = 0.0
            self._began_s = self._now()

    def end_pass(self, step: Step, is_last: bool, loss_scale: Callable[[], float]) -> Sample | None:
        """After a backward pass of a measured step; after its last one gradients are averaged."""
        now_s = self._now()
        sample = self._end_pass(now_s, step, is_last, loss_scale)
        # Averaging is counted in whole, though other steps average too: how much of that their
        # backward pass hides is not known, and a difference of two steps' times is mostly noise.
        self._spent_s += self._now() - now_s
        return sample

    def _end_pass(
        self, now_s: float, step: Step, is_last: bool, loss_scale: Callable[[], float]
    ) -> Sample | None:
        self._passes += 1
        if self._world == 1 and len(step.passes) > 1:
            self._look_at_pass(step.passes[self._passes - 1].weight)
            self._aside_s += self._now() - now_s
        if not is_last:
            return None
        grad_s = now_s - self._began_s - self._aside_s
        self._speed.add_passes(self._setting, self._passes, grad_s)
        scale = loss_scale()
        sample = self._look_at_step(step, scale)
        if sample is None or not 0.0 < scale < inf:
            return None
        return Sample(sample.sqr / scale**2, sample.var / scale**2, sample.size)

    def _look_at_pass(self, weight: float) -> None:
        own: list[torch.Tensor] = []
        for place, parameter in enumerate(self._replica.module.parameters()):
            if parameter.grad is not None:
                before = self._sum.get(place)
                added = parameter.grad if before is None else parameter.grad - before
                own.append(sum_of_squares([added]))
                self._sum[place] = parameter.grad.detach().clone() if before is None else before
                self._sum[place].copy_(parameter.grad)
        self._sum_of_sqr += float(torch.stack(own).sum()) / weight**2

    def _look_at_step(self, step: Step, scale: float) -> Sample | None:
        if self._world > 1:
            sum_of_sqr, sqr_of_mean = average_gradients(self._replica.module)
            self._replica.forget_pass()
            return between(sum_of_sqr, sqr_of_mean, self._world, step.samples / self._world)
        now = gradients_of(self._replica.module)
        sqr = float(sum_of_squares(now))
        if len(step.passes) > 1:
            self._sum = {}
            count = len(step.passes)
            return between(self._sum_of_sqr, sqr, count, step.samples / count)
        used = [each.grad is not None for each in self._replica.module.parameters()]
        before, self._before = self._before, None
        if before is None or before[:2] != (self._steps - 1, (scale, used)):
            self._before = self._steps, (scale, used), sqr, [each.detach().clone() for each in now]
            return None
        return differenced(before[2], sqr, product(before[3], now), step.samples)

    def end_step(self, is_whole: bool) -> float:
        """When the optimiser's step ended; `is_whole`: it had as many samples as others."""
        now_s = time.perf_counter()
        took_s, self._ended_s = now_s - self._ended_s, now_s
        if self.is_measured:
            spent_s = self._in_a_row * self._spent_s
            self.measuring_s = 0.5 * (self.measuring_s + spent_s) if self.measuring_s else spent_s
        elif is_whole and not self.is_measured and self._steps > WARM_UP_STEPS:
            self._window_s += took_s
            self._window_steps += 1
        self.is_measured = False
        return now_s

    def close_window(self) -> None:
        """Make known what the ordinary steps took since the last time."""
        if self._window_steps:
            self._speed.add_steps(self._setting, self._window_steps, self._window_s)
            self.step_s = self._window_s / self._window_steps
        self._window_s, self._window_steps = 0.0, 0

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
