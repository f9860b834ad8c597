"""Logs of the service on stderr never hold the service up, whoever reads them or does not."""

import json
import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """\
import logging, sys
from stretto.service.structured_logs import structured_logs
with structured_logs(None):
    log = logging.getLogger("stretto.test")
    for number in range(int(sys.argv[1])):
        log.info("line %d %s", number, "x" * 400)
print("ended", flush=True)
"""


def started(lines: int, stderr: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(lines)], stdout=subprocess.PIPE, stderr=stderr, text=True
    )


def test_a_pipe_that_nobody_reads_keeps_no_service_from_ending() -> None:
    reading, writing = os.pipe()
    running = started(5_000, writing)
    os.close(writing)
    try:
        out, _ = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
        os.close(reading)
    assert (out, running.returncode) == ("ended\n", 0)


def test_a_pipe_whose_reader_has_gone_keeps_no_service_from_ending() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    running = started(1_000, writing)
    os.close(writing)
    out, _ = running.communicate(timeout=60)
    assert (out, running.returncode) == ("ended\n", 0)


def test_who_reads_slowly_gets_every_line_whole() -> None:
    running = started(300, subprocess.PIPE)
    time.sleep(1.0)  # by now the pipe is full
    _, err = running.communicate(timeout=60)
    lines = err.splitlines()
    assert running.returncode == 0
    assert [json.loads(line)["message"].split()[1] for line in lines] == [str(one) for one in range(300)]
