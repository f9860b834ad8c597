"""The terminal of an interactive job, with visitors that type much, read nothing, or come after another."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.agent.terminal import ANNOUNCED, FRAME, KEPT, KEY_BYTES, MOST_STRANGERS, REPLACED

pytestmark = pytest.mark.processes

Opened = tuple[subprocess.Popen[str], Callable[..., socket.socket]]
Open = Callable[[str], Opened]


@pytest.fixture
def terminal() -> Iterator[Open]:
    """Starts a terminal that runs a line of shell; the process, and what attaches a visitor to it."""
    with contextlib.ExitStack() as ending:

        def start(line: str) -> Opened:
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto.agent.terminal", "sh", "-c", line],
                stdout=subprocess.PIPE,
                text=True,
            )
            ending.enter_context(process)
            ending.callback(process.kill)
            assert process.stdout is not None
            address, key = process.stdout.readline().removeprefix(ANNOUNCED).split()

            def attach(shown: str = key) -> socket.socket:
                host, _, port = address.partition(":")
                visitor = ending.enter_context(socket.create_connection((host, int(port)), timeout=60))
                visitor.sendall(shown.encode())
                return visitor

            return process, attach

        yield start


def typed(content: bytes) -> bytes:
    pieces = [content[begin : begin + 4096] for begin in range(0, len(content), 4096)]
    return b"".join(FRAME.pack(b"d", len(piece)) + piece for piece in pieces)


def said_until(visitor: socket.socket, wanted: bytes) -> bytes:
    """All that is said until something is, or to the end."""
    said = b""
    while wanted not in said and (more := visitor.recv(1 << 14)):
        said += more
    return said


def to_the_end(visitor: socket.socket) -> bytes:
    return said_until(visitor, b"\0 never said")


def test_the_last_words_of_a_shell_arrive_though_more_was_typed_than_it_read(terminal: Open) -> None:
    shell, attach = terminal("stty raw -echo; echo ready; head -c 1 >/dev/null; echo bye; exit 3")
    visitor = attach()
    said_until(visitor, b"ready")
    visitor.setblocking(False)
    sent, ahead = 0, typed(b"x" * 50 * KEPT)
    with contextlib.suppress(BlockingIOError):
        while sent < len(ahead):
            sent += visitor.send(ahead[sent:])
    visitor.settimeout(60)
    assert b"bye" in to_the_end(visitor)
    assert shell.wait(60) == 3


def test_what_is_pasted_arrives_whole_while_as_much_is_shown(terminal: Open, tmp_path: Path) -> None:
    lines = b"".join(b"%06d %s\n" % (number, b"." * 60) for number in range(8_000))
    kept = tmp_path / "kept"
    shell, attach = terminal(f"stty raw -echo; echo ready; head -c {len(lines)} | tee {kept}")
    visitor = attach()
    said_until(visitor, b"ready")
    pasted, shown = typed(lines), b""
    visitor.setblocking(False)
    while len(shown) < len(lines):
        with contextlib.suppress(BlockingIOError):
            pasted = pasted[visitor.send(pasted) :] if pasted else b""
        with contextlib.suppress(BlockingIOError):
            shown += visitor.recv(1 << 14)
    assert shown.strip() == lines.strip()
    assert kept.read_bytes() == lines
    assert shell.wait(60) == 0


def test_a_visitor_who_reads_nothing_does_not_hold_the_shell(terminal: Open) -> None:
    shell, attach = terminal("read go; head -c 20000000 /dev/zero; exit 5")
    attach().sendall(typed(b"\n"))
    assert shell.wait(60) == 5


def test_the_newest_visitor_takes_the_place_of_the_one_before(terminal: Open) -> None:
    shell, attach = terminal("echo hello; read word; echo got-$word; exit 4")
    first = attach()
    said_until(first, b"hello")
    second = attach()
    assert to_the_end(first).endswith(REPLACED)
    said_until(second, b"hello")
    second.sendall(typed(b"this\n"))
    assert b"got-this" in to_the_end(second)
    assert shell.wait(60) == 4


@pytest.mark.parametrize("shown", ["", "0" * KEY_BYTES, "0" * 2 * KEY_BYTES])
def test_who_has_not_shown_the_key_does_not_disturb_who_has(terminal: Open, shown: str) -> None:
    shell, attach = terminal("echo hello; read word; echo got-$word; exit 4")
    user = attach()
    said_until(user, b"hello")
    strangers = [attach(shown) for _ in range(3)]
    user.sendall(typed(b"this\n"))
    told = to_the_end(user)
    assert b"got-this" in told
    assert REPLACED not in told
    assert [learns(stranger) for stranger in strangers] == [b""] * 3
    assert shell.wait(60) == 4


def learns(stranger: socket.socket) -> bytes:
    """What a connection is told before it is closed, which may be by a reset: its wrong key lies unread."""
    try:
        return stranger.recv(1)
    except ConnectionResetError:
        return b""


def test_strangers_who_hold_the_door_do_not_keep_the_user_out(terminal: Open) -> None:
    shell, attach = terminal("echo hello; read word; echo got-$word; exit 4")
    strangers = [attach("") for _ in range(2 * MOST_STRANGERS)]
    user = attach()
    said_until(user, b"hello")
    strangers.append(attach(""))
    user.sendall(typed(b"this\n"))
    assert b"got-this" in to_the_end(user)
    assert shell.wait(60) == 4


def test_children_that_keep_the_terminal_busy_do_not_keep_the_job(terminal: Open) -> None:
    shell, attach = terminal("trap '' HUP; echo ready; read _; (trap '' HUP; timeout 20 yes) & exit 6")
    attach().sendall(typed(b"\n"))
    assert shell.wait(15) == 6
