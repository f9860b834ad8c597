"""How all ranks agree, every few steps, on what happens next and at which step.

A beat is one small all-reduce (maximum) over gloo that runs beside the training: it is started after some
step and looked at after a later one. Both steps follow from numbers that all ranks have alike, and the result
of an all-reduce is the same everywhere; so whatever a beat says, every rank learns it after the same step.
Nobody acts on what only it knows.

Beats come about every `BEAT_S`, however short the steps are: a look into a store in every step would cost
more than 2 % of a step of 5 ms (125 µs measured).
"""

from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

BEAT_S = 0.2  # chosen: a switch waits for at most two beats, and training goes on meanwhile
MOST_STEPS = 1000  # between two beats
LEAST_PERIOD = 20  # steps from one measured step to the next
MOST_PERIOD = 1000
MEASURING_SHARE = 0.005  # of the training's time that measuring may take; chosen
RANKS = 2.0**20  # more than there are; a generation and a rank share one number


@dataclass(frozen=True, slots=True)
class Signals:
    """What one rank says, or the largest of what all said. All are >= 0."""

    leave: float = 0.0  # 1: somebody was told to stop
    end: float = 0.0  # 1: for somebody the training is over
    proposal: float = 0.0  # generation * RANKS + rank of who proposes it; 0: none
    checkpoint: float = 0.0  # 1: it is time for one
    step_s: float = 0.0  # an ordinary step
    measuring_s: float = 0.0  # what the measured steps of a period take longer

    @property
    def generation(self) -> int:
        """That is proposed; 0 for none."""
        return int(self.proposal // RANKS)

    @property
    def proposer(self) -> int:
        """Rank of who proposes it."""
        return int(self.proposal % RANKS)

    @property
    def steps_to_next(self) -> int:
        """Until the next beat."""
        return max(1, min(MOST_STEPS, int(BEAT_S / self.step_s))) if self.step_s > 0 else 1

    @property
    def measuring_period(self) -> int:
        """Steps from one measured step to the next."""
        if self.step_s <= 0 or self.measuring_s <= 0:
            return LEAST_PERIOD
        wanted = self.measuring_s / (MEASURING_SHARE * self.step_s)
        return int(max(LEAST_PERIOD, min(MOST_PERIOD, wanted)))


QUIET = Signals()


def propose(generation: int, rank: int) -> float:
    """The signal that proposes a generation."""
    return generation * RANKS + rank if generation else 0.0


class Beats:
    """The beats of one generation."""

    def __init__(self, world: int, group: dist.ProcessGroup | None = None) -> None:
        self._world, self._group = world, group  # None: the default group
        self._under_way: tuple[dist.Work | None, torch.Tensor] | None = None
        self._next_step = 0

    def is_due(self, step: int) -> bool:
        """Whether a beat is due after this step; `step` counts the steps of the generation."""
        return step >= self._next_step

    def after(self, step: int, said: Signals) -> Signals:
        """What is agreed after this step, when a beat is due. `said` goes into the beat that starts now."""
        agreed = self._finish()
        self._start(said)
        self._next_step = step + agreed.steps_to_next
        return agreed

    def now(self, said: Signals) -> Signals:
        """What all say now, and in the beat under way. Every rank must come here: between epochs they do."""
        before = self._finish()
        self._start(said)
        now = self._finish()
        return Signals(*map(max, astuple(before), astuple(now)))

    def drain(self) -> None:
        """Wait for the beat under way, and forget it: the group is about to be left."""
        self._finish()

    def _start(self, said: Signals) -> None:
        values = torch.tensor(astuple(said), dtype=torch.float64)
        work = None
        if self._world > 1:
            work = dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._under_way = work, values

    def _finish(self) -> Signals:
        if self._under_way is None:
            return QUIET
        work, values = self._under_way
        self._under_way = None
        if work is not None:
            work.wait()
        return Signals(*values.tolist())
