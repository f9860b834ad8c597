"""What an agent refuses, and that asking again changes nothing."""

import json
import socket
import stat
import threading
from typing import Any

import pytest

from .agents import Agent, until


@pytest.mark.processes
def test_a_start_that_is_repeated_is_the_same_start(agent: Agent) -> None:
    first = agent.run("j.1.0", "echo once; sleep 600", gpus=[0], env={"A": "b"})
    again = agent.start("j.1.0", "echo once; sleep 600", gpus=[0], env={"A": "b"})
    assert (again.status_code, again.json()["worker"]) == (200, first)
    other = agent.start("j.1.0", "echo twice; sleep 600", gpus=[0], env={"A": "b"})
    assert other.status_code == 409
    assert agent.log_line("j.1.0") == "once"
    agent.stop("j.1.0", 0)
    ended = agent.ended("j.1.0")
    assert agent.start("j.1.0", "echo once; sleep 600", gpus=[0], env={"A": "b"}).json()["worker"] == ended
    assert agent.log("j.1.0") == "once\n"


@pytest.mark.sockets
def test_one_of_many_starts_at_once_gets_the_gpu(agent: Agent) -> None:
    statuses: list[int] = []

    def ask(number: int) -> None:
        statuses.append(agent.start(f"j{number}.1.0", ["sleep", "600"], gpus=[2]).status_code)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(statuses) == [200] + 7 * [423]


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    ["..%2F..%2Fx", "..", ".new-x", "-x", "a%20b", "a" * 201, "%00", "a%2Fb"],
    ids=lambda name: name[:12],
)
def test_an_id_that_is_no_plain_file_name_is_refused(agent: Agent, name: str) -> None:
    answer = agent.start(name, "exit 0")
    assert answer.status_code in (400, 404), answer.text  # 404 where the client itself resolves `..`
    assert agent.workers() == {}
    assert [path.name for path in (agent.state / "runs").iterdir()] == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param({"command": []}, "command", id="empty command"),
        pytest.param({"command": "  "}, "command", id="blank command"),
        pytest.param({"command": ["a\0b"]}, "command", id="NUL"),
        pytest.param({}, "command", id="no command"),
        pytest.param({"command": "x", "gpus": [4]}, "gpus", id="GPU that is not there"),
        pytest.param({"command": "x", "gpus": [0, 0]}, "gpus", id="GPU twice"),
        pytest.param({"command": "x", "gpus": [True]}, "gpus", id="no index"),
        pytest.param({"command": "x", "env": {"A": 1}}, "env", id="number in env"),
        pytest.param({"command": "x", "env": {"A=B": "1"}}, "env", id="= in a name"),
        pytest.param({"command": "x", "grace_s": -1}, "grace_s", id="negative grace"),
        pytest.param({"command": "x", "grace_s": "5"}, "grace_s", id="grace as text"),
        pytest.param({"command": "x", "extra": 1}, "extra", id="unknown field"),
        pytest.param([1], "object", id="no object"),
    ],
)
def test_a_wrong_start_is_refused_by_name(agent: Agent, body: Any, named: str) -> None:
    answer = agent.ask("PUT", "/v1/workers/j.1.0", body)
    assert answer.status_code == 400
    assert named in answer.json()["why"]
    assert agent.workers() == {}


