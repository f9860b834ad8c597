"""Step profiler: how long the parts of a step take, and how noisy the gradients are.

All steps are timed together, as the device does them. Some are measured closely. There the gradients are
averaged by hand after the backward pass. So what each rank computed alone can be timed, and its gradient
looked at. All other steps run as DDP alone would run them.

|µ|² is the squared norm of the true gradient, σ² the variance of a mini-batch gradient of M0 samples, summed
over its components. Pollux (Qiao et al., OSDI 2021), section 3.1; McCandlish et al. (2018), appendix A.1.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from stretto.sdk.device_clock import DeviceClock, Mark
from stretto.sdk.process_group import Replica
from stretto.sdk.sampler import Step
from stretto.sdk.state import pieces
from stretto.sdk.step_consensus import LEAST_PERIOD

SMOOTHING = (
    0.999  # weight of the past for each batch of M0 samples that has passed since; chosen, as Pollux's code
)
LEAST_SMOOTHING = 0.98  # chosen: where few steps are measured, about fifty measurements still count


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement; unbiased, so that either may be negative."""

    sqr: float  # |µ|²
    var: float  # variance of a gradient of `size` samples
    size: float  # samples

    @property
    def is_usable(self) -> bool:
        """False after an overflow, which mixed precision meets now and then."""
        return isfinite(self.sqr) and isfinite(self.var)


def between(
    sum_of_sqr: float, sqr_of_mean: float, count: int, size: float, sqr_of_weights: float | None = None
) -> Sample:
    """From `count` >= 2 gradients of `size` samples each: Σ|g_i|² and |ḡ|² say all.

    σ̂² = (Σ|g_i|² - n|ḡ|²)/(n-1) and |µ̂|² = |ḡ|² - σ̂²/n. Where the gradients are of w_i `size` samples each,
    and weighted by w_i, which average 1: σ̂² = (Σ|w_i g_i|² - q|ḡ|²) n/(n² - q) with q = Σw_i².
    """
    weights = count if sqr_of_weights is None else sqr_of_weights
    var = (sum_of_sqr - weights * sqr_of_mean) * count / (count**2 - weights)
    return Sample(sqr_of_mean - var / count, var, size)


def differenced(sqr_before: float, sqr_now: float, product: float, size: float) -> Sample:
    """From the gradients of two steps in a row, with their inner product: one worker with one micro-batch.

    The two are taken as drawn at the same parameters, so that this is `between` with n = 2. The step between
    them makes |µ|² a little too small and σ² a little too large, by the order of the learning rate.
    """
    return between(sqr_before + sqr_now, (sqr_before + sqr_now + 2 * product) / 4, 2, size)


@dataclass(frozen=True, slots=True)
class Noise:
    """What the measurements say together: means that forget slowly."""

    sqr_sum: float = 0.0
    var_sum: float = 0.0  # of a gradient of M0 samples
    weight: float = 0.0  # of all measurements; 0 before the first

    def with_sample(self, sample: Sample, initial: int, batches: float) -> "Noise":
        """These and one more, `batches` batches of M0 = `initial` samples after the last one."""
        if not sample.is_usable:
            return self
        keep = max(LEAST_SMOOTHING, SMOOTHING ** max(1.0, batches))
        return Noise(
            keep * self.sqr_sum + (1 - keep) * sample.sqr,
            keep * self.var_sum + (1 - keep) * sample.var * sample.size / initial,
            keep * self.weight + (1 - keep),
        )

    @property
    def sqr(self) -> float:
        """|µ|², at least 0; NaN before the first measurement."""
        return max(0.0, self.sqr_sum / self.weight) if self.weight else nan

    @property
    def var(self) -> float:
        """σ² of M0 samples, at least 0; NaN before the first measurement."""
        return max(0.0, self.var_sum / self.weight) if self.weight else nan

    def gain(self, scale: float) -> float:
        """What a step of `scale` times M0 samples is worth in steps of M0: (σ² + |µ|²)/(σ²/k + |µ|²).

        1 while nothing is known, or where gradient and noise are both 0.
        """
        if not self.weight:
            return 1.0
        below = self.var / scale + self.sqr
        if below <= 0.0:
            return 1.0
        return (self.var + self.sqr) / below


