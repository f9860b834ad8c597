"""A worker's end is known as it was, and its GPUs are free only when nothing of it is left."""

import shutil
import time
from shlex import quote
from typing import Any

import pytest

from .agents import Agent, is_gone, kill, until

pytestmark = pytest.mark.processes

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "ending"),
    [
        pytest.param("exit 0", {"status": 0, "signal": None, "why": ""}, id="success"),
        pytest.param(["sh", "-c", "exit 3"], {"status": 3, "signal": None}, id="failure"),
        pytest.param("kill -TERM $$", {"status": 143, "signal": 15}, id="SIGTERM from others"),
        pytest.param("kill -KILL $$", {"status": 137, "signal": 9}, id="SIGKILL from others"),
        pytest.param(
            ["no-such-program"], {"status": 127, "why": "cannot run 'no-such-program': "}, id="not found"
        ),
        pytest.param(["/dev/null"], {"status": 126, "why": "cannot run '/dev/null': "}, id="not a program"),
    ],
)
def test_the_end_of_a_command_is_shown_as_it_was(
    agent: Agent, command: str | list[str], ending: dict[str, Any]
) -> None:
    agent.start("j.1.0", command)
    found = agent.ended("j.1.0")
    why = ending.pop("why", "")
    assert {name: found[name] for name in ending} == ending
    assert found["why"].startswith(why)
    assert found["stopped"] is False
    assert found["ended_s"] >= found["started_s"] > 0
    assert found["lasted_s"] >= 0


def test_a_worker_whose_run_directory_is_removed_ends_with_its_supervisor_and_counts_as_lost(
    agent: Agent,
) -> None:
    agent.run("j.1.0", ["sleep", "600"])
    supervisor_pid, worker = agent.supervisor_of("j.1.0"), agent.worker("j.1.0")["pid"]
    shutil.rmtree(agent.state / "runs" / "j.1.0")
    kill(worker)
    assert agent.ended("j.1.0")["status"] == 137
    until(lambda: is_gone(supervisor_pid))
    assert agent.ask("DELETE", "/v1/workers/j.1.0").status_code == 200
    assert agent.workers() == {}
    assert agent.start("j.1.0", "exit 0").status_code == 410


def test_a_directory_that_is_missing_is_named(agent: Agent) -> None:
    agent.start("j.1.0", "exit 0", cwd="/no/such/place")
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["why"].startswith("cannot start")) == (126, True)
    assert "/no/such/place" in ending["why"]


def test_a_stop_lets_a_worker_end_by_itself_within_its_grace(agent: Agent) -> None:
    agent.run("j.1.0", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    agent.log_line("j.1.0")
    agent.stop("j.1.0", 30)
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["stopped"]) == (0, True)
    assert agent.log("j.1.0").endswith("saved\n")


def test_a_worker_that_does_not_heed_a_stop_is_killed_after_its_grace_and_not_before(agent: Agent) -> None:
    agent.run("j.1.0", IGNORES_TERM)
    agent.log_line("j.1.0")
    asked = time.monotonic()
    agent.stop("j.1.0", 0.5)
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["signal"], ending["stopped"]) == (137, 9, True)
    assert time.monotonic() - asked >= 0.5


def test_a_second_stop_may_shorten_the_grace_and_not_lengthen_it(agent: Agent) -> None:
    agent.run("j.1.0", IGNORES_TERM)
    agent.log_line("j.1.0")
    agent.stop("j.1.0", 3600)
    agent.stop("j.1.0", 0.1)
    agent.stop("j.1.0", 3600)
    assert agent.ended("j.1.0")["status"] == 137


def test_a_suspended_worker_still_hears_a_stop(agent: Agent) -> None:
    agent.run("j.1.0", ["sleep", "600"])
    agent.ask("POST", "/v1/workers/j.1.0/signal", {"signal": 19})
    agent.stop("j.1.0", 3600)
    assert agent.ended("j.1.0")["status"] == 143


def test_a_signal_reaches_the_whole_process_group(agent: Agent) -> None:
    agent.run("j.1.0", "trap 'echo heard; exit 5' USR1; echo ready; sleep 600 & wait")
    agent.log_line("j.1.0")
    agent.ask("POST", "/v1/workers/j.1.0/signal", {"signal": 10})
    ending = agent.ended("j.1.0")  # which takes the end of `sleep`, too
    assert (ending["status"], ending["stopped"]) == (5, False)


def test_a_gpu_is_in_use_until_the_last_daemon_of_its_worker_is_gone(agent: Agent) -> None:
    agent.run("j.1.0", "setsid sh -c 'echo $$; exec sleep 600' & exit 4", gpus=[1])
    daemon = int(agent.log_line("j.1.0"))
    lingering = until(lambda: agent.worker("j.1.0")["status"] is not None and agent.worker("j.1.0"))
    assert (lingering["phase"], lingering["status"]) == ("running", 4)
    refusal = agent.start("k.1.0", "exit 0", gpus=[0, 1])
    assert (refusal.status_code, "j.1.0" in refusal.json()["why"]) == (423, True)
    kill(daemon)
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["stopped"]) == (4, False)
    assert agent.start("k.1.0", "exit 0", gpus=[0, 1]).status_code == 200


def test_a_stop_ends_daemons_that_left_the_session_and_do_not_heed_it(agent: Agent) -> None:
    deaf = "setsid sh -c \"trap '' TERM; echo \\$\\$; while :; do sleep 0.05; done\" &"
    agent.run("j.1.0", f"{deaf} exec sleep 600")
    daemon = int(agent.log_line("j.1.0"))
    agent.stop("j.1.0", 0.2)
    ending = agent.ended("j.1.0")
    assert (ending["status"], ending["stopped"]) == (143, True)
    assert is_gone(daemon)


def test_a_daemon_hears_of_a_stop_once_its_worker_is_gone(agent: Agent) -> None:
    agent.run("j.1.0", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600")
    agent.log_line("j.1.0")
    agent.stop("j.1.0", 3600)  # which nobody waits for: SIGTERM is enough for either
    assert agent.ended("j.1.0")["status"] == 143


def test_what_a_training_under_a_shell_has_started_hears_of_a_stop_once_the_training_is_gone(
    agent: Agent,
) -> None:
    loader = "setsid sh -c 'trap \"echo told; exit\" TERM; echo ready; while :; do sleep 0.05; done'"
    training = f'trap "sleep 0.4; echo saved; exit 143" TERM; {loader} & while :; do sleep 0.05; done'
    agent.run("j.1.0", f"sh -c {quote(training)}; echo never")
    agent.log_line("j.1.0")
    agent.stop("j.1.0", 3600)
    assert agent.ended("j.1.0")["status"] == 143
    said = [word for word in agent.log("j.1.0").split() if word != "Terminated"]  # of a shell about `sleep`
    assert said == ["ready", "saved", "told"]
