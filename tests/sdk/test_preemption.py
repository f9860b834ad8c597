"""SIGTERM is heard wherever the main thread is, and means nothing to children."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

IN_C = """
import ctypes
from stretto.sdk.shutdown import Preemption

Preemption(0.3, lambda: print("saved", flush=True), lambda: print("told", flush=True))
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
print("stuck", flush=True)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)  # for ever; no signal interrupts it
"""

STUCK_SAVING = """
import time
from stretto.sdk import shutdown

shutdown.SAVING_S = 0.2
shutdown.Preemption(0.3, lambda: time.sleep(600))
print("stuck", flush=True)
time.sleep(600)
"""

FORKS = """
import os, signal, time
from stretto.sdk.shutdown import Preemption

told = Preemption(60.0, lambda: None)
ends = set()
for pause_s in (0.0, 0.0, 0.0, 0.1):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(9)
    time.sleep(pause_s)
    os.kill(child, signal.SIGTERM)
    ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
time.sleep(0.3)  # six looks
print(ends, told.is_asked)
os.kill(os.getpid(), signal.SIGTERM)
print(told.is_asked)
told.end()
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


def ended(script: str) -> tuple[int, list[str]]:
    """Status and output of a process that gets SIGTERM once it is stuck."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGTERM)
        printed = process.stdout.read().splitlines()
        return process.wait(60), printed


def test_a_main_thread_inside_a_call_of_c_is_no_excuse() -> None:
    assert ended(IN_C) == (143, ["told", "saved"])


def test_a_checkpoint_that_cannot_be_written_does_not_keep_the_process() -> None:
    assert ended(STUCK_SAVING) == (143, [])


def test_what_stops_a_forked_child_does_not_stop_the_training() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["{-15} False", "True", "True"], done.stderr
