"""A worker that has nothing left to do ends at once: somebody waits for its GPUs."""

import atexit
import gc
import time

SETTLE_S = 0.05  # chosen: ten times as long as Python lets a thread wait for its lock


def end_quickly() -> None:
    """From now on, the interpreter does not look through all objects for garbage when it ends.

    With PyTorch loaded that takes most of the time from the last line of a script to the end of its process:
    seconds where the processor is shared. Whatever was registered with `atexit` and every `finally` still
    runs; the memory goes back to the system with the process.
    """
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    gc.freeze()
    # A thread of gloo lets go of its last work some time after the training has gone on. What it lets go of
    # is Python's, and asking for the interpreter's lock once that is ending aborts the process.
    time.sleep(SETTLE_S)
