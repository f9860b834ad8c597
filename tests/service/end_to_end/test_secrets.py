"""A real service, a real training and a secret: the training gets it, and it is found nowhere else."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stretto.client import Client
from stretto.demo.own_service import until
from stretto.model import InputError
from stretto.service.sealed_secrets import SECRET_KEY

from ..eventlog.servers import PostgreSQL
from ..running import PROGRAM, Running

pytestmark = [pytest.mark.processes, pytest.mark.sockets]

VALUE = "hf_Zq7WmT3kXv9RbN2s-only-here"
OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo", "--log-level", "debug")
# The script shows that it has the value without saying it: its letters in reverse.
JOB = """
name: reader
run: |
  printf %s "$HF_TOKEN" | rev
  while [ ! -e {enough} ]; do sleep 0.1; done
secrets: {{HF_TOKEN: hub}}
"""


def story(folder: Path, store: str = "") -> None:
    """Set it, run a job with it, and look for it everywhere while the job runs and after it has ended."""
    service = Running(folder, *OPTIONS, store=store)
    enough = folder / "enough"
    try:
        service.begin()
        said = [stretto(service, "secret", "set", "hub", value=f"{VALUE}\n")]
        with service.client() as client:
            job = client.submit(JOB.format(enough=enough))["id"]
            until(lambda: client.describe(job)["state"] == "RUNNING", what="it runs")
            until(lambda: VALUE[::-1] in "".join(client.log(job)), what="the training has it")
            assert "".join(client.log(job)) == VALUE[::-1]
            said += [stretto(service, *words) for words in (("secret", "list"), ("describe", job))]
            assert service.processes(), "the training runs"
            assert command_lines_with(VALUE) == []
            assert answers_with(VALUE, client, job) == []
            enough.touch()
            assert client.wait(job)["state"] == "COMPLETED"
            client.delete_secret("hub")
            with pytest.raises(InputError, match="secrets: expected one of yours, got 'hub'"):
                client.submit(JOB.format(enough=enough))
        assert VALUE not in "".join(said)
        assert files_with(VALUE, folder) == []
        assert list(service.log_of_all()), "the log was read"
        assert VALUE not in str(list(service.log_of_all()))
        assert service.differences()[1] == 0
    finally:
        service.end()


def stretto(service: Running, *words: str, value: str = "") -> str:
    """What a command prints."""
    env = {**os.environ, "STRETTO_URL": service.url, "STRETTO_TOKEN": ""}
    command = [sys.executable, *PROGRAM, *words]
    done = subprocess.run(
        command, input=value, capture_output=True, text=True, timeout=300, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def answers_with(text: str, client: Client, job: str) -> list[str]:
    """Routes that answer with it, of all that can be read."""
    document: dict[str, Any] = client.ask("GET", "/api/v1/openapi.json")
    reading = [path for path, operations in document["paths"].items() if "get" in operations]
    assert {"/api/v1/jobs/{job}", "/api/v1/secrets", "/api/v1/events", "/api/v1/overview"} <= set(reading)
    # Streams that never end by themselves, and the channel of workers, whose answers have no such thing.
    left_out = ("/follow", "/api/v1/worker/", "/login", "/again")
    found, asked = [], 0
    for path in reading:
        if any(part in path for part in left_out):
            continue
        filled = path.replace("{job}", job).replace("{name}", "hub")
        asked += 1
        with client.http.stream("GET", filled, params={"wait_s": 0, "follow": "false"}) as answer:
            text_read = "".join(some for some, _ in zip(answer.iter_text(), range(50), strict=False))
        if text in text_read:
            found.append(path)
    assert asked > 20
    return found


def command_lines_with(text: str) -> list[str]:
    """Processes that show it to everybody on this machine."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in line.read_bytes():
                found.append(line.parent.name)
    return found


def files_with(text: str, folder: Path) -> list[str]:
    """Files that have it: of the state directory, its log, its agent and its runs."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any(file.name == "start.json" for file in files), "runs of the agent are looked at"
    assert any(file.name == SECRET_KEY for file in files), "and where its key is"
    return [str(file.relative_to(folder)) for file in files if text.encode() in file.read_bytes()]


@pytest.mark.slow
def test_a_secret_reaches_the_training_and_is_found_nowhere_else(tmp_path: Path) -> None:
    story(tmp_path)
    with closing(sqlite3.connect(tmp_path / "state" / "stretto.db")) as database:
        dump = "\n".join(database.iterdump())
    assert VALUE not in dump
    assert "stretto_secrets" in dump


@pytest.mark.postgres
def test_a_secret_is_sealed_in_postgresql(tmp_path: Path, server: PostgreSQL) -> None:
    story(tmp_path, server.url)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "here", *OPTIONS)
    running.begin()
    try:
        yield running
    finally:
        running.end()


@pytest.mark.slow
def test_sealed_values_travel_in_a_backup_and_open_once_the_key_is_put_beside_them(
    service: Running, tmp_path: Path
) -> None:
    with service.client() as client:
        client.set_secret("hub", VALUE)
    archive, there = tmp_path / "backup.tar", tmp_path / "there"
    stretto(service, "backup", str(archive), "--state", str(service.state))
    key = (service.state / SECRET_KEY).read_bytes()
    assert VALUE.encode() not in archive.read_bytes()
    assert key not in archive.read_bytes()
    stretto(service, "restore", str(archive), "--state", str(there / "state"))
    assert not (there / "state" / SECRET_KEY).exists()
    other = Running(there, *OPTIONS)
    try:
        other.begin()
        assert "1 of 1 secrets cannot be opened: " in other.log.read_text()
        with other.client() as client:
            job = client.submit("{run: 'printf %s $HF_TOKEN | rev', secrets: {HF_TOKEN: hub}}")["id"]

            def waits_for_key() -> bool:
                shown = client.describe(job)
                return shown["state"] == "STARTING" and "the key of secrets" in shown["evidence"]

            until(waits_for_key, what="the job says what it waits for")
        other.kill()
        (there / "state" / SECRET_KEY).write_bytes(key)
        other.begin()
        with other.client() as client:
            assert client.wait(job)["state"] == "COMPLETED"
            assert "".join(client.log(job)) == VALUE[::-1]
    finally:
        other.end()
