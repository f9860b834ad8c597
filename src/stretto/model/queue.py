"""A queue of jobs, with the GPUs that it is guaranteed and those that it may borrow."""

from dataclasses import dataclass

DEFAULT_QUEUE = "default"  # of jobs that name none


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its bounds."""

    name: str
    quota_gpus: int | None = None  # guaranteed to its jobs; None: nothing is, and nothing limits them
    borrow_gpus: int = 0  # that they may hold beyond the quota while others leave them
    weight: float = 1.0
    users: tuple[str, ...] | None = None  # who may use it; None: everybody
    is_default: bool = False  # of jobs that name no queue
    shares: float = 1.0  # beside those of its siblings
    parent: str = ""  # the queue that it is a part of

    def serves(self, user: str) -> bool:
        """Whether a user's jobs may be in it."""
        return self.users is None or user in self.users
