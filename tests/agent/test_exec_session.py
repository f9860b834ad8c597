"""Which run an exec session finds in a pod, and what it says where there is none that it can use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.agent import exec_session, pod_supervisor, supervisor
from stretto.agent.exec_session import EXIT, Frames, run_in


def test_a_run_in_a_pod_is_found_beside_an_upload_that_looks_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pod_supervisor.py", str(tmp_path), str(tmp_path / "orders")])
    runs: list[Path] = []

    class Noted(supervisor.Supervisor):
        def __init__(self, run: Path, _: Path) -> None:
            runs.append(run)

        def keep(self) -> int:
            return 0

    monkeypatch.setattr(pod_supervisor, "PodSupervisor", Noted)
    for _ in range(2):  # a container may be started twice
        monkeypatch.setenv(pod_supervisor.START, json.dumps({"cwd": ""}))
        monkeypatch.setenv(pod_supervisor.MESSAGE, str(tmp_path / "message"))
        pod_supervisor.main()
    os.utime(runs[0], (1, 1))
    upload = tmp_path / "copy-7.1.node"
    upload.mkdir()
    (upload / "start.json").write_text("{}")
    assert run_in(tmp_path) == runs[-1] != runs[0]
    assert run_in(runs[0]) == runs[0], "elsewhere it is the run itself that is named"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "start.json: expected a JSON object"),
        ("3", "start.json: expected a JSON object"),
        ("nothing", "Expecting value"),
        ('{"cwd": ""}', ""),  # of a worker that is noted in a strange way
    ],
)
def test_a_run_that_is_damaged_is_not_reached_and_says_so(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "start.json").write_text(text)
    (tmp_path / "running.json").write_text('{"pid": "7", "ticks": []}')
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(exec_session.__file__), str(tmp_path)],
        input=b"",
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert not done.stderr
    frames = Frames()
    frames.unread += done.stdout
    letter, content = frames.take() or (b"", b"{}")
    assert letter == EXIT
    assert json.loads(content)["status"] == 126
    why = json.loads(content)["why"]
    assert why.startswith("the worker cannot be reached: ")
    assert says in why
