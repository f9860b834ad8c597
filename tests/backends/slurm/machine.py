"""One machine of a test's cluster: runs a daemon and is the parent of whatever loses its own.

Run as `python -I -S machine.py COMMAND...`. Being a subreaper, all that ever comes of the daemon stays below
this process, and so the machine is off exactly when nothing is left below it. It goes off by itself when
whoever started it is gone, so that tests that are killed leave nothing.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.5


def main() -> int:
    """Wait until nothing is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    owner = os.getppid()
    os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, setsigmask=[])
    while reap():
        if os.getppid() != owner:
            for pid in below():
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_S)
    return 0


def reap() -> bool:
    """Wait for all that have ended; whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def below() -> list[int]:
    """Children; theirs become ours when these are gone."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in found.split()]


if __name__ == "__main__":
    sys.exit(main())
