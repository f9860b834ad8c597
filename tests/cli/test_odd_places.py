"""Commands whose output, folder or input is not what it usually is: one line, and never a traceback."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from .ran import CLUSTER, Stretto

pytestmark = pytest.mark.processes

STRETTO = f"{sys.executable} -m stretto.cli.entry"


def shell(line: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A line of bash in a process of its own."""
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def is_one_line(text: str) -> bool:
    return text.startswith("stretto: ") and text.count("\n") == 1


@pytest.mark.processes
def test_a_closed_standard_output_is_one_line() -> None:
    done = shell(f"{STRETTO} policies >&-")
    assert is_one_line(done.stderr), done.stderr
    assert "standard output" in done.stderr
    assert done.returncode == 1


@pytest.mark.processes
def test_a_closed_standard_error_is_no_reason_to_fail() -> None:
    done = shell(f"{STRETTO} version 2>&-")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert shell(f"{STRETTO} simulate 2>&-").returncode == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    "command", ["policies", "version", "simulate -c tiny.yaml -t four.csv -p fifo --json", "--help"]
)
def test_a_full_device_is_one_line(command: str, tiny: Path) -> None:
    done = shell(f"{STRETTO} {command} >/dev/full", tiny)
    assert is_one_line(done.stderr), done.stderr
    assert "No space left on device" in done.stderr
    assert done.returncode == 1


@pytest.mark.processes
@pytest.mark.parametrize("name", ["run.json", "decisions.jsonl"])
def test_a_run_written_to_a_full_disk_is_one_line(name: str, tiny: Path) -> None:
    (tiny / "out").mkdir()
    (tiny / "out" / name).symlink_to("/dev/full")
    done = shell(f"{STRETTO} simulate -c tiny.yaml -t four.csv -p fifo --out out", tiny)
    assert done.stderr == "stretto: --out out: cannot be written: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.processes
def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"cd gone && rmdir ../gone && {STRETTO} submit -- true", tmp_path)
    assert is_one_line(done.stderr), done.stderr
    assert "working directory" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "-c", "tiny.yaml", "-p", "fifo", "-t"),
        ("simulate", "-t", "four.csv", "-p", "fifo", "-c"),
        ("compare", "-t", "four.csv", "--policies", "fifo", "--out", "out", "-c"),
        ("simulate", "-c", "tiny.yaml", "-t", "four.csv", "-p", "fifo", "--profiles"),
        ("simulate", "-p", "fifo", "--from-log"),
        ("submit",),
        ("submit", "--workdir"),
        ("simulate", "-c", "tiny.yaml", "-t", "four.csv", "-p"),
        ("traces", "convert"),
        ("serve", "--state"),
        ("serve", "--config"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_file_can_have_is_one_line(
    words: tuple[str, ...], stretto: Stretto, tiny: Path
) -> None:
    ran = stretto(*words, "n" * 5_000)
    assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
    assert len(ran.err) < 7_000


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000], ids=["lists", "maps", "items"]
)
def test_a_cluster_file_of_many_levels_is_one_line(text: str, stretto: Stretto, tiny: Path) -> None:
    (tiny / "deep.yaml").write_text(text)
    ran = stretto("simulate", "-c", "deep.yaml", "-t", "four.csv", "-p", "fifo")
    assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err[:500]
    assert "deep.yaml" in ran.err


@pytest.mark.slow  # it is given half a minute to be written
def test_a_job_file_that_nobody_writes_does_not_hang(stretto: Stretto, tiny: Path) -> None:
    os.mkfifo(tiny / "job.yaml")
    ran = stretto("submit", "job.yaml", "--url", "http://127.0.0.1:9")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "job.yaml" in ran.err


def test_a_job_file_may_come_through_a_pipe(tiny: Path) -> None:
    with answering(b'{"detail": "read it"}', "application/json", 422) as url:
        done = shell(f"{STRETTO} submit <(sleep 0.3; echo 'run: true') --url {url}", tiny)
    assert done.stderr == "stretto: read it\n"


@contextlib.contextmanager
def answering(body: bytes, kind: str, status: int = 200) -> Iterator[str]:
    """A server that gives the same answer to everything."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Not beside what is tested."""

    server = HTTPServer(("127.0.0.1", 0), Same)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


COMMANDS = (
    "list {}",
    "list --json {}",
    "describe 1 {}",
    "explain 1 {}",
    "nodes list {}",
    "queues list {}",
    "usage {}",
    "token list {}",
    "reserve list {}",
    "cancel 1 {}",
    "whatif {}",
    "submit {} -- true",
    "submit --dry-run {} -- true",
    "events {}",
    "logs 1 {}",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html>hello</html>", "text/html"), (b"[]", "application/json"), (b"{}", "application/json")],
    ids=["html", "list", "empty"],
)
def test_a_server_that_is_no_service_is_one_line(
    command: str, body: bytes, kind: str, stretto: Stretto, tiny: Path
) -> None:
    with answering(body, kind) as url:
        ran = stretto(*command.format(f"--url {url}").split())
    assert (ran.status, ran.err.count("\n")) == (69, 1), ran.err
    assert url in ran.err


SLOW = """\
import os, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words"),
    [
        pytest.param("typer", ["policies"], id="of the command line"),
        pytest.param("uvicorn", ["serve", "--state", "state", "--slots", "1"], id="of a command"),
    ],
)
def test_ctrl_c_while_modules_load_is_one_line(module: str, words: list[str], tmp_path: Path) -> None:
    program = f"{SLOW.replace('typer', module)}\nfrom stretto.cli.entry import main\nmain()"
    running = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "importing\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "stretto: interrupted\n")


def test_the_installed_command_begins_where_interrupts_are_heard() -> None:
    found = Path(sys.executable).with_name("stretto")
    assert "stretto.cli.entry" in found.read_text(encoding="utf-8")


def test_a_cluster_file_that_is_well_still_is(stretto: Stretto, tiny: Path) -> None:
    (tiny / "again.yaml").write_text(CLUSTER)
    assert stretto("simulate", "-c", "again.yaml", "-t", "four.csv", "-p", "fifo").status == 0
