"""A GPU is free only once nothing is left of its worker, however that hides, whoever was killed."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.agent import containment, run_directory, supervisor

from .agents import Agent, environment_of, is_gone, kill, until

pytestmark = pytest.mark.processes

# A daemon in a session of its own, without environment, parent, files or directory: nothing says whose it is.
HIDE = """
import os, sys, time
note, keeps_log = sys.argv[1], sys.argv[2] == "log"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        with open(note + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(note + ".part", note)
        os.closerange(0, 1 if keeps_log else 100)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def hidden(agent: Agent, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a worker with something that hides; the process id of that."""
    pids: list[int] = []

    def begin(name: str = "j.1.0", keeps: str = "nothing") -> int:
        note, script = tmp_path / f"note-{name}", tmp_path / "hide.py"
        script.write_text(HIDE)
        agent.run(name, [sys.executable, "-I", "-S", str(script), str(note), keeps], gpus=[len(pids)])
        pids.append(int(until(lambda: note.exists() and note.read_text())))
        until(lambda: environment_of(pids[-1]) <= {b""})
        return pids[-1]

    yield begin
    for pid in pids:
        kill(pid)


@pytest.fixture
def without_groups(agent: Agent) -> Iterator[None]:
    """The agent makes no control groups."""
    agent.kill()
    agent.begin("--no-control-groups")
    yield
    agent.kill()
    agent.begin()


@pytest.fixture
def with_groups(agent: Agent) -> None:
    """The agent makes control groups; skips where this machine has none for us."""
    group = containment.make_group()
    if not group:
        pytest.skip("no control group of version 2 can be made here")
    containment.remove_group(group)


@pytest.mark.usefixtures("without_groups")
def test_what_hides_from_a_killed_supervisor_is_an_orphan_of_the_agent_and_killed(
    agent: Agent, hidden: Callable[..., int]
) -> None:
    pid = hidden()
    kill(agent.supervisor_of("j.1.0"))
    assert agent.ended("j.1.0")["status"] == 137
    assert is_gone(pid)
    assert agent.start("k.1.0", "exit 0", gpus=[0]).status_code == 200


@pytest.mark.usefixtures("without_groups")
def test_other_workers_of_the_agent_are_spared_then(agent: Agent, hidden: Callable[..., int]) -> None:
    first, second = hidden("j.1.0"), hidden("k.1.0")
    kill(agent.supervisor_of("j.1.0"))
    agent.ended("j.1.0")
    assert is_gone(first)
    assert not is_gone(second)
    assert agent.worker("k.1.0")["phase"] == "running"
    agent.stop("k.1.0", 0)
    agent.ended("k.1.0")
    assert is_gone(second)


@pytest.mark.usefixtures("without_groups")
def test_the_next_agent_finds_by_its_log_what_hides_from_supervisor_and_agent(
    agent: Agent, hidden: Callable[..., int]
) -> None:
    pid = hidden(keeps="log")
    supervisor_pid = agent.supervisor_of("j.1.0")
    agent.kill()
    kill(supervisor_pid)
    assert agent.begin().ended("j.1.0")["status"] == 137
    assert is_gone(pid)


@pytest.mark.usefixtures("with_groups")
def test_nothing_hides_from_supervisor_and_agent_in_a_control_group(
    agent: Agent, hidden: Callable[..., int]
) -> None:
    pid = hidden()
    group = (run_directory.read_json(agent.state / "runs" / "j.1.0" / "start.json") or {})["group"]
    assert pid in {each.pid for each in containment.members(group)}
    supervisor_pid = agent.supervisor_of("j.1.0")
    agent.kill()
    kill(supervisor_pid)
    assert agent.begin().ended("j.1.0")["status"] == 137
    assert is_gone(pid)
    until(lambda: not Path(group).exists())


@pytest.mark.usefixtures("with_groups")
def test_a_control_group_goes_with_its_worker(agent: Agent) -> None:
    agent.run("j.1.0", "exit 3")
    agent.ended("j.1.0")
    group = (run_directory.read_json(agent.state / "runs" / "j.1.0" / "start.json") or {})["group"]
    assert Path(group).name.startswith("stretto-")
    until(lambda: not Path(group).exists())


@pytest.mark.usefixtures("with_groups")
def test_groups_below_a_runs_own_are_emptied_and_removed_with_it() -> None:
    group = containment.make_group()
    below = Path(group) / "below"
    below.mkdir()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setsid=True)
    (below / "cgroup.procs").write_text(str(pid))
    (found,) = containment.members(group)
    assert found.pid == pid
    containment.kill(group, [])
    os.waitpid(pid, 0)
    until(lambda: not containment.members(group))
    containment.remove_group(group)
    assert not Path(group).exists()


def test_no_directory_but_one_that_was_made_here_counts_as_a_control_group(tmp_path: Path) -> None:
    home = containment.group_of_ours()
    for path in ("", str(tmp_path), str(home or tmp_path), "/"):
        assert not containment.is_group(path)
        assert containment.members(path) == []
        containment.kill(path, [])
        containment.remove_group(path)
    assert tmp_path.exists()


def test_only_who_appends_to_a_log_counts_as_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    opened = {"append": ">>", "read": "<", "overwrite": ">"}
    pids = {}
    for how, sign in opened.items():
        pids[how] = os.posix_spawn("/bin/sh", ["sh", "-c", f"exec sleep 600 {sign}{log}"], {}, setsid=True)
    try:
        until(lambda: all(_has_open(pid, log) for pid in pids.values()))
        found = containment.writers_of(log, list(supervisor.processes()))
        assert [each.pid for each in found] == [pids["append"]]
    finally:
        for pid in pids.values():
            kill(pid)
            os.waitpid(pid, 0)


def _has_open(pid: int, path: Path) -> bool:
    try:
        return path in [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
