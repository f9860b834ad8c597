"""How a worker stops: told by SIGTERM or by the service, or at the end of its script.

Python runs a handler only between two instructions of the main thread. That thread may be inside a call of C
for long: waiting for a peer that evaluates, or for a compiler. What the interpreter writes into its wakeup
file descriptor is there without it, and another thread can read it.

An end is quick, since other jobs wait for the GPUs of the worker.
"""

import atexit
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger("stretto.sdk")

STATUS = 143  # as of a process that SIGTERM ended
SHARE_OF_GRACE = 0.7  # chosen: the rest is for a checkpoint that is written without agreement
SAVING_S = 5.0  # chosen: if there is no checkpoint by then, and a third of the grace, none will come
LOOK_S = 0.05


class Preemption:
    """Whether this process was told to stop, and until when it may take its time."""

    def __init__(
        self, grace_s: float, save_alone: Callable[[], None], tell: Callable[[], None] = lambda: None
    ) -> None:
        """`tell` is called once it is asked, by a thread: others may wait outside of steps."""
        self._grace_s = grace_s
        self._save_alone, self._tell = save_alone, tell
        self._deadline_s: float | None = None  # when to give up on a common end
        self._over = threading.Event()
        self._sigterm = SigtermListener(self.ask)
        threading.Thread(target=self._watch, name="stretto-deadline", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether to stop."""
        return self._deadline_s is not None

    def ask(self, grace_s: float | None = None) -> None:
        """Stop, within so many seconds; of several times, the earliest counts."""
        grace_s = grace_s if grace_s is not None else self._grace_s
        deadline_s = time.monotonic() + SHARE_OF_GRACE * grace_s
        # An assignment: a signal's handler may run between any two instructions.
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def end(self) -> None:
        """The training is over: SIGTERM means again what it meant before."""
        if not self._over.is_set():
            self._over.set()
            self._sigterm.give_back()

    def _watch(self) -> None:
        """In a thread: pass the news on once, and give up when the deadline has come."""
        has_told = False
        while not self._over.is_set():
            self._sigterm.wait(LOOK_S)
            if self._deadline_s is None:
                continue
            if not has_told:
                has_told = True
                threading.Thread(target=self._tell, name="stretto-teller", daemon=True).start()
            if time.monotonic() >= self._deadline_s and not self._over.is_set():
                self._give_up()
        self._sigterm.close()

    def _give_up(self) -> None:
        log.warning("no step ended within the grace period: leaving with the last one that did")
        try:
            saver = threading.Thread(target=self._save_alone, name="stretto-saver", daemon=True)
            saver.start()
            # In vain where the main thread is stuck in the optimiser's step, which has their lock.
            saver.join(max(SAVING_S, self._grace_s / 3))
        finally:
            os._exit(STATUS)


class SigtermListener:
    """Takes SIGTERM over where it is built in the main thread; elsewhere it hears nothing."""

    def __init__(self, on_sigterm: Callable[[], None]) -> None:
        """`on_sigterm` is called in the main thread, or by `wait`, or both."""
        self._on_sigterm = on_sigterm
        self._is_ours = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        if self._is_ours:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._open()
            LISTENERS.append(self)

    def _open(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        of_others = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if of_others != -1:  # an event loop's, say: it needs it more than we do
            signal.set_wakeup_fd(of_others)
            reader.close()
            writer.close()
            return
        self._reader, self._writer = reader, writer

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._on_sigterm()

    def wait(self, within_s: float) -> None:
        """In another thread: for so long at most, or until some signal came."""
        reader = self._reader
        if reader is None:
            time.sleep(within_s)
            return
        if select.select([reader], [], [], within_s)[0] and signal.SIGTERM in reader.recv(4096):
            self._on_sigterm()

    def give_back(self) -> None:
        """SIGTERM means again what it meant before. In the main thread; `wait` may be under way."""
        if not self._is_ours:
            return
        self._is_ours = False
        LISTENERS.remove(self)
        if self._writer is not None:
            present = signal.set_wakeup_fd(-1)
            if present not in (-1, self._writer.fileno()):  # an event loop has put its own in place since
                signal.set_wakeup_fd(present)
        signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)

    def close(self) -> None:
        """After the last `wait`."""
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()
        self._reader = self._writer = None


LISTENERS: list[SigtermListener] = []
FORKING = threading.local()  # the signals that a thread had blocked before it forked


def _before_fork() -> None:
    """A child that gets SIGTERM before it is one of its own would write it into the descriptor it shares."""
    FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, FORKING.mask)


def _in_child() -> None:
    """A forked child, of a data loader say, is not the worker: what stops it must not stop the training."""
    for each in [*LISTENERS]:
        each.give_back()
        each.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, FORKING.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


# ── the end of the script ───────────────────────────────────────────────────────────────────────────────────


SETTLE_S = 0.05  # chosen: ten times as long as Python lets a thread wait for its lock


def end_quickly() -> None:
    """From now on, the interpreter does not look through all objects for garbage when it ends.

    With PyTorch loaded that takes most of the time from the last line of a script to the end of its process.
    It is seconds where the processor is shared. All that was registered with `atexit` and every `finally`
    still runs. The memory goes back to the system with the process.
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
