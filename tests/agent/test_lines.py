"""Connections to an agent that show no token: they end, and those that do are served meanwhile."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.service.files_left import files_left

from stretto.agent import open_files, server
from stretto.agent.run_directory import read_json
from stretto.agent.server import ConnectionLimit

from .agents import PATIENCE_S, Agent, until

pytestmark = pytest.mark.sockets


def port_of(agent: Agent) -> int:
    address = read_json(agent.state / "address.json")
    assert address is not None
    return int(urlsplit(address["url"]).port or 0)


def connect(agent: Agent, said: bytes = b"") -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port_of(agent)), PATIENCE_S)
    line.sendall(said)
    return line


@pytest.mark.processes
@pytest.mark.parametrize("said", [b"", b"GET /v1/node HTTP/1.1\r\nx-a: "], ids=["silent", "half a head"])
def test_many_connections_without_the_token_keep_nobody_from_asking(agent: Agent, said: bytes) -> None:
    opened = [connect(agent, said) for _ in range(server.MOST + 100)]
    assert agent.ask("GET", "/v1/node").status_code == 200
    assert agent.process is not None
    threads = Path(f"/proc/{agent.process.pid}/task")
    until(lambda: len([*threads.iterdir()]) <= server.MOST + server.CLOSING + 4)
    assert opened[0].recv(1) == b""
    for line in opened:
        line.close()


@pytest.mark.slow
def test_a_connection_that_shows_no_token_is_closed_in_time(agent: Agent) -> None:
    slow = connect(agent, b"GET /v1/node HTTP/1.1\r\nx-a: ")
    assert slow.recv(1) == b""  # after some seconds; and dripping would not have helped: it is a time for all
    slow.close()


def test_a_body_is_read_only_of_those_who_show_the_token(agent: Agent) -> None:
    line = connect(agent, b"PUT /v1/workers/a.1.0 HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n{")
    answer = line.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer
    line.close()


def sockets(count: int) -> list[socket.socket]:
    return [socket.socket() for _ in range(count)]


def test_the_oldest_without_the_token_makes_way_and_known_ones_never_do() -> None:
    table, opened = ConnectionLimit(most=3), sockets(8)
    assert all(table.admit(one) for one in opened[:3])
    table.trust(opened[0])
    assert table.admit(opened[3])
    table.trust(opened[2])
    table.trust(opened[1])  # too late
    assert table.admit(opened[4])
    table.forget(opened[1])
    table.trust(opened[4])
    assert not table.admit(opened[5])
    for one in opened:
        one.close()


def test_connections_leave_files_to_an_agent_for_its_workers() -> None:
    table, opened = ConnectionLimit(most=100), sockets(2)
    with files_left(open_files.RESERVE - 1):
        (newcomer,) = sockets(1)
        assert not table.admit(newcomer)
        assert open_files.can_open()
    for one in (*opened, newcomer):
        one.close()
