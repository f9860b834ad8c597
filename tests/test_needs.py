"""A test that needs more than its markers say fails, and says in one line which marker it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import NEEDS, complaint, missing, need_of

ROOT = Path(__file__).parents[1]
CONFTEST = """
import socket
import subprocess
import sys

import pytest

pytest_plugins = ["tests.needs"]


@pytest.fixture(scope="module")
def port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening.getsockname()[1]


@pytest.fixture(scope="session")
def server():
    subprocess.run([sys.executable, "-c", ""], check=True)
    yield
    subprocess.run([sys.executable, "-c", ""], check=True)
"""
TRIAL = """
import multiprocessing
import sqlite3
import subprocess
import sys
import threading

import pytest


def test_pure():
    assert threading.Thread(target=print).start() is None


def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.processes
def test_marked_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_spawned():
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()


def test_the_first_of_a_shared_fixture(port):
    assert port


def test_another_of_a_shared_fixture(port):
    assert port


@pytest.mark.processes
def test_what_speaks_with_processes_may_use_sockets(port):
    assert port


def test_database(tmp_path):
    sqlite3.connect(tmp_path / "log.db").close()


def test_package():
    import ray


def test_failing(tmp_path):
    sqlite3.connect(tmp_path / "log.db").close()
    assert "a" == "b"


@pytest.fixture
def leaves(tmp_path):
    yield
    sqlite3.connect(tmp_path / "log.db").close()


def test_teardown(leaves):
    pass


@pytest.mark.processes
def test_shared_server(server):
    pass


def test_the_last_one_clears_what_others_share():
    pass
"""
LINES = {
    "FAILED test_process": "it starts python",
    "FAILED test_spawned": "it starts python",
    "FAILED test_the_first_of_a_shared_fixture": "it calls socket.bind ('127.0.0.1', 0): mark it",
    "FAILED test_another_of_a_shared_fixture": "it calls socket.bind ('127.0.0.1', 0): mark it",
    "FAILED test_database": "it calls sqlite3.connect: mark it pytest.mark.sqlite",
    "FAILED test_package": "it imports ray: mark it pytest.mark.ray",
    "FAILED test_failing": "AssertionError",
    "ERROR test_teardown": "it calls sqlite3.connect: mark it pytest.mark.sqlite",
}


@pytest.mark.processes
def test_a_test_without_its_marker_fails_with_a_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_trial.py").write_text(TRIAL)
    (tmp_path / "ray.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = processes\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEp", "--tb=short", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "PYTEST_ADDOPTS": ""},
        check=False,
    )
    lines = [line.replace("test_trial.py::", "") for line in done.stdout.splitlines()]
    told = {line.split(" - ")[0]: line for line in lines if line.startswith(("FAILED", "ERROR"))}
    assert {*told} == {*LINES}, done.stdout
    assert [start for start, words in LINES.items() if words not in told[start]] == [], done.stdout
    failing = done.stdout.partition("_ test_failing _")[2].partition("short test summary")[0]
    assert "it calls sqlite3.connect" in failing
    passed = [line.removeprefix("PASSED ") for line in lines if line.startswith("PASSED")]
    assert passed == [
        "test_pure",
        "test_marked_process",
        "test_what_speaks_with_processes_may_use_sockets",
        "test_teardown",
        "test_shared_server",
        "test_the_last_one_clears_what_others_share",
    ]


@pytest.mark.parametrize(
    ("event", "arguments", "need"),
    [
        ("subprocess.Popen", ("/usr/sbin/slurmctld", ["slurmctld"], None, None), "slurm"),
        ("subprocess.Popen", ("/usr/lib/postgresql/15/bin/pg_ctl", ["pg_ctl"], None, None), "postgres"),
        ("subprocess.Popen", ("sleep", ["sleep", "1"], None, None), "processes"),
        ("os.fork", (), "processes"),
        ("socket.connect", (None, ("127.0.0.1", 80)), "sockets"),
        ("import", ("transformers.trainer", None, None, None, None), "torch"),
        ("import", ("torchlike", None, None, None, None), None),
        ("open", ("file", "r", 0), None),
    ],
)
def test_events_ask_for_markers(event: str, arguments: tuple[object, ...], need: str | None) -> None:
    found = need_of(event, arguments)
    assert (found and found[0]) == need


def test_a_marker_allows_what_comes_with_it() -> None:
    found = {"processes": "starts sleep", "sockets": "calls socket.bind", "sqlite": "calls sqlite3.connect"}
    assert {*missing(found, set())} == {"processes", "sockets", "sqlite"}
    assert {*missing(found, {"parametrize"})} == {"processes", "sockets", "sqlite"}
    assert missing(found, {"sqlite"}) == missing(found, {"ray"}) == missing(found, {"torch"}) == {}
    assert {*missing({"slurm": "starts slurmd", "postgres": "starts pg_ctl"}, {"processes", "slurm"})} == {
        "postgres"
    }
    assert all(marker in allowed <= {*NEEDS} for marker, allowed in NEEDS.items())


def test_imports_count_for_pure_tests_alone_since_only_the_first_one_is_seen() -> None:
    imported = {"ray": "imports ray"}
    assert missing(imported, set()) == imported
    assert missing(imported, {"processes"}) == {}


def test_all_that_is_lacking_is_told_in_one_line() -> None:
    assert complaint({"sockets": "calls socket.bind", "sqlite": "calls sqlite3.connect"}) == (
        "needs more than its markers say: it calls socket.bind: mark it pytest.mark.sockets; "
        "calls sqlite3.connect: mark it pytest.mark.sqlite"
    )
