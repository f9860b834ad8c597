"""Supervisors that watch over the processes that keep their worker's GPUs, and are nobody's children."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import run_directory, supervisor
from stretto.agent.agent import check_own, state_folder
from stretto.agent.node import Node
from stretto.agent.worker_table import WorkerTable
from stretto.demo.own_service import until

pytestmark = pytest.mark.processes

STUBBORN = "trap '' TERM; echo ready; setsid sleep 600 & sleep 600 & wait; wait"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerTable]:
    """Those of an agent whose children its supervisors are not; nothing is left of them."""
    state = state_folder(tmp_path / "state")
    found = WorkerTable(
        state, Node("n1", "t", 2), secrets.token_hex(4), apart=True, environ={"PATH": os.defpath}
    )
    with ExitStack() as stack:
        stack.callback(found.close)
        yield found
        for name in found.known:
            found.order(name, {"stop": 0})
        until(lambda: all(each.ended for each in found.known.values()), what="all have ended")
        until(lambda: not left_of(state), what="nothing is left")


def left_of(state: Path) -> list[supervisor.Process]:
    starts = [run_directory.read_json(path) for path in state.glob("*/*/start.json")]
    return [each for start in starts if start for each in run_directory.leftovers(start["mark"], None)]


@pytest.fixture
def guards() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that last."""
    found = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    yield found
    for each in found:
        each.kill()
        each.wait()


def named(guards: list[subprocess.Popen[bytes]]) -> list[tuple[int, int]]:
    shown = [supervisor.process_at(each.pid) for each in guards]
    return [(each.pid, each.ticks) for each in shown if each]


def started(workers: WorkerTable, guards: list[tuple[int, int]], command: str = STUBBORN) -> dict[str, Any]:
    start = {"job": "j", "gpus": [0], "command": command, "env": {}, "cwd": "", "grace_s": 600.0}
    workers.start("j.1.0", start, {}, guards)
    until(lambda: workers.known["j.1.0"].view["phase"] != "starting", what="it runs")
    return workers.known["j.1.0"].view


def has_said(workers: WorkerTable, line: str) -> bool:
    """Whether it has written this line: it has done then what comes before it."""
    log = workers.known["j.1.0"].run / "log"
    return log.exists() and line in log.read_text().splitlines()


def ended(workers: WorkerTable) -> dict[str, Any]:
    until(lambda: workers.known["j.1.0"].ended, what="it has ended")
    return workers.known["j.1.0"].view


@pytest.mark.parametrize("which", [0, 1])
def test_once_a_guard_is_gone_all_of_the_worker_is_killed(
    workers: WorkerTable, guards: list[subprocess.Popen[bytes]], which: int
) -> None:
    started(workers, named(guards))
    guards[which].kill()
    shown = ended(workers)
    assert (shown["status"], shown["stopped"], shown["why"]) == (137, False, supervisor.UNGUARDED)


def test_a_guard_that_was_gone_before_is_as_one_that_goes(
    workers: WorkerTable, guards: list[subprocess.Popen[bytes]]
) -> None:
    (pid, ticks), other = named(guards)
    started(workers, [(pid, ticks + 1), other])
    assert ended(workers)["status"] == 137


def test_a_stop_with_grace_is_cut_short_when_a_guard_goes(
    workers: WorkerTable, guards: list[subprocess.Popen[bytes]]
) -> None:
    started(workers, named(guards))
    until(lambda: has_said(workers, "ready"), what="it ignores SIGTERM")
    workers.order("j.1.0", {"stop": 600.0})
    guards[0].kill()
    shown = ended(workers)
    assert (shown["status"], shown["stopped"], shown["why"]) == (137, True, "")


def test_with_its_guards_a_worker_ends_as_it_likes_in_the_environment_that_was_given(
    workers: WorkerTable, guards: list[subprocess.Popen[bytes]]
) -> None:
    started(workers, named(guards), "env; exit 7")
    assert ended(workers)["status"] == 7
    lines = (workers.known["j.1.0"].run / "log").read_text().splitlines()
    assert f"PATH={os.defpath}" in lines
    assert not [line for line in lines if line.startswith("HOME=")]


def test_a_supervisor_that_is_apart_is_not_a_child(
    workers: WorkerTable, guards: list[subprocess.Popen[bytes]]
) -> None:
    started(workers, named(guards))
    notes = run_directory.read_json(workers.known["j.1.0"].run / "running.json") or {}
    found = supervisor.process_at(notes["keeper_pid"])
    assert found is not None
    assert found.parent != os.getpid()
    assert found.session == found.pid


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "runs").mkdir()
    (folder / "runs").chmod(0o777)
    with pytest.raises(PermissionError, match="runs must be ours alone"):
        state_folder(folder)
    (folder / "runs").chmod(0o700)
    folder.chmod(0o755)
    assert state_folder(folder) == folder
    if os.getuid() == 0:
        os.chown(folder, 65534, -1)
        with pytest.raises(PermissionError, match="state must be ours alone"):
            state_folder(folder)


def test_a_link_is_refused_where_everybody_may_make_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    check_own(link)
    with pytest.raises(PermissionError, match="link must be a directory"):
        check_own(link, follow=False)
