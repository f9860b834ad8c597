"""A worker that has nothing left to do ends at once: somebody waits for its GPUs."""

import atexit
import gc


def end_quickly() -> None:
    """From now on, the interpreter does not look through all objects for garbage when it ends.

    With PyTorch loaded that takes most of the time from the last line of a script to the end of its process:
    seconds where the processor is shared. Whatever was registered with `atexit` and every `finally` still
    runs; the memory goes back to the system with the process.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
