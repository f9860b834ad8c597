"""What a policy hands over, and what comes of it: shares, actions, a plan with its reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np

from stretto.model.arrays import BoolArray, FloatArray, IntArray
from stretto.model.job import JobId
from stretto.model.memory import Memory
from stretto.model.placement import Allocation, Batch, Placement

if TYPE_CHECKING:
    from stretto.model.lending import Loans
    from stretto.model.snapshot import JobTable


class Why(IntEnum):
    """The dominant reason for which a job waits. Negative codes mean *never*, positive ones *not yet*."""

    RUNS = 0
    NO_FREE_GPUS = 1  # not enough GPUs of a suitable type are free
    BEHIND_IN_ORDER = 2  # GPUs are free, but an earlier job is waiting for more of them
    WORTH_LESS = 3  # others make more of the GPUs at the present price
    FRAGMENTED = 4  # enough GPUs are free, but not where the placement rule wants them
    RECOVERING = 5  # a stop or start is under way
    NOT_PROFILED = 6  # its profiling run comes first
    QUOTA = 7  # its queue holds as many GPUs as it may
    RESERVED = 8  # what it would need is kept for others
    PREEMPTED = 9  # jobs of higher priority have just taken its GPUs
    OUTRANKED = 10  # jobs of higher priority hold what it would need
    MAY_NOT_BORROW = 11  # its queue's quota is in use, and what is beyond could not be taken back from it
    OVER_SHARE = 12  # its user or queue has its fair share, and others wait for theirs
    TOO_LARGE = -1  # asks more GPUs than there are of any type that it accepts
    NO_SUCH_TYPE = -2  # accepts only GPU types that the cluster does not have
    DECLINED = -3  # the policy refused it for good
    EXCEEDS_QUOTA = -4  # asks for more GPUs than its queue may ever hold
    TOO_SLOW = -5  # by what was measured, no GPUs in its range keep the latency that it has promised


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why each job of a snapshot waits: codes as a column, words made on demand."""

    code: IntArray  # (jobs,) values of Why
    evidence: Mapping[int, str] = field(default_factory=dict)  # by row, where the policy has more to say

    def of(self, row: int) -> Why:
        """The reason of one job."""
        return Why(int(self.code[row]))


@dataclass(frozen=True, slots=True)
class Pinned:
    """Exactly where a job is to run, chosen by the policy itself."""

    nodes: tuple[int, ...]  # indices into the cluster's nodes, increasing
    gpus: tuple[int, ...]  # GPUs on each; the placer names them
    masks: tuple[int, ...] = ()  # or named GPUs, one mask for each node
    local_batch: tuple[int, ...] = ()  # samples on each GPU (ONES)
    flexible: tuple[int, ...] = ()  # of the named GPUs, those of flexible workers (Lyra)


@dataclass(frozen=True, eq=False)
class Shares:
    """What every job of the snapshot gets: complete, row by row. A share is a count; the placer names GPUs.

    Columns are (jobs,). A job with `gpus` = 0 waits, or is stopped. `kind` = -1: the placer picks the type
    with most free GPUs that fits, ties by the cluster's order. `nodes` = 0: the placer's rule decides.
    """

    gpus: IntArray
    kind: IntArray
    nodes: IntArray
    why: Reasons
    memory: Memory = None
    wake_s: float | None = None  # when the policy wants to be asked again, at the latest
    # A policy that states one of the next two always states it: without, running jobs go on as they are.
    profiling: BoolArray | None = None  # a profiling run, also on fewer GPUs than the range of the job allows
    cpus: FloatArray | None = None  # cores in all; 0 leaves it at the proportional share (Synergy)
    pinned: Mapping[int, Pinned] = field(default_factory=dict)  # by row
    order: IntArray | None = None  # rows in the order in which to place them; by size where absent
    in_order: bool = False  # what comes after a job that cannot be placed is not placed either
    prices: FloatArray | None = None  # (types,) worth of one more GPU
    gap: float | None = None  # certified distance of the choice from the best possible

    def keep_all(self, jobs: "JobTable") -> bool:
        """Whether all jobs go on as they are, for sure: a policy that changes nothing may say so.

        It hands over the very columns that say what they hold, without wishes about nodes, pins or runs.
        """
        is_held = self.gpus is jobs.held_gpus and self.kind is jobs.held_kind
        is_plain = not self.pinned and self.profiling is None and self.cpus is None
        return is_held and is_plain and not self.nodes.any()


class Verb(StrEnum):
    """What an action does to a job; each has its own cost in a world."""

    START = "start"
    STOP = "stop"
    GROW = "grow"
    SHRINK = "shrink"
    MOVE = "move"
    RETUNE = "retune"


@dataclass(frozen=True, slots=True)
class Action:
    """One change to one job."""

    verb: Verb
    job: JobId
    before: Allocation | None
    after: Allocation | None


@dataclass(frozen=True, slots=True)
class Preemption:
    """A job that gives up GPUs to one of higher priority."""

    job: JobId
    by: JobId
    priority: int  # of the one that takes them
    gpus: int  # that the job holds afterwards; 0: it is stopped


@dataclass(frozen=True, eq=False)
class Plan:
    """What should happen, and why the rest should not. Based on one version of the snapshot."""

    based_on: int
    actions: tuple[Action, ...]
    placement: Placement  # as it will be once every action is done
    why: Reasons
    jobs: "JobTable"  # whose rows `why` speaks of
    memory: Memory = None
    wake_s: float | None = None
    prices: FloatArray | None = None
    gap: float | None = None
    preemptions: tuple[Preemption, ...] = ()  # why jobs are stopped or made smaller for others
    loans: "Loans | None" = None  # what was settled with lenders before; carried out first
    # What adaptive jobs are to train with from now on, where that is new; only in a world that asks for it.
    batches: Mapping[JobId, Batch] = field(default_factory=dict)


def actions_between(before: Placement, after: Placement) -> tuple[Action, ...]:
    """What turns one placement into the other: first all that releases GPUs, then all that takes them."""
    if after is before:
        return ()
    touched = after.touched_since(before)
    jobs = dict.fromkeys([*before, *after]) if touched is None else touched
    releasing: list[Action] = []
    taking: list[Action] = []
    for job in jobs:
        old, new = before.get(job), after.get(job)
        if old is new or old == new:
            continue
        if new is None:
            releasing.append(Action(Verb.STOP, job, old, None))
        elif old is None:
            taking.append(Action(Verb.START, job, None, new))
        else:
            verb = _verb(old, new)
            (releasing if verb is Verb.SHRINK else taking).append(Action(verb, job, old, new))
    return (*releasing, *taking)


def _verb(old: Allocation, new: Allocation) -> Verb:
    if new.gpus != old.gpus and new.kind == old.kind:
        return Verb.GROW if new.gpus > old.gpus else Verb.SHRINK
    if (new.kind, new.nodes, new.masks) == (old.kind, old.nodes, old.masks):
        return Verb.RETUNE
    return Verb.MOVE


def waiting_for(code: Why, jobs: int) -> Reasons:
    """The same reason for every job; a start to be refined."""
    return Reasons(np.full(jobs, int(code), dtype=np.int64))
