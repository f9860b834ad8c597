"""A job's script in its own words, and out of sight of others."""

import subprocess
from pathlib import Path

import pytest
from tests.service.scene import Scene

from stretto.service.reconcile.worker_env import WorkerContext, in_place, start_of

SECRETS = WorkerContext("http://127.0.0.1:1", b"key", Path("/kept"), Path("/workdirs"))
pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("python train.py --lr 0.1", "exec python train.py --lr 0.1", id="one program"),
        pytest.param("  ./train 'a b' \"$X\"\n", "exec ./train 'a b' \"$X\"", id="with quotes"),
        pytest.param("A=1 B=x python t.py", "A=1 B=x exec python t.py", id="after assignments"),
        pytest.param("nvidia-smi", "exec nvidia-smi", id="no arguments"),
        pytest.param("a; b", None, id="two commands"),
        pytest.param("a\nb", None, id="two lines"),
        pytest.param("a | b", None, id="a pipe"),
        pytest.param("a && b", None, id="a condition"),
        pytest.param("a $(b)", None, id="a substitution"),
        pytest.param("a > b", None, id="a redirection"),
        pytest.param("a 'it is", None, id="an open quote"),
        pytest.param("exit 3", None, id="a word of the shell"),
        pytest.param("cd somewhere", None, id="a built-in"),
        pytest.param("exec python t.py", None, id="said already"),
        pytest.param("A=1", None, id="an assignment only"),
        pytest.param("a # why", None, id="a comment"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_script_of_one_program_becomes_it(script: str, expected: str | None) -> None:
    assert in_place(script) == (script if expected is None else expected)


def run(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    scene = Scene()
    record = scene.submit("1", run=script)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    start = start_of(scene.state, record, record.workers["1.1.0"], SECRETS)
    assert not any("precious" in part for part in start.command)
    given = {"PATH": "/usr/bin:/bin", **start.env, "STRETTO_CHECKPOINT_DIR": "/dev/null/none", **env}
    return subprocess.run(start.command, env=given, capture_output=True, text=True, timeout=60, check=False)


def test_nobody_else_reads_a_script_in_the_list_of_processes(tmp_path: Path) -> None:
    look = r"""tr "\0" " " </proc/$$/cmdline; echo; env | grep -c precious; ls -l "$0" | cut -c1-10; exit 7"""
    done = run(tmp_path, look, STRETTO_SETUP_DIR=str(tmp_path))
    seen, in_environment, mode = done.stdout.splitlines()
    assert "precious" not in seen
    assert (in_environment, mode, done.returncode, done.stderr) == ("0", "-rw-------", 7, "")


def test_a_script_runs_also_where_no_file_can_be_written() -> None:
    done = run(Path(), ": precious; echo ran; exit 7", STRETTO_SETUP_DIR="/dev/null/none")
    assert (done.stdout, done.stderr, done.returncode) == ("ran\n", "", 7)


def test_a_program_that_runs_alone_has_no_shell_above_it(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("#!/bin/sh\ncat /proc/$PPID/comm")
    (tmp_path / "name").chmod(0o700)
    alone = run(tmp_path, f"{tmp_path}/name", STRETTO_SETUP_DIR=str(tmp_path))
    among = run(tmp_path, f"{tmp_path}/name; :", STRETTO_SETUP_DIR=str(tmp_path))
    assert alone.stdout != "sh\n"
    assert among.stdout == "sh\n"
