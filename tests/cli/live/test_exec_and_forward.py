"""`stretto exec`, `attach` and `forward`, with real workers, a real terminal, and only the service's port."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from stretto.demo.own_service import OwnService

from ..on_terminal import PATIENCE_S, OnTerminal
from ..ran import Stretto
from .conftest import reaches

pytestmark = [pytest.mark.processes, pytest.mark.large]

STRETTO = (sys.executable, "-m", "stretto.cli.app")


@pytest.fixture
def job(verbs: Stretto, service: OwnService) -> str:
    """A job that runs until it is cancelled."""
    with service.client() as client:
        found: str = client.submit("name: long\nrun: exec sleep 3600\nenvs: {GREETING: hello}")["id"]
        reaches(client, found, "RUNNING")
    return found


def run(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*STRETTO, *words], input=given, capture_output=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., OnTerminal]]:
    begun: list[OnTerminal] = []

    def begin(*words: str) -> OnTerminal:
        begun.append(OnTerminal(*STRETTO, *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def test_a_command_has_the_environment_of_its_worker_and_its_status_becomes_ours(job: str) -> None:
    line = 'cat; echo "$GREETING $STRETTO_WORKER_ID"; echo wrong >&2; exit 5'
    ran = run("exec", job, "--", "sh", "-c", line, given=b"\0typed\xff\n")
    assert ran.returncode == 5, ran.stderr
    assert ran.stdout == b"\0typed\xff\n" + f"hello {job}.1.0\n".encode()
    assert ran.stderr == b"wrong\n"


def test_ten_megabytes_arrive_whole_both_ways(job: str) -> None:
    given = os.urandom(10_000_000)
    ran = run("exec", job, "--", "cat", given=given)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == given


def test_a_terminal_has_our_size_follows_it_and_takes_interrupts(
    job: str, on_terminal: Callable[..., OnTerminal]
) -> None:
    lines = "echo first $(stty size); trap 'exit 9' INT; while read line; do echo now $(stty size); done"
    shell = on_terminal("exec", job, "--", "sh", "-c", lines)
    shell.until(b"first ")
    shell.resize(31, 97)
    shell.until_it_says(b"now 31 97")
    shell.type(b"\x03")
    assert shell.status() == 9


def test_a_terminal_that_was_left_goes_on_and_comes_back_with_what_is_kept(
    job: str, on_terminal: Callable[..., OnTerminal]
) -> None:
    shell = on_terminal("exec", job, "--", "sh")
    shell.type(b"word=kept; echo one-''two\r")
    shell.until(b"one-two")
    shell.type(b"\x1d")
    assert shell.status() == 0
    assert b"comes back" in shell.shown
    again = on_terminal("attach", job)
    again.until(b"bytes of its output are kept")
    again.until(b"one-two")
    again.type(b"echo it-is-''$word\r")
    again.until(b"it-is-kept")
    os.kill(again.pid, signal.SIGKILL)  # as a line that is lost
    os.waitpid(again.pid, 0)
    third = on_terminal("attach", job)
    third.until(b"it-is-kept")
    third.type(b"exit 4\r")
    assert third.status() == 4


def test_ports_of_a_worker_are_carried_to_this_machine(job: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as of_worker:
        port = of_worker.getsockname()[1]
        carrier = subprocess.Popen([*STRETTO, "forward", job, f"0:{port}"], stderr=subprocess.PIPE, text=True)
        try:
            assert carrier.stderr is not None
            address = carrier.stderr.readline().split()[0]
            local = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", local), timeout=PATIENCE_S) as ours:
                of_worker.settimeout(PATIENCE_S)
                theirs, _ = of_worker.accept()
                with theirs:
                    theirs.settimeout(PATIENCE_S)
                    ours.sendall(b"asked")
                    ours.shutdown(socket.SHUT_WR)
                    assert b"".join(iter(lambda: theirs.recv(100), b"")) == b"asked"
                    theirs.sendall(b"\0answered" * 100_000)
                answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
                assert answer == b"\0answered" * 100_000
        finally:
            carrier.kill()
            carrier.communicate()


def test_the_audit_names_the_command_and_how_it_ended(job: str, service: OwnService) -> None:
    assert run("exec", job, "--", "sh", "-c", "exit 3").returncode == 3
    with service.client() as client:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            said = [
                (each["what"], each["about"])
                for each in client.events()
                if str(each.get("what", "")).startswith("exec") and f"job {job} " in each["about"]
            ]
            if len(said) == 2:
                break
            time.sleep(0.05)
    assert said == [
        ("exec", f"job {job} rank 0: sh -c exit 3"),
        ("exec ended", f"job {job} rank 0: status 3: sh -c exit 3"),
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("exec", "987654", "--", "ls"), "stretto: no job '987654'"),
        (("exec", "{job}", "--rank", "7", "--", "ls"), "stretto: job {job} has no rank 7: it has 0"),
        (("attach", "{job}"), "stretto: job {job} has no terminal of yours to come back to"),
        (("forward", "{job}", "web"), "stretto: port web: expected PORT or LOCAL:PORT, of 1 to 65535"),
        (("forward", "{job}", "70000"), "stretto: port 70000: expected PORT or LOCAL:PORT, of 1 to 65535"),
    ],
)
def test_what_cannot_be_reached_is_one_line(job: str, words: tuple[str, ...], line: str) -> None:
    ran = run(*(word.format(job=job) for word in words))
    assert (ran.returncode, ran.stderr.decode().strip()) == (2, line.format(job=job))


def test_a_job_that_has_ended_is_not_reached(verbs: Stretto, service: OwnService) -> None:
    with service.client() as client:
        ended = client.wait(client.submit("name: short\nrun: 'true'")["id"])["id"]
    ran = run("exec", ended, "--", "ls")
    assert (ran.returncode, ran.stderr.decode().strip()) == (2, f"stretto: job {ended} does not run")


def test_a_command_that_is_not_there_says_so(job: str) -> None:
    ran = run("exec", job, "--", "no-such-program")
    assert (ran.returncode, ran.stderr) == (127, b"no-such-program: No such file or directory\n")


def test_a_command_ends_with_its_worker(job: str, service: OwnService) -> None:
    asked = [*STRETTO, "exec", job, "--", "sh", "-c", "echo begun; exec sleep 3600"]
    with subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == b"begun\n"
        with service.client() as client:
            client.change(job, "cancel")
        _, errors = ran.communicate(timeout=PATIENCE_S)
        assert ran.returncode == 128 + signal.SIGHUP
        assert errors == b"stretto: its worker has ended\n"
