"""The elastic job: a plain training loop, whatever happens to the workers."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from stretto.sdk import process_group
from stretto.sdk.channel import Channel, Reporter
from stretto.sdk.checkpoints import CheckpointManager
from stretto.sdk.phase import HAS_PEERS, IS_OUT, MEETS_NEXT, LoopState, Phase
from stretto.sdk.process_group import Replica
from stretto.sdk.sampler import MicroBatch, Step, batches_of, loader_generator, order_of, steps_from
from stretto.sdk.settings import Batch, Environment, Settings, choose_batch
from stretto.sdk.shutdown import ExitHook, Preemption
from stretto.sdk.step_consensus import ControlFlags
from stretto.sdk.step_profiler import OperatingPoint, StepProfiler, StepTimes
from stretto.sdk.training import Training, clip, forget_gradients, optimizer_step
from stretto.sdk.training_group import ErrorHandler, Switch, TrainingGroup

log = logging.getLogger("stretto.sdk")

# The phases of every step, looked up once: in Python 3.11 a member of an Enum takes 0.1 µs each time.
BETWEEN_STEPS, FORWARD, BACKWARD_DONE = Phase.BETWEEN_STEPS, Phase.FORWARD, Phase.BACKWARD_DONE


class Current(NamedTuple):
    """The micro-batch that the script has, or had last."""

    step: Step
    own: MicroBatch
    is_first: bool  # of the step
    is_last: bool  # likewise


class ElasticJob:
    """A training that can grow, shrink, move and leave between any two steps. Built by `elastic`."""

    def __init__(
        self, training: Training, data: Dataset[Any], settings: Settings, environment: Environment
    ) -> None:
        self._training, self._data, self._settings = training, data, settings
        self._gpus = environment.gpus
        self._times = StepTimes()
        self._state = LoopState()
        self._current: Current  # in the phases of IS_OUT
        self._loop: object = None  # the batches() that is under way, of several that a script may hold
        self._last_step_s: float | None = None
        self._epochs: int | None = None
        # What goes to the service and to disk. Alone there is no channel, and each of these says nothing.
        channel = (
            Channel(environment.url, environment.token, environment.worker, environment.authorities)
            if environment.is_elastic
            else None
        )
        self._reporter = Reporter(channel, settings.report_s)
        folder = Path(environment.checkpoint_dir) if environment.checkpoint_dir else None
        self._checkpoints = CheckpointManager(
            folder,
            settings.checkpoint_s,
            training,
            lambda step, path: channel.post("checkpoint", step=step, path=str(path)) if channel else None,
        )
        # From here on SIGTERM is answered: joining takes until all members of a generation are there.
        self._preemption = Preemption(settings.grace_s, self._save_alone, self._announce_leaving)
        self.model = Replica(training.model, dict(settings.ddp))
        """What the script calls in place of its model."""
        self._group = TrainingGroup(
            environment, training, self.model, self._preemption, channel, settings.timeout_s
        )
        self._group.join(self._checkpoints)
        # In the group: errors in it are handled, the batch follows from its size, the script's end is seen.
        self._error_handler = ErrorHandler(self._group, self._checkpoints, self._preemption)
        self.model.error_handler = self._error_handler
        self._fit_to_group()
        self._exit_hook = ExitHook(self._save_alone, self._end_late)
        self._state.enter(Phase.MID_EPOCH if self._group.is_newcomer else Phase.BETWEEN_EPOCHS)

    # What a script calls in its loop

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are still to do, of `count` in all.

        A rank that leaves this loop early, and then its script, ends the training for all. The others hear of
        it when they ask for the batches of the next epoch. They get none, and leave the loop with that epoch.
        """
        self._epochs = count
        progress = self._training.progress
        while progress.epoch < count:
            yield progress.epoch
            if self._state.phase is Phase.OVER:
                break
            self._drop_micro_batch()
            self._loop = None  # one that was left and that something still holds is of no epoch any more
            progress.end_epoch()
            self._training.release()
            self._state.enter(Phase.BETWEEN_EPOCHS)
            if self.rank == 0:
                self._report()
        self._finish()

    def batches(self) -> Iterator[Any]:
        """What this rank takes of the rest of the epoch, by micro-batch; switches happen between steps.

        All ranks may leave it early, after the same step: the rest of the epoch is left out.
        """
        # Before the first step of an epoch all ranks meet: it may begin with others, or not at all. Within an
        # epoch they do not, as a newcomer of a moment ago, whose peers are at a step.
        if self._state.phase in MEETS_NEXT:
            self._state.enter(Phase.MEETING)
            with self._error_handler:
                agreed = self._group.consensus.now(self._flags())
                if agreed.end and not agreed.leave:
                    self._state.enter(Phase.OVER)
                else:
                    self._act_on(agreed)
                    self.model.follow_freezing()
        self._drop_micro_batch()
        if self._state.phase is not Phase.OVER:
            self._state.enter(BETWEEN_STEPS)
        # The rest of the epoch's order, by one generation after the other.
        progress = self._training.progress
        order = order_of(progress.epoch, progress.dataset_samples, progress.seed, self._settings.shuffle)
        self._loop = loop = object()
        try:
            while progress.taken < len(order) and self._state.phase is not Phase.OVER:
                yield from self._batches_of_generation(order, loop)
        except GeneratorExit:
            if self._loop is loop:  # it is closed late where something else holds it
                self._end_batches()
            raise
        self._end_batches()

    def _end_batches(self) -> None:
        self._loop = None
        self._training.freeze()
        self._drop_micro_batch()
        if self._state.phase is not Phase.OVER:
            self._state.enter(Phase.EVALUATING)

    def _drop_micro_batch(self) -> None:
        """Of a loop that was left in the middle of a step: nothing of it may go into the next one."""
        if self._state.phase in IS_OUT:
            self.model.end_micro_batch()
            forget_gradients(self._training)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of the mean loss over this batch; the last one of a step averages gradients."""
        if self._state.phase is not FORWARD:
            raise RuntimeError("backward() must be called once for each batch of batches()")
        current = self._current
        if not current.is_first and all(each.grad is None for each in self._training.model.parameters()):
            raise RuntimeError(
                "gradients must add up over the micro-batches of a step, got none after an earlier one: leave"
                " zero_grad() to step()"
            )
        scaler = self._settings.scaler
        weighted = loss if current.own.weight == 1.0 else loss * current.own.weight
        with self._error_handler:
            (weighted if scaler is None else scaler.scale(weighted)).backward()
            self.model.end_micro_batch()
            if self._profiler.is_measured:
                self._measure(current)
        self._state.enter(BACKWARD_DONE)
        if not current.own.is_padding:
            self._reporter.loss = loss.detach()

    def step(self) -> bool:
        """The optimiser's step, and no gradients after it; before its last micro-batch nothing, and False."""
        if self._state.phase is not BACKWARD_DONE:
            raise RuntimeError("step() must follow backward()")
        current = self._current
        if not current.is_last:
            return False
        clip(self._training, self._settings)
        factor, gain = self._lr_factor, self._gain
        with self._training.changing:
            optimizer_step(self._training, self._settings.scaler, factor)
            self._training.has_stepped()
            gain *= current.step.samples / self.batch.total
            self._training.progress.count_step(current.step.samples, gain)
        forget_gradients(self._training)
        self._state.enter(BETWEEN_STEPS)
        self._steps_here += 1
        self._last_step_s = self._profiler.end_step()
        return True

    def report(self, **metrics: float) -> None:
        """What the evaluation of this epoch found; the first that is no loss is the job's metric."""
        self._training.progress.note_found(metrics)

    def check(self) -> None:
        """Answer preemption in what takes long outside of `batches`, such as evaluation; call it often.

        Where any rank was told to leave, all meet here or before their next epoch. A checkpoint is written,
        and the process ends with status 143. Inside of `batches` it does nothing: steps answer there.
        """
        if self._state.phase in MEETS_NEXT and self._group.is_any_rank_leaving():
            with self._error_handler:
                self._act_on(self._group.consensus.now(ControlFlags(leave=1.0)))

    def sum(self, **values: float) -> dict[str, float]:
        """Over all ranks, what each found in its part of an evaluation; all call it, after `batches`.

        Answers preemption as `check` does.
        """
        if self._state.phase not in HAS_PEERS:
            raise RuntimeError("sum() must follow batches() in its epoch, where all workers are together")
        names = sorted(values)
        own = [float(values[name]) for name in names]
        if self._state.phase is not Phase.OVER:  # else nothing was trained, and the others have gone
            with self._error_handler:
                own_flags = ControlFlags(leave=self._group.own_flags().leave)
                if self._group.consensus.now(own_flags).leave:
                    self._group.leave(self._checkpoints)
                own = process_group.all_reduce_sums(own)
        return dict(zip(names, own, strict=True))

    # What a script may want to know

    @property
    def rank(self) -> int:
        """Of this worker, now."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """How many train, now."""
        return self._group.membership.world

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of this worker, which trains one replica of the model on them; by `stretto.sdk.devices()`."""
        return self._gpus

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 without a service."""
        return self._group.generation

    @property
    def steps(self) -> int:
        """Of the optimiser, in the whole training."""
        return self._training.progress.step

    @property
    def progress_steps(self) -> float:
        """Steps of the initial batch that would have come as far: what a schedule by steps should count."""
        return self._training.progress.progress_steps

    @property
    def scale(self) -> float:
        """The batch in initial batches."""
        return self.batch.total / self._settings.bounds.initial

    @property
    def gain(self) -> float:
        """What a step is worth in steps of the initial batch; between 1 and `scale`."""
        return self._gain

    @property
    def lr_factor(self) -> float:
        """By what the learning rate is multiplied now."""
        return self._lr_factor

    @property
    def switches(self) -> list[Switch]:
        """Changes of the group so far, with what each cost."""
        return self._group.switches

    @property
    def is_padding(self) -> bool:
        """Whether the batch that is out only keeps the peers company, and counts nothing."""
        return self._state.phase in IS_OUT and self._current.own.is_padding

    # Between steps

    def _batches_of_generation(self, order: NDArray[np.int64], loop: object) -> Iterator[Any]:
        """Until the end of the epoch or the next change."""
        # The steps of this rank, and a loader for them, which is some steps ahead of the training. Both end
        # with the generation: another rank or world takes other samples.
        progress = self._training.progress
        batch = self.batch
        plan = (order, batch.total, batch.accumulation, self.rank, self.world_size, batch.by_worker)
        steps, ahead = tee(steps_from(progress.taken, *plan))
        with self._error_handler:  # where its processes come from may have died of SIGTERM
            generator = loader_generator(progress.seed, progress.epoch, progress.taken, self.rank)
            loader = batches_of(self._data, ahead, self._settings.loader, generator)
        self._profiler.start_window()
        for step in steps:
            self._profiler.begin_step(step, self.batch.total)
            for place, own in enumerate(step.micro_batches):
                with self._error_handler:
                    batch = next(loader)
                # Gradients are averaged after the last one only; in a measured step by hand, after all.
                is_last = place == len(step.micro_batches) - 1
                self._current = Current(step, own, place == 0, is_last)
                self._state.enter(FORWARD)
                self.model.begin_micro_batch(is_last and not self._profiler.is_measured)
                yield batch
                # What the script has done since: it must not have gone to another epoch, and each micro-batch
                # needs its backward pass, or peers would wait for gradients.
                if self._loop is not loop:
                    raise RuntimeError(
                        "batches() must not go on once its epoch has ended, or another one began"
                    )
                if self._state.phase is FORWARD:
                    raise RuntimeError("each batch must go through backward(), got one that did not")
            if self._state.phase is not BETWEEN_STEPS:
                raise RuntimeError("step() must follow backward(), got the next batch without it")
            # Between two steps, the same two on all ranks: leave, switch or save, if that was agreed.
            if self._group.consensus.is_due(self._steps_here):
                with self._error_handler:
                    if self._after_step():
                        return

    def _after_step(self) -> bool:
        """Do what was agreed for after this step; whether the group or the batch changed."""
        self._profiler.close_window()
        agreed = self._group.consensus.after(self._steps_here, self._flags())
        self._profiler.period = agreed.measuring_period
        if self.rank == 0 and self._reporter.is_due:
            self._report()
        return self._act_on(agreed)

    def _flags(self) -> ControlFlags:
        return replace(
            self._group.own_flags(),
            checkpoint=float(self.rank == 0 and self._checkpoints.is_due),
            step_s=self._profiler.step_s,
            measuring_s=self._profiler.measuring_s,
        )

    def _act_on(self, agreed: ControlFlags) -> bool:
        """Leave, switch or save, as agreed; whether the group or the batch changed."""
        if agreed.leave:
            self._group.leave(self._checkpoints)
        switch = self._group.switch
        if agreed.generation > self.generation and switch(agreed, self._last_step_s, self._checkpoints):
            self._fit_to_group()
            return True
        if agreed.checkpoint:
            self._checkpoints.save_together(self.rank, wait=False)
            self._profiler.start_window()
        return False

    def _fit_to_group(self) -> None:
        """In a new group: choose the batch, and measure anew."""
        generation = self._group.membership.generation
        self.batch: Batch = choose_batch(self._settings.bounds, self.world_size, generation.batch)
        point = OperatingPoint(
            generation.nodes, generation.gpus, self.batch.local(self.world_size), self.batch.accumulation
        )
        self._profiler = StepProfiler(self.model, self._training.device, self.world_size, point, self._times)
        self._steps_here = 0
        self._update_gain()

    def _update_gain(self) -> None:
        """What a step of this batch is worth, and what the learning rate follows from it."""
        low, high = sorted((1.0, self.scale))
        self._gain = min(max(self._training.progress.noise.gain(self.scale), low), high)
        self._lr_factor = self._settings.rule(self.scale, self._gain)

    def _measure(self, current: Current) -> None:
        scaler, progress = self._settings.scaler, self._training.progress
        loss_scale = scaler.get_scale if scaler is not None else lambda: 1.0
        sample = self._profiler.end_micro_batch(current.step, current.is_last, loss_scale)
        if sample is not None:
            batches = (progress.step - progress.measured_step) * self.scale
            progress.noise = progress.noise.with_sample(sample, self._settings.bounds.initial, batches)
            progress.measured_step = progress.step
            self._update_gain()

    def _report(self) -> None:
        self._reporter.send(
            self._training.progress, self._times, self.batch, self._settings.bounds, self._epochs
        )

    def _announce_leaving(self) -> None:
        self._group.announce_leaving()

    def _save_alone(self) -> None:
        if self.rank == 0:
            self._checkpoints.save_alone()

    def _finish(self) -> None:
        """The training is over, and so it is for all ranks once they meet."""
        with self._error_handler:
            if (
                self._state.phase is not Phase.OVER
                and self._group.consensus.now(replace(self._flags(), end=1.0)).leave
            ):
                self._group.leave(self._checkpoints)
            self._close()

    def _close(self) -> None:
        self._checkpoints.wait()
        if not self._group.exit_barrier("end", wait=True):
            log.warning(
                "rank %d ended after step %d, and others have not: all must after the same step",
                *(self.rank, self.steps),
            )
        self._group.close("over")
        if self._state.phase is not Phase.OVER:
            self._state.enter(Phase.FINISHED)
        self._exit_hook.forget()

    def _end_late(self) -> None:
        """The script ends well without having come to the end of `epochs`: what is done there."""
        if self._group.is_closed:  # it left as it was told
            return
        if self.rank == 0:
            self._report()
        progress = self._training.progress
        if 0 < progress.taken < progress.dataset_samples:  # after whichever step, as all do that leave there
            self._close()
        else:
            self._finish()
