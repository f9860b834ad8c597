"""A log is read without the files of its policies, and runs their code only where somebody says so."""

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.cli.app import status_of
from stretto.policies import fifo

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

CLUSTER = "name: one\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 4, count: 1}]\n"
JOB = json.dumps({"run": "x", "resources": {"accelerators": "1"}, "expected_time": "1m"})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    """A service that has run under `mine.py`, then under fifo; both have decided."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    mine = tmp_path / "mine.py"
    mine.write_text(Path(fifo.__file__).read_text() + "\nopen(__file__ + '.ran', 'w').close()\n")
    options = ["--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", "1000"]
    running = Running(tmp_path, *options)
    try:
        for policy in (f"{mine}:FirstInFirstOut", "fifo"):
            running.options = (*running.options, "--policy", policy)  # the last one counts
            running.begin()
            with running.client() as client:
                assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"
            assert running.kill(signal.SIGTERM) == 0
        (tmp_path / "mine.py.ran").unlink()
        yield running
    finally:
        running.end()


@pytest.mark.slow
def test_a_service_starts_although_the_file_of_an_earlier_policy_is_gone(
    service: Running, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").unlink()
    with sqlite3.connect(service.store) as log:
        log.execute("DELETE FROM stretto_states")  # as after an upgrade, which can use none of them
    log.close()
    service.begin()
    with service.client() as client:
        assert [client.describe(name)["state"] for name in ("1", "2")] == ["COMPLETED", "COMPLETED"]
        assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"


@pytest.mark.slow
def test_code_that_a_log_names_runs_only_where_somebody_says_so(
    service: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, elsewhere = tmp_path / "mine.py.ran", tmp_path / "elsewhere"
    assert status_of(["simulate", "--from-log", str(tmp_path / "state")]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"[1-9]\d* decisions made again, 0 differ\n", out)
    assert re.search(r"\d+ decisions? not made again: the log names policy .*mine.py.* --policy FILE.py", err)
    assert not ran.exists()
    elsewhere.mkdir()
    (tmp_path / "mine.py").rename(elsewhere / "mine.py")
    trusted = f"{elsewhere / 'mine.py'}:FirstInFirstOut"
    assert status_of(["simulate", "--from-log", str(tmp_path / "state"), "--policy", trusted]) == 0
    both, err = capsys.readouterr()
    assert int(both.split()[0]) > int(out.split()[0])
    assert err == ""
    assert (elsewhere / "mine.py.ran").exists()


def test_code_that_the_log_of_a_run_names_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    said = {"cluster": "c", "trace": "t", "policy": "evil.py:Evil"}
    (tmp_path / "run.json").write_text(json.dumps(said))
    assert status_of(["simulate", "--from-log", str(tmp_path)]) == 2
    assert "names policy 'evil.py:Evil', which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "evil.py.ran").exists()
