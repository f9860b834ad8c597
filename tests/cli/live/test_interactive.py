"""A session on GPUs: submitted, attached to, left with its status."""

import os
import pty
import select
import socket
import subprocess
import sys

import pytest

from stretto.cli.attaching import where
from stretto.cli.submit import submission
from stretto.demo.own_service import OwnService, until

from ..ran import Stretto

pytestmark = pytest.mark.processes


def test_a_session_is_a_shell_that_one_types_into(verbs: Stretto, service: OwnService) -> None:
    typed = "echo $((6*7))-answers\necho gpus $CUDA_VISIBLE_DEVICES $STRETTO_JOB_NAME\nexit 7\n"
    ran = subprocess.run(
        [sys.executable, "-m", "stretto.cli.app", "submit", "--interactive", "--gpus", "2"],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "STRETTO_URL": service.url, "SHELL": "/bin/sh"},
        check=False,
    )
    assert ran.returncode == 7, ran.stderr
    assert "42-answers" in ran.stdout
    assert "shell" in ran.stdout


def shown_until(screen: int, wanted: bytes) -> None:
    """Read what a terminal shows until something is among it."""
    shown = b""
    while wanted not in shown:
        assert select.select([screen], [], [], 60.0)[0], f"expected {wanted!r}, got {shown!r}"
        shown += os.read(screen, 4096)


def test_a_window_that_is_closed_leaves_the_session_running(verbs: Stretto, service: OwnService) -> None:
    own, its = pty.openpty()
    command = [sys.executable, "-m", "stretto.cli.app", "submit", "--interactive"]
    env = {**os.environ, "STRETTO_URL": service.url, "SHELL": "/bin/sh"}
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=env, start_new_session=True
    ) as attached:
        try:
            os.close(its)
            os.write(own, b"echo $((6*7))-answers\n")  # ahead of the session
            shown_until(own, b"42-answers")
            os.close(own)
            attached.wait(60)
        finally:
            attached.kill()
    with service.client() as client:
        (session,) = client.jobs()
        assert session["kind"] == "interactive"


def test_a_session_without_a_terminal_says_so(verbs: Stretto, service: OwnService) -> None:
    job = verbs("submit", "--", "sh", "-c", "echo no terminal here; sleep 600").out.strip()
    with service.client() as client:
        until(lambda: client.describe(job)["attempt"] > 0)
        until(lambda: "".join(client.log(job)))
    ran = verbs("attach", job)
    assert (ran.status, ran.err.count("has no terminal")) == (2, 1)


def test_a_wrong_key_opens_no_terminal(verbs: Stretto, service: OwnService) -> None:
    with service.client() as client:
        job = client.submit(submission([], interactive=True, workdir="/"))["id"]
        address, key = where(client, job)
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as line:
            line.sendall(b"0" * len(key) + b"d\x00\x05exit\n")
            assert line.recv(100) == b""
        assert client.describe(job)["ended_s"] is None


def test_a_command_that_prints_an_address_hands_it_over(verbs: Stretto) -> None:
    ran = verbs(
        "submit", "-i", "--", "sh", "-c", "echo serving on http://127.0.0.1:9999/lab?token=x; sleep 600"
    )
    assert (ran.status, ran.out) == (0, "http://127.0.0.1:9999/lab?token=x\n")
