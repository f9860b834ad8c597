"""Starts that a cluster refuses for now: when one is tried again, and when its GPUs are given to others.

A refusal may pass: rights are given back, a webhook answers again. But a job that waits so holds GPUs.
"""

import time
from dataclasses import dataclass

from stretto.backends.kubernetes.api import Refusal
from stretto.backends.kubernetes.pods import MOST_WORDS, WITHDRAWN_STATUS
from stretto.backends.protocol import NotNow, WorkerStart, WorkerState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 15.0  # between tries, doubled from the second refusal on; chosen
FORGOTTEN_S = 600.0  # without a try, after which nothing is known of a start; chosen
OF_QUOTA = ("exceeded quota", "insufficient quota")  # in the words of a ResourceQuota that is full


def is_full_quota(refusal: Refusal) -> bool:
    """Whether a ResourceQuota is full, which is waited for: its namespace has no more to give, wherever."""
    return refusal.code == 403 and any(words in str(refusal) for words in OF_QUOTA)


@dataclass
class RefusedStart:
    """What is known of one. Times are of the monotonic clock."""

    why: str
    first_s: float
    last_s: float
    pause_s: float = 0.0  # before the next try


class RefusedStarts:
    """Those of one service, by worker."""

    def __init__(self, patience_s: float) -> None:
        """patience_s: after which a start that is refused all the time is given up."""
        self.patience_s = patience_s
        self.known: dict[str, RefusedStart] = {}

    def check(self, worker_id: str) -> None:
        """Raise NotNow while a start is not to be tried again yet, with what the last try was told."""
        known = self.known.get(worker_id)
        if known is not None and time.monotonic() < known.last_s + known.pause_s:
            raise NotNow(known.why)

    def note(self, worker: WorkerStart, why: str) -> WorkerState:
        """The end of a worker whose start has been refused for long enough; else raises NotNow."""
        now_s = time.monotonic()
        for name in [name for name, each in self.known.items() if now_s - each.last_s > FORGOTTEN_S]:
            del self.known[name]
        known = self.known.setdefault(worker.id, RefusedStart(why, now_s, now_s))
        waited_s = now_s - known.first_s
        if waited_s < self.patience_s:
            if waited_s:  # the first time it may have been just this moment
                known.pause_s = min(max(known.pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            known.why, known.last_s = why, now_s
            raise NotNow(why)
        del self.known[worker.id]
        why = f"it was given up after {waited_s:.0f} s: {why}"[:MOST_WORDS]
        status, gpus = WITHDRAWN_STATUS, worker.gpus
        return WorkerState(
            worker.id, worker.node, gpus, "ended", status, 15, stopped=True, job=worker.job, why=why
        )

    def drop(self, worker_id: str) -> None:
        """A start was granted."""
        self.known.pop(worker_id, None)
