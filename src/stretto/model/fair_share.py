"""Shares of queues and users, and what each account has had: what decisions need to know for fair share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stretto.model.job import Job
from stretto.model.queue import DEFAULT_QUEUE, line_of
from stretto.model.usage import HALF_LIFE_S, Account

ROOT = ""


@dataclass(frozen=True)
class FairShare:
    """Shares, and usage as it stands at one moment. Whoever is not named has one share."""

    usage_gpu_s: Mapping[Account, float] = field(default_factory=dict)  # decayed
    held_gpus: Mapping[Account, float] = field(default_factory=dict)  # now; both in GPUs of speed 1
    queue_shares: Mapping[str, float] = field(default_factory=dict)  # that were set
    user_shares: Mapping[str, float] = field(default_factory=dict)  # that were set
    parents: Mapping[str, str] = field(default_factory=dict)  # of queues that are in another one
    half_life_s: float = HALF_LIFE_S  # of usage
    limits: bool = False  # who has its share gives way while others wait for theirs; else shares only order

    def matters_to(self, accounts: Iterable[Account]) -> bool:
        """Whether it may order these: there are several users, or queues whose shares somebody has set."""
        distinct = set(accounts)
        queues = {queue for queue, _ in distinct}
        return len({user for _, user in distinct}) > 1 or (
            len(queues) > 1 and any(self.queue_shares.get(queue, 1.0) != 1.0 for queue in self._lines(queues))
        )

    def _lines(self, queues: Iterable[str]) -> set[str]:
        """These queues and all that they are in."""
        return {one for queue in queues for one in line_of(queue, self.parents)}


def account_of(job: Job) -> Account:
    """Who is charged for what a job holds."""
    return job.queue or DEFAULT_QUEUE, job.user
