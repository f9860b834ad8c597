"""What a supervisor does where it cannot write down how its worker ended, or is told early that it should."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import run_directory, supervisor


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> supervisor.Supervisor:
    """A supervisor whose worker has ended; it waits for nothing, and not for ever."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "start.json").write_text("{}")
    made = supervisor.Supervisor(run)
    made.notes, made.exit = {"started_s": 1.0}, {"status": 3, "signal": None}
    pauses = iter(range(10 * supervisor.MOST_TRIES))
    monkeypatch.setattr(time, "sleep", lambda _: next(pauses))
    return made


def test_a_supervisor_whose_run_directory_is_gone_gives_up_and_says_so_once(
    kept: supervisor.Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(kept.run)
    kept.write_ending()
    (line,) = capsys.readouterr().err.splitlines()
    assert str(kept.run) in line


def test_a_supervisor_whose_disk_is_full_goes_on_trying_and_says_so_once(
    kept: supervisor.Supervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, failures = supervisor.write_durably, iter(range(2 * supervisor.MOST_TRIES))

    def full_for_a_while(path: Path, value: dict[str, Any]) -> None:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, value)

    monkeypatch.setattr(supervisor, "write_durably", full_for_a_while)
    kept.write_ending()
    assert json.loads((kept.run / "ended.json").read_bytes())["status"] == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


TOLD_EARLY = """
import os, signal, sys
from pathlib import Path
from stretto.agent import supervisor

become_worker = supervisor.become_worker

def told_early(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    become_worker(*given)

supervisor.become_worker = told_early
sys.exit(supervisor.Supervisor(Path(sys.argv[1])).keep())
"""


@pytest.mark.processes
def test_a_sigterm_that_comes_before_the_worker_is_its_command_ends_it(tmp_path: Path) -> None:
    start = {
        "job": "j",
        "gpus": [],
        "command": ["sleep", "5"],
        "env": {},
        "cwd": str(tmp_path),
        "grace_s": 9.0,
    }
    run = run_directory.prepare(tmp_path, "j.1.0", start, {}, fifo=False)
    command = [sys.executable, "-c", TOLD_EARLY, str(run)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 143
    assert json.loads((run / "ended.json").read_bytes())["signal"] == 15
