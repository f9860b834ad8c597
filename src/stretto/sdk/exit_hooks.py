"""Exit hooks of a worker: what is still to do at its end, and then at once: others wait for its GPUs."""

import atexit
import gc
import logging
import os
import sys
import time
from collections.abc import Callable

log = logging.getLogger("stretto.sdk")

SETTLE_S = 0.05  # chosen: ten times as long as Python lets a thread wait for its lock


def end_quickly() -> None:
    """From now on, the interpreter does not look through all objects for garbage when it ends.

    With PyTorch loaded that takes most of the time from the last line of a script to the end of its process:
    seconds where the processor is shared. Whatever was registered with `atexit` and every `finally` still
    runs; the memory goes back to the system with the process.
    """
    atexit.unregister(_skip_garbage)
    atexit.register(_skip_garbage)


def _skip_garbage() -> None:
    gc.freeze()
    # A thread of gloo lets go of its last work some time after the training has gone on. What it lets go of
    # is Python's, and asking for the interpreter's lock once that is ending aborts the process.
    time.sleep(SETTLE_S)


class ExitHook:
    """Runs at the end of a process whose script left its loops early, well or by an error."""

    def __init__(self, after_error: Callable[[], None], otherwise: Callable[[], None]) -> None:
        self._after_error, self._otherwise = after_error, otherwise
        self._error = getattr(sys, "last_value", None)  # of an interactive session, say
        atexit.register(self._run)

    def forget(self) -> None:
        """All is done."""
        atexit.unregister(self._run)

    def _run(self) -> None:
        error = getattr(sys, "last_value", None)
        try:
            if error is not None and error is not self._error:
                self._after_error()
            else:
                self._otherwise()
        except SystemExit as leaving:  # what is raised in a hook does not become the status
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)
        except Exception as failed:  # of the peers, or of the disk: the script itself was through
            log.warning("the training did not end together with its peers: %s", failed)
