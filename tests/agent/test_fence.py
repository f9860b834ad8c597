"""An agent obeys the newest leader, whatever those before it still want."""

from pathlib import Path

import pytest

from stretto.agent.requests import Refused
from stretto.agent.server import STALE_STATUS, Fence

from .agents import Agent

START = {"command": "sleep 600", "job": "1"}


def test_commands_of_an_earlier_leader_than_the_newest_are_refused(tmp_path: Path) -> None:
    fence = Fence(tmp_path / "epoch.json")
    for epoch in (0, 3, 3, 4, 0):
        fence.admit(epoch)
    with pytest.raises(Refused, match="leader 3 has been followed by leader 4") as refused:
        fence.admit(3)
    assert (refused.value.status, refused.value.epoch) == (STALE_STATUS, 4)


def test_the_newest_leader_is_remembered_by_the_next_agent(tmp_path: Path) -> None:
    Fence(tmp_path / "epoch.json").note(7)
    with pytest.raises(Refused):
        Fence(tmp_path / "epoch.json").admit(6)


def test_a_file_that_was_damaged_keeps_no_agent_from_beginning(tmp_path: Path) -> None:
    (tmp_path / "epoch.json").write_text("{")
    Fence(tmp_path / "epoch.json").admit(1)


@pytest.mark.processes
def test_an_agent_does_nothing_for_a_leader_that_was_followed_by_another(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "state").begin()

    def status_of(epoch: int, method: str, path: str, body: object = None) -> int:
        answer = agent.ask(method, path, body, epoch=epoch)
        return int(answer.status_code)

    try:
        assert status_of(2, "PUT", "/v1/workers/1.1.0", START) == 200
        assert status_of(3, "GET", "/v1/workers") == 200  # another leads, and has only looked yet
        stop = ("POST", "/v1/workers/1.1.0/stop", {"grace_s": 0})
        for method, path, body in (
            stop,
            ("POST", "/v1/workers/1.1.0/signal", {"signal": 9}),
            ("PUT", "/v1/workers/2.1.0", START),
            ("DELETE", "/v1/workers/1.1.0", None),
            ("DELETE", "/v1/jobs/1/logs", None),
        ):
            answer = agent.ask(method, path, body, epoch=2)
            assert (answer.status_code, answer.json()["epoch"]) == (STALE_STATUS, 3), path
        agent.kill()
        agent.begin()
        assert status_of(2, *stop) == STALE_STATUS
        assert status_of(2, "GET", "/v1/workers") == 200
        assert status_of(3, *stop) == 200
    finally:
        agent.end()


@pytest.mark.processes
@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "9" * 20])
def test_a_number_of_a_leader_that_is_none_is_refused(agent: Agent, text: str) -> None:
    assert agent.ask("GET", "/v1/node", epoch=text).status_code == 400