# ── times of steps ──────────────────────────────────────────────────────────────────────────────────────────


LEAST_STEPS = 10  # before a point is reported; chosen: the service keeps the first that it gets
WARM_UP_STEPS = 3  # after a switch, left out: buckets are rebuilt, caches are cold


class OperatingPoint(NamedTuple):
    """On what a step ran, and in which micro-batches."""

    nodes: int
    gpus: int
    local_batch: int
    accumulation: int


@dataclass(slots=True)
class Times:
    """What was measured at one operating point."""

    steps: int = 0
    step_s: float = 0.0  # sum
    micro_batches: int = 0
    grad_s: float = 0.0  # sum, over single ones without synchronisation


@dataclass(slots=True)
class StepTimes:
    """Of all operating points so far."""

    times: dict[OperatingPoint, Times] = field(default_factory=dict)

    def add_steps(self, point: OperatingPoint, steps: int, seconds: float) -> None:
        """So many whole steps took so long."""
        times = self.times.setdefault(point, Times())
        times.steps += steps
        times.step_s += seconds

    def add_micro_batches(self, point: OperatingPoint, micro_batches: int, seconds: float) -> None:
        """So many micro-batches, forward and backward without synchronisation, took so long."""
        times = self.times.setdefault(point, Times())
        times.micro_batches += micro_batches
        times.grad_s += seconds

    def points(self) -> list[list[float]]:
        """Rows [nodes, gpus, local_batch, accumulation, grad_s of one micro-batch, step_s]."""
        return [
            [*point, times.grad_s / times.micro_batches, times.step_s / times.steps]
            for point, times in sorted(self.times.items())
            if times.steps >= LEAST_STEPS and times.micro_batches
        ]