@pytest.mark.processes
def test_nobody_is_answered_without_the_token(agent: Agent) -> None:
    for method, path in [("GET", "/v1/node"), ("PUT", "/v1/workers/j.1.0"), ("GET", "/v1/workers")]:
        assert agent.ask(method, path, {"command": "exit 0"}, token="wrong").status_code == 401
    assert agent.workers() == {}
    assert stat.S_IMODE((agent.state / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(agent.state.stat().st_mode) == 0o700


@pytest.mark.processes
def test_what_is_not_there_is_not_found(agent: Agent) -> None:
    for method, path in [
        ("POST", "/v1/workers/x/stop"),
        ("POST", "/v1/workers/x/signal"),
        ("DELETE", "/v1/workers/x"),
        ("GET", "/v1/workers/x/log"),
        ("GET", "/v2/node"),
    ]:
        assert agent.ask(method, path, {"grace_s": 1, "signal": 1}).status_code == 404


@pytest.mark.sockets
def test_a_body_that_is_too_long_is_refused(agent: Agent) -> None:
    answer = agent.start("j.1.0", "x" * (1 << 20))
    assert (answer.status_code, answer.headers["Connection"]) == (413, "close")
    assert agent.workers() == {}


@pytest.mark.sockets
def test_who_still_sends_what_was_refused_is_told_so_and_sees_no_error(agent: Agent) -> None:
    host, _, port = json.loads((agent.state / "address.json").read_text())["url"][7:].partition(":")
    given = f"Authorization: Bearer {(agent.state / 'token').read_text()}\r\n"
    head = f"PUT /v1/workers/j.1.0 HTTP/1.1\r\nHost: n1\r\n{given}Content-Length: {1 << 21}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(head + b"x")
        answer = line.recv(1 << 16)
        for _ in range(4):
            line.sendall(b"x" * 1000)
        line.shutdown(socket.SHUT_WR)
        while piece := line.recv(1 << 16):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"}")


@pytest.mark.sockets
def test_whoever_waits_is_told_of_a_change_and_of_none_before(agent: Agent) -> None:
    listing = agent.ask("GET", "/v1/workers").json()
    after = f"{listing['instance']}:{listing['version']}"
    assert agent.ask("GET", "/v1/workers", after=after, wait_s=0.1).json() == listing
    answers: list[dict[str, Any]] = []

    def wait() -> None:
        answers.append(agent.ask("GET", "/v1/workers", after=after, wait_s=20).json())

    waiting = threading.Thread(target=wait)
    waiting.start()
    agent.start("j.1.0", ["sleep", "600"])
    waiting.join(timeout=30)
    assert [each["id"] for each in answers[0]["workers"]] == ["j.1.0"]


@pytest.mark.processes
def test_a_log_is_read_in_pieces_and_followed_to_its_end(agent: Agent) -> None:
    agent.run("j.1.0", "printf 0123456789; while [ ! -e ../../go ]; do sleep 0.02; done; printf abc >&2")
    until(lambda: agent.log("j.1.0") == "0123456789")
    piece = agent.ask("GET", "/v1/workers/j.1.0/log", offset=4, limit=3)
    assert (piece.text, piece.headers["Stretto-Next"], piece.headers["Stretto-Complete"]) == ("456", "7", "0")
    assert agent.ask("GET", "/v1/workers/j.1.0/log", offset=-2).text == "89"
    assert agent.ask("GET", "/v1/workers/j.1.0/log", offset=10, wait_s=0.1).content == b""
    (agent.state / "go").touch()
    piece = agent.ask("GET", "/v1/workers/j.1.0/log", offset=10, wait_s=20)
    assert piece.text == "abc"
    agent.ended("j.1.0")
    piece = agent.ask("GET", "/v1/workers/j.1.0/log", offset=13, wait_s=20)
    assert (piece.text, piece.headers["Stretto-Complete"]) == ("", "1")


@pytest.mark.processes
def test_an_ended_worker_is_forgotten_for_good_and_its_log_is_kept_until_its_jobs_are_deleted(
    agent: Agent,
) -> None:
    agent.run("j.1.0", "echo here; sleep 600", job="j")
    agent.log_line("j.1.0")
    assert agent.ask("DELETE", "/v1/workers/j.1.0").status_code == 409
    agent.stop("j.1.0", 0)
    agent.ended("j.1.0")
    for _ in range(2):
        assert agent.ask("DELETE", "/v1/workers/j.1.0").status_code == 200
    assert agent.workers() == {}
    assert agent.log("j.1.0") == "here\n"
    assert agent.start("j.1.0", "echo here; sleep 600", job="j").status_code == 410
    assert agent.ask("DELETE", "/v1/jobs/other/logs").json() == {"removed": 0}
    assert agent.ask("DELETE", "/v1/jobs/j/logs").json() == {"removed": 1}
    assert agent.ask("GET", "/v1/workers/j.1.0/log").status_code == 404


@pytest.mark.processes
def test_a_worker_sees_its_environment_and_nothing_of_the_agents_own_settings(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.kill()
    monkeypatch.setenv("STRETTO_SECRET", "of the service")
    monkeypatch.setenv("LC_FROM_OUTSIDE", "yes")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    agent.begin()
    agent.start("j.1.0", "env", env={"MINE": "1"}, gpus=[1])
    agent.ended("j.1.0")
    seen = dict(line.split("=", 1) for line in agent.log("j.1.0").splitlines() if "=" in line)
    assert (seen["MINE"], seen["LC_FROM_OUTSIDE"], seen["STRETTO_WORKER_ID"]) == ("1", "yes", "j.1.0")
    assert "STRETTO_SECRET" not in seen
    assert "CUDA_VISIBLE_DEVICES" not in seen
