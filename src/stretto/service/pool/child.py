"""The process that a pool runs: it reads calls from its input, makes them, and writes what came of them.

A call that takes too long is ended by the kernel, with the process. Nothing in Python could be relied upon to
interrupt a loop of foreign code. One that needs too much memory gets a MemoryError.
"""

import ctypes
import os
import pickle
import resource
import signal
import sys
import traceback
from pathlib import Path

from stretto.errors import InputError
from stretto.service.pool.calls import Answer, frame, read_frame

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Answer calls until the pool hangs up or dies."""
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what somebody's code prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _die_with_parent()
    if len(sys.argv) > 1:
        os.nice(int(sys.argv[1]))
    while (body := read_frame(calls)) is not None:
        answers.write(frame(answer_to(body)))
        answers.flush()


def answer_to(body: bytes) -> bytes:
    """The answer to a call, both pickled."""
    try:
        call = pickle.loads(body)
        signal.setitimer(signal.ITIMER_REAL, call.most_s)
        _allow_memory(call.most_bytes)
        try:
            answer = Answer(call.function(*call.arguments))
            return pickle.dumps(answer)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            _allow_memory(None)
    except InputError as wrong:
        answer = Answer(wrong=str(wrong))
    except MemoryError:
        answer = Answer(out_of_memory=True)
    except Exception as surprise:
        answer = Answer(failed=f"{type(surprise).__name__}: {surprise}", trace=traceback.format_exc())
    return pickle.dumps(answer)


def _allow_memory(more: int | None) -> None:
    """Let this process have so many bytes more than it has now; None: as many as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard
    if more is not None and (now := _address_space()):
        most = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _address_space() -> int:
    """Bytes of address space that this process has; 0 where only Linux could tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _die_with_parent() -> None:
    """On Linux, end as soon as the service is gone, also in the middle of a call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
