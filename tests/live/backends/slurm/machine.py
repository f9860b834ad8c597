"""One node of a test's cluster: runs slurmd and is the parent of whatever loses its own.

Run as `python -I -S machine.py COMMAND...`. Being a subreaper, all that ever comes of slurmd stays below this
process, and so the machine is off exactly when nothing is left below it. On SIGTERM it ends slurmd in order.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Wait until nothing is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return 0


if __name__ == "__main__":
    sys.exit(main())
