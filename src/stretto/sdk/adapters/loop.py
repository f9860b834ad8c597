"""Any training loop: it reports how far it is, and learns when to save and leave."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from stretto.sdk.channel import Channel
from stretto.sdk.settings import number, read_environment
from stretto.sdk.shutdown import STATUS
from stretto.sdk.step_consensus import ControlFlags, StepConsensus
from stretto.sdk.step_profiler import WARM_UP_STEPS, OperatingPoint, StepTimes

FLUSH_S = 5.0  # at the end, for what the service has not been told yet; chosen
PAUSE = 5.0  # a step that takes so many times the usual one was interrupted, by an evaluation say; chosen


class LoopCallback:
    """To be called after every step by every rank:

        callback = LoopCallback(total_steps=10_000)
        for step in range(first, 10_000):
            …
            callback.on_step(step + 1, loss=loss)
            if callback.should_leave():
                path = save()
                callback.leave(step + 1, path)
        callback.close()

    Ranks agree over the default process group, where there is one, so that all leave after the same step.
    What a worker is told by SIGTERM is answered at the latest after two exchanges of flags, 0.2 s apart, or
    two steps.
    """

    def __init__(
        self,
        *,
        total_steps: int | None = None,
        dataset_samples: int | None = None,
        local_batch: int | None = None,
        accumulation: int = 1,
        report_s: float = 30.0,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """`local_batch`: samples of a worker's micro-batch, `accumulation`: micro-batches of a step."""
        # How far there is to go, where the loop knows it, and what a step is made of.
        environment = read_environment(env)
        self.total_steps, self.dataset_samples = total_steps, dataset_samples
        self.local_batch, self.accumulation = local_batch, accumulation
        self.checkpoint_dir = environment.checkpoint_dir
        self._env_rank, self._env_world = number(env, "RANK", 0), number(env, "WORLD_SIZE", 1)
        # Without a service nothing is reported; SIGTERM is answered all the same.
        self._channel: Channel | None = None
        if environment.is_elastic:
            self._channel = Channel(
                environment.url, environment.token, environment.worker, environment.authorities
            )
        self._report_s = report_s
        self._for_report: dict[str, Any] = {}  # by `tell`
        self._reported: tuple[float, int] | None = None  # when, and at which step
        self._times = StepTimes()
        self._consensus: StepConsensus | None = None
        # How steps go, which says when ranks agree next; they are counted from here, not from a checkpoint.
        self._calls = 0
        self._ended_s = 0.0  # of the last step
        self._usual_s = 0.0  # a step, by a moving average
        self._is_asked = self._is_leaving = False
        self._group: Any = None
        self._before: Any = None
        self.listen()

    def listen(self) -> None:
        """Take SIGTERM from here on; again, where a framework has put its own handler over ours."""
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) != self._on_signal:
            before = signal.signal(signal.SIGTERM, self._on_signal)
            self._before = before if self._before is None else self._before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    @property
    def rank(self) -> int:
        """Of this process."""
        return dist.get_rank() if dist.is_initialized() else self._env_rank

    @property
    def world(self) -> int:
        """How many train together."""
        return dist.get_world_size() if dist.is_initialized() else self._env_world

    def tell(self, **what: Any) -> None:
        """Something for the next report: epoch, metric, samples."""
        self._for_report.update(what)

    def on_step(self, step: int, loss: Any = None) -> None:
        """The optimiser has made `step` steps in the whole training. Every rank, after every step."""
        now_s = time.perf_counter()
        if self._consensus is None:
            self._begin(step)
        else:
            self._count(now_s - self._ended_s)
        assert self._consensus is not None
        self._ended_s = now_s
        self._calls += 1
        if self._consensus.is_due(self._calls):
            own = ControlFlags(leave=float(self._is_asked), step_s=self._usual_s)
            self._is_leaving = self._is_leaving or bool(self._consensus.after(self._calls, own).leave)
            if self.rank == 0 and self._is_due():
                self.report(step, loss)

    def should_leave(self) -> bool:
        """Whether to save and `leave`: the same on every rank after the same step."""
        return self._is_leaving

    def leave(self, step: int = 0, path: str | os.PathLike[str] = "") -> NoReturn:
        """End with status 143, once every rank is here; tells where the checkpoint of `step` lies."""
        if path:
            self.checkpointed(step, path)
        if self._group is not None:
            dist.barrier(self._group)
        self.close()
        raise SystemExit(STATUS)

    def checkpointed(self, step: int, path: str | os.PathLike[str]) -> None:
        """A checkpoint is complete."""
        if self._channel is not None and self.rank == 0:
            self._channel.post("checkpoint", step=step, path=os.fspath(path))

    def close(self, step: int | None = None, loss: Any = None) -> None:
        """The training is over: SIGTERM means what it meant before. With a step, a last report is made."""
        if self._consensus is not None:
            self._consensus.drain()
        if step is not None and self.rank == 0:
            self.report(step, loss)
        if self._channel is not None:
            self._channel.close(FLUSH_S)
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def report(self, step: int, loss: Any = None) -> None:
        """Tell the service now."""
        if self._channel is None:
            return
        now_s, before = time.monotonic(), self._reported
        self._reported = now_s, step
        # Undetached, PyTorch warns in the job's log.
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        content = {"step": step, "loss": None if value is None else float(value), **self._for_report}
        if before is not None and self.total_steps and step > before[1]:
            content["left_s"] = max(0, self.total_steps - step) * (now_s - before[0]) / (step - before[1])
        if self.local_batch:
            content["batch"] = self.local_batch * self.accumulation * self.world
            content.setdefault("samples", step * content["batch"])
        points = self._times.points()
        self._channel.post(
            "report", in_place=False, dataset_samples=self.dataset_samples, points=points, **content
        )

    def _begin(self, step: int) -> None:
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")  # consensus is on the processor, whatever trains
        self._consensus = StepConsensus(self.world if self._group is not None else 1, self._group)
        self._reported = time.monotonic(), step

    def _is_due(self) -> bool:
        assert self._reported is not None
        return self._channel is not None and time.monotonic() - self._reported[0] >= self._report_s

    def _count(self, took_s: float) -> None:
        """One more step that took so long, evaluation and all."""
        if self._calls < WARM_UP_STEPS:
            return
        if self._usual_s and took_s > PAUSE * self._usual_s:
            self._usual_s *= 1.1  # a training that has become slower is believed in the end
            return
        self._usual_s = 0.9 * self._usual_s + 0.1 * took_s if self._usual_s else took_s
        if self.local_batch and self.world == 1:  # with peers, computing and waiting cannot be told apart
            point = OperatingPoint(1, 1, self.local_batch, self.accumulation)
            self._times.add_steps(point, 1, took_s)
            self._times.add_micro_batches(point, self.accumulation, took_s)
