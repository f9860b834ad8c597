"""Whoever is killed, no end is lost, no process stays behind, and no GPU is given out twice."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.agent import run_directory, supervisor

from .agents import PATIENCE_S, Agent, is_gone, kill, until

pytestmark = pytest.mark.processes


def test_workers_do_not_notice_that_their_agent_was_killed(agent: Agent) -> None:
    before = agent.run("j.1.0", "sleep 600", cwd=str(agent.state))
    agent.kill()
    agent.begin()
    assert agent.worker("j.1.0") == before
    assert agent.start("k.1.0", "exit 0", gpus=[]).status_code == 200
    agent.stop("j.1.0", 1)
    agent.ended("j.1.0")


def test_what_ended_while_no_agent_ran_has_its_true_status(agent: Agent) -> None:
    for name, command in {"a": "exit 3", "b": "kill -KILL $$", "c": "exit 0"}.items():
        agent.run(f"{name}.1.0", f"while [ ! -e ../../go ]; do sleep 0.02; done; {command}")
    pids = [each["pid"] for each in agent.workers().values()]
    agent.kill()
    (agent.state / "go").touch()
    until(lambda: all(map(is_gone, pids)))
    agent.begin()
    assert {name: agent.ended(name)["status"] for name in agent.workers()} == {
        "a.1.0": 3,
        "b.1.0": 137,
        "c.1.0": 0,
    }


def test_a_stop_goes_on_without_the_agent_that_was_asked_for_it(agent: Agent) -> None:
    worker = agent.run("j.1.0", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    agent.log_line("j.1.0")
    agent.stop("j.1.0", 0.5)
    agent.kill()
    until(lambda: is_gone(worker["pid"]))
    ending = agent.begin().ended("j.1.0")
    assert (ending["status"], ending["stopped"]) == (137, True)


def test_a_worker_does_not_outlive_its_supervisor(agent: Agent) -> None:
    worker = agent.run("j.1.0", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600", gpus=[0])
    daemon = int(agent.log_line("j.1.0"))
    kill(agent.supervisor_of("j.1.0"))
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["signal"], ending["stopped"]) == (137, 9, False)
    assert "supervisor" in ending["why"]
    assert is_gone(worker["pid"])
    assert is_gone(daemon)
    until(lambda: not Path(f"/proc/{daemon}").exists())  # nor is it left as a zombie


def test_what_forgot_its_environment_is_found_by_its_session(agent: Agent) -> None:
    agent.run("j.1.0", "env -i /bin/sh -c 'echo $$; while :; do /bin/sleep 0.05; done' & exec sleep 600")
    forgetful = int(agent.log_line("j.1.0"))
    kill(agent.supervisor_of("j.1.0"))
    assert agent.ended("j.1.0")["status"] == 137
    assert is_gone(forgetful)


def test_the_next_agent_ends_what_a_killed_supervisor_left(agent: Agent) -> None:
    worker = agent.run("j.1.0", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600")
    daemon = int(agent.log_line("j.1.0"))
    agent.kill()
    kill(agent.supervisor_of("j.1.0"))
    until(lambda: is_gone(worker["pid"]))  # the kernel's doing: nobody else is there
    assert not is_gone(daemon)
    assert agent.begin().ended("j.1.0")["status"] == 137
    assert is_gone(daemon)


def test_a_status_that_was_known_is_kept_when_the_supervisor_is_killed_later(agent: Agent) -> None:
    agent.run("j.1.0", "setsid sleep 600 & exit 5")
    until(lambda: agent.worker("j.1.0")["status"] == 5)
    kill(agent.supervisor_of("j.1.0"))
    assert agent.ended("j.1.0")["status"] == 5


def test_a_start_that_was_cut_off_before_it_was_acknowledged_leaves_nothing(agent: Agent) -> None:
    agent.kill()
    (agent.state / "runs" / ".new-j.1.0").mkdir()
    assert agent.begin().workers() == {}
    assert agent.start("j.1.0", "exit 0").status_code == 200


def test_a_start_that_was_cut_off_before_its_supervisor_ran_is_lost_and_not_repeated(agent: Agent) -> None:
    agent.start("j.1.0", "exit 0", gpus=[0])
    agent.ended("j.1.0")
    agent.kill()
    run = agent.state / "runs" / "j.1.0"
    for name in ("running.json", "ended.json", "log"):
        (run / name).unlink()
    ending = agent.begin().ended("j.1.0")
    assert (ending["status"], "before the command began" in ending["why"]) == (137, True)
    assert not (run / "log").exists()


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        pytest.param({"boot_id": "another"}, "the machine was restarted", id="machine restarted"),
        pytest.param({"keeper_ticks": 1}, "its supervisor was killed.", id="supervisor's number used again"),
    ],
)
def test_a_process_that_got_the_number_of_ours_is_left_alone(
    agent: Agent, notes: dict[str, object], why: str
) -> None:
    agent.start("j.1.0", "exit 0")
    agent.ended("j.1.0")
    agent.kill()
    run = agent.state / "runs" / "j.1.0"
    (run / "ended.json").unlink()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as innocent:
        itself = supervisor.process_at(innocent.pid)
        assert itself is not None
        number = {"keeper_pid": innocent.pid, "keeper_ticks": itself.ticks, "pid": innocent.pid}
        known = run_directory.read_json(run / "running.json") or {}
        supervisor.write_durably(run / "running.json", {**known, **number, **notes})
        ending = agent.begin().ended("j.1.0")
        assert innocent.poll() is None
        innocent.kill()
    assert (ending["status"], ending["why"]) == (137, why)


def test_an_ending_that_cannot_be_written_is_held_until_it_can_be(agent: Agent) -> None:
    agent.run("j.1.0", "while [ ! -e ../../go ]; do sleep 0.02; done; exit 3", gpus=[0])
    run = agent.state / "runs" / "j.1.0"
    part = run / "ended.json.part"  # where nothing can be written: what a disk that fails amounts to
    part.unlink()
    part.mkdir()
    (agent.state / "go").touch()
    until(lambda: "cannot write" in (run / "keeper.log").read_text())
    assert agent.start("k.1.0", "exit 0", gpus=[0]).status_code == 423
    part.rmdir()
    assert agent.ended("j.1.0")["status"] == 3


def test_a_second_agent_does_not_take_the_same_state_directory(agent: Agent) -> None:
    command = [sys.executable, "-m", "stretto.agent", "--state", str(agent.state), "--gpus", "1"]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (second.returncode, "another agent" in second.stderr) == (3, True)


def test_an_agent_that_is_told_to_end_leaves_its_workers_alone(agent: Agent) -> None:
    worker = agent.run("j.1.0", ["sleep", "600"])
    assert agent.kill(signal.SIGTERM) == 0
    assert not is_gone(worker["pid"])
    assert agent.begin().worker("j.1.0") == worker


@pytest.mark.slow
def test_thirty_workers_and_random_kills_leave_no_process_and_no_doubt(agent: Agent) -> None:
    chance = random.Random(7)
    commands = {  # and how each may end when only stops come in between
        "exec sleep 600": {143},
        "setsid sleep 600 & exec sleep 600": {143},
        "trap '' TERM; while :; do sleep 0.1; done": {137, 143},  # stopped before or after the trap is set
        "(setsid sleep 600 &) ; sleep 0.3; exit 6": {6, 143},
        "sleep 0.2; exit 0": {0, 143},
    }
    chosen = {f"j{number}.1.0": chance.choice(list(commands)) for number in range(30)}
    killed = set()
    for name, command in chosen.items():
        assert agent.start(name, command).status_code == 200
        blow = chance.choice(["agent", "supervisor", "worker", "stop", "none", "none", "none"])
        victim = chance.choice(list(agent.workers().values()))
        if blow == "agent":
            agent.kill()
            agent.begin()
        elif blow == "stop":
            agent.stop(victim["id"], chance.choice([0.0, 0.2]))
        elif blow in ("supervisor", "worker") and victim["phase"] == "running" and victim["status"] is None:
            killed.add(victim["id"])
            kill(agent.supervisor_of(victim["id"]) if blow == "supervisor" else victim["pid"])
    for name in chosen:
        agent.stop(name, 0.2)
    endings = {name: agent.ended(name) for name in chosen}
    assert agent.marked() == []
    until(lambda: not agent.supervisors())
    for name, command in chosen.items():
        may_be = commands[command] | {137} if name in killed else commands[command]
        stopped_at_once = {137, 143}  # by a stop without grace
        assert endings[name]["status"] in may_be | stopped_at_once, endings[name]
        assert endings[name]["stopped"] or endings[name]["status"] in may_be, endings[name]


def test_a_full_disk_does_not_lose_how_a_worker_ended(small_disk: Path) -> None:
    agent = Agent(small_disk).begin()
    try:
        agent.run("j.1.0", "cat /dev/zero; exit 3", gpus=[0])  # `cat` ends when the disk is full
        assert agent.ended("j.1.0")["status"] == 3
        refusal = agent.start("k.1.0", "exit 0", gpus=[0])
        assert (refusal.status_code, "No space" in refusal.json()["why"]) == (507, True)
        agent.kill()
        (small_disk / "runs" / "j.1.0" / "log").unlink()
        assert agent.begin().ended("j.1.0")["status"] == 3
        assert agent.start("k.1.0", "exit 0", gpus=[0]).status_code == 200
        assert agent.ended("k.1.0")["status"] == 0
    finally:
        agent.end()
