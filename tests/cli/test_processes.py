"""What only a process of its own shows: start-up, pipes that close, ctrl-C, terminals."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.interrupts import heed_interrupts
from typer.main import get_group

from stretto.cli.app import app

pytestmark = pytest.mark.processes

STRETTO = (sys.executable, "-m", "stretto.cli.app")
SLOW_TO_IMPORT = (
    "scipy",
    "highspy",
    "jinja2",
    "rich.progress",
    "stretto.report",
    "stretto.sim",
    "stretto.solve",
)


def test_help_imports_nothing_that_is_slow() -> None:
    program = (
        "import sys; from stretto.cli.app import status_of; status = status_of(['--help']); "
        f"print(status, [name for name in {SLOW_TO_IMPORT!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stdout.startswith("Usage: stretto")


def test_a_command_imports_no_other_command_and_no_arrays() -> None:
    program = (
        "import sys; from stretto.cli.app import status_of; status_of(['list', '--help']); "
        "commands = {name for name in sys.modules if name.startswith('stretto.cli.')}; "
        "print('numpy' in sys.modules, sorted(commands & {f'stretto.cli.{name}' for name in "
        "('jobs', 'serve', 'simulate', 'submit', 'top')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False ['stretto.cli.jobs']"


def test_agents_and_supervisors_import_no_arrays() -> None:
    program = (
        "import sys, stretto.agent.__main__, stretto.agent.supervisor, stretto.agent.batch_supervisor, "
        "stretto.agent.pod_supervisor, stretto.agent.exec_session; print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_command_that_help_lists_can_be_built_under_its_name() -> None:
    named = get_group(app).commands
    assert [command.name for command in named.values()] == list(named)


def test_the_command_is_installed_under_its_name() -> None:
    found = Path(sys.executable).with_name("stretto")
    assert found.exists(), "install the package: make test does"
    done = subprocess.run([found, "version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_pipe_that_closes_early_is_no_event(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*STRETTO, "policies"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_that_has_few_signs_is_shown_what_it_can_show() -> None:
    done = subprocess.run(
        [*STRETTO, "clusters", "list"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 ? 4 t4" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_comparison_with_one_line_and_its_workers_with_it(workers: int, tiny: Path) -> None:
    (tiny / "slow.py").write_text(SLOW)
    words = ("-c", "tiny.yaml", "-t", "four.csv", "--policies", "slow.py:Slow,fifo", "--out", "out")
    running = subprocess.Popen(
        [*STRETTO, "compare", *words, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, to which the terminal's ctrl-C goes
        preexec_fn=heed_interrupts,
    )
    try:
        wait_until((tiny / "asked").exists)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=120)
    except BaseException:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise
    assert (running.returncode, out, err) == (130, "", "stretto: interrupted\n")
    assert not (tiny / "out").exists()
    wait_until(lambda: not group_lives(running.pid))


@pytest.mark.slow
def test_workers_of_a_comparison_that_is_killed_do_not_stay_behind(tiny: Path) -> None:
    (tiny / "slow.py").write_text(SLOW)
    words = ("-c", "tiny.yaml", "-t", "four.csv", "--policies", "slow.py:Slow,fifo", "--out", "out")
    running = subprocess.Popen([*STRETTO, "compare", *words, "--workers", "2"], start_new_session=True)
    try:
        wait_until((tiny / "asked").exists)
        running.kill()
        running.wait(timeout=120)
        wait_until(lambda: not group_lives(running.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_does_not_reach_workers_that_only_begin(tiny: Path) -> None:
    """Each gets it while it starts; had they heeded it, they would have ended with a traceback each."""
    (tiny / "sitecustomize.py").write_text(INTERRUPTED_AT_THE_START)
    words = ("-c", "tiny.yaml", "-t", "four.csv", "--policies", "sjf,fifo", "--out", "out")
    done = subprocess.run(
        [*STRETTO, "compare", *words, "--workers", "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tiny), os.environ.get("PYTHONPATH", "")])},
        preexec_fn=heed_interrupts,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len((tiny / "interrupted").read_text().splitlines()) == 2


def test_on_a_terminal_there_is_a_table_with_a_title(tiny: Path) -> None:
    status, text = on_a_terminal("simulate", "-c", "tiny.yaml", "-t", "four.csv", "-p", "fifo")
    assert status == 0
    assert "fifo on four (tiny, seed 0)" in text
    assert "Jobs completed" in text
    assert "\t" not in text.replace("\r\n", "\n")


def test_on_a_terminal_a_list_is_a_table_with_rules(tiny: Path) -> None:
    status, text = on_a_terminal("clusters", "show", "tiny.yaml")
    assert status == 0
    assert "tiny: 10 GPUs" in text
    assert "─" in text


def test_an_object_on_a_terminal_has_no_colours(tiny: Path) -> None:
    _, text = on_a_terminal("clusters", "show", "tiny.yaml", "--json")
    assert "\x1b" not in text


def on_a_terminal(*words: str) -> tuple[int, str]:
    """The exit status, and what a person would see, of a command in a terminal of 100 columns."""
    own, its = pty.openpty()
    running = subprocess.Popen(
        [*STRETTO, *words],
        stdout=its,
        stderr=its,
        stdin=its,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"},
    )
    os.close(its)
    seen = b""
    while True:
        try:
            read = os.read(own, 65536)
        except OSError:  # how Linux says that the other side has closed
            break
        if not read:
            break
        seen += read
    os.close(own)
    return running.wait(timeout=120), seen.decode()


def wait_until(happened) -> None:  # type: ignore[no-untyped-def]
    """Wait for something, up to two minutes: this machine may be busy."""
    for _ in range(2400):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


INTERRUPTED_AT_THE_START = """
import os, signal, sys

if "--multiprocessing-fork" in sys.orig_argv:
    with open("interrupted", "a") as file:
        file.write("x\\n")
    os.kill(os.getpid(), signal.SIGINT)
"""
SLOW = '''
"""A policy that takes its time, and says when it is asked."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stretto.policies.fifo import FirstInFirstOut


@dataclass(frozen=True)
class Slow(FirstInFirstOut):
    """It sleeps."""

    name: ClassVar[str] = "slow"

    def allocate(self, snapshot, speeds):
        Path("asked").touch()
        time.sleep(120)
        return super().allocate(snapshot, speeds)
'''
