"""Queues with their quotas, priority classes, and fair shares by decayed usage of GPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp2, expm1, log

from stretto.errors import InputError
from stretto.model.job import Job

DEFAULT_QUEUE = "default"  # of jobs that name none


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its bounds, which hold for all queues in it, too."""

    name: str
    quota_gpus: int | None = None  # guaranteed to its jobs; None: nothing is, and nothing limits them
    borrow_gpus: int = 0  # that they may hold beyond the quota while others leave them
    weight: float = 1.0
    users: tuple[str, ...] | None = None  # who may use it; None: as what it is in, else everybody
    is_default: bool = False  # of jobs that name none; without a quota it has what is left over
    shares: float = 1.0  # beside those of its siblings
    parent: str = ""  # the queue that it is a part of


def users_of(queues: Mapping[str, Queue], name: str) -> tuple[str, ...] | None:
    """The users of a queue: its own list, else that of the nearest queue around it; None: all users."""
    for one in reversed(line_of(name, parents_of(queues))):
        if one in queues and queues[one].users is not None:
            return queues[one].users
    return None


def may_use(queues: Mapping[str, Queue], name: str, user: str) -> bool:
    """Whether a user's jobs may be in a queue."""
    users = users_of(queues, name)
    return users is None or user in users


def parents_of(queues: Mapping[str, Queue]) -> dict[str, str]:
    """By queue that is a part of another one, that one."""
    return {name: queue.parent for name, queue in queues.items() if queue.parent}


def line_of(queue: str, parents: Mapping[str, str]) -> list[str]:
    """A queue and those that it is in, the outermost first."""
    found: list[str] = []
    while queue and queue not in found:
        found.append(queue)
        queue = parents.get(queue, "")
    return found[::-1]


def guarantor_of(name: str, queues: Mapping[str, Queue], parents: Mapping[str, str]) -> str:
    """The nearest queue around one that has a quota, of which its own quota is a part; empty for none."""
    around = line_of(name, parents)[-2::-1]
    return next((one for one in around if one in queues and queues[one].quota_gpus is not None), "")


def with_quotas(
    queues: Mapping[str, Queue], capacity_gpus: int, *, counts_parts: bool = True
) -> dict[str, Queue]:
    """Queues that have a quota. The default queue has what is left over, and may borrow everything.

    Only where quotas are set, and where it is marked as such, which old logs do not do. counts_parts: quotas
    of queues count within one without a quota, too. In decisions of old logs they did not.
    """
    limited = {name: queue for name, queue in queues.items() if queue.quota_gpus is not None}
    default = queues.get(DEFAULT_QUEUE)
    if limited and default is not None and default.is_default and default.quota_gpus is None:
        parents = parents_of(queues)
        guaranteed = sum(
            queue.quota_gpus or 0
            for name, queue in limited.items()
            if not (guarantor_of(name, queues, parents) if counts_parts else queue.parent)
        )
        rest = max(capacity_gpus - guaranteed, 0)
        limited[DEFAULT_QUEUE] = replace(default, quota_gpus=rest, borrow_gpus=capacity_gpus)
    return limited


def check_queue_tree(queues: Mapping[str, Queue]) -> None:
    """Raise InputError where a queue is in one that there is not, or in itself, or quotas do not add up."""
    for name, queue in queues.items():
        if queue.parent and (queue.parent not in queues or DEFAULT_QUEUE in (name, queue.parent)):
            others = sorted(set(queues) - {name, DEFAULT_QUEUE})
            raise InputError(
                f"parent of queue {name}: expected one of {', '.join(others)}, got {queue.parent!r}"
                if others and name != DEFAULT_QUEUE
                else f"parent of queue {name}: there is no queue that it can be in, got {queue.parent!r}"
            )
        above, path = queue.parent, [name]
        while above:
            path.append(above)
            if above in path[:-1]:
                raise InputError(f"parent of queue {name}: it would be in itself: {' in '.join(path)}")
            above = queues[above].parent if above in queues else ""
    parents = parents_of(queues)
    for name, queue in queues.items():
        parts = [
            child
            for part, child in queues.items()
            if child.quota_gpus is not None and guarantor_of(part, queues, parents) == name
        ]
        total = sum(child.quota_gpus or 0 for child in parts)
        if queue.quota_gpus is not None and total > queue.quota_gpus:
            raise InputError(
                f"quota of queue {name}: expected at least {total} GPUs, which the queues in it are "
                f"guaranteed ({', '.join(child.name for child in parts)}), got {queue.quota_gpus}"
            )


# ── priorities with names ───────────────────────────────────────────────────────────────────────────────────


