"""`stretto exec` and `stretto forward` from the command line, over every backend that reaches workers."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stretto.testing.services.fixture import ServiceFixture

PROGRAM = Path(sys.executable).with_name("stretto")  # as it is installed
PATIENCE_S = 180.0
WEB_SERVER = ("python", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0")


class ExecAndForward:
    """Commands and ports beside the workers of a service's jobs."""

    def test_a_command_beside_a_worker_ends_as_it_does_there_and_the_audit_has_it(
        self, service: ServiceFixture
    ) -> None:
        """A command beside a worker takes input, gives output and status, and the audit has both its ends."""
        job = service.submit("sleep", 600)
        service.until_works(job)
        line = 'cat; echo "$STRETTO_WORKER_ID"; echo wrong >&2; exit 5'
        with stretto(service, "exec", job, "--", "sh", "-c", line) as command:
            output, errors = command.communicate(b"\0typed\xff\n", timeout=PATIENCE_S)
        skip_unless_reached(errors)
        assert (command.returncode, errors) == (5, b"wrong\n")
        assert output == b"\0typed\xff\n" + f"{job}.1.0\n".encode()
        about = f"sh -c {line}"

        def noted() -> bool:
            with service.client() as client:
                audit = {(each.get("what"), str(each.get("about"))) for each in client.events()}
            begun = ("exec", f"job {job} rank 0: {about}")
            return {begun, ("exec ended", f"job {job} rank 0: status 5: {about}")} <= audit

        service.until(noted, "the audit has the command")

    def test_a_web_server_beside_a_worker_answers_at_a_port_of_this_machine(
        self, service: ServiceFixture
    ) -> None:
        """A web server beside a worker answers at a port of this machine."""
        job = service.submit("sleep", 600)
        service.until_works(job)
        program = (sys.executable, *WEB_SERVER[1:])
        with stretto(service, "exec", job, "--", *program) as server:
            assert server.stdout is not None
            if not (first_line := server.stdout.readline()):
                assert server.stderr is not None
                skip_unless_reached(errors := server.stderr.read())
                raise AssertionError(errors)
            port = first_line.split(b" port ")[1].split()[0].decode()
            with stretto(service, "forward", job, f":{port}") as carrier:
                assert carrier.stderr is not None
                address = carrier.stderr.readline().split()[0].decode()
                with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                    assert answer.status == 200
                    assert b"Directory listing" in answer.read()


@contextmanager
def stretto(service: ServiceFixture, verb: str, *words: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A command of the service's clients, which is ended."""
    command = [str(PROGRAM), verb, "--url", service.running.url, *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def skip_unless_reached(errors: bytes) -> None:
    """Skip where the service says that its backend reaches no workers."""
    if b"cannot be reached" in errors:
        pytest.skip(errors.decode().strip())
