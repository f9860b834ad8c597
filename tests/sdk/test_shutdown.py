"""How a worker's process ends."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import atexit, sys
from stretto.sdk.shutdown import end_quickly

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("was looked for")

Garbage()
atexit.register(print, "registered before")
if sys.argv[1] == "quickly":
    end_quickly()
    end_quickly()
atexit.register(print, "registered after")
try:
    raise SystemExit(143)
finally:
    print("finally")
"""
LINES = ["finally", "registered after", "registered before"]


@pytest.mark.parametrize(("how", "lines"), [("quickly", LINES), ("usually", [*LINES, "was looked for"])])
def test_a_worker_that_leaves_does_all_it_has_to_but_looks_for_no_garbage(how: str, lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (143, lines, "")
