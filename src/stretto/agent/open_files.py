"""Open files: a process may have only so many, and its own lack of them is no evidence against others."""

import errno
import os
import resource
from pathlib import Path

WANTED = 65_536  # chosen: more than all bounds together; what goes through every possible number stays quick
RESERVE = 32  # for our own needs: the store, the logs, the way to agents; chosen: three times what was seen


def raise_limit() -> int:
    """Let this process open as many files as it may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return limit()


def limit() -> int:
    """How many files this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def left_for_others() -> int:
    """How many more files may be opened for callers, beside what we need ourselves."""
    return limit() - len([*Path("/proc/self/fd").iterdir()]) - RESERVE


def is_of_reserve(number: int) -> bool:
    """Whether a file of this number uses what we need ourselves: the kernel gives the lowest that is free."""
    return number >= limit() - RESERVE


def are_short(failure: BaseException | None) -> bool:
    """Whether something failed because this process, or this machine, can open no more files."""
    seen = 0
    while failure is not None and seen < 16:  # causes may form a ring
        if isinstance(failure, OSError) and failure.errno in (errno.EMFILE, errno.ENFILE):
            return True
        failure, seen = failure.__cause__ or failure.__context__, seen + 1
    return False


def can_open() -> bool:
    """Whether one more file can be opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as failure:
        return not are_short(failure)
    return True