class StepProfiler:
    """Times and gradients of the steps of one generation."""

    def __init__(
        self, replica: Replica, device: torch.device, world: int, point: OperatingPoint, times: StepTimes
    ) -> None:
        self._replica, self.clock, self._world = replica, DeviceClock(device), world
        self._point, self._times = point, times
        self.period = LEAST_PERIOD
        self.is_measured = False
        self.step_s = 0.0  # of an ordinary step; 0: not known yet
        self.measuring_s = 0.0  # what the measured steps of a period take longer, at most
        self._steps = 0  # begun
        self._is_ordinary = False  # timed together with the others in its row
        self._in_a_row = 1  # measured steps of a period
        self._micro_batches = 0  # of the measured step, through
        self._began_s = self._aside_s = self._spent_s = self._ended_s = 0.0
        # Ordinary steps in a row, from a mark on; and such rows that a GPU may not have done yet.
        self._row_from: Mark = 0.0
        self._row_steps = 0
        self._rows: list[tuple[Mark, Mark, int]] = []
        self._before: tuple[int, object, float, list[torch.Tensor]] | None = None  # of an earlier step
        self._sum: dict[int, torch.Tensor] = {}  # gradients of the micro-batches so far, by parameter
        self._sum_of_sqr = 0.0
        self._is_dense = not has_sparse_gradients(replica.module)  # others are left to DDP, unmeasured
        self.start_window()

    def start_window(self) -> None:
        """Steps are timed from here; what happened since the last one does not count."""
        self._ended_s = time.perf_counter()
        self._row_from, self._row_steps = self.clock.mark(self._ended_s), 0

    def begin_step(self, step: Step, total: int) -> None:
        """Decide whether it is measured, alike on all ranks; a last step that is smaller is not."""
        place = (self._steps - WARM_UP_STEPS) % self.period
        self._in_a_row = 2 if self._world == 1 and len(step.micro_batches) == 1 else 1
        is_turn = self._steps >= WARM_UP_STEPS and place < self._in_a_row
        is_whole = step.samples == total
        self.is_measured = is_turn and is_whole and self._is_dense
        self._is_ordinary = is_whole and not self.is_measured and self._steps >= WARM_UP_STEPS
        self._steps += 1
        if not self._is_ordinary:
            self._end_row()
        if self.is_measured:
            self._micro_batches, self._aside_s, self._sum, self._sum_of_sqr = 0, 0.0, {}, 0.0
            self._spent_s = 0.0
            self._began_s = self.clock.now_s()

    def end_micro_batch(self, step: Step, is_last: bool, loss_scale: Callable[[], float]) -> Sample | None:
        """After a backward pass of a measured step; after its last one gradients are averaged."""
        now_s = self.clock.now_s()
        sample = self._end_micro_batch(now_s, step, is_last, loss_scale)
        # Averaging is counted in whole, though other steps average too: how much of that their
        # backward pass hides is not known, and a difference of two steps' times is mostly noise.
        self._spent_s += self.clock.now_s() - now_s
        return sample

    def _end_micro_batch(
        self, now_s: float, step: Step, is_last: bool, loss_scale: Callable[[], float]
    ) -> Sample | None:
        self._micro_batches += 1
        if self._world == 1 and len(step.micro_batches) > 1:
            self._look_at_micro_batch(step.micro_batches[self._micro_batches - 1].weight)
            if not is_last:  # the last look comes after what is timed
                self._aside_s += self.clock.now_s() - now_s
        if not is_last:
            return None
        grad_s = now_s - self._began_s - self._aside_s
        self._times.add_micro_batches(self._point, self._micro_batches, grad_s)
        scale = loss_scale()
        sample = self._look_at_step(step, scale)
        if sample is None or not 0.0 < scale < inf:
            return None
        return Sample(sample.sqr / scale**2, sample.var / scale**2, sample.size)

    def _look_at_micro_batch(self, weight: float) -> None:
        own: list[torch.Tensor] = []
        for place, parameter in enumerate(self._replica.module.parameters()):
            if parameter.grad is not None:
                # Gradients add up over micro-batches: this one's own is the difference to the sum before it.
                before = self._sum.get(place)
                added = parameter.grad if before is None else parameter.grad - before
                own.append(sum_of_squares([added]))
                self._sum[place] = parameter.grad.detach().clone() if before is None else before
                self._sum[place].copy_(parameter.grad)
        self._sum_of_sqr += float(torch.stack(own).sum()) / weight**2

    def _look_at_step(self, step: Step, scale: float) -> Sample | None:
        # The noise follows from two gradients at least. Several ranks have one each.
        if self._world > 1:
            sum_of_sqr, sqr_of_mean = average_gradients(self._replica.module)
            self._replica.forget_micro_batches()
            size = step.samples / self._world
            weights = sum((samples / size) ** 2 for samples in step.by_rank) if step.by_rank else None
            return between(sum_of_sqr, sqr_of_mean, self._world, size, weights)
        # A worker that is alone has one for each micro-batch; `_look_at_micro_batch` has kept their squares.
        now = gradients_of(self._replica.module)
        sqr = float(sum_of_squares(now))
        if len(step.micro_batches) > 1:
            self._sum = {}
            count = len(step.micro_batches)
            return between(self._sum_of_sqr, sqr, count, step.samples / count)
        # With one micro-batch there are those of two steps in a row. They must be of the same parameters
        # and in the same scale: a step that overflowed would have changed it.
        used = [each.grad is not None for each in self._replica.module.parameters()]
        before, self._before = self._before, None
        if before is None or before[:2] != (self._steps - 1, (scale, used)):
            self._before = self._steps, (scale, used), sqr, [each.detach().clone() for each in now]
            return None
        return differenced(before[2], sqr, product(before[3], now), step.samples)

    def end_step(self) -> float:
        """When the optimiser's step was given to the device, by the processor's clock."""
        self._ended_s = time.perf_counter()
        if self.is_measured:
            spent_s = self._in_a_row * self._spent_s
            self.measuring_s = 0.5 * (self.measuring_s + spent_s) if self.measuring_s else spent_s
        if self._is_ordinary:
            self._row_steps += 1
        else:
            self._row_from = self.clock.mark(self._ended_s)
        self.is_measured = False
        return self._ended_s

    def _end_row(self) -> None:
        """The last step was the last of its row."""
        if self._row_steps:
            last = self.clock.mark(self._ended_s)
            self._rows.append((self._row_from, last, self._row_steps))
            self._row_from, self._row_steps = last, 0

    def close_window(self) -> None:
        """Make known what the ordinary steps took since the last time, as far as the device has come."""
        self._end_row()
        steps, seconds = 0, 0.0
        while self._rows:
            first, last, count = self._rows[0]
            took_s = self.clock.between_s(first, last)
            if took_s is None:
                break
            del self._rows[0]
            steps, seconds = steps + count, seconds + took_s
        if steps:
            self._times.add_steps(self._point, steps, seconds)
            self.step_s = seconds / steps