LARGEST_PRIORITY = 1_000_000  # either way; chosen


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A named priority."""

    name: str
    value: int  # larger is sooner
    is_default: bool = False  # of jobs that say nothing
    preempts: bool = True  # False: its jobs go ahead in order, but take only free GPUs

    def __post_init__(self) -> None:
        """Check the value."""
        if not -LARGEST_PRIORITY <= self.value <= LARGEST_PRIORITY:
            raise InputError(
                f"priority class {self.name}: value must be from {-LARGEST_PRIORITY} to {LARGEST_PRIORITY}, "
                f"got {self.value}"
            )


def with_priority_class(job: Job, classes: Mapping[str, PriorityClass]) -> Job:
    """The job with the priority of its class, or of the default class where it says nothing.

    Raises InputError for a class that there is not.
    """
    name = job.priority_class
    if not name:
        default = next(
            (priority_class for priority_class in classes.values() if priority_class.is_default), None
        )
        if default is None or job.priority:
            return job
        return replace(job, priority=default.value, preempts=default.preempts)
    if name not in classes:
        expectation = f"expected one of {', '.join(sorted(classes))}" if classes else "and there are none"
        raise InputError(f"job {job.id}: unknown priority class {name!r}, {expectation}")
    return replace(job, priority=classes[name].value, preempts=classes[name].preempts)


# ── GPU time that users have had, which counts less the longer ago it was ───────────────────────────────────


HALF_LIFE_S = 7 * 86_400.0  # chosen: the default of Slurm's PriorityDecayHalfLife
PARTS_OF_A_GPU = 1_000  # of speed 1; rates are whole numbers of these, and come back to 0 exactly
LN2 = log(2.0)

Account = tuple[str, str]  # a queue, and a user of it


@dataclass(slots=True)
class Balance:
    """What one account has had, as it stood at a time, and what it holds since then."""

    usage_gpu_s: float = 0.0  # decayed up to `at_s`
    at_s: float = 0.0
    rate: int = 0  # held since then, in thousandths of a GPU

    def at(self, now_s: float, half_life_s: float) -> float:
        """Decayed GPU-seconds at a time that is not before `at_s`.

        What was had t seconds ago counts 2^(-t/H). Of a rate r since t0 that is the integral
        r H / ln 2 (1 - 2^(-(t-t0)/H)), so that nothing depends on how often it is read.
        """
        lives = max(now_s - self.at_s, 0.0) / half_life_s
        since = -expm1(-lives * LN2) * half_life_s / LN2 * self.rate / PARTS_OF_A_GPU if self.rate else 0.0
        return self.usage_gpu_s * exp2(-lives) + since


@dataclass(slots=True)
class UsageLedger:
    """Decayed usage by account. Changes only when a job comes to hold something else."""

    half_life_s: float = HALF_LIFE_S
    balances: dict[Account, Balance] = field(default_factory=dict)

    def change(self, account: Account, rate: int, now_s: float) -> None:
        """From now on an account holds so much more, in thousandths of a GPU; less where negative."""
        if rate:
            balance = self._settled(account, now_s)
            balance.rate += rate

    def live_by(self, half_life_s: float, now_s: float) -> None:
        """From now on usage decays with another half-life; what has decayed before stays so."""
        if half_life_s == self.half_life_s:
            return
        for account in self.balances:
            self._settled(account, now_s)
        self.half_life_s = half_life_s

    def at(self, now_s: float) -> Mapping[Account, float]:
        """Decayed GPU-seconds of every account that has had any."""
        return {
            account: balance.at(now_s, self.half_life_s) for account, balance in sorted(self.balances.items())
        }

    def held_gpus(self) -> Mapping[Account, float]:
        """What every account holds now, in GPUs of speed 1; those that hold nothing are left out."""
        return {name: one.rate / PARTS_OF_A_GPU for name, one in sorted(self.balances.items()) if one.rate}

    def released(self, now_s: float) -> "UsageLedger":
        """A copy in which no job holds anything from now on."""
        had = {name: one.at(now_s, self.half_life_s) for name, one in self.balances.items()}
        return UsageLedger(self.half_life_s, {name: Balance(used, now_s) for name, used in had.items()})

    def _settled(self, account: Account, now_s: float) -> Balance:
        balance = self.balances.setdefault(account, Balance(at_s=now_s))
        balance.usage_gpu_s, balance.at_s = balance.at(now_s, self.half_life_s), max(balance.at_s, now_s)
        return balance


def rate_of(gpus: int, speed: float) -> int:
    """What GPUs of a type count, in thousandths of a GPU of speed 1; a type without a speed has speed 1."""
    return gpus * round(speed * PARTS_OF_A_GPU)


# ── shares of queues and users, and what each account has had: what decisions need to know for fair share ───


ROOT = ""


@dataclass(frozen=True)
class FairShare:
    """Shares, and usage as it stands at one moment. A queue or user that is not named has one share."""

    usage_gpu_s: Mapping[Account, float] = field(default_factory=dict)  # decayed
    held_gpus: Mapping[Account, float] = field(default_factory=dict)  # now; both in GPUs of speed 1
    queue_shares: Mapping[str, float] = field(default_factory=dict)  # that were set
    user_shares: Mapping[str, float] = field(default_factory=dict)  # that were set
    parents: Mapping[str, str] = field(default_factory=dict)  # of queues that are in another one
    half_life_s: float = HALF_LIFE_S  # of usage
    limits: bool = (
        False  # one that has its share gives way while others wait for theirs; else shares only order
    )

    def matters_to(self, accounts: Iterable[Account]) -> bool:
        """Whether it may order these: there are several users, or queues whose shares were set."""
        distinct = set(accounts)
        queues = {queue for queue, _ in distinct}
        return len({user for _, user in distinct}) > 1 or (
            len(queues) > 1 and any(self.queue_shares.get(queue, 1.0) != 1.0 for queue in self._lines(queues))
        )

    def _lines(self, queues: Iterable[str]) -> set[str]:
        """These queues and all that they are in."""
        return {one for queue in queues for one in line_of(queue, self.parents)}


def account_of(job: Job) -> Account:
    """Which account is charged for what a job holds."""
    return job.queue or DEFAULT_QUEUE, job.user
