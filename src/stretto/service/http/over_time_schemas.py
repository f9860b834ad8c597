"""What answers about the past and the future look like: the OpenAPI document is made of these, too."""

from typing import Any

from stretto.service.http.schemas import Shown


class Decision(Shown):
    """One decision."""

    seq: int
    at_s: float
    seen: int  # the last event that it knew
    due: list[str]  # what made it necessary
    took_ms: float
    prices: dict[str, float] | None  # of one more GPU, by type
    gap: float | None  # at most so far from the best, as a share
    wake_s: float | None
    changes: dict[str, int]  # actions by verb
    actions: list[dict[str, Any]] | None  # for operators


class Decisions(Shown):
    """The newest decisions, the latest first."""

    policy: str
    decisions: list[Decision]
    took_ms_p50: float | None
    took_ms_p95: float | None
    dropped: int  # actions that were stale when they came to be done, since the log began
    again: str  # the command that makes one again, but for its number; "": not for this caller


class PricesOverTime(Shown):
    """What one more GPU of each type was worth, in the unit of the policy's objective."""

    now_s: float
    unix_s: float
    from_s: float
    gpu_types: list[str]
    steps: list[tuple[float, list[float]]]  # from a time on, in the order of the types; older ones have fewer


class TimelineJob(Shown):
    """What one job has held."""

    id: str
    name: str
    user: str
    queue: str
    submitted_s: float | None  # null: it has left memory
    ended_s: float | None  # null: it has not
    state: str  # the last one; "": it has not ended, or has left memory
    is_mean: bool  # sizes of long ago are means of a quarter of an hour
    # [time, GPUs, their type, why]; each holds until the next
    steps: list[tuple[float, float, str, str]]


class TimelineArea(Shown):
    """One of the jobs that have had the most."""

    id: str
    name: str
    held: list[float]


class Timeline(Shown):
    """GPUs over time; times are since the log began."""

    now_s: float
    unix_s: float  # the same moment
    from_s: float
    step_s: float
    gpus: int  # that there are now
    held: list[float]  # by all jobs: means of each step
    areas: list[TimelineArea]
    total: int  # jobs, whether they are listed here or not
    waiting: int  # of these, so many have held nothing yet
    jobs: list[TimelineJob]


class Fan(Shown):
    """GPUs at times ahead: the middle of the futures, and where most of them lie; null: not known."""

    low: list[float | None]
    middle: list[float | None]
    high: list[float | None]


class JobAhead(Shown):
    """What one job would hold."""

    held: Fan
    start: dict[str, float | None]  # low, middle, high: Unix times
    end: dict[str, float | None]


class SizesAhead(Shown):
    """GPUs over the time that comes."""

    now_s: float
    unix_s: float
    policy: str
    draws: int
    step_s: float
    held: Fan  # by all jobs
    jobs: dict[str, JobAhead]


class StartAndEnd(Shown):
    """When a job would start and end: low, middle and high, as Unix times; null: not reached."""

    start: dict[str, float | None]  # of one that runs: now
    end: dict[str, float | None]


class LineForecast(Shown):
    """Simulated futures of all jobs."""

    draws: int
    made_unix_s: float  # when
    until_unix_s: float  # how far they reach
    started: int  # jobs that wait, and would start in that time
    jobs: dict[str, StartAndEnd]  # those that were asked for


class WaitingLine(Shown):
    """Jobs that wait, the next to start first: as far as that is foreseen, then in the policy's order."""

    waiting: int  # jobs of all users
    policy: str
    order: str  # which job comes first under it, in words; "": it does not say
    line: list[tuple[str, int]]  # the caller's jobs, with their place among those of all users
    forecast: LineForecast | None  # None: there is none yet
    is_foreseeing: bool  # whether a newer one is being worked out
    failed: str  # why there is none; "" where there is no reason


class DecisionType(Shown):
    """What a decision saw of one GPU type, and what one more GPU of it was worth; null: it has no prices."""

    gpu_type: str
    gpus: int
    free: int
    price: float | None


class DecisionHeld(Shown):
    """What a job holds; 0: nothing."""

    gpus: int
    gpu_type: str


class DecisionChange(Shown):
    """What a decision changed."""

    job: str
    name: str
    verb: str
    before: DecisionHeld
    after: DecisionHeld


class DecisionWaits(Shown):
    """Why a job waits by a decision."""

    job: str
    name: str
    reason: str  # for programs
    why: str


class DecisionAgain(Shown):
    """A decision made again. Its time is on the clock of the service, and as a Unix time."""

    seq: int
    at_s: float
    unix_s: float
    policy: str
    due: list[str]  # for programs
    because: list[str]  # the same in words
    same: bool  # whether it comes out as it was written
    difference: str
    took_ms: float  # when it was made
    gap: float | None
    jobs: int  # that it saw
    types: list[DecisionType]
    changes: list[DecisionChange]
    waiting: int
    waits: list[DecisionWaits]  # of a thousand at most
    command: str  # that does the same


class TrainingPoint(Shown):
    """What a training said of itself at one time; null: it said nothing."""

    at_s: float
    step: int | None
    epoch: int | None
    loss: float | None
    metric: float | None
    batch: int | None  # samples of a step


class TrainingResize(Shown):
    """A change of size, and what it cost."""

    at_s: float
    gpus_before: float
    gpus: float
    gpu_type: str
    how: str  # start, restart, in place, stop
    trains_after_s: float | None  # until all workers trained at the new size; null: not yet, or never
    lost_s: float | None  # without training, or of training in vain; null: not known
    reason: str


class MeasuredPace(Shown):
    """How fast a training came on at one size."""

    gpu_type: str
    gpus: float
    steps_per_s: float  # of the initial batch, where the training says so
    over_s: float  # so long was measured


class BelievedPace(Shown):
    """How fast the policy believes it to be."""

    gpu_type: str
    gpus: int
    steps_per_s: float  # of the initial batch


class Training(Shown):
    """How the training of a job went. Times are on the clock of the service."""

    now_s: float
    unix_s: float
    points: list[TrainingPoint]
    resizes: list[TrainingResize]
    measured: list[MeasuredPace]
    believed: list[BelievedPace]
