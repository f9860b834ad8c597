"""Where a script is in its loop over epochs and batches: the state machine of `ElasticJob`.

    JOINING → BETWEEN_EPOCHS → MEETING → BETWEEN_STEPS → EVALUATING → BETWEEN_EPOCHS → … → FINISHED
       ↓                          ↓         ↓      ↑
    MID_EPOCH → BETWEEN_STEPS    OVER    FORWARD → BACKWARD_DONE

What the job answers to a call follows from its phase. It says whether all ranks meet before their next step,
whether `sum` has peers, whether `backward` or `step` is due. `SUCCESSORS` is the whole of it.
"""

from collections.abc import Mapping
from enum import Enum

from stretto.errors import StrettoError


class IllegalTransition(StrettoError):
    """A job was to enter a phase that cannot follow its present one: a bug of the SDK, not of the script."""

    def __init__(self, before: "Phase", after: "Phase") -> None:
        allowed = ", ".join(sorted(phase.name for phase in SUCCESSORS[before])) or "none"
        super().__init__(
            f"phase after {before.name} must be one of {allowed}, got {after.name}: a bug of the SDK"
        )


class Phase(Enum):
    """Of one worker's job."""

    JOINING = "joins a group"
    BETWEEN_EPOCHS = "has no batches of this epoch yet; all ranks meet before they have"
    MID_EPOCH = "came to others in the midst of an epoch; they wait in no meeting"
    MEETING = "agrees with all ranks whether and with whom the epoch begins"
    BETWEEN_STEPS = "is inside batches(), with no micro-batch out"
    FORWARD = "has a micro-batch out, before its backward pass"
    BACKWARD_DONE = "has a micro-batch out, after its backward pass"
    EVALUATING = "is through with this epoch's batches"
    OVER = "has heard that the training is over for some rank; takes no batches any more"
    FINISHED = "is through with all epochs, and out of the group"

    # Enum's own hash is a call in Python, which would cost two microseconds of each step.
    __hash__ = object.__hash__


# A script may leave its loops anywhere: `epochs` goes on, or the process ends, from wherever it is then.
LEFT = (Phase.BETWEEN_EPOCHS, Phase.FINISHED)

SUCCESSORS: Mapping[Phase, frozenset[Phase]] = {
    # A newcomer's peers are at a step; a first generation has all of its ranks before an epoch.
    Phase.JOINING: frozenset({Phase.BETWEEN_EPOCHS, Phase.MID_EPOCH}),
    Phase.BETWEEN_EPOCHS: frozenset({Phase.MEETING, *LEFT}),  # itself: an epoch without batches()
    Phase.MID_EPOCH: frozenset({Phase.BETWEEN_STEPS, *LEFT}),
    # Only a meeting tells that others are through: all ranks hear of it there, and none trains alone.
    Phase.MEETING: frozenset({Phase.BETWEEN_STEPS, Phase.OVER, *LEFT}),
    # batches() may be called again while an earlier loop over it was left and something still holds it.
    Phase.BETWEEN_STEPS: frozenset({Phase.FORWARD, Phase.BETWEEN_STEPS, Phase.EVALUATING, *LEFT}),
    Phase.FORWARD: frozenset({Phase.BACKWARD_DONE, Phase.BETWEEN_STEPS, Phase.EVALUATING, *LEFT}),
    # The next micro-batch of the same step, or the optimiser's step.
    Phase.BACKWARD_DONE: frozenset({Phase.FORWARD, Phase.BETWEEN_STEPS, Phase.EVALUATING, *LEFT}),
    Phase.EVALUATING: frozenset({Phase.MEETING, *LEFT}),
    Phase.OVER: frozenset(),
    # A script that trains alone may ask for more epochs: no peers are left to meet.
    Phase.FINISHED: frozenset({Phase.BETWEEN_STEPS, *LEFT}),
}

MEETS_NEXT = frozenset({Phase.BETWEEN_EPOCHS, Phase.EVALUATING})  # all ranks meet before their next step
IS_OUT = frozenset({Phase.FORWARD, Phase.BACKWARD_DONE})  # a micro-batch is
HAS_PEERS = frozenset({Phase.EVALUATING, Phase.OVER})  # all ranks are through with the same batches


class LoopState:
    """The phase of one job; it changes as `SUCCESSORS` allows, and only here."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = Phase.JOINING

    def enter(self, phase: Phase) -> None:
        """Be in that phase; raises `IllegalTransition` where it cannot follow the present one."""
        if phase not in SUCCESSORS[self.phase]:
            raise IllegalTransition(self.phase, phase)
        self.phase = phase