def gradients_of(module: nn.Module) -> list[torch.Tensor]:
    """All that are there."""
    return [each.grad for each in module.parameters() if each.grad is not None]


def product(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """The inner product of two gradients, tensor by tensor: together they would need memory once more."""
    parts = [
        torch.dot(a.detach().reshape(-1).float(), b.detach().reshape(-1).float())
        for a, b in zip(real(first), real(second), strict=True)
    ]
    return float(torch.stack([each.double() for each in parts]).sum())


@torch.no_grad()
def average_gradients(module: nn.Module) -> tuple[float, float]:
    """Average the gradients over the default group; Σ|g_i|² over ranks before, |ḡ|² after.

    As DDP does, but by hand, so that the gradients of each rank can be looked at before. A parameter that no
    rank used is left without a gradient.
    """
    # Ranks may have used different parameters: one that this rank did not use counts as zero, and `own` holds
    # which it did, so that the same gradients are averaged everywhere.
    parameters = [each for each in module.parameters() if each.requires_grad]
    device = parameters[0].device
    own = torch.zeros(len(parameters) + 1, dtype=torch.float64, device=device)
    for place, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            own[place] = 1.0
    gradients = gradients_of(module)
    own[-1] = sum_of_squares(gradients)
    dist.all_reduce(own)  # in double precision: sums of squares of many ranks lose digits in single
    # The average itself, in few large pieces: a call for each tensor would cost more than the sending.
    world = dist.get_world_size()
    for piece in pieces(gradients):
        together = torch.cat([each.reshape(-1) for each in piece])
        dist.all_reduce(together)
        together /= world
        for each, part in zip(piece, torch.split(together, [each.numel() for each in piece]), strict=True):
            each.copy_(part.view_as(each))
    # What no rank used had its zeros for the sum only: with them an optimiser would decay its weights.
    *used, sum_of_sqr = own.tolist()
    for parameter, by in zip(parameters, used, strict=True):
        if not by:
            parameter.grad = None
    return sum_of_sqr, float(sum_of_squares(gradients_of(module)))


def has_sparse_gradients(module: nn.Module) -> bool:
    """Whether a layer was made with `sparse=True`, as embeddings can be."""
    return any(getattr(each, "sparse", False) is True for each in module.modules())


def sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    """|·|² of all of them together."""
    parts = real(tensors)
    is_double = any(each.dtype is torch.float64 for each in parts)  # which is not narrowed
    norms = torch._foreach_norm(parts, 2, torch.float64 if is_double else torch.float32)
    return torch.stack([norm.double() for norm in norms]).square().sum()


def real(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same numbers, those of complex ones as two each."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
