"""A damaged file of one worker hurts nobody else, and its GPUs are not given to others while it runs."""

import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import presence, supervisor
from stretto.agent.agent import state_folder
from stretto.agent.node import Node
from stretto.agent.requests import Refused
from stretto.agent.worker_table import WorkerTable

from .agents import Agent, is_gone, until

pytestmark = pytest.mark.processes

FILES = ("start.json", "running.json", "ended.json", "control", "orders", "log", "keeper.log")


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _replace_by(text: bytes) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        _remove(path)
        path.write_bytes(text)

    return replace


def _cut(path: Path) -> None:
    text = path.read_bytes() if path.is_file() else b'{"status": 0, "ended_s": 1.0}'
    _replace_by(text[: len(text) // 2])(path)


def _loop(path: Path) -> None:
    _remove(path)
    path.symlink_to(path)  # not even an administrator can read it


def _folder(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _pipe(path: Path) -> None:
    _remove(path)
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "removed": _remove,
    "empty": _replace_by(b""),
    "cut off": _cut,
    "noise": _replace_by(bytes(range(256)) * 8),
    "a list": _replace_by(b"[]"),
    "an empty object": _replace_by(b"{}"),
    "odd values": _replace_by(
        json.dumps(dict.fromkeys(("gpus", "pid", "keeper_pid", "mark", "status", "exit", "job"), -1)).encode()
    ),
    "too deep": _replace_by(b"[" * 100_000),
    "a directory": _folder,
    "unreadable": _loop,
    "a pipe": _pipe,
}


class Machine:
    """A state directory whose agent, in this process, is replaced now and then."""

    def __init__(self, folder: Path) -> None:
        self.state = state_folder(folder)
        self.begin()

    def begin(self) -> None:
        """An agent that knows only what lies on the disk."""
        self.workers = WorkerTable(self.state, Node("n1", "t", 4), secrets.token_hex(4), apart=True)

    def start(self, name: str, command: str, *gpus: int) -> None:
        start = {"job": name.split(".")[0], "gpus": list(gpus), "command": command, "env": {}, "cwd": ""}
        self.workers.start(name, {**start, "grace_s": 5.0})

    def shown(self, name: str) -> dict[str, Any]:
        return next(each for each in self.listed()["workers"] if each["id"] == name)

    def listed(self) -> dict[str, Any]:
        return self.workers.listed("", 0.0)

    def in_phase(self, name: str, phase: str) -> dict[str, Any]:
        return until(lambda: self.shown(name)["phase"] == phase and self.shown(name))

    def processes(self) -> list[int]:
        """Supervisors of runs here."""
        lines = ((each.pid, Path(f"/proc/{each.pid}/cmdline")) for each in supervisor.processes())
        return [pid for pid, line in lines if str(self.state / "runs").encode() in _read(line)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "state")
    yield found
    for name in found.workers.known:
        found.workers.order(name, {"stop": 0})
    until(lambda: not found.processes())
    found.workers.close()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_worker_that_runs_hurts_nobody_else(
    machine: Machine, name: str, damage: str
) -> None:
    machine.start("hurt.1.0", "echo begun; exec sleep 600", 0)
    machine.start("well.1.0", "exec sleep 600", 1)
    pids = [machine.in_phase(each, "running")["pid"] for each in ("hurt.1.0", "well.1.0")]
    machine.workers.close()
    DAMAGE[damage](machine.state / "runs" / "hurt.1.0" / name)
    machine.begin()
    assert machine.shown("well.1.0")["pid"] == pids[1]
    machine.start("new.1.0", "exit 7", 2)
    assert machine.in_phase("new.1.0", "ended")["status"] == 7
    assert machine.shown("hurt.1.0")["gpus"] == [0]
    assert not is_gone(pids[0])
    with pytest.raises(Refused, match="GPU 0"):
        machine.start("eager.1.0", "exit 0", 0)
    machine.workers.order("hurt.1.0", {"stop": 5.0})
    machine.in_phase("hurt.1.0", "ended")
    assert is_gone(pids[0])
    machine.start("next.1.0", "exit 0", 0)
    assert machine.in_phase("next.1.0", "ended")["status"] == 0
    machine.workers.forget("hurt.1.0")
    assert machine.workers.delete_logs("hurt") == 1


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_worker_that_ended_meanwhile_keeps_no_gpu(
    machine: Machine, name: str, damage: str
) -> None:
    machine.start("hurt.1.0", "exit 9", 0)
    machine.in_phase("hurt.1.0", "ended")
    until(lambda: not machine.processes())
    machine.workers.close()
    run = machine.state / "runs" / "hurt.1.0"
    DAMAGE[damage](run / name)
    machine.begin()
    shown = machine.in_phase("hurt.1.0", "ended")
    assert shown["status"] == (137 if name == "ended.json" else 9)
    assert name != "ended.json" or damage == "removed" or "ended.json" in shown["why"]
    machine.start("next.1.0", "exit 0", 0)
    assert machine.in_phase("next.1.0", "ended")["status"] == 0


@pytest.mark.parametrize("name", ["start.json", "running.json", "ended.json"])
def test_what_is_set_aside_is_said_once_and_shown(
    machine: Machine, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.start("hurt.1.0", "exec sleep 600", 0)
    machine.in_phase("hurt.1.0", "running")
    machine.workers.close()
    DAMAGE["empty"](machine.state / "runs" / "hurt.1.0" / name)
    machine.begin()
    (said,) = machine.listed()["damage"]
    assert said.startswith(f"hurt.1.0: {name} must be JSON")
    machine.workers.look()
    assert capsys.readouterr().err.count("worker hurt.1.0 is set aside") == 1


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_supervisor_that_is_called_whatever_its_file_of_orders_is_hears_what_comes_later(
    machine: Machine, damage: str
) -> None:
    machine.start("hurt.1.0", "exec sleep 600", 0)
    machine.in_phase("hurt.1.0", "running")
    run = machine.state / "runs" / "hurt.1.0"
    DAMAGE[damage](run / supervisor.ORDERS)
    os.kill(json.loads((run / "running.json").read_text())["keeper_pid"], signal.SIGUSR1)
    machine.workers.order("hurt.1.0", {"stop": 5.0})
    assert machine.in_phase("hurt.1.0", "ended")["stopped"]


def test_a_supervisor_that_is_killed_after_its_files_were_damaged_leaves_nothing(machine: Machine) -> None:
    machine.start("hurt.1.0", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600", 0)
    machine.in_phase("hurt.1.0", "running")
    run = machine.state / "runs" / "hurt.1.0"
    daemon = int(until(lambda: _read(run / "log").strip()))
    machine.workers.close()
    (run / "start.json").write_text("")
    for pid in machine.processes():
        os.kill(pid, 9)
    machine.begin()
    shown = machine.in_phase("hurt.1.0", "ended")
    assert (shown["status"], shown["gpus"]) == (137, [0])
    assert is_gone(daemon)


def test_what_is_no_run_is_left_where_it_is(machine: Machine) -> None:
    machine.workers.close()
    runs = machine.state / "runs"
    (runs / "notes.txt").write_text("mine")
    (runs / "99.1.0").mkdir()
    (runs / ".hidden").mkdir()
    (runs / "gone").symlink_to(runs / "nowhere")
    machine.begin()
    machine.start("new.1.0", "exit 0", 0)
    assert machine.in_phase("new.1.0", "ended")["status"] == 0
    assert machine.shown("99.1.0")["phase"] == "ended"
    assert (runs / "notes.txt").read_text() == "mine"


# ── the files by which an agent is found ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", [each for each in DAMAGE if each != "unreadable"])
@pytest.mark.parametrize("name", [presence.TOKEN, presence.ADDRESS, f"{presence.TOKEN}.part"])
def test_an_agent_begins_whatever_lies_where_it_writes(tmp_path: Path, name: str, damage: str) -> None:
    state = state_folder(tmp_path / "state")
    presence.token_in(state)
    DAMAGE[damage](state / name)
    lock = presence.take(state)
    assert lock is not None
    found = presence.Presence(state, lock, presence.token_in(state), {"url": "u", "pid": 1})
    found.show()
    assert presence.token_in(state) == found.token
    assert len(found.token) >= 32
    assert json.loads((state / presence.ADDRESS).read_text()) == found.address
    assert (state / presence.TOKEN).stat().st_mode & 0o777 == 0o600
    os.close(lock)


@pytest.mark.parametrize("name", [presence.TOKEN, presence.ADDRESS])
def test_an_agent_that_lives_writes_down_again_how_it_is_found(agent: Agent, name: str) -> None:
    path = agent.state / name
    before = path.read_bytes()
    path.write_bytes(b"")
    until(lambda: path.read_bytes() == before)
    assert agent.ask("GET", "/v1/node").status_code == 200


def test_an_agent_whose_lock_file_was_replaced_ends_and_its_workers_go_on(agent: Agent) -> None:
    worker = agent.run("j.1.0", ["sleep", "600"])
    (agent.state / presence.LOCK).unlink()
    assert agent.process is not None
    assert agent.process.wait(timeout=60) == 0
    assert agent.begin().worker("j.1.0") == worker


def test_a_log_that_is_no_file_is_said_to_be_none(agent: Agent) -> None:
    agent.run("j.1.0", "exit 0")
    agent.ended("j.1.0")
    for damage in ("a directory", "a pipe", "unreadable"):
        DAMAGE[damage](agent.state / "runs" / "j.1.0" / "log")
        answer = agent.ask("GET", "/v1/workers/j.1.0/log", wait_s=5)
        assert (answer.status_code, "log" in answer.json()["why"]) == (409, True)
