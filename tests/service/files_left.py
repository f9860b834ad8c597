"""A process that may open few more files, which is this one."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open so many more files and no others."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    for number in free:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
