"""What a supervisor does where it cannot write down how its worker ended."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import supervisor


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
